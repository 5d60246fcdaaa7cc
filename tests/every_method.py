"""Every registered attribution, attack, metric, regularizer and kernel as a function of a model, images and classes.

A new entry of the registry is here by itself, at test size: settings that say how much work to do are small.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from small_attributions import ONE_OF_EACH
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.numerics.second_order import all_layers
from gyrograd.registry import lookup, make

Run = Callable[[nn.Module, Tensor, Tensor], list[Tensor]]

SMALL = {"steps": 2, "draws": 3, "points": 3, "search_points": 2, "segments": "grid", "grid": 3, "k": 10}
OWN: dict[str, dict[str, Any]] = {
    "certified_pixels": {"draws": 30, "held_out": 3, "radius": 0.0},
    "occlusion": {"patch": 6},
}
"""Three draws certify nothing; what a single hidden pixel changes is lost in half precision."""


def small(kind: str, name: str, **settings: Any) -> Any:
    """The entry at test size."""
    parameters = inspect.signature(lookup(kind, name).factory).parameters
    fitting = {key: value for key, value in SMALL.items() if key in parameters}
    return make(kind, name, **(fitting | OWN.get(name, {}) | settings))


def tensors(result: Any) -> list[Tensor]:
    """Every tensor of a result, whatever holds it."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [found for item in result for found in tensors(item)]
    return tensors(list(vars(result).values())) if hasattr(result, "__dict__") else []


def map_of(attribution: Any) -> Run:
    return lambda model, x, y: [attribution(model, x, y)]


def slopes_of(attribution: Any) -> Run:
    """The map with its graph, and its derivatives to x and to the weights."""

    def run(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        map = attribution(model, leaf, y, create_graph=True)
        slopes = torch.autograd.grad(map.square().sum(), (leaf, *model.parameters()), allow_unused=True)
        return [map, *(slope for slope in slopes if slope is not None)]

    return run


def attacked_by(attack: Any) -> Run:
    return lambda model, x, y: tensors(attack(model, gg.attribution("gradient"), x, y, seed=1))


def measured_by(metric: Any) -> Run:
    def run(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        asked = inspect.signature(type(metric).__call__).parameters
        wants = "perturbed" in asked and getattr(metric, "attacked", True)
        more = {"perturbed": (x + 0.02).clamp(0, 1)} if wants else {}
        more |= {"mask": x[:, 0] > x[:, 0].mean((1, 2), keepdim=True)} if "mask" in asked else {}
        return [metric(model, gg.attribution("gradient"), x, y, seed=1, **more)]

    return run


def trained_with(name: str, **settings: Any) -> Run:
    """The penalty in training mode, and its derivatives to the weights."""

    def run(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        teacher = {"teacher": model} if name == "atex" else {}
        regularizer = small("regularizer", name, **teacher, **settings)
        model.train()
        try:
            penalty = regularizer(model, x, y, seed=1)
            slopes = torch.autograd.grad(penalty.sum(), list(model.parameters()), allow_unused=True)
        finally:
            model.eval()
        return [penalty, *(slope for slope in slopes if slope is not None)]

    return run


def smoothed_by(name: str) -> Run:
    """The smoothed model's logits and map, recomputed in backward since the draws do not fit one pass."""

    def run(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
        calm = gg.smoothed(model, gg.kernel(name), draws=5, max_batch=2 * len(x))
        return [calm(x), *slopes_of(gg.attribution("gradient"))(calm, x, y)]

    return run


def _every() -> Iterator[tuple[str, Run]]:
    for name, entry in ONE_OF_EACH.items():
        yield f"map {name}", map_of(small("attribution", name))
        if entry.differentiable:
            yield f"slopes {name}", slopes_of(small("attribution", name))
    for name in gg.available("attack"):
        yield f"attack {name}", attacked_by(small("attack", name))
    for name in gg.available("metric"):
        yield f"metric {name}", measured_by(small("metric", name))
    for name in gg.available("regularizer"):
        yield f"regularizer {name}", trained_with(name)
    for name in gg.available("kernel"):
        yield f"kernel {name}", smoothed_by(name)


EVERY: dict[str, Run] = dict(_every())


@contextmanager
def layers_of_cuda() -> Iterator[None]:
    """The layers that are put in on CUDA alone, here."""
    with ExitStack() as patches:
        for module in ("numerics.autograd", "numerics.second_order", "attacks.engine"):
            place = f"gyrograd.{module}.made_for_second_derivatives"
            patches.enter_context(mock.patch(place, side_effect=lambda x: all_layers()))
        yield
