"""Hessian, SSR, adversarial training and entropy against slow literal twins in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from nets import CLASSES, batch, net
from scipy.stats import entropy
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import Normalized
from gyrograd.numerics import random

MEAN, STD = (0.4, 0.5, 0.6), (0.25, 0.5, 0.125)  # exact in float32, as the wrapper holds them


def relu_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(4 * 16, CLASSES),
        ).double()  # fmt: skip


def literal_hessian(f, x: Tensor) -> Tensor:
    """Second derivatives of a number at one image, written out."""
    return torch.autograd.functional.hessian(f, x).reshape(x.numel(), x.numel()).detach()


def normalised(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """The model behind a normalisation, and what its core then sees."""
    wrapped = Normalized(model, MEAN, STD).double().train(model.training)
    return wrapped, (x - wrapped.mean.view(1, 3, 1, 1)) / wrapped.std.view(1, 3, 1, 1)


@pytest.mark.parametrize("space", ["normalized", "pixel"])
@pytest.mark.parametrize("probe", ["normal", "signs"])
def test_hessian_is_the_squared_length_of_the_written_out_product(space, probe):
    x, y = batch(2, side=4)
    core = net("residual")
    model, z = normalised(core, x)
    seen, points = (core, z) if space == "normalized" else (model, x)
    v = getattr(random, probe)(random.keys(9, 2), (2, *x.shape[1:]), dtype=x.dtype)
    expected = []
    for i in range(2):
        h = literal_hessian(lambda image, i=i: seen(image[None])[0, y[i]], points[i])
        expected.append(sum((h @ v[i, draw].flatten()).square().sum() for draw in range(2)) / 2)
    found = gg.regularizer("hessian", draws=2, probe=probe, space=space)(model, x, y, seed=9)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-8, atol=0)


def test_hessian_of_a_net_in_training_mode_goes_through_the_batch_statistics():
    """The batch norm that can be differentiated three times is torch's own, in value and in what it writes."""
    x, y = batch(3, side=4)
    model, twin = net("residual").train(), net("residual").train()
    v = random.normal(random.keys(2, 3), tuple(x.shape[1:]), dtype=x.dtype)
    leaf = x.clone().requires_grad_()
    total = twin(leaf).gather(1, y[:, None]).sum()
    slope = torch.autograd.grad(total, leaf, create_graph=True)[0]
    product = torch.autograd.grad((slope * v).sum(), leaf)[0]
    found = gg.regularizer("hessian", batchnorm="train")(model, x, y, seed=2)
    torch.testing.assert_close(found, product.square().flatten(1).sum(1), rtol=1e-9, atol=0)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[key])


