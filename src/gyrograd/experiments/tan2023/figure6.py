"""tan2023 Figure 6: robust or faithful, across six explainers."""

from __future__ import annotations

from gyrograd.experiments.panels import figures_of
from gyrograd.experiments.plots import Line
from gyrograd.experiments.results import Estimate, Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.tan2023.explainers import NAMES
from gyrograd.experiments.tan2023.measures import SIMILARITIES, faithfulness, lipschitz
from gyrograd.experiments.tan2023.sweeps import largest
from gyrograd.experiments.tan2023.ways import trained
from gyrograd.numerics.statistics import Interval
from gyrograd.registry import register
from gyrograd.reporting import Section, Table
from gyrograd.theory.tradeoff import Point, pareto


@register("experiment", "tan2023-figure6", paper="tan2023", equation="Figure 6")
def figure6() -> Experiment:
    """Faithfulness of six explainers over their local Lipschitz constant, on naturally trained backbones."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    makers = [make(name) for name in NAMES for make in (lipschitz, faithfulness)]
    return all_of(run, trained(run, ("natural",)), *makers)


def _drawn(results: Results) -> tuple[Section, ...]:
    panels = {column: _lines(results, column) for column in SIMILARITIES}
    labels = ("local Lipschitz constant over the backbone's largest", "faithfulness")
    caption = "A line a backbone, its points the six explainers from the most robust to the least."
    figures = figures_of(panels, *labels, caption, across=3)
    return (Section("The trade-off", (), _unbeaten(results), figures),) if figures else ()


def _both(results: Results, backbone: str, column: str) -> list[tuple[str, Estimate, Estimate]]:
    """Explainer, constant and faithfulness, the most robust first."""
    known = []
    for name in NAMES:
        robust, faithful = (
            results.column_of(backbone, f"natural {name}", key) for key in ("lipschitz", column)
        )
        if robust and faithful:
            known.append((name, robust, faithful))
    return sorted(known, key=lambda point: point[1].value)


def _lines(results: Results, column: str) -> list[Line]:
    lines = []
    for group, backbone in enumerate(results.measured_in):
        points = _both(results, backbone, column)
        scale = largest([robust for _, robust, _ in points])
        xs = tuple(robust.value / scale for _, robust, _ in points)
        lines.append(Line(backbone, xs, tuple(faithful for _, _, faithful in points), group))
    return lines


def _unbeaten(results: Results) -> Table:
    """The explainers no other beats in both respects."""
    rows = [
        (backbone, column, ", ".join(point.method for point in pareto(_points(results, backbone, column))))
        for backbone in results.measured_in
        for column in SIMILARITIES
    ]
    return Table(("", "similarity", "beaten by none in both, most robust first"), tuple(rows))


def _points(results: Results, backbone: str, column: str) -> list[Point]:
    return [
        Point(name, None, robust.by_seed, faithful.by_seed, _interval(robust), _interval(faithful))
        for name, robust, faithful in _both(results, backbone, column)
    ]


def _interval(found: Estimate) -> Interval:
    return Interval(found.low, found.value, found.high, found.images, found.missing)
