"""LRP's conserving variant loses nothing on the structures that z+ loses relevance at, and LRP tells what arrived."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.lrp import LRP, conservation
from gyrograd.attributions.rules import TRACE
from gyrograd.metrics import sanity_checks

SIDE = 8


class Separable(nn.Module):
    """Depthwise convolutions: few inputs each, so that many outputs have no input that excites them (Xception)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.depth = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1, groups=6) for _ in range(3))
        self.point = nn.ModuleList(nn.Conv2d(6, 6, 1) for _ in range(3))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.stem(x))
        for depth, point in zip(self.depth, self.point, strict=True):
            z = F.relu(point(depth(z)))
        return self.head(z.mean((2, 3)))


class Bottlenecks(Separable):
    """Sums of signed values, without an activation behind them (MobileNetV2)."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        for depth, point in zip(self.depth, self.point, strict=True):
            z = z + point(F.relu6(depth(z)))
        return self.head(z.mean((2, 3)))


class Mixer(Separable):
    """A normalisation behind each activation, and sums of what it gives (ConvMixer)."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(6) for _ in range(3))
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        for depth, point, norm in zip(self.depth, self.point, self.norms, strict=True):
            z = F.gelu(point(z + norm(F.gelu(depth(z)))))
        return self.head(F.adaptive_avg_pool2d(z, 1).flatten(1))


class Biased(nn.Module):
    """Units that their bias alone keeps alive, and pools over zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.head = nn.Linear(4 * 4, 5)
        nn.init.constant_(self.conv1.bias, -2.0)  # no unit is on
        nn.init.constant_(self.conv2.bias, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        z = F.avg_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.head(z.flatten(1))


class Mean(nn.Module):
    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes)


class Sum(Mean):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(self.axes)


NETS = {"separable": Separable, "bottlenecks": Bottlenecks, "mixer": Mixer, "biased": Biased}
every = pytest.mark.parametrize("name", NETS)


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(3)
    model = NETS[name]().to(dtype).eval()
    return model, torch.rand(3, 3, SIDE, SIDE, dtype=dtype), torch.tensor([0, 4, 2])


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_relevance_arrives(name, dtype):
    model, x, target = made(name, dtype)
    arrived = conservation(LRP.variant("conserving")(model, x, target), torch.ones(3, dtype=dtype))
    torch.testing.assert_close(arrived, torch.ones(3, dtype=dtype), rtol=1e-3, atol=0)


def test_an_image_on_the_edge_of_the_box_loses_nothing():
    model, x, target = made("separable")
    with torch.no_grad():
        model.stem.weight.abs_()
    arrived = LRP.variant("conserving").conserved(model, torch.zeros_like(x), target)
    torch.testing.assert_close(arrived, torch.ones_like(arrived), rtol=1e-3, atol=0)


def test_an_output_that_no_input_excites_shares_evenly():
    layer = nn.Linear(4, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[-1.0, -2.0, -3.0, -4.0], [1.0, 2.0, 0.0, -1.0]]))
    model = nn.Sequential(layer)
    x = torch.full((2, 4), 0.5, dtype=torch.float64)
    map = LRP.variant("conserving", first="same")(model, x, torch.tensor([0, 1]))
    torch.testing.assert_close(map[0], torch.full((4,), 0.25, dtype=torch.float64), rtol=1e-4, atol=0)
    torch.testing.assert_close(
        map[1], torch.tensor([1 / 3, 2 / 3, 0, 0], dtype=torch.float64), rtol=0, atol=10 * TRACE
    )


def test_what_arrives_is_told_for_each_example_and_below_the_limit_it_is_flagged():
    model, x, target = made("bottlenecks")
    paper, conserving = gg.attribution("lrp"), gg.attribution("lrp", variant="conserving")
    arrived = paper.conserved(model, x, target)
    torch.testing.assert_close(arrived, paper(model, x, target).flatten(1).sum(1))
    assert (arrived < 0.9).all()
    flag = sanity_checks.relevance_lost(model, paper, x, target)
    assert flag is not None
    assert flag.name == "relevance_lost"
    assert flag.measured == pytest.approx(float(arrived.mean()))
    assert "variant='conserving'" in flag.note
    assert sanity_checks.relevance_lost(model, conserving, x, target) is None
    assert sanity_checks.relevance_lost(model, gg.attribution("gradient"), x, target) is None


def test_what_arrives_is_relative_to_the_value_that_was_put_in():
    model, x, target = made("separable")
    by_value = gg.attribution("lrp", variant="conserving", start="value", max_batch=2)
    torch.testing.assert_close(
        by_value.conserved(model, x, target), torch.ones(3, dtype=torch.float64), rtol=1e-3, atol=0
    )


@pytest.mark.parametrize("variant", ["paper", "conserving", "attnlrp", "epsilon"])
@pytest.mark.parametrize(
    "pool",
    [nn.AdaptiveAvgPool2d(1), Mean((2, 3)), Sum((2, 3))],
    ids=["adaptive pool", "mean", "sum"],
)
def test_an_average_of_one_value_hands_its_relevance_on_whatever_its_sign(pool, variant):
    """timm pools the head of VGG once more than torchvision does, over maps of one pixel."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Conv2d(6, 6, SIDE - 2), nn.Tanh()]
    head = [nn.Flatten(), nn.Linear(6, 5)]
    x, target = torch.rand(3, 3, SIDE, SIDE, dtype=torch.float64), torch.tensor([0, 4, 2])
    explain = LRP.variant(variant)
    plain, pooled = (nn.Sequential(*layers, *more, *head).double().eval() for more in ((), (pool,)))
    map = explain(plain, x, target)
    torch.testing.assert_close(explain(pooled, x, target), map, rtol=0, atol=1e-12 * float(map.abs().max()))
