"""Input derivatives against finite differences and against torch's full Hessian, in float64."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.autograd import hessian_vector_product, input_gradient, logit_jacobian, top_eigenvalue


def smooth_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 10), nn.Softplus(3), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 4)
    ).double()


def points(b: int = 3) -> Tensor:
    return random.uniform(random.keys(7, b), (3, 2, 2), dtype=torch.float64)


def class_one(net: nn.Module):
    return lambda x: net(x)[:, 1]


def slopes_by_differences(f, x: Tensor, h: float = 1e-6) -> Tensor:
    """Central differences, one coordinate of one example at a time."""
    result = torch.zeros_like(x)
    for i in range(len(x)):
        for j in range(x[0].numel()):
            step = torch.zeros_like(x[i]).flatten()
            step[j] = h
            step = step.view_as(x[i])[None]
            with torch.no_grad():
                result[i].view(-1)[j] = (f(x[i : i + 1] + step) - f(x[i : i + 1] - step)).item() / (2 * h)
    return result


def full_hessian(f, x: Tensor) -> Tensor:
    d = x.numel()
    return torch.autograd.functional.hessian(lambda v: f(v.view(1, *x.shape)).sum(), x.flatten()).view(d, d)


def test_gradient_is_that_of_finite_differences():
    f, x = class_one(smooth_net()), points()
    torch.testing.assert_close(input_gradient(f, x), slopes_by_differences(f, x), rtol=1e-7, atol=1e-9)


def test_gradient_reaches_every_weight_as_finite_differences_do():
    net, x = smooth_net(), points()
    direction = torch.linspace(-1, 1, 12, dtype=torch.float64).view(1, 3, 2, 2)

    def score() -> Tensor:
        return (input_gradient(class_one(net), x, create_graph=True) * direction).sum()

    last_bias = net[-1].bias  # shifts the logit, so its derivative of the input gradient is none
    weights = [p for p in net.parameters() if p is not last_bias]
    exact = torch.autograd.grad(score(), weights)
    for weight, slope in zip(weights, exact, strict=True):
        for j in (0, weight.numel() - 1):
            with torch.no_grad():
                values = []
                for h in (1e-6, -1e-6):
                    weight.view(-1)[j] += h
                    values.append(score().item())
                    weight.view(-1)[j] -= h
            assert slope.flatten()[j].item() == pytest.approx(
                (values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-8
            )


def test_graph_reaches_what_x_came_from():
    f = class_one(smooth_net())
    seed = points().requires_grad_()
    (back,) = torch.autograd.grad(input_gradient(f, seed * 2, create_graph=True).sum(), seed)
    ones = torch.ones_like(seed)
    torch.testing.assert_close(back, 2 * hessian_vector_product(f, seed.detach() * 2, ones))


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradient_works_under_no_grad_and_touches_nothing(create_graph: bool):
    net, x = smooth_net(), points()
    with torch.no_grad():
        result = input_gradient(class_one(net), x, create_graph=create_graph)
        assert not torch.is_grad_enabled()
    assert result.requires_grad is create_graph
    assert not x.requires_grad
    assert all(p.grad is None for p in net.parameters())


def test_gradient_without_graph_keeps_none_for_an_x_with_history():
    x = points().requires_grad_()
    assert not input_gradient(class_one(smooth_net()), x * 1.0).requires_grad


@pytest.mark.parametrize(
    "derivative",
    [
        input_gradient,
        lambda f, x: hessian_vector_product(f, x, torch.ones_like(x)),
        lambda f, x: logit_jacobian(lambda z: f(z)[:, None], x),
        lambda f, x: top_eigenvalue(f, x, steps=2)[0],
    ],
    ids=["gradient", "hessian vector product", "jacobian", "eigenvalue"],
)
def test_a_derivative_without_graph_leaves_the_callers_graph_alone(derivative):
    start = points().requires_grad_()
    x, calls = start * 1.0, []
    x.retain_grad()
    x.register_hook(lambda gradient: calls.append(gradient))
    derivative(class_one(smooth_net()), x)
    assert calls == []
    assert x.grad is None
    assert start.grad is None


def test_hessian_vector_product_is_that_of_the_full_hessian():
    f, x = class_one(smooth_net()), points()
    v = random.normal(random.keys(1, len(x)), (3, 2, 2), dtype=torch.float64)
    fast = hessian_vector_product(f, x, v)
    for i in range(len(x)):
        slow = full_hessian(f, x[i]) @ v[i].flatten()
        torch.testing.assert_close(fast[i].flatten(), slow, rtol=1e-10, atol=1e-12)


def test_hessian_vector_product_can_be_differentiated_to_the_weights():
    net, x = smooth_net(), points()
    hv = hessian_vector_product(class_one(net), x, torch.ones_like(x), create_graph=True)
    assert torch.autograd.grad(hv.sum(), net[1].weight)[0].abs().sum() > 0


def test_hessian_of_a_linear_function_is_zero():
    x = points()
    for f in (lambda x: (3 * x).flatten(1).sum(1), lambda x: nn.Linear(12, 1).double()(x.flatten(1))[:, 0]):
        assert hessian_vector_product(f, x, torch.ones_like(x)).abs().max() == 0


def test_jacobian_rows_are_the_gradients_of_the_logits():
    net, x = smooth_net(), points()
    jacobian = logit_jacobian(net, x)
    assert jacobian.shape == (3, 4, 3, 2, 2)
    assert not jacobian.requires_grad
    for k in range(4):
        slow = slopes_by_differences(lambda x, k=k: net(x)[:, k], x)
        torch.testing.assert_close(jacobian[:, k], slow, rtol=1e-7, atol=1e-9)


def test_jacobian_with_graph_gives_the_hessian():
    net, x = smooth_net(), points(1).requires_grad_()
    row = logit_jacobian(net, x, create_graph=True)[0, 1].flatten()
    hessian = torch.stack([torch.autograd.grad(g, x, retain_graph=True)[0].flatten() for g in row])
    torch.testing.assert_close(hessian, full_hessian(class_one(net), x[0].detach()))


def test_jacobian_of_a_constant_logit_is_zero():
    x = points()
    jacobian = logit_jacobian(lambda x: torch.stack([x.flatten(1).sum(1), torch.ones(len(x)).double()], 1), x)
    assert jacobian[:, 0].eq(1).all()
    assert jacobian[:, 1].eq(0).all()


def quadratic(matrix: Tensor):
    return lambda x: 0.5 * torch.einsum("bi,ij,bj->b", x, matrix, x)


@pytest.mark.parametrize("seed", range(8))
def test_top_eigenvalue_is_that_of_the_full_hessian(seed: int):
    f, x = class_one(smooth_net(seed)), points()
    values, vectors = top_eigenvalue(f, x, steps=500, tol=1e-9)
    for i in range(len(x)):
        all_values = torch.linalg.eigvalsh(full_hessian(f, x[i]))
        torch.testing.assert_close(values[i], all_values[all_values.abs().argmax()], rtol=1e-10, atol=0)
    torch.testing.assert_close(
        hessian_vector_product(f, x, vectors), values.view(-1, 1, 1, 1) * vectors, rtol=0, atol=1e-8
    )
    torch.testing.assert_close(vectors.flatten(1).norm(dim=1), torch.ones(len(x)).double())


def test_default_steps_find_the_top_eigenvalue():
    f, x = class_one(smooth_net()), points()
    values, _ = top_eigenvalue(f, x)
    exact, _ = top_eigenvalue(f, x, steps=500, tol=1e-10)
    torch.testing.assert_close(values, exact, rtol=1e-6, atol=0)


def test_top_eigenvalue_keeps_its_sign():
    matrix = torch.diag(torch.tensor([1.0, -5.0, 2.0, 0.0]).double())
    values, _ = top_eigenvalue(quadratic(matrix), torch.zeros(2, 4).double())
    torch.testing.assert_close(values, torch.tensor([-5.0, -5.0]).double())


def test_top_eigenvalue_of_an_opposite_pair_is_found():
    matrix = torch.diag(torch.tensor([3.0, -3.0, 1.0, 0.5]).double())
    values, _ = top_eigenvalue(quadratic(matrix), torch.zeros(3, 4).double())
    torch.testing.assert_close(values.abs(), torch.full((3,), 3.0).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("f", [lambda x: x.sum(1), lambda x: F.relu(x).sum(1)])
def test_top_eigenvalue_of_a_zero_hessian_is_zero(f):
    values, vectors = top_eigenvalue(f, torch.ones(2, 5))
    assert values.eq(0).all()
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_an_example_with_zero_hessian_does_not_disturb_the_others():
    def f(x: Tensor) -> Tensor:
        return torch.stack([x[0].sum(), (x[1] ** 2).cumsum(0).sum() / 2])

    values, vectors = top_eigenvalue(f, torch.ones(2, 5))
    torch.testing.assert_close(values, torch.tensor([0.0, 5.0]))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_top_eigenvalue_of_a_large_spectrum_in_single_precision():
    spectrum = torch.cat([torch.linspace(-9, 9, 300), torch.tensor([-10.0])])
    values, _ = top_eigenvalue(lambda x: (x**2 * spectrum).sum(1) / 2, torch.zeros(2, 301), steps=80)
    torch.testing.assert_close(values, torch.tensor([-10.0, -10.0]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("tol", [1e-2, 0.6])
def test_top_eigenvalue_does_not_depend_on_the_batch(tol: float):
    # All but the last stop at once when tol is loose.
    spectra = torch.stack([torch.linspace(*ends, 30) for ends in (*[(1, 2)] * 6, (-1, 1))]).double()
    keys, x = random.keys(3, 7), torch.zeros(7, 30).double()

    def values(rows: slice) -> Tensor:
        return top_eigenvalue(
            lambda x: (x**2 * spectra[rows]).sum(1), x[rows], steps=9, tol=tol, seed=keys[rows]
        )[0]

    alone = torch.cat([values(slice(i, i + 1)) for i in range(7)])
    torch.testing.assert_close(values(slice(0, 7)), alone, rtol=1e-10, atol=0)


def test_an_end_that_is_found_early_does_not_hide_the_other():
    spectrum = torch.cat([torch.tensor([10.0]), torch.linspace(-10.4, 0, 200)]).double()
    values, _ = top_eigenvalue(
        lambda x: (x**2 * spectrum).sum(1) / 2, torch.zeros(2, 201).double(), steps=150
    )
    torch.testing.assert_close(values, torch.full((2,), -10.4).double(), rtol=1e-6, atol=0)


class Attention(nn.Module):
    """Attention that torch would give a fused kernel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x.tanh(), x.sin()).flatten(1).sum(1)


