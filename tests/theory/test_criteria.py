"""joo2023's criteria, their derivatives, the bound between them, and what scaling a layer does to each."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_nets import (
    field,
    first_class,
    inside,
    numbers,
    quadratic,
    relative_errors,
    units,
)
from nets import batch, net
from scipy.spatial.distance import cosine as scipy_cosine
from torch import nn

from gyrograd.errors import UserError
from gyrograd.models import build
from gyrograd.numerics import random
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.quantities import quantity_of
from gyrograd.theory import criteria as c

SEEDS = st.integers(0, 10_000)


def literal_gradient(model, x, label, quantity="logit"):
    """The gradient of one example's explained number, as numpy."""
    one = lambda z: quantity_of(model(z[None]), label[None], quantity)[0]  # noqa: E731
    return torch.autograd.functional.jacobian(one, x).numpy().ravel()


@pytest.mark.parametrize("structure", ["mlp", "residual"])
@pytest.mark.parametrize("quantity", ["logit", "loss"])
def test_criteria_are_the_printed_formulas_example_by_example(structure, quantity):
    model, (x, target) = net(structure), batch(3)
    delta = 0.1 * numbers(5, *x.shape)
    l2 = c.l2_criterion(model, x, target, delta, quantity=quantity)
    squared = c.l2_criterion(model, x, target, delta, quantity=quantity, squared=True)
    cosine = c.cosine_criterion(model, x, target, delta, quantity=quantity)
    for i in range(len(x)):
        before = literal_gradient(model, x[i], target[i], quantity)
        after = literal_gradient(model, x[i] + delta[i], target[i], quantity)
        assert l2[i].item() == pytest.approx(np.linalg.norm(after - before), rel=1e-9)
        assert squared[i].item() == pytest.approx(((after - before) ** 2).sum(), rel=1e-9)
        assert cosine[i].item() == pytest.approx(scipy_cosine(after, before) / 2, rel=1e-7)


@pytest.mark.parametrize("draws", [1, 3])
def test_expectations_are_means_over_the_uniform_box(draws):
    model, (x, target) = net("mlp"), batch(3)
    eps = 8 / 255
    unit = random.uniform(random.keys(7, 3), (draws, *x.shape[1:]), dtype=x.dtype)
    deltas = [eps * (2 * unit[:, n] - 1) for n in range(draws)]
    assert max(float(delta.abs().max()) for delta in deltas) <= eps
    for expected, criterion in (
        (c.expected_l2_criterion, c.l2_criterion),
        (c.expected_cosine_criterion, c.cosine_criterion),
    ):
        literal = sum(criterion(model, x, target, delta) for delta in deltas) / draws
        assert torch.allclose(expected(model, x, target, eps=eps, draws=draws, seed=7), literal, rtol=1e-10)
    squared = sum(c.l2_criterion(model, x, target, delta, squared=True) for delta in deltas) / draws
    found = c.expected_l2_criterion(model, x, target, eps=eps, draws=draws, seed=7, squared=True)
    assert torch.allclose(found, squared, rtol=1e-10)


def test_draws_fill_the_box_evenly():
    x = torch.zeros(2, 3, 50, 50, dtype=torch.float64)
    deltas = c.uniform_deltas(x, 0.1, 4, seed=0)
    assert abs(float(deltas.mean())) < 5 * 0.1 / np.sqrt(3 * deltas.numel())
    assert float(deltas.std()) == pytest.approx(0.1 / np.sqrt(3), rel=0.02)
    assert -0.1 <= float(deltas.min()) < -0.0999
    assert 0.0999 < float(deltas.max()) <= 0.1


def test_expectations_do_not_depend_on_the_batch():
    model, (x, target) = net("residual"), batch(4)
    keys = random.keys(3, 4)
    whole = c.expected_cosine_criterion(model, x, target, eps=0.1, draws=2, seed=3)
    parts = [
        c.expected_cosine_criterion(
            model, x[i : i + 1], target[i : i + 1], eps=0.1, draws=2, seed=keys[i : i + 1]
        )
        for i in range(4)
    ]
    assert torch.allclose(whole, torch.cat(parts), rtol=1e-9)


