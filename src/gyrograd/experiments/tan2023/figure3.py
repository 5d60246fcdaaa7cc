"""tan2023 Figure 3: explanations of nets trained to be ever more robust."""

from __future__ import annotations

from gyrograd.experiments.plots import Line
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.tan2023.explainers import NAMES
from gyrograd.experiments.tan2023.measures import lipschitz, model_lipschitz, rank_correlations
from gyrograd.experiments.tan2023.ways import LEVELS, over_levels
from gyrograd.experiments.wang2020.panels import figures_of
from gyrograd.experiments.wang2020.subjects import all_of
from gyrograd.registry import register
from gyrograd.reporting import Section

WHERE = "resnet18"


@register("experiment", "tan2023-figure3", paper="tan2023", equation="Figure 3")
def figure3() -> Experiment:
    """Local Lipschitz constants of six explanations over that of the net, for ten ResNet18 from natural to robust."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = over_levels(run)
    found = all_of(run, subjects, model_lipschitz, *(lipschitz(name) for name in NAMES)).records
    ways = list(dict.fromkeys(subject.way for subject in subjects))
    return Found(found + rank_correlations(found, WHERE, {"all levels": [(WHERE, way) for way in ways]}))


def _drawn(results: Results) -> tuple[Section, ...]:
    panels = {_title(results, name): [_line(results, name)] for name in NAMES}
    labels = ("local Lipschitz constant of the net", "of the explanation")
    figures = figures_of(panels, *labels, "Bands: 95 % intervals.", across=3)
    return (Section("Explanations over nets", (), None, figures),) if figures else ()


def _title(results: Results, name: str) -> str:
    rank = results.column_of(WHERE, f"all levels {name}", "rank correlation")
    return name if rank is None else f"{name}, rank correlation {rank.value:.2f}"


def _line(results: Results, name: str) -> Line:
    ways = [f"eps {level:g}" for level in LEVELS]
    found = [
        [results.column_of(WHERE, f"{way} {what}", "lipschitz") for what in ("model", name)] for way in ways
    ]
    points = sorted((net.value, index) for index, (net, map) in enumerate(found) if net and map)
    maps = [found[index][1] for _, index in points]
    return Line(name, tuple(x for x, _ in points), tuple(map for map in maps if map))
