"""Plots and tables of tan2023: pure functions of the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from gyrograd.experiments.plots import Line, figures_of, line
from gyrograd.experiments.report import shown
from gyrograd.experiments.results import Estimate, Results
from gyrograd.experiments.tan2023.explainers import NAMES, SIGMAS
from gyrograd.experiments.tan2023.measures import SIMILARITIES
from gyrograd.experiments.tan2023.variants import LEVELS, SETTINGS, WAYS
from gyrograd.numerics.statistics import Interval
from gyrograd.reporting import Section, Table
from gyrograd.theory.tradeoff import Point, pareto


def as_printed(results: Results) -> tuple[Section, ...]:
    """Table 1 in the paper's layout: one row per backbone, two columns per explainer."""
    header = ("", *(f"{name}, {way}" for name in ("model", *NAMES) for way in WAYS))
    rows = []
    for backbone in (one for one in SETTINGS if one in results.measured_in):
        ways = [f"{way} {name}" for name in ("model", *NAMES) for way in WAYS]
        found = [results.column_of(backbone, way, "lipschitz") for way in ways]
        rows.append((backbone, *("" if constant is None else shown(constant) for constant in found)))
    return (Section("Local Lipschitz constants, as the paper prints them", (), Table(header, tuple(rows))),)


def over_nets(results: Results) -> tuple[Section, ...]:
    """Figure 3: one panel per explainer, its constant over that of the net."""
    sections = []
    for where in results.measured_in:
        panels = {}
        for name in NAMES:
            rank = results.column_of(where, f"all levels {name}", "rank correlation")
            title = name if rank is None else f"{name}, rank correlation {rank.value:.2f}"
            panels[title] = [_over_levels(results, where, name)]
        labels = ("local Lipschitz constant of the net", "of the explanation")
        figures = figures_of(panels, *labels, "Bands: 95 % intervals.", across=3)
        sections += [Section(f"Explanations over nets, {where}", (), None, figures)] if figures else []
    return tuple(sections)


def _over_levels(results: Results, where: str, name: str) -> Line:
    ways = [f"eps {level:g}" for level in LEVELS]
    found = [
        [results.column_of(where, f"{way} {what}", "lipschitz") for what in ("model", name)] for way in ways
    ]
    points = sorted((net.value, index) for index, (net, map) in enumerate(found) if net and map)
    maps = [found[index][1] for _, index in points]
    return line(name, zip([x for x, _ in points], maps, strict=True))


def over_noise(results: Results) -> tuple[Section, ...]:
    """Figure 4: SmoothGrad's constant over its noise."""
    panels = {"local Lipschitz constant": over_sigma(results, "lipschitz")}
    figures = figures_of(panels, "sigma", "local Lipschitz constant", "Bands: 95 % intervals.")
    return (Section("SmoothGrad over its noise", (), None, figures),) if figures else ()


def faithful_over_noise(results: Results) -> tuple[Section, ...]:
    """Figure 5: SmoothGrad's faithfulness over its noise, and where it is largest."""
    panels = {column: over_sigma(results, column, relative=True) for column in SIMILARITIES}
    caption = "Each line over its largest value, as in the paper. Bands: 95 % intervals."
    figures = figures_of(panels, "sigma", "over the backbone's largest value", caption, across=3)
    return (Section("Faithfulness over noise", (), best_noise(results), figures),) if figures else ()


def best_noise(results: Results) -> Table:
    """The most faithful noise level, and whether it is the first or the last one tried."""
    rows = []
    for backbone in results.measured_in:
        for column in SIMILARITIES:
            found = [(s, results.column_of(backbone, f"sigma {s:g}", column)) for s in SIGMAS]
            points = [(point.value, s, point) for s, point in found if point is not None]
            if not points:
                continue
            _, sigma, best = max(points, key=lambda point: point[0])
            edge = sigma in (points[0][1], points[-1][1])
            rows.append((backbone, column, f"{sigma:g}", shown(best), "at the edge" if edge else "inside"))
    return Table(("", "similarity", "best sigma", "faithfulness", "where"), tuple(rows))


def over_sigma(results: Results, column: str, *, relative: bool = False) -> list[Line]:
    """One line per backbone; `relative` divides each by its largest value, as Figure 5 does."""
    lines = []
    for group, backbone in enumerate(SETTINGS):
        found = line(
            backbone, [(s, results.column_of(backbone, f"sigma {s:g}", column)) for s in SIGMAS], group
        )
        if found.x:
            scale = largest(found.y) if relative else 1.0
            lines.append(replace(found, y=tuple(scaled(point, 1 / scale) for point in found.y)))
    return lines


def largest(points: Sequence[Estimate]) -> float:
    """The largest absolute mean; 1 if there is none or all are 0, so that it can be a divisor."""
    return max((abs(point.value) for point in points), default=0.0) or 1.0


def scaled(point: Estimate, factor: float) -> Estimate:
    """The estimate times a positive factor."""
    low, value, high = (factor * bound for bound in (point.low, point.value, point.high))
    return Estimate(low, value, high, point.images, point.missing)


def trade_off(results: Results) -> tuple[Section, ...]:
    """Figure 6: faithfulness over the constant, and the explainers that no other beats in both."""
    panels = {column: trade_off_lines(results, column) for column in SIMILARITIES}
    labels = ("local Lipschitz constant over the backbone's largest", "faithfulness")
    caption = "A colour per backbone, a marker per explainer; bars: 95 % intervals of faithfulness. Left is steadier."
    figures = figures_of(panels, *labels, caption, across=3)
    return (Section("The trade-off", (), unbeaten(results), figures),) if figures else ()


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


def trade_off_lines(results: Results, column: str) -> list[Line]:
    lines = []
    for group, backbone in enumerate(results.measured_in):
        points = _both(results, backbone, column)
        scale = largest([robust for _, robust, _ in points])
        xs = tuple(robust.value / scale for _, robust, _ in points)
        names = tuple(name for name, _, _ in points)
        lines.append(Line(backbone, xs, tuple(faithful for _, _, faithful in points), group, names=names))
    return lines


def unbeaten(results: Results) -> Table:
    """The explainers that no other beats in both robustness and faithfulness."""
    rows = []
    for backbone, column in product(results.measured_in, SIMILARITIES):
        points = [
            Point(name, None, robust.by_seed, faithful.by_seed, _interval(robust), _interval(faithful))
            for name, robust, faithful in _both(results, backbone, column)
        ]
        rows.append((backbone, column, ", ".join(point.method for point in pareto(points))))
    return Table(("", "similarity", "beaten by none in both, most robust first"), tuple(rows))


def _interval(found: Estimate) -> Interval:
    return Interval(found.low, found.value, found.high, found.images, found.missing)
