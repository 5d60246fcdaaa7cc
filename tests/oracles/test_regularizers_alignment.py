"""l2 and cosine alignment against the printed formulas, example by example in float64, and their invariances."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import Normalized
from gyrograd.numerics import random
from gyrograd.theory import expected_cosine_criterion, expected_l2_criterion, scaled_last_layer

EPS = 8 / 255
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.5)


def literal_gradient(model: nn.Module, x: Tensor, label: Tensor) -> Tensor:
    """The gradient of one label's logit at one image."""
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(model(leaf[None])[0, label], leaf)[0]


def literal_terms(model, x, y, seed, draws, squared):
    """Both means over the draws, for each example: (l2, cosine)."""
    keys, rows = random.keys(seed, len(x)), []
    for i in range(len(x)):
        here, distances, angles = literal_gradient(model, x[i], y[i]), [], []
        for draw in range(draws):
            unit = random.uniform(keys[i : i + 1], tuple(x.shape[1:]), stream=draw, dtype=x.dtype)[0]
            there = literal_gradient(model, x[i] + EPS * (2 * unit - 1), y[i])
            gap = (there - here).norm()
            distances.append(gap**2 if squared else gap)
            angles.append((1 - (there * here).sum() / (there.norm() * here.norm())) / 2)
        rows.append(torch.stack([sum(distances) / draws, sum(angles) / draws]))
    return torch.stack(rows).T


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_terms_are_the_printed_formulas_example_by_example(name, draws, squared):
    x, y = batch(3)
    model = net(name)
    penalty = gg.regularizer("l2_cosine", l2=0.3, cosine=2.0, eps=EPS, draws=draws, squared=squared)
    terms = penalty.terms(model, x, y, seed=4)
    l2, cosine = literal_terms(model, x, y, 4, draws, squared)
    torch.testing.assert_close(terms["l2"], 0.3 * l2, rtol=1e-9, atol=0)
    torch.testing.assert_close(terms["cosine"], 2.0 * cosine, rtol=1e-8, atol=0)
    torch.testing.assert_close(penalty(model, x, y, seed=4), terms["l2"] + terms["cosine"])


@pytest.mark.parametrize("detach_clean", [True, False])
@pytest.mark.parametrize("squared", [True, False])
def test_values_and_weight_gradients_are_those_of_the_theory(squared, detach_clean):
    x, y = batch(3)
    model = net("lenet")
    weights = list(model.parameters())
    how = {"eps": EPS, "detach_clean": detach_clean}
    options = {"seed": 2, "create_graph": True}
    pairs = [
        (
            gg.regularizer("l2", squared=squared, **how),
            expected_l2_criterion(model, x, y, squared=squared, **how, **options),
        ),
        (gg.regularizer("crc", **how), expected_cosine_criterion(model, x, y, **how, **options)),
    ]
    for penalty, criterion in pairs:
        found = penalty(model, x, y, seed=2)
        torch.testing.assert_close(found, criterion, rtol=1e-9, atol=1e-12)
        slopes, expected = (
            torch.autograd.grad(value.sum(), weights, allow_unused=True) for value in (found, criterion)
        )
        for slope, literal in zip(slopes, expected, strict=True):
            assert (slope is None) == (literal is None)
            if slope is not None:
                torch.testing.assert_close(slope, literal, rtol=1e-7, atol=1e-12)


def test_a_constant_clean_gradient_changes_the_pull_and_leaves_the_value():
    x, y = batch(3)
    model = net("mlp")
    first = model[1]
    values, slopes = [], []
    for detach in (True, False):
        penalty = gg.regularizer("l2", eps=EPS, detach_clean=detach)(model, x, y, seed=0)
        values.append(penalty.detach())
        slopes.append(torch.autograd.grad(penalty.sum(), first.weight)[0])
    torch.testing.assert_close(values[0], values[1], rtol=1e-10, atol=0)
    assert (slopes[0] - slopes[1]).norm() > 0.1 * slopes[1].norm()


def test_the_normalized_space_is_that_of_the_core_behind_the_normalisation():
    x, y = batch(3)
    core = net("residual")
    model = Normalized(core, MEAN, STD).double()
    mean, std = (torch.tensor(part, dtype=torch.float64).view(1, 3, 1, 1) for part in (MEAN, STD))
    keys = random.keys(6, 3)
    delta = EPS * (2 * random.uniform(keys, tuple(x.shape[1:]), dtype=x.dtype) - 1)
    z, moved = (x - mean) / model.std.view(1, 3, 1, 1), (x + delta - mean) / std
    rows = []
    for i in range(3):
        here, there = (literal_gradient(core, point[i], y[i]) for point in (z, moved))
        rows.append((there - here).square().sum())
    normalized = gg.regularizer("l2", eps=EPS, space="normalized")(model, x, y, seed=6)
    torch.testing.assert_close(normalized, torch.stack(rows), rtol=1e-5, atol=0)  # the buffers are float32
    pixel = gg.regularizer("l2", eps=EPS, space="pixel")(model, x, y, seed=6)
    literal, _ = literal_terms(model, x, y, 6, 1, squared=True)
    torch.testing.assert_close(pixel, literal, rtol=1e-9, atol=0)
    assert (pixel > 2 * normalized).all()


