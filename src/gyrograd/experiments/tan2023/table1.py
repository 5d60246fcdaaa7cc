"""tan2023 Table 1: local Lipschitz constants of six explainers on five backbones."""

from __future__ import annotations

from gyrograd.experiments.report import shown
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import Subject, all_of
from gyrograd.experiments.tan2023.explainers import NAMES
from gyrograd.experiments.tan2023.measures import lipschitz, model_lipschitz, rank_correlations
from gyrograd.experiments.tan2023.ways import BACKBONES, SETTINGS, WAYS, trained
from gyrograd.registry import register
from gyrograd.reporting import Section, Table

TOGETHER = "backbones"


@register("experiment", "tan2023-table1", paper="tan2023", equation="Table 1")
def table1() -> Experiment:
    """How fast six explanations move on five backbones, natural and robust, and whether the nets decide it."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = trained(run)
    found = all_of(run, subjects, model_lipschitz, *(lipschitz(name) for name in NAMES)).records
    lines = {
        way: [(s.setting, way) for s in subjects if _printed(s) and (s.way, s.seed) == (way, run.seeds[0])]
        for way in WAYS
    }
    ranks = rank_correlations(found, TOGETHER, lines) if run.included((TOGETHER,)) else ()
    return Found(found + ranks)


def _printed(subject: Subject) -> bool:
    return subject.setting in BACKBONES


def _drawn(results: Results) -> tuple[Section, ...]:
    """The table as it is printed: a row a backbone, two columns an explainer."""
    header = ("", *(f"{name}, {way}" for name in ("model", *NAMES) for way in WAYS))
    rows = tuple(
        (backbone, *(_cell(results, backbone, f"{way} {name}") for name in ("model", *NAMES) for way in WAYS))
        for backbone in SETTINGS
        if backbone in results.measured_in
    )
    return (Section("Local Lipschitz constants, as the paper prints them", (), Table(header, rows)),)


def _cell(results: Results, backbone: str, row: str) -> str:
    found = results.column_of(backbone, row, "lipschitz")
    return "" if found is None else shown(found)
