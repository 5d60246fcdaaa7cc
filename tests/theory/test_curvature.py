"""The input Hessian against torch's own, its norm by probes, and wang2020's closed form of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from known_nets import first_class, inside, numbers, quadratic, relative_errors, units
from nets import batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import build
from gyrograd.numerics import autograd, random
from gyrograd.numerics.autograd import top_eigenvalue
from gyrograd.theory import curvature as k


def relu_net(seed: int, d: int, classes: int) -> nn.Module:
    model = build("mlp", in_features=d, hidden=(7, 6), num_classes=classes).double()
    for i, weight in enumerate(model.parameters()):
        weight.data = numbers(seed + i, *weight.shape)
    return model


def literal_loss_hessian(model, x, label):
    """Second derivatives of the cross-entropy at one example."""
    loss = lambda z: F.cross_entropy(model(z[None]), label[None])  # noqa: E731
    h = torch.autograd.functional.hessian(loss, x)
    return h.reshape(x.numel(), x.numel()).detach()


@given(seed=st.integers(0, 10_000), d=st.integers(1, 6), width=st.integers(1, 5))
def test_hessian_is_torchs_own(seed, d, width):
    known, x = units(seed, d, width), inside(seed, 3, d, 2.0)
    found = k.hessian(known.model, x, first_class(x))
    for i in range(3):
        literal = torch.autograd.functional.hessian(lambda z: known.model(z[None])[0, 0], x[i])
        assert torch.allclose(found[i], literal, rtol=1e-9, atol=1e-12)


def test_hessian_flattens_images_in_order():
    x = numbers(0, 1, 1, 2, 2)
    a = numbers(1, 4, 4)
    f = lambda z: (z.flatten(1) @ (a + a.T) * z.flatten(1)).sum(1) / 2  # noqa: E731
    assert torch.allclose(k.hessian(f, x, None)[0], a + a.T)


@pytest.mark.parametrize("probe", ["normal", "signs"])
def test_probes_estimate_the_squared_norm_without_bias(probe):
    known, draws = quadratic(4, 5), 10
    a, x = known.model.a, inside(1, 1, 5, 2.0).repeat(1000, 1)
    estimate = k.squared_frobenius_norm(known.model, x, first_class(x), draws=draws, probe=probe, seed=2)
    square = a @ a
    variance = 2 * square.square().sum()
    if probe == "signs":
        variance = variance - 2 * square.diagonal().square().sum()
    error = (estimate.mean() - a.square().sum()).abs() / (variance / (draws * len(x))).sqrt()
    assert error < 4
    assert estimate.var().item() == pytest.approx(float(variance) / draws, rel=0.25)


def test_probe_norms_belong_to_the_example_not_the_batch():
    known, x = units(3, 4, 5), inside(1, 3, 4, 2.0)
    keys = random.keys(5, 3)
    whole = k.squared_frobenius_norm(known.model, x, first_class(x), draws=3, seed=5)
    last = k.squared_frobenius_norm(known.model, x[2:], first_class(x[2:]), draws=3, seed=keys[2:])
    v = random.normal(keys[2:], (3, 4), dtype=torch.float64)[0]
    literal = (v @ k.hessian(known.model, x[2:], first_class(x[2:]))[0]).square().sum(1).mean()
    assert torch.allclose(whole[2:], last)
    assert last.item() == pytest.approx(literal.item(), rel=1e-10)


@pytest.mark.parametrize("structure", ["mlp", "residual"])
def test_the_norms_derivatives_match_finite_differences(structure):
    model, (x, target) = net(structure), batch(2, seed=3)
    x = x.clone().requires_grad_()
    value = lambda: k.squared_frobenius_norm(model, x, target, draws=2, create_graph=True)  # noqa: E731
    errors = relative_errors(value, {"x": x, **dict(model.named_parameters())})
    assert max(errors.values()) < 1e-5, errors


# wang2020 Proposition 3 and B1


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), d=st.integers(2, 6), classes=st.integers(2, 5))
def test_the_closed_form_is_the_loss_hessian_of_a_relu_net_for_any_label(seed, d, classes):
    model, x = relu_net(seed, d, classes), inside(seed, 2, d, 1.0)
    found = k.loss_hessian(model, x)
    for label in torch.arange(classes):
        for i in range(2):
            literal = literal_loss_hessian(model, x[i], label)
            assert torch.allclose(found[i], literal, rtol=1e-8, atol=1e-10)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), d=st.integers(2, 6), classes=st.integers(2, 5))
def test_the_small_problem_has_the_large_ones_eigenvalues(seed, d, classes):
    model, x = relu_net(seed, d, classes), inside(seed, 2, d, 1.0)
    small, large = k.loss_curvatures(model, x), k.loss_hessian(model, x)
    for i in range(2):
        values = np.linalg.eigvalsh(large[i].detach().numpy())
        n, tol = min(d, classes), 1e-9 * max(1.0, abs(values).max())
        assert np.allclose(small[i].detach().numpy()[-n:], values[-n:], atol=tol)
        assert (values > -tol).all()
        assert np.allclose(small[i].detach().numpy()[:-n], 0, atol=tol)
    torch.testing.assert_close(k.top_loss_curvature(model, x), small[:, -1], rtol=1e-9, atol=1e-12)


def test_the_matrix_is_literally_w_a_w():
    model, x = relu_net(1, 4, 3), inside(1, 2, 4, 1.0)
    for i in range(2):
        w = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x[i]).T.numpy()
        p = model(x[i : i + 1]).softmax(1)[0].detach().numpy()
        assert np.allclose(k.loss_hessian(model, x)[i].numpy(), w @ (np.diag(p) - np.outer(p, p)) @ w.T)


def test_smooth_activations_leave_a_rest():
    """Proposition 3 is for ReLU nets; with softplus the logits' own curvature is missing."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Softplus(3), nn.Linear(6, 3)).double()
    for i, weight in enumerate(model.parameters()):
        weight.data = numbers(i, *weight.shape)
    x, label = inside(1, 1, 4, 1.0), torch.tensor(0)
    closed, literal = k.loss_hessian(model, x)[0], literal_loss_hessian(model, x[0], label)
    p = model(x).softmax(1)[0].detach()
    one_hot = F.one_hot(label, 3).double()
    rest = sum((p[c] - one_hot[c]) * k.hessian(model, x, torch.tensor([c]))[0] for c in range(3))
    assert not torch.allclose(closed, literal, rtol=0.05)
    assert torch.allclose(closed + rest, literal, rtol=1e-8)


