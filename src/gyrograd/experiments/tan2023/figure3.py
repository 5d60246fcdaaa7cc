"""tan2023 Figure 3: explanations of nets trained to be ever more robust."""

from __future__ import annotations

from gyrograd.experiments.panels import figures_of
from gyrograd.experiments.plots import Line
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Measured, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.tan2023.explainers import NAMES
from gyrograd.experiments.tan2023.measures import lipschitz, model_lipschitz, rank_correlations
from gyrograd.experiments.tan2023.ways import LEVELS, over_levels
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "tan2023-figure3", paper="tan2023", equation="Figure 3")
def figure3() -> Experiment:
    """Local Lipschitz constants of six explanations over that of the net, for ten nets from natural to robust.

    ResNet18 as in the paper, and LeNet, which is ours.
    """
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = over_levels(run)
    found = all_of(run, subjects, model_lipschitz, *(lipschitz(name) for name in NAMES)).records
    ranks: tuple[Measured, ...] = ()
    for where in dict.fromkeys(subject.setting for subject in subjects):
        ways = dict.fromkeys(subject.way for subject in subjects if subject.setting == where)
        ranks += rank_correlations(found, where, {"all levels": [(where, way) for way in ways]})
    return Found(found + ranks)


def _drawn(results: Results) -> tuple[Section, ...]:
    sections = []
    for where in results.measured_in:
        panels = {_title(results, where, name): [_line(results, where, name)] for name in NAMES}
        labels = ("local Lipschitz constant of the net", "of the explanation")
        figures = figures_of(panels, *labels, "Bands: 95 % intervals.", across=3)
        sections += [Section(f"Explanations over nets, {where}", (), None, figures)] if figures else []
    return tuple(sections)


def _title(results: Results, where: str, name: str) -> str:
    rank = results.column_of(where, f"all levels {name}", "rank correlation")
    return name if rank is None else f"{name}, rank correlation {rank.value:.2f}"


def _line(results: Results, where: str, name: str) -> Line:
    ways = [f"eps {level:g}" for level in LEVELS]
    found = [
        [results.column_of(where, f"{way} {what}", "lipschitz") for what in ("model", name)] for way in ways
    ]
    points = sorted((net.value, index) for index, (net, map) in enumerate(found) if net and map)
    maps = [found[index][1] for _, index in points]
    return Line(name, tuple(x for x, _ in points), tuple(map for map in maps if map))