def test_in_training_mode_the_gradients_go_through_the_batch_statistics():
    x, y = batch(4)
    model = net("residual").train()
    twin = copy.deepcopy(model)
    delta = EPS * (2 * random.uniform(random.keys(1, 4), tuple(x.shape[1:]), dtype=x.dtype) - 1)
    gradients = []
    for point in (x, x + delta):
        leaf = point.clone().requires_grad_()
        gradients.append(torch.autograd.grad(twin(leaf).gather(1, y[:, None]).sum(), leaf)[0])
    expected = (gradients[1] - gradients[0]).square().flatten(1).sum(1)
    found = gg.regularizer("l2", eps=EPS, batchnorm="train")(model, x, y, seed=1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(
            value, twin.state_dict()[key]
        )  # two passes, two updates, as in the released code


@settings(max_examples=20)
@given(alpha=st.floats(0.05, 20), seed=st.integers(0, 99))
def test_scaling_the_last_layer_scales_l2_and_leaves_cosine(alpha, seed):
    """joo2023 Lemma 3 and Proposition 5."""
    x, y = batch(2)
    model = net("mlp", seed)
    scaled = scaled_last_layer(model, alpha)
    for penalty, factor in (
        (gg.regularizer("l2", eps=EPS), alpha**2),
        (gg.regularizer("l2", eps=EPS, squared=False), alpha),
        (gg.regularizer("cosine", eps=EPS), 1.0),
    ):
        before, after = (penalty(one, x, y, seed=3) for one in (model, scaled))
        torch.testing.assert_close(after, factor * before, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", ["l2", "cosine"])
def test_a_piecewise_linear_net_is_trained(name):
    x, y = batch(3)
    model = net("functional_relu")
    penalty = gg.regularizer(name, eps=32 / 255)(model, x, y, seed=0)
    slopes = torch.autograd.grad(penalty.sum(), [model.conv1.weight, model.fc1.weight, model.fc2.weight])
    assert (penalty > 0).all()
    assert all((slope != 0).any() for slope in slopes)


def test_a_linear_model_is_aligned_already():
    x, y = batch(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), 5)).double()
    for squared in (True, False):
        penalty = gg.regularizer("l2_cosine", squared=squared, detach_clean=False)(model, x, y, seed=0)
        slope = torch.autograd.grad(penalty.sum(), model[1].weight)[0]
        assert (penalty.abs() < 1e-12).all()
        assert torch.isfinite(slope).all()


@pytest.mark.parametrize("quantity", ["probability", "loss"])
def test_the_quantity_is_the_one_named(quantity):
    x, y = batch(2)
    model = net("mlp")
    found = gg.regularizer("l2", eps=EPS, quantity=quantity)(model, x, y, seed=2)
    expected = expected_l2_criterion(model, x, y, eps=EPS, seed=2, quantity=quantity, squared=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_a_clean_gradient_at_hand_saves_the_pass_and_gives_the_same_terms():
    x, y = batch(3)
    model, rows = net("lenet"), []
    clean = gg.attribution("gradient")(model, x, y)
    penalty = gg.regularizer("l2_cosine", eps=EPS)
    terms = penalty.terms(model, x, y, seed=0)
    handle = model.register_forward_hook(lambda *_: rows.append(1))
    shared = penalty.terms(model, x, y, seed=0, clean=clean)
    handle.remove()
    assert len(rows) == 1
    assert list(shared) == ["l2", "cosine"]
    for key, value in terms.items():
        torch.testing.assert_close(shared[key], value, rtol=1e-10, atol=0)


@pytest.mark.parametrize("detach_clean", [True, False])
def test_a_clean_gradient_at_hand_is_a_constant_only_if_asked(detach_clean):
    x, y = batch(3)
    model = net("mlp")
    penalty = gg.regularizer("l2", eps=EPS, detach_clean=detach_clean)
    clean = gg.attribution("gradient")(model, x, y, create_graph=True)
    shared, alone = penalty.terms(model, x, y, seed=0, clean=clean)["l2"], penalty(model, x, y, seed=0)
    slopes = [torch.autograd.grad(value.sum(), model[1].weight)[0] for value in (shared, alone)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-12)


def test_a_clean_gradient_without_a_graph_is_refused_where_it_would_be_pulled():
    x, y = batch(2)
    model = net("mlp")
    penalty, clean = gg.regularizer("l2", detach_clean=False), gg.attribution("gradient")(model, x, y)
    with pytest.raises(UserError, match="make it with create_graph=True"):
        penalty.terms(model, x, y, clean=clean)
    with torch.no_grad():
        assert torch.isfinite(penalty.terms(model, x, y, clean=clean)["l2"]).all()


def test_two_passes_serve_both_terms_and_a_term_of_weight_zero_is_left_out():
    x, y = batch(2)
    model, rows = net("lenet"), []
    gg.regularizer("l2_cosine")(model, x, y)  # a new model is tried once, which is a pass of its own
    handle = model.register_forward_hook(lambda *_: rows.append(1))
    gg.regularizer("l2_cosine")(model, x, y)
    handle.remove()
    assert len(rows) == 2
    assert list(gg.regularizer("l2").terms(model, x, y)) == ["l2"]
    assert list(gg.regularizer("cosine").terms(model, x, y)) == ["cosine"]
