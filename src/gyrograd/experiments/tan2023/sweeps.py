"""SmoothGrad over its noise, on every backbone: what Figures 1, 4 and 5 draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gyrograd.experiments.plots import Line
from gyrograd.experiments.results import Estimate, Results
from gyrograd.experiments.scales import picked
from gyrograd.experiments.tan2023.ways import SETTINGS

SIGMAS = (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3)
"""The paper's are in its figures alone; these are ours, its default 0.03 among them."""


def sigmas_of(sizes: Mapping[str, Any]) -> list[float]:
    """The noise levels of a scale; the paper's default always among them."""
    some = picked(list(SIGMAS), sizes.get("levels"))
    return [sigma for sigma in SIGMAS if sigma in some or sigma == 0.03]


def over_sigma(results: Results, column: str, *, relative: bool = False) -> list[Line]:
    """A line a backbone; `relative` divides each by its largest value, as Figure 5 does."""
    lines = []
    for group, backbone in enumerate(SETTINGS):
        found = [(s, results.column_of(backbone, f"sigma {s:g}", column)) for s in SIGMAS]
        points = [(s, point) for s, point in found if point is not None]
        if points:
            scale = largest([point for _, point in points]) if relative else 1.0
            ys = tuple(scaled(point, 1 / scale) for _, point in points)
            lines.append(Line(backbone, tuple(s for s, _ in points), ys, group))
    return lines


def largest(points: Sequence[Estimate]) -> float:
    """The largest size of a mean; 1 if all are 0, so that it can stand below."""
    return max(abs(point.value) for point in points) or 1.0


def scaled(point: Estimate, factor: float) -> Estimate:
    """The estimate times a factor above 0."""
    return Estimate(
        factor * point.low, factor * point.value, factor * point.high, point.images, point.missing
    )