def test_the_top_curvature_is_the_top_eigenvalue_of_the_loss():
    model, (x, target) = net("functional_relu"), batch(2)
    loss = lambda z: F.cross_entropy(model(z), target, reduction="none")  # noqa: E731
    value, _ = top_eigenvalue(loss, x, steps=300, tol=1e-8)
    assert torch.allclose(k.top_loss_curvature(model, x), value, rtol=1e-6)


def test_the_weight_matrix_of_the_classes_is_singular():
    """A6 says all eigenvalues of diag p - p p^T are positive; all ones is a null vector, so no Cholesky factor."""
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    a = p.diag() - p[:, None] * p
    assert (a @ torch.ones(3, dtype=torch.float64)).abs().max() < 1e-13
    assert abs(float(torch.linalg.eigvalsh(a)[0])) < 1e-13


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("channels", ["all", "mean"])
@pytest.mark.parametrize("structure", ["functional_relu", "residual"])
def test_the_top_curvatures_derivatives_match_finite_differences(structure, channels, independent):
    model, (x, _) = net(structure), batch(2, seed=3)
    x = x.clone().requires_grad_()
    value = lambda: k.top_loss_curvature(  # noqa: E731
        model, x, channels=channels, create_graph=True, independent=independent
    )
    errors = relative_errors(value, {"x": x, **dict(model.named_parameters())})
    assert max(errors.values()) < 1e-5, errors


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 10),
    gap=st.sampled_from([0.0, 1e-9, 1e-6, 1e-3, 0.5]),
    scale=st.sampled_from([1e-25, 1.0, 1e25]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_squaring_finds_the_top_eigenvalue_however_near_the_next_is(seed, size, gap, scale, dtype):
    basis = torch.linalg.qr(numbers(seed, 2, size, size)).Q
    spectrum = torch.ones(size, dtype=torch.float64)
    spectrum[:-1] = torch.linspace(0, 1 - gap, size, dtype=torch.float64)[1:]
    matrix = scale * (basis * spectrum) @ basis.mT
    value = k.top_of_squares(matrix.to(dtype))
    assert value.dtype == dtype
    assert torch.allclose(value.double(), torch.full((2,), scale, dtype=torch.float64), rtol=3e-6, atol=0)
    v = k.top_eigenvector(matrix.to(dtype)).double()
    along = torch.einsum("bi,bij,bj->b", v, matrix, v)
    assert torch.allclose(along, torch.full((2,), scale, dtype=torch.float64), rtol=3e-6, atol=0)


def test_squaring_has_the_eigenvalues_derivative_and_is_flat_at_zero():
    root = numbers(3, 2, 5, 4)
    one, other = (root.clone().requires_grad_() for _ in range(2))
    k.top_of_squares(one @ one.mT).sum().backward()
    torch.linalg.eigvalsh(other @ other.mT)[:, -1].sum().backward()
    assert torch.allclose(one.grad, other.grad, rtol=1e-5, atol=1e-9)
    nothing = torch.zeros(2, 3, 3, requires_grad=True)
    k.top_of_squares(nothing).sum().backward()
    assert torch.equal(k.top_of_squares(nothing), torch.zeros(2))
    assert torch.equal(nothing.grad, torch.zeros(2, 3, 3))
    assert torch.equal(k.top_eigenvector(nothing.detach()), torch.zeros(2, 3))
    axes = torch.diag_embed(torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 3.0]]))
    assert torch.equal(k.top_eigenvector(axes).abs(), torch.tensor([[1.0, 0, 0], [0, 0, 1]]))


