"""joo2023 Appendix Figure 4: ImageNet100 over single weights."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import all_of, attacked_game, every, rps
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.joo2023.ways import IMAGENETS, one_weight
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "joo2023-appendix-figure4", paper="joo2023", equation="Appendix Figure 4")
def appendix_figure4() -> Experiment:
    """Maps of Grad on ImageNet100 before and after the attack, for CE, Hessian and l2 at every weight."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = every(run, IMAGENETS, one_weight)
    found = all_of(run, subjects, rps("grad", 16), attacked_game("grad"))
    return Found(found.records, under_attack(run, subjects, ("grad",)))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "weights rise from left to right")