@pytest.mark.parametrize("shape", [(2, 2, 4, 8), (2, 1, 16, 8)])
def test_second_derivative_goes_through_attention(shape: tuple[int, ...]):
    x = random.normal(random.keys(0, shape[0]), shape[1:], dtype=torch.float64)
    v = random.normal(random.keys(1, shape[0]), shape[1:], dtype=torch.float64)
    f, h = Attention(), 1e-6
    slow = (input_gradient(f, x + h * v) - input_gradient(f, x - h * v)) / (2 * h)
    torch.testing.assert_close(hessian_vector_product(f, x, v), slow, rtol=1e-6, atol=1e-8)
    graph = input_gradient(f, x.requires_grad_(), create_graph=True)
    torch.testing.assert_close(torch.autograd.grad((graph * v).sum(), x)[0], slow, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (lambda x: torch.ones(len(x)), "does not depend on x"),
        (lambda x: nn.Linear(3, 1)(torch.ones(len(x), 3))[:, 0], "does not depend on x"),
        (lambda x: x.detach().sum(1), "does not depend on x"),
        (lambda x: x.sum(), r"one number for each example, shape \(2,\), and returned shape \(\)"),
        (lambda x: x, r"returned shape \(2, 3\); pick one logit"),
    ],
)
def test_a_function_without_gradient_is_refused(f, words: str):
    with pytest.raises(UserError, match=words):
        input_gradient(f, torch.ones(2, 3))


def test_a_model_without_gradient_or_rows_is_refused():
    x = torch.ones(2, 3)
    with pytest.raises(UserError, match="model's output does not depend on x"):
        logit_jacobian(lambda x: nn.Linear(3, 4)(torch.ones(len(x), 3)), x)
    with pytest.raises(UserError, match="model's output does not depend on x"):
        logit_jacobian(lambda x: torch.ones(len(x), 4), x)
    with pytest.raises(UserError, match="one row for each example"):
        logit_jacobian(lambda x: x.sum(1), x)


def test_settings_that_make_no_sense_are_refused():
    x = torch.ones(2, 3)
    with pytest.raises(UserError, match="steps is 0"):
        top_eigenvalue(lambda x: x.sum(1), x, steps=0)


def test_inference_mode_is_refused():
    x = torch.ones(2, 3)
    with torch.inference_mode(), pytest.raises(UserError, match="use torch"):
        input_gradient(lambda x: x.sum(1), x)
    with torch.inference_mode():
        made = torch.ones(2, 3)
    with pytest.raises(UserError, match="x was made inside"):
        input_gradient(lambda x: x.sum(1), made)