CRITERIA = {
    "l2": lambda model, x, y, **how: c.l2_criterion(model, x, y, DELTA, **how),
    "squared l2": lambda model, x, y, **how: c.l2_criterion(model, x, y, DELTA, squared=True, **how),
    "cosine": lambda model, x, y, **how: c.cosine_criterion(model, x, y, DELTA, **how),
    "expected l2": lambda model, x, y, **how: c.expected_l2_criterion(model, x, y, eps=0.1, draws=2, **how),
    "expected cosine": lambda model, x, y, **how: c.expected_cosine_criterion(
        model, x, y, eps=0.1, draws=2, **how
    ),
}
DELTA = 0.1 * numbers(9, 2, 3, 12, 12)


@pytest.mark.parametrize(
    ("structure", "name"), [*(("residual", name) for name in CRITERIA), ("mlp", "l2"), ("mlp", "cosine")]
)
def test_derivatives_to_x_and_every_weight_match_finite_differences(structure, name):
    model, (x, target) = net(structure), batch(2, seed=3)
    x = x.clone().requires_grad_()
    value = lambda: CRITERIA[name](model, x, target, create_graph=True)  # noqa: E731
    errors = relative_errors(value, {"x": x, **dict(model.named_parameters())})
    assert max(errors.values()) < 1e-5, errors


