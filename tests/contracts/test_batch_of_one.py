"""A batch of one is the first row of a batch, for every way a model is differentiated.

The net goes from image to tokens and back, where torch's CPU kernel of BatchNorm's backward pass is wrong for one row.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nets import batch, net
from small_attributions import ON_ANY_NET, small
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.models.scripts import open_script
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.normalization import in_plain_strides
from gyrograd.training.objective import Objective

ATTRIBUTIONS = ON_ANY_NET
REGULARIZERS = sorted(gg.available("regularizer"))
FEW: dict[str, dict[str, Any]] = {
    "adversarial": {"steps": 2},
    "ig_norm": {"steps": 1, "points": 2, "search_points": 2},
    "iga": {"steps": 1},
    "atex": {"draws": 2, "teacher": net("lenet", seed=9)},
}


def close(found: Tensor, wanted: Tensor) -> None:
    size = float(wanted.detach().abs().max())
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8 * size)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", sorted(ATTRIBUTIONS))
def test_maps_of_batches_of_1_2_and_7_agree(name, graph):
    if graph and not ATTRIBUTIONS[name].differentiable:
        pytest.skip("has no graph")
    model, explain = net("tokens"), small(name)
    x, target = batch(7)
    together = explain(model, x, target, create_graph=graph)
    for b in (1, 2):
        close(explain(model, x[:b], target[:b], create_graph=graph), together[:b])


class FixedRows(nn.Module):
    """A net that was written for a fixed number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.core, self.rows = net("tokens"), rows

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x).reshape(self.rows, -1)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::torch.jit.TracerWarning"
)
def test_a_scripted_model_is_right_for_one_image_or_refuses_it(tmp_path):
    x, target = batch(7)
    nets = {}
    for name, model in (("free", net("tokens")), ("fixed", FixedRows(1))):
        torch.jit.save(torch.jit.trace(model, x[:1]), tmp_path / f"{name}.pt")
        nets[name] = open_script(tmp_path / f"{name}.pt", torch.device("cpu"))
    gradient = gg.attribution("gradient")
    expected = gradient(net("tokens"), x, target)[:1]
    close(gradient(nets["free"], x[:1], target[:1]), expected)
    with pytest.raises(gg.UserError, match="trace it with two images or more"):
        gradient(nets["fixed"], x[:1], target[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_attack_on_one_image_follows_the_slope_of_its_row_in_a_batch(dtype):
    model = net("tokens").to(dtype)
    x, y = batch(2)
    x = x.to(dtype)
    attack, gradient = gg.attack("pgd", eps=4 / 255, steps=2), gg.attribution("gradient")
    alone = attack(model, gradient, x[:1], y[:1], seed=0).x
    close(alone, attack(model, gradient, x, y, seed=0).x[:1])


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_regulariser_of_one_row_has_the_weight_gradient_of_that_row_in_a_batch(name):
    model = net("tokens")
    penalty = gg.regularizer(name, **FEW.get(name, {}))
    x, y = batch(2)
    weights = list(model.parameters())
    alone = torch.autograd.grad(penalty(model, x[:1], y[:1], seed=3)[0], weights, allow_unused=True)
    row = torch.autograd.grad(penalty(model, x, y, seed=3)[0], weights, allow_unused=True)
    largest = max(slope.abs().max() for slope in row if slope is not None)
    for found, wanted in zip(alone, row, strict=True):
        assert (found is None) == (wanted is None)
        if found is not None:
            torch.testing.assert_close(found, wanted, rtol=0, atol=float(1e-8 * largest))


def test_training_on_one_row_follows_its_gradient():
    """In training mode BatchNorm sees the one row, so finite differences are the judge."""
    model, (x, y) = net("tokens").train(), batch(1)

    def loss() -> Tensor:
        return Objective()(copy.deepcopy(model), x, y)[0]

    Objective()(model, x, y)[0].backward()
    for weight in (model.stem.weight, model.mix.weight, model.bn2.bias):
        along = torch.randn(weight.shape, dtype=weight.dtype, generator=torch.Generator().manual_seed(0))
        start, ends = weight.detach().clone(), []
        for sign in (1, -1):
            with torch.no_grad():
                weight.copy_(start + sign * 1e-6 * along)
            ends.append(float(loss().detach()))
        with torch.no_grad():
            weight.copy_(start)
        assert float((weight.grad * along).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_curvature_of_one_row_is_that_of_the_row_in_a_batch():
    model, (x, _) = net("tokens"), batch(2)
    curvature = gg.theory.loss_curvatures
    close(curvature(model, x[:1]), curvature(model, x)[:1])


def _ones_apart(t: Tensor) -> Tensor:
    """The same memory with a stride of 1 along each axis of length one, where it does not count."""
    strides = [1 if n == 1 else stride for n, stride in zip(t.shape, t.stride(), strict=True)]
    return torch.as_strided(t, t.shape, strides)


LAYOUTS = {
    "contiguous": lambda t: t.contiguous(),
    "tokens": lambda t: t.flatten(2).mT.contiguous().mT.unflatten(2, t.shape[2:]),
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "sliced": lambda t: F.pad(t, (0, 2))[..., :-2],
    "channels_last_but_for_ones": lambda t: _ones_apart(t.contiguous(memory_format=torch.channels_last)),
    "contiguous_but_for_ones": lambda t: _ones_apart(t.contiguous()),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d])
@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (2, 3, 1, 5), (2, 3, 4, 1), (1, 1, 4, 5), (2, 3, 4, 5)])
def test_normalisation_has_its_derivative_whatever_the_strides(kind, shape, training):
    generator = torch.Generator().manual_seed(0)
    x, slope = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    layer = kind(shape[1], affine=True).double().train(training)

    def gradients(x: Tensor, slope: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        with CpuLayers():
            out = copy.deepcopy(layer)(leaf)
        return [out.detach(), *torch.autograd.grad(out, leaf, slope)]

    wanted = gradients(x, slope)
    for here in LAYOUTS.values():
        for there in LAYOUTS.values():
            for found, exact in zip(gradients(here(x), there(slope)), wanted, strict=True):
                close(found, exact)


def test_a_channels_last_net_keeps_its_layout_on_one_row():
    x = torch.rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    with CpuLayers():
        out = nn.BatchNorm2d(3).eval()(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert out._base is not None  # a view: nothing was copied


@pytest.mark.parametrize(
    "layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels last"]
)
@pytest.mark.parametrize("strides", [(3, 1, 12, 3), (48, 16, 4, 1), (7, 16, 4, 1)])
def test_a_slope_of_one_row_comes_back_in_the_strides_of_its_image(layout, strides):
    z = torch.rand(1, 3, 4, 4).contiguous(memory_format=layout).requires_grad_()
    slope = torch.empty_strided((1, 3, 4, 4), strides).copy_(torch.rand(1, 3, 4, 4))
    (found,) = torch.autograd.grad(in_plain_strides(z), z, slope)
    assert found.stride() == z.stride()
    assert torch.equal(found, slope)
