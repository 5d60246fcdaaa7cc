"""Robustness against faithfulness: curves of both over a setting, and a recommendation (tan2023 Section 5).

Both measures are arguments, functions from an attribution to one number per example, so that any pair can be compared:
the local Lipschitz constant with the paper's faithfulness, or a similarity with insertion.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.numerics.similarity import cosine
from gyrograd.numerics.statistics import Interval, bootstrap_interval, paired_difference
from gyrograd.types import Attribution, Inputs, PerExample

Measure: TypeAlias = Callable[[Attribution], Tensor]
"""Maps an attribution to one number per example, for a model and images that the function holds."""
Direction = Literal["higher is better", "lower is better"]


@dataclass(frozen=True)
class Point:
    """One method at one setting (None if it has none): its values per example and their means."""

    method: str
    setting: float | None
    robustness: tuple[float, ...]
    faithfulness: tuple[float, ...]
    robustness_mean: Interval
    faithfulness_mean: Interval


@dataclass(frozen=True)
class Recommendation:
    """The points to choose from.

    best: per method, the point of highest mean faithfulness. ties: per method, the other settings that are not
    significantly less faithful (the paired interval contains zero). at_edge: methods whose best setting is the first or
    last one tried, so that a wider sweep may find a better one. pareto: the points that no other point beats in both
    respects, most robust first.
    """

    best: dict[str, Point]
    ties: dict[str, tuple[float, ...]]
    at_edge: tuple[str, ...]
    pareto: tuple[Point, ...]


@dataclass(frozen=True)
class Promise:
    """Whether tan2023 Theorem 5.2 guarantees a best noise level strictly between zero and infinity, per example.

    alpha: the smallest cosine of a smoothed map and the marginal contributions. ratio: the length of the contributions
    divided by that of the unsmoothed map. kept: True if the guarantee holds.
    """

    alpha: PerExample
    ratio: PerExample
    kept: Bool[Tensor, " b"]


def sweep(
    methods: Mapping[str, Callable[[float], Attribution]],
    settings: Sequence[float],
    *,
    robustness: Measure,
    faithfulness: Measure,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[Point, ...]:
    """Each method at each setting, such as `sweep({"smoothgrad": smoothgrad}, [0.01, 0.03, 0.1], ...)`."""
    if not methods or not settings:
        raise UserError("A sweep without methods or settings measures nothing; give at least one of each.")
    if sorted(set(settings)) != list(settings):
        raise UserError(f"The settings {list(settings)} must rise, each of them once; sort them.")
    return tuple(
        _point(name, setting, build(setting), robustness, faithfulness, level, resamples, seed)
        for name, build in methods.items()
        for setting in settings
    )


def compare(
    methods: Mapping[str, Attribution],
    *,
    robustness: Measure,
    faithfulness: Measure,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[Point, ...]:
    """One point per method, for the trade-off across methods (tan2023 Figure 6)."""
    if not methods:
        raise UserError("There is no method to compare; give at least one.")
    return tuple(
        _point(name, None, attribution, robustness, faithfulness, level, resamples, seed)
        for name, attribution in methods.items()
    )


def recommend(
    points: Iterable[Point],
    *,
    robust: Direction = "lower is better",
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Recommendation:
    """The most faithful setting of each method (tan2023 Theorem 5.2), and the Pareto set.

    `robust` is the direction of the robustness measure: lower is better for a local Lipschitz constant, higher for a
    similarity. Higher faithfulness is better.
    """
    known = tuple(points)
    if not known:
        raise UserError("There are no points to recommend from; run sweep or compare first.")
    curves: dict[str, list[Point]] = {}
    for point in known:
        curves.setdefault(point.method, []).append(point)
    best = {
        name: max(curve, key=lambda point: point.faithfulness_mean.value) for name, curve in curves.items()
    }
    ties = {name: _ties(best[name], curve, level, resamples, seed) for name, curve in curves.items()}
    widths = {name: [p.setting for p in curve if p.setting is not None] for name, curve in curves.items()}
    # At an edge of the sweep the best setting may lie outside of it.
    edge = tuple(
        name
        for name, point in best.items()
        if point.setting is not None and point.setting in (min(widths[name]), max(widths[name]))
    )
    return Recommendation(best, ties, edge, pareto(known, robust=robust))


def pareto(points: Iterable[Point], *, robust: Direction = "lower is better") -> tuple[Point, ...]:
    """The points that no other beats in mean robustness and mean faithfulness, most robust first."""
    check_name("direction", robust, get_args(Direction))
    # So that higher is better in both.
    sign = -1 if robust == "lower is better" else 1
    placed = [(sign * p.robustness_mean.value, p.faithfulness_mean.value, p) for p in points]
    kept = [
        (r, f, p)
        for r, f, p in placed
        if not any(a >= r and b >= f and (a, b) != (r, f) for a, b, _ in placed)
    ]
    return tuple(p for _, _, p in sorted(kept, key=lambda place: (-place[0], -place[1])))


def interior_optimum(maps: Float[Tensor, "n b *shape"], contributions: Inputs) -> Promise:
    """Test whether tan2023 Theorem 5.2 applies, from SmoothGrad maps at rising sigma, the gradient first.

    `contributions` are the marginal ones, p of Definition 3.4. With t = ||p|| / ||gradient|| and alpha > 0 a best sigma
    strictly between 0 and infinity exists if the zero map is no worse than the gradient, or if 2 t - 1 - alpha^2 t^2 <
    0 and alpha t < 1. The last condition is missing in the paper, and without it the theorem fails. alpha is the
    minimum over these maps; the theorem requires it for all sigma.
    """
    gradient, p = maps[0].flatten(1), contributions.flatten(1)
    alpha = torch.stack([cosine(map, contributions) for map in maps]).amin(0)
    t = p.norm(dim=1) / gradient.norm(dim=1)
    zero_is_no_worse = gradient.square().sum(1) >= 2 * (gradient * p).sum(1)
    shrinking_helps = (2 * t - 1 - (alpha * t).square() < 0) & (alpha * t < 1)
    return Promise(alpha, t, (alpha > 0) & (p.norm(dim=1) > 0) & (zero_is_no_worse | shrinking_helps))


def _point(
    method: str,
    setting: float | None,
    attribution: Attribution,
    robustness: Measure,
    faithfulness: Measure,
    level: float,
    resamples: int,
    seed: int,
) -> Point:
    rows = [tuple(measure(attribution).double().tolist()) for measure in (robustness, faithfulness)]
    if len(rows[0]) != len(rows[1]):
        raise UserError(
            f"Robustness has {len(rows[0])} values, faithfulness {len(rows[1])}; measure the same examples."
        )
    means = [bootstrap_interval(row, level=level, resamples=resamples, seed=seed) for row in rows]
    return Point(method, setting, rows[0], rows[1], means[0], means[1])


def _ties(best: Point, curve: list[Point], level: float, resamples: int, seed: int) -> tuple[float, ...]:
    return tuple(
        point.setting
        for point in curve
        if point is not best
        and point.setting is not None
        and not paired_difference(
            best.faithfulness, point.faithfulness, level=level, resamples=resamples, seed=seed
        ).excludes_zero
    )