class LayerNormBy(nn.Module):
    """Layer normalisation by a function, which may return mean and deviation, too."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, z):
        out = self.function(z)
        return out if isinstance(out, torch.Tensor) else out[0]


aten = torch.ops.aten
NORMS = {
    "torch.layer_norm": lambda: LayerNormBy(lambda z: torch.layer_norm(z, (4,))),
    "by name": lambda: LayerNormBy(lambda z: F.layer_norm(input=z, normalized_shape=(4,))),
    "torch.native_layer_norm": lambda: LayerNormBy(
        lambda z: torch.native_layer_norm(z, (4,), None, None, 1e-5)
    ),
    "aten.layer_norm": lambda: LayerNormBy(lambda z: aten.layer_norm.default(z, (4,))),
    "aten.native_layer_norm": lambda: LayerNormBy(
        lambda z: aten.native_layer_norm.default(z, (4,), None, None, 1e-5)
    ),
    "batch": lambda: nn.BatchNorm2d(4),
    "layer": lambda: nn.LayerNorm((4, 4, 4)),
    "layer of the last axis": lambda: nn.LayerNorm(4, elementwise_affine=False),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "tracked instance": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, 4),
    "rms": lambda: nn.RMSNorm(4),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", NORMS)
def test_the_weight_gradient_of_hessian_is_the_finite_difference_with_every_normalisation(norm, training):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), NORMS[norm](), nn.Softplus(), nn.Flatten(), nn.Linear(64, 3)
    model = nn.Sequential(*layers).double().train(training)
    x, y = torch.rand(3, 3, 6, 6, dtype=torch.float64), torch.arange(3)
    penalty = gg.regularizer("hessian")
    weight = model[0].weight
    (gradient,) = torch.autograd.grad(penalty(model, x, y, seed=3).sum(), weight)
    along = torch.randn_like(weight)

    def moved(step: float) -> float:
        weight.data = start + step * along
        return penalty(model, x, y, seed=3).sum().item()

    start = weight.data
    expected = (moved(1e-6) - moved(-1e-6)) / 2e-6
    assert (gradient * along).sum().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "model", [net("functional_relu"), nn.Sequential(nn.Flatten(), nn.Linear(432, CLASSES)).double()]
)
def test_hessian_refuses_a_piecewise_linear_net_in_one_sentence(model):
    x, y = batch(3)
    with pytest.raises(UserError, match="zero at every example.*use softplus") as refusal:
        gg.regularizer("hessian")(model, x, y)
    assert "\n" not in str(refusal.value)
    loss = gg.regularizer("hessian", quantity="loss")(model, x, y)
    assert (loss > 0).all()


@pytest.mark.parametrize("batchnorm", ["batch", "train", "frozen"])
def test_hessian_refuses_a_relu_net_that_only_batch_statistics_bend(batchnorm):
    x, y = batch(6)
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, CLASSES)]
    model = nn.Sequential(*layers).double()
    statistics = model[1].running_mean.clone()
    with pytest.raises(UserError, match="zero at every example"):
        gg.regularizer("hessian", batchnorm=batchnorm)(model, x, y)
    assert torch.equal(model[1].running_mean, statistics) is (batchnorm != "train")


@pytest.mark.parametrize("space", ["normalized", "pixel"])
def test_ssr_is_the_largest_eigenvalue_of_the_losss_hessian_of_a_relu_net(space):
    x, y = batch(3, side=4)
    core = relu_net()
    model, z = normalised(core, x)
    seen, points = (core, z) if space == "normalized" else (model, x)
    expected = []
    for i in range(3):
        h = literal_hessian(lambda image, i=i: F.cross_entropy(seen(image[None]), y[i : i + 1]), points[i])
        expected.append(2.5 * torch.linalg.eigvalsh(h)[-1])
    found = gg.regularizer("ssr", scale=2.5, space=space)(model, x, y)
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-8, atol=1e-12)


def test_ssr_counted_in_bytes_is_the_curvature_of_a_net_that_is_fed_bytes():
    """As the released code has it: the same net behind a division by 255, its pixels from 0 to 255."""
    model, (x, y) = relu_net(), batch(3, side=4)
    fed_bytes = nn.Sequential(Scaled(), model)
    found = gg.regularizer("ssr", scale=1e6, pixels="byte")(model, x, y)
    torch.testing.assert_close(found, gg.regularizer("ssr", scale=1e6)(fed_bytes, 255 * x, y))
    torch.testing.assert_close(found, gg.regularizer("ssr", scale=1e6 / 65025)(model, x, y))
    with pytest.raises(UserError, match="unit of pixels 'bits'"):
        gg.regularizer("ssr", pixels="bits")


class Scaled(nn.Module):
    """Bytes to pixels in [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 255


def test_ssr_with_mean_channels_is_the_released_formula():
    x, y = batch(3, side=4)
    model = net("residual")
    found = gg.regularizer("ssr", channels="mean")(model, x, y)
    for i in range(3):
        jacobian = torch.autograd.functional.jacobian(lambda image: model(image[None])[0], x[i])
        w = jacobian.mean(1).flatten(1).T.numpy()  # pixels by classes
        p = model(x[i : i + 1]).softmax(1)[0].detach().numpy()
        values, vectors = np.linalg.eigh(np.diag(p) - np.outer(p, p))
        b = w @ vectors @ np.diag(np.sqrt(values.clip(1e-20)))
        assert found[i].item() == pytest.approx(np.linalg.eigvalsh(b @ b.T)[-1], rel=1e-8)


def test_ssr_is_differentiable_where_all_classes_are_equally_likely_and_curved_alike():
    """Equal eigenvalues have no unique vectors; the derivative of the value must stay finite."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(CLASSES, 48))
        model[1].bias.zero_()
    x, y = torch.zeros(1, 3, 4, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    penalty = gg.regularizer("ssr")(model, x, y)
    assert penalty.item() == pytest.approx(1 / CLASSES)
    assert torch.isfinite(torch.autograd.grad(penalty.sum(), model[1].weight)[0]).all()


def literal_images(model, x, y, eps, norm, steps, step_size):
    """Projected gradient ascent from x, one image after the other; the iterate of the highest loss."""
    found = []
    for i in range(len(x)):
        image, label = x[i : i + 1], y[i : i + 1]
        best, worst, moved = image, F.cross_entropy(model(image), label), image.clone()
        for _ in range(steps):
            leaf = moved.clone().requires_grad_()
            slope = torch.autograd.grad(F.cross_entropy(model(leaf), label), leaf)[0]
            step = slope.sign() if norm == "linf" else slope / slope.norm()
            delta = moved + step_size * step - image
            delta = delta.clamp(-eps, eps) if norm == "linf" else delta * min(1.0, eps / delta.norm().item())
            moved = (image + delta).clamp(0, 1)
            loss = F.cross_entropy(model(moved), label)
            if loss > worst:
                best, worst = moved, loss
        found.append(best.detach())
    return torch.cat(found)


@pytest.mark.parametrize(("norm", "eps", "step_size"), [("linf", 8 / 255, 4 / 255), ("l2", 0.5, 0.2)])
def test_adversarial_is_the_cross_entropy_at_the_images_of_a_literal_attack(norm, eps, step_size):
    x, y = batch(3)
    model = net("lenet")
    settings = {"eps": eps, "norm": norm, "steps": 4, "step_size": step_size}
    penalty = gg.regularizer("madry", **settings)
    images = literal_images(model, x, y, **settings)
    torch.testing.assert_close(penalty.images(model, x, y, seed=0), images, rtol=0, atol=1e-9)
    expected = F.cross_entropy(model(images), y, reduction="none")
    found = penalty(model, x, y, seed=0)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=0)
    assert (found > 1.05 * F.cross_entropy(model(x), y, reduction="none")).all()
    # The images are constants: the weights feel the loss at them and not how they were found.
    slopes, literal = (
        torch.autograd.grad(value.sum(), list(model.parameters())) for value in (found, expected)
    )
    for slope, other in zip(slopes, literal, strict=True):
        torch.testing.assert_close(slope, other, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("start", ["clean", "random"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 16 / 255), ("l2", 1.0)])
def test_adversarial_images_stay_in_the_ball_and_the_box(norm, eps, start):
    x, y = batch(4)
    x = x.round()  # every pixel at an edge of the box
    images = gg.regularizer("adversarial", eps=eps, norm=norm, start=start, steps=3).images(
        net("lenet"), x, y
    )
    change = (images - x).flatten(1)
    size = change.abs().amax(1) if norm == "linf" else change.norm(dim=1)
    assert (size <= eps + 1e-12).all()
    assert (size > 0.3 * eps).all()
    assert images.min() >= 0
    assert images.max() <= 1


@pytest.mark.parametrize(("norm", "eps"), [("linf", 1 / 255), ("l2", 0.2)])
@pytest.mark.parametrize("steps", [1, 3])
def test_the_last_iterate_costs_one_pass_a_step_and_is_that_of_the_attack(norm, eps, steps):
    x, y = batch(3)
    model = net("residual").train()
    penalty = gg.regularizer("adversarial", eps=eps, norm=norm, steps=steps, selection="last")
    expected = penalty.attack.images(model, x, y, seed=0)
    passes = []
    handle = model.register_forward_hook(lambda *_: passes.append(model.training))
    images = penalty.images(model, x, y, seed=0)
    handle.remove()
    torch.testing.assert_close(images, expected, rtol=0, atol=1e-12)
    assert not torch.equal(images, x)
    assert passes == [False] * steps
    assert model.training


def test_a_random_start_is_drawn_anew_unless_seeded():
    x, y = batch(2)
    penalty = gg.regularizer("adversarial", start="random", selection="last", steps=1)
    model = net("lenet")
    assert torch.equal(penalty.images(model, x, y, seed=1), penalty.images(model, x, y, seed=1))
    assert not torch.equal(penalty.images(model, x, y), penalty.images(model, x, y))


def test_the_attack_runs_in_evaluation_mode_and_the_loss_in_training_mode():
    x, y = batch(4)
    model = net("residual").train()
    penalty = gg.regularizer("adversarial", steps=2)
    calm = penalty.images(net("residual"), x, y, seed=0)
    torch.testing.assert_close(penalty.images(model, x, y, seed=0), calm, rtol=0, atol=0)
    expected = F.cross_entropy(net("residual").train()(calm), y, reduction="none")
    torch.testing.assert_close(penalty(model, x, y, seed=0), expected, rtol=1e-10, atol=0)


@given(seed=st.integers(0, 999), size=st.floats(0, 50))
def test_max_entropy_is_minus_scipys_entropy_within_its_range(seed, size):
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(6, CLASSES, generator=generator, dtype=torch.float64)
    found = gg.regularizer("max_entropy")(nn.Identity(), x, torch.zeros(6, dtype=torch.int64))
    np.testing.assert_allclose(found.numpy(), -entropy(x.softmax(1).numpy(), axis=1), rtol=1e-9, atol=1e-12)
    assert (found >= -math.log(CLASSES) - 1e-12).all()
    assert (found <= 0).all()


def test_max_entropy_needs_two_classes():
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 1)).double()
    with pytest.raises(UserError, match="one logit for each of two classes"):
        gg.regularizer("max_entropy")(model, *batch(2))
