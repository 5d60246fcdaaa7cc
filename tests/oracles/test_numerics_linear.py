"""Large linear layers on a CPU against torch's own in double precision: values and derivatives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gyrograd as gg
from gyrograd.numerics import cpu_layers, linear
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.linear import FEWEST_WEIGHTS, linear_on_cpu

LARGE = (64, FEWEST_WEIGHTS // 64)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The weights of the layers that were not left to torch."""
    seen: list[Tensor] = []
    own = linear._product
    monkeypatch.setattr(linear, "_product", lambda x, w, b: seen.append(w) or own(x, w, b))
    return seen


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_two_derivatives_are_those_of_torch(
    rows: int, biased: bool, products: list[Tensor]
) -> None:
    weight, bias = draw(*LARGE), draw(LARGE[0]) if biased else None

    def derivatives(layer, dtype: torch.dtype) -> list[Tensor]:
        x = draw(rows, LARGE[1]).to(dtype).requires_grad_()
        out = layer(x, weight.to(dtype), None if bias is None else bias.to(dtype))
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.square().sum(), x)
        return [out, slope, bend]

    found, expected = derivatives(linear_on_cpu, torch.float32), derivatives(F.linear, torch.float64)
    assert len(products) == 4  # forward, backward, and each of them once more
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5 * float(other.detach().abs().max()))


def test_without_a_graph_only_values_are_made(products: list[Tensor]) -> None:
    x, weight = draw(5, LARGE[1]).requires_grad_(), draw(*LARGE).requires_grad_()
    with torch.no_grad():
        out = linear_on_cpu(x, weight)
    assert out.grad_fn is None
    assert len(products) == 1


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (draw(5, 8), draw(64, 8)),
        (draw(2, 5, LARGE[1]), draw(*LARGE)),
        (draw(LARGE[1]), draw(*LARGE)),
        (draw(5, LARGE[1]).double(), draw(*LARGE).double()),
        (draw(0, LARGE[1]), draw(*LARGE)),
    ],
)
def test_what_it_is_not_made_for_is_left_to_torch(x: Tensor, weight: Tensor, products: list[Tensor]) -> None:
    assert torch.equal(linear_on_cpu(x, weight), F.linear(x, weight))
    assert not products


def test_under_autocast_it_is_left_to_torch(products: list[Tensor]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert linear_on_cpu(draw(5, LARGE[1]), draw(*LARGE)).dtype == torch.bfloat16
    assert not products


@pytest.mark.parametrize("which", ["weight", "bias"])
def test_a_weight_that_learns_gets_its_gradient(which: str, products: list[Tensor]) -> None:
    given = {"weight": draw(*LARGE), "bias": draw(LARGE[0])}
    given[which].requires_grad_()
    x = draw(5, LARGE[1]).requires_grad_()
    with CpuLayers():
        out = F.linear(x, given["weight"], given["bias"])
    (found,) = torch.autograd.grad(out.sum(), given[which])
    assert float(found.abs().sum()) > 0
    assert not products


def test_maps_and_searches_have_it(products: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = gg.model("lenet", num_classes=3, seed=0).eval(), torch.rand(2, 3, 32, 32)

    def score(z: Tensor) -> Tensor:
        return model(z)[:, 0]

    found = input_gradient(score, x)
    assert len(products) == 2  # forward and backward, though the weights require a gradient
    assert all(weight.requires_grad for weight in model.parameters())
    with monkeypatch.context() as change:
        change.setattr(cpu_layers, "linear_on_cpu", lambda *a, **_: F.linear(*a))
        expected = input_gradient(score, x)
    assert len(products) == 2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    gg.attack("auto", eps=2 / 255, steps=1)(model, gg.attribution("gradient"), x, torch.tensor([0, 1]))
    assert any(len(weight) == 4096 for weight in products[2:])
