"""joo2023 Appendix Figure 2: LeNet over its weights."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import all_of, attacked_game, every, rps
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "joo2023-appendix-figure2", paper="joo2023", equation="Appendix Figure 2")
def appendix_figure2() -> Experiment:
    """Maps of Grad on CIFAR-10 LeNet before and after the attack, for every weight."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = every(run, ("cifar10-lenet",))
    found = all_of(run, subjects, rps("grad", 16), attacked_game("grad"))
    return Found(found.records, under_attack(run, subjects, ("grad",)))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "weights rise from left to right")
