"""joo2023 Figure 3a: maps before and after the attack."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import all_of, attacked_game, selected
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.joo2023.ways import IMAGENETS
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section

WHERE = ("cifar10-resnet18", *IMAGENETS)


@register("experiment", "joo2023-figure3a", paper="joo2023", equation="Figure 3a")
def figure3a() -> Experiment:
    """Maps of Grad before and after the targeted attack at eps 2, for four ways to train."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = selected(run, WHERE)
    found = all_of(run, subjects, attacked_game("grad"))
    return Found(found.records, under_attack(run, subjects, ("grad",)))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "the map to be reached is a frame")