@pytest.mark.parametrize("independent", [False, True])
def test_with_and_without_a_graph_the_top_curvature_is_the_same(independent):
    model, (x, _) = net("functional_relu"), batch(3)
    with_graph = k.top_loss_curvature(model, x, create_graph=True, independent=independent)
    assert torch.allclose(with_graph, k.top_loss_curvature(model, x), rtol=1e-6)


def test_examples_that_see_each_other_keep_the_graph_of_every_logit():
    """Under batch normalisation by the batch one pass cannot take another direction for each example."""
    model, (x, y) = net("residual").train(), batch(4)
    kept = gg.regularizer("ssr")(model, x, y)
    assert torch.allclose(kept, k.top_loss_curvature(model, x), rtol=1e-6)
    alone = k.top_loss_curvature(model, x, create_graph=True, independent=True)
    assert not torch.allclose(alone, kept, rtol=1e-2)


def test_no_class_keeps_the_graph_of_its_own_backward_pass_in_ssr(monkeypatch):
    model, (x, y) = net("functional_relu"), batch(2)
    kept = []
    jacobian = autograd._jacobian
    monkeypatch.setattr(
        autograd,
        "_jacobian",
        lambda logits, x, create_graph: (kept.append(create_graph), jacobian(logits, x, create_graph))[1],
    )
    gg.regularizer("ssr")(model, x, y)
    assert kept == [False]


def test_channel_means_are_taken_of_the_gradients():
    model, (x, _) = net("functional_relu"), batch(2)
    for i in range(2):
        w = torch.autograd.functional.jacobian(lambda z: model(z[None])[0], x[i]).mean(1).flatten(1).T.numpy()
        p = model(x[i : i + 1]).softmax(1)[0].detach().numpy()
        literal = np.linalg.eigvalsh(w @ (np.diag(p) - np.outer(p, p)) @ w.T)[-1]
        assert k.top_loss_curvature(model, x, channels="mean")[i].item() == pytest.approx(literal, rel=1e-8)


def test_one_forward_pass_moves_batch_statistics_once():
    model, (x, _) = net("residual").train(), batch(4)
    passes = int(model.bn1.num_batches_tracked)
    k.top_loss_curvature(model, x, create_graph=True)
    assert int(model.bn1.num_batches_tracked) == passes + 1


def test_saturated_probabilities_give_a_finite_derivative():
    model = nn.Linear(3, 2).double()
    model.weight.data *= 1e3
    for independent in (False, True):
        x = torch.ones(1, 3, dtype=torch.float64)
        value = k.top_loss_curvature(model, x, create_graph=True, independent=independent)
        value.sum().backward()
        assert torch.isfinite(value).all()
        assert torch.isfinite(model.weight.grad).all()


def test_mistakes_get_a_sentence():
    model, (x, target) = net("mlp"), batch(2)
    with pytest.raises(UserError, match="use squared_frobenius_norm"):
        k.hessian(lambda z: z.sum(1), torch.zeros(1, 1025), None)
    with pytest.raises(UserError, match="draws is 0; give at least 1"):
        k.squared_frobenius_norm(model, x, target, draws=0)
    with pytest.raises(UserError, match="needs images"):
        k.loss_curvatures(nn.Linear(3, 2), torch.zeros(1, 3), channels="mean")