@pytest.mark.parametrize("name", CRITERIA)
def test_a_detached_clean_gradient_lets_only_the_moved_one_learn(name):
    model, (x, target) = net("mlp"), batch(2, seed=3)
    weights = list(model.parameters())
    live = input_gradient(lambda z: quantity_of(model(z), target), x, create_graph=True)
    frozen = live.detach()
    constant = CRITERIA[name](model, x, target, clean=frozen, create_graph=True)
    detached = CRITERIA[name](model, x, target, detach_clean=True, create_graph=True)
    handed = CRITERIA[name](model, x, target, clean=live, detach_clean=True, create_graph=True)
    whole = CRITERIA[name](model, x, target, create_graph=True)
    grads = [
        torch.cat(
            [
                torch.zeros_like(w).ravel() if g is None else g.ravel()
                for w, g in zip(
                    weights, torch.autograd.grad(v.sum(), weights, allow_unused=True), strict=True
                )
            ]
        )
        for v in (constant, detached, handed, whole)
    ]
    assert torch.allclose(detached, whole, rtol=1e-10)
    assert torch.allclose(grads[0], grads[1], rtol=1e-10, atol=1e-12)
    assert torch.allclose(grads[0], grads[2], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(grads[0], grads[3], rtol=1e-2)


def test_a_clean_gradient_at_hand_is_used_and_stays_in_the_graph():
    model, (x, target) = net("mlp"), batch(2)
    clean = input_gradient(lambda z: quantity_of(model(z), target), x, create_graph=True)
    shared = c.l2_criterion(model, x, target, DELTA, clean=clean, create_graph=True)
    alone = c.l2_criterion(model, x, target, DELTA, create_graph=True)
    weight = next(model.parameters())
    first, second = (torch.autograd.grad(v.sum(), weight)[0] for v in (shared, alone))
    assert torch.allclose(first, second, rtol=1e-10)
    assert torch.allclose(c.l2_criterion(model, x, target, DELTA, clean=clean + 1), alone) is False


def test_criteria_leave_mode_grad_and_gradients_as_found():
    model, (x, target) = net("residual").train(), batch(2)
    c.l2_criterion(model, x, target, DELTA)
    assert all(part.training for part in model.modules())
    assert all(weight.grad is None for weight in model.parameters())
    with torch.no_grad():
        assert not c.cosine_criterion(model.eval(), x, target, DELTA).requires_grad


def test_zero_gradients_have_defined_criteria():
    flat, x = nn.Linear(4, 1).double(), torch.ones(1, 4, dtype=torch.float64)
    nn.init.zeros_(flat.weight)
    delta, target = torch.ones_like(x), first_class(x)
    assert c.l2_criterion(flat, x, target, delta).item() == 0
    assert c.cosine_criterion(flat, x, target, delta).item() == 0
    bowl = lambda z: z.square().sum(1)  # noqa: E731
    assert c.cosine_criterion(bowl, torch.zeros_like(x), None, delta).item() == pytest.approx(0.5)
    assert c.frobenius_bound(flat, x, target, delta).item() == torch.inf


# Theorem 6 and Figure 3b


@given(seed=SEEDS, d=st.integers(1, 6), size=st.floats(1e-3, 5), flat=st.booleans())
def test_theorem_6_and_its_tighter_forms_hold_for_every_quadratic_at_any_eps(seed, d, size, flat):
    known, x = quadratic(seed, d, flat=flat), inside(seed + 3, 3, d, 2.0)
    delta = size * numbers(seed + 4, 3, d)
    measured = c.cosine_criterion(known.model, x, first_class(x), delta)
    loose, product, squared = (
        bound(known.model, x, first_class(x), delta)
        for bound in (c.frobenius_bound, c.product_bound, c.squared_bound)
    )
    assert (measured <= squared * (1 + 1e-9) + 1e-12).all()
    assert (measured <= product * (1 + 1e-9) + 1e-12).all()
    assert (product <= loose * (1 + 1e-9)).all()
    assert (squared <= product * (1 + 1e-9))[product < 1].all()


@given(seed=SEEDS, d=st.integers(1, 5), width=st.integers(1, 6), size=st.floats(1e-3, 3))
def test_theorem_6_holds_for_softplus_nets_with_the_remainder_written_out(seed, d, width, size):
    known, x = units(seed, d, width), inside(seed + 3, 3, d, 2.0)
    delta = size * numbers(seed + 4, 3, d)
    measured = c.cosine_criterion(known.model, x, first_class(x), delta)
    for bound in (c.frobenius_bound, c.product_bound, c.squared_bound):
        limit = bound(known.model, x, first_class(x), delta, hessian_lipschitz=known.hessian_lipschitz)
        assert (measured <= limit * (1 + 1e-9) + 1e-12).all(), bound.__name__


def test_the_bounds_are_their_printed_formulas():
    known = units(3, 4, 5)
    x, delta = inside(1, 2, 4, 2.0), 0.3 * numbers(2, 2, 4)
    one = lambda z: known.model(z[None])[0, 0]  # noqa: E731
    for i in range(2):
        h = torch.autograd.functional.hessian(one, x[i]).detach().numpy()
        after, before = (torch.autograd.functional.jacobian(one, z).numpy() for z in (x[i] + delta[i], x[i]))
        r = delta[i].numpy()
        rest = 0.7 * (r @ r) / 2
        want = {
            c.frobenius_bound: (np.linalg.norm(r) * np.linalg.norm(h) + rest) / np.linalg.norm(after),
            c.product_bound: (np.linalg.norm(h @ r) + rest) / np.linalg.norm(after),
            c.squared_bound: (
                (np.linalg.norm(h @ r) + rest) / (np.linalg.norm(after) + np.linalg.norm(before))
            )
            ** 2,
        }
        for bound, value in want.items():
            found = bound(known.model, x, first_class(x), delta, hessian_lipschitz=0.7)[i].item()
            assert found == pytest.approx(value, rel=1e-9)


def test_a_frobenius_norm_at_hand_is_used():
    known, x = units(3, 4, 5), inside(1, 2, 4, 2.0)
    delta, norm = 0.3 * numbers(2, 2, 4), torch.tensor([2.0, 3.0], dtype=torch.float64)
    found = c.frobenius_bound(known.model, x, first_class(x), delta, frobenius=norm)
    after = input_gradient(field(known.model), x + delta).norm(dim=1)
    assert torch.allclose(found, delta.norm(dim=1) * norm / after)


def test_counterexample_theorem_6_without_its_remainder_is_no_bound():
    """Figure 3b's curve can lie below the criterion: x^3 + y has no Hessian at 0 and a turning gradient."""
    bend = lambda z: z[:, 0] ** 3 + z[:, 1]  # noqa: E731
    x, delta = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    measured = c.cosine_criterion(bend, x, None, delta).item()
    assert measured > 0.05
    for bound in (c.frobenius_bound, c.product_bound, c.squared_bound):
        assert bound(bend, x, None, delta).item() == 0
        assert measured <= bound(bend, x, None, delta, hessian_lipschitz=6.0).item()


# Lemma 3, Proposition 5, Definition 2


@settings(max_examples=10)
@given(seed=SEEDS, alpha=st.floats(0.01, 50))
def test_scaling_the_last_layer_scales_l2_and_leaves_cosine_and_its_bounds(seed, alpha):
    model, (x, target) = net("mlp", seed % 7), batch(2, seed)
    scaled, delta = c.scaled_last_layer(model, alpha), 0.05 * numbers(seed, *x.shape)
    assert torch.allclose(scaled(x), alpha * model(x), rtol=1e-9)
    first, second = (c.l2_criterion(one, x, target, delta) for one in (model, scaled))
    assert torch.allclose(second, alpha * first, rtol=1e-9)
    for invariant in (c.cosine_criterion, c.product_bound, c.squared_bound):
        one, other = (invariant(m, x, target, delta) for m in (model, scaled))
        assert torch.allclose(one, other, rtol=1e-8), invariant.__name__


def test_theorem_6_is_left_as_it_is_by_scaling():
    known, x = units(3, 4, 5), inside(1, 2, 4, 2.0)
    double = copy.deepcopy(known.model)
    with torch.no_grad():
        double.a.mul_(2)
    one, other = (c.frobenius_bound(m, x, first_class(x), 0 * x + 0.3) for m in (known.model, double))
    assert torch.allclose(one, other, rtol=1e-10)


@given(seed=SEEDS)
def test_cosine_is_invariant_to_any_change_of_length_and_l2_is_not(seed):
    """Definition 1 lets the length change with x: exp(g) has the directions of g everywhere."""
    known, x = units(seed, 3, 4), inside(seed, 2, 3, 1.0)
    g, delta = field(known.model), 0.3 * numbers(seed + 9, 2, 3)
    grown = lambda z: g(z).exp()  # noqa: E731
    one, other = (c.cosine_criterion(f, x, None, delta) for f in (g, grown))
    assert torch.allclose(one, other, rtol=1e-6, atol=1e-12)
    first, second = (c.l2_criterion(f, x, None, delta) for f in (g, grown))
    assert not torch.allclose(first, second, rtol=1e-3)


def test_a_scaled_model_is_a_copy():
    model = net("lenet")
    before = copy.deepcopy(model.state_dict())
    scaled = c.scaled_last_layer(model, 3.0)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    changed = [key for key, value in scaled.state_dict().items() if not torch.equal(before[key], value)]
    assert changed == ["13.weight", "13.bias"]


@given(seed=st.integers(0, 50), alpha=st.floats(0.1, 10))
def test_a_relu_net_without_biases_is_homogeneous_in_every_layer(seed, alpha):
    model = nn.Sequential(
        nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 2, bias=False)
    ).double()  # fmt: skip
    for i, weight in enumerate(model.parameters()):
        weight.data = numbers(seed + i, *weight.shape)
    x = numbers(seed + 9, 4, 3)
    for layer in ("0", "2", "4"):
        assert torch.allclose(c.scaled_layer(model, layer, alpha)(x), alpha * model(x), rtol=1e-9)


