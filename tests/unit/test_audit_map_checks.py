"""The flags of an audit's maps are those of `metrics.sanity_checks`, however the images are split into files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_audits import SMALL, small_images, small_net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.audit.engine import _inputs
from gyrograd.audit.map_checks import UNSHUFFLED, map_check_plans, row_of
from gyrograd.audit.methods import Method
from gyrograd.audit.sanity_checks import _of_maps
from gyrograd.measurement import measure
from gyrograd.metrics import Flag, sanity_checks
from gyrograd.types import Attribution

GRADIENT = gg.attribution("gradient")
IMAGES = 5


def edges(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
    """A map that looks at the image alone."""
    return x - x.roll(1, 3)


def frame(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
    """The border of every image, with a trace of the gradient in it."""
    border = torch.ones_like(x)
    border[..., 2:-2, 2:-2] = 0
    return border + 1e-3 * GRADIENT(model, x, target)


def dark_is_constant(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
    """A gradient, but one value for all pixels of images that are darker than most."""
    return torch.where(x.mean((1, 2, 3), keepdim=True) < 0.5, 1.0, GRADIENT(model, x, target))


def peak(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
    """The largest pixel of the gradient, and nothing else."""
    map = GRADIENT(model, x, target)
    pixels = map.abs().sum((1,), keepdim=True)
    return map * (pixels == pixels.amax((2, 3), keepdim=True))


def dark_is_lost(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
    """The edges, but NaN for images that are darker than most."""
    return torch.where(x.mean((1, 2, 3), keepdim=True) < 0.5, torch.nan, edges(model, x, target))


METHODS: dict[str, tuple[Attribution, set[str]]] = {
    "gradient": (GRADIENT, set()),
    "edges": (edges, {"ignores_model"}),
    "frame": (frame, {"same_map_everywhere", "ignores_model"}),
    "dark is constant": (dark_is_constant, {"constant_map", "ignores_model"}),
    "peak": (peak, {"sparse_map"}),
    "dark is lost": (dark_is_lost, {"not_finite_map"}),
    "lrp": (gg.attribution("lrp", bias="keep"), {"relevance_lost"}),
}


def flags_of_functions(attribution: Attribution, model: nn.Module, x: Tensor, y: Tensor) -> list[Flag]:
    maps = attribution(model, x, y).detach()
    found = [
        sanity_checks.not_finite_maps(maps),
        sanity_checks.relevance_lost(model, attribution, x, y),
        sanity_checks.constant_maps(maps),
        sanity_checks.sparse_maps(maps),
        sanity_checks.same_map_everywhere(maps),
        sanity_checks.ignores_model(model, attribution, x, y, maps=maps),
    ]
    return [flag for flag in found if flag is not None]


@pytest.mark.parametrize("shard", [2, 3, IMAGES])
@pytest.mark.parametrize("name", METHODS)
def test_flags_of_measured_maps_are_those_of_the_functions(name: str, shard: int, tmp_path: Path) -> None:
    (x, y), model = small_images(IMAGES + 2), small_net(activation=nn.ReLU)
    attribution, expected = METHODS[name]
    inputs = _inputs(model, x, y, None, None, None, None, None, replace(SMALL, flag_images=IMAGES), 0)
    method = Method(name, name, attribution)
    plans = map_check_plans(inputs, [method])
    # An earlier audit of another shard has measured some of the images.
    few = replace(inputs.sample, x=x[:3], target=y[:3], index=(0, 1, 2))
    measure(model, few, plans, tmp_path, shard=3, identity=inputs.identity)
    table = measure(model, inputs.sample, plans, tmp_path, shard=shard, identity=inputs.identity)
    found = [flag for flag in _of_maps(table, method) if flag is not None]
    known = flags_of_functions(attribution, model, x[:IMAGES], y[:IMAGES])
    assert {flag.name for flag in found} == expected
    assert [replace(flag, measured=0.0) for flag in found] == [replace(flag, measured=0.0) for flag in known]
    assert [flag.measured for flag in found] == pytest.approx([flag.measured for flag in known])


@pytest.mark.parametrize("shard", [1, 2, IMAGES])
def test_each_map_is_compared_with_all_earlier_ones_whatever_file_they_are_in(shard: int) -> None:
    (x, y), model = small_images(IMAGES), small_net()
    inputs = _inputs(model, x, y, None, None, None, None, None, replace(SMALL, flag_images=IMAGES), 0)
    plans = map_check_plans(inputs, [Method("gradient", "gradient", GRADIENT)])
    table = measure(model, inputs.sample, plans, shard=shard)
    sums = table.of(method=row_of("gradient"), metric="cosines_with_earlier")
    maps = torch.nn.functional.normalize(GRADIENT(model, x, y).abs().sum(1).flatten(1))
    assert list(sums.values()) == pytest.approx((maps @ maps.T).tril(-1).sum(1).tolist())


def test_the_map_of_one_image_is_compared_with_no_other() -> None:
    (x, y), model = small_images(1), small_net()
    inputs = _inputs(model, x, y, None, None, None, None, None, SMALL, 0)
    method = Method("frame", "frame", frame)
    table = measure(model, inputs.sample, map_check_plans(inputs, [method]))
    assert [flag.name for flag in _of_maps(table, method) if flag is not None] == ["ignores_model"]


def test_a_model_without_weights_has_no_shuffled_copy_which_is_said() -> None:
    net = small_net()

    class BlackBox(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return net(x)

    x, y = small_images(2)
    card = gg.audit(BlackBox().eval(), x, y, preset=SMALL, methods=["gradient"], sweep={}, bound_images=0)
    assert "ignores_model" not in {flag["name"] for flag in card.document["flags"]}
    assert UNSHUFFLED in card.document["settings"]["notes"]
    assert sanity_checks.ignores_model(BlackBox(), GRADIENT, x, y) is None
