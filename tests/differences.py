"""Autograd's derivatives against central differences in float64: one for x, one for all weights together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

STEPS = (1e-5, 1e-6, 1e-7)


def derivative_errors(
    value: Callable[[], Tensor],
    exact: Tensor,
    tensors: Mapping[str, Tensor],
    *,
    bar: float,
    floor: float,
    seed: int = 0,
) -> dict[str, float]:
    """Relative errors of the derivatives of `exact` (with a graph) to "x", if it is there, and to all other tensors.

    All weights move at once, each along a random direction of such a length that every weight has the same share in
    the slope, unless its own slope is below `floor`. A derivative that is wrong or missing for one of n weights is
    an error of 1 / n then, which no `bar` of 1e-4 lets pass.

    The smallest error over the steps counts: a difference whose two ends lie on either side of a kink (a ReLU, a
    max-pool winner) measures no derivative, and a wrong derivative agrees with none of them.
    """
    generator = torch.Generator().manual_seed(seed)
    slopes = torch.autograd.grad(exact, list(tensors.values()), allow_unused=True, materialize_grads=True)
    groups: dict[str, list[tuple[Tensor, Tensor, float]]] = {}
    for (key, tensor), slope in zip(tensors.items(), slopes, strict=True):
        direction = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        own = float((slope * direction).sum())
        groups.setdefault("x" if key == "x" else "weights", []).append((tensor, direction, own))
    return {
        group: _error(value, parts, min(max(abs(own), floor) for _, _, own in parts), bar, floor)
        for group, parts in groups.items()
    }


def _error(
    value: Callable[[], Tensor],
    parts: list[tuple[Tensor, Tensor, float]],
    share: float,
    bar: float,
    floor: float,
) -> float:
    """For tensors with their directions and slopes, each of which is to contribute `share`."""
    lengths = [(-share if own < 0 else share) / max(abs(own), floor) for _, _, own in parts]
    moves = [(tensor, length * way) for (tensor, way, _), length in zip(parts, lengths, strict=True)]
    expected = sum(length * own for (_, _, own), length in zip(parts, lengths, strict=True))
    smallest = float("inf")
    for step in STEPS:
        measured = central_difference(value, moves, step)
        smallest = min(smallest, abs(expected - measured) / max(expected, abs(measured), share))
        if smallest <= bar:
            break
    return smallest


def central_difference(value: Callable[[], Tensor], moves: list[tuple[Tensor, Tensor]], step: float) -> float:
    starts, ends = [tensor.detach().clone() for tensor, _ in moves], []
    for distance in (step, -step, 0.0):
        with torch.no_grad():
            for start, (tensor, direction) in zip(starts, moves, strict=True):
                tensor.copy_(start + distance * direction)
        if distance:
            ends.append(float(value().detach()))
    return (ends[0] - ends[1]) / (2 * step)