def test_counterexample_a_relu_net_with_biases_is_homogeneous_in_its_last_layer_only():
    """joo2023 says "with respect to any parameters"; a later bias is not scaled along."""
    model = build("mlp", in_features=3, hidden=(5,), num_classes=2).double()
    x = numbers(0, 4, 3)
    assert torch.allclose(c.scaled_layer(model, "2", 3.0)(x), 3 * model(x), rtol=1e-9)
    assert not torch.allclose(c.scaled_layer(model, "0", 3.0)(x), 3 * model(x), rtol=1e-2)


# Mistakes


def test_mistakes_get_a_sentence():
    model, (x, target) = net("mlp"), batch(2)
    with pytest.raises(UserError, match="give delta the shape of x"):
        c.l2_criterion(model, x, target, x[:1])
    for bound in (c.frobenius_bound, c.product_bound, c.squared_bound):
        with pytest.raises(UserError, match="give delta the shape of x"):
            bound(model, x, target, x[:1])
    with pytest.raises(UserError, match="give target=None"):
        c.l2_criterion(lambda z: z.sum(1), x, target, x)
    with pytest.raises(UserError, match="pick one logit"):
        c.cosine_criterion(model, x, None, x)
    with pytest.raises(UserError, match="such as 4 / 255"):
        c.expected_l2_criterion(model, x, target, eps=0.0)
    with pytest.raises(UserError, match="draws is 0; give at least 1"):
        c.expected_cosine_criterion(model, x, target, eps=0.1, draws=0)
    with pytest.raises(UserError, match="from 0 to 4"):
        c.l2_criterion(model, x, target + 9, x)
    with pytest.raises(UserError, match="no layer 'head'"):
        c.scaled_layer(model, "head", 2.0)
    with pytest.raises(UserError, match="above 0"):
        c.scaled_last_layer(model, 0.0)
    with pytest.raises(UserError, match="scaled_layer"):
        c.scaled_last_layer(nn.Sequential(nn.Conv2d(3, 3, 3)), 2.0)
