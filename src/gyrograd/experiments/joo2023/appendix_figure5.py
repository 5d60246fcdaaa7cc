"""joo2023 Appendix Figure 5: ImageNet100 over pairs of weights."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import all_of, attacked_game, every, rps
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.joo2023.ways import IMAGENETS, two_weights
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "joo2023-appendix-figure5", paper="joo2023", equation="Appendix Figure 5")
def appendix_figure5() -> Experiment:
    """Maps of Grad on ImageNet100 before and after the attack, for l2 with cosine at every pair of weights."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = every(run, IMAGENETS, two_weights)
    found = all_of(run, subjects, rps("grad", 16), attacked_game("grad"))
    return Found(found.records, under_attack(run, subjects, ("grad",)))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "weights rise from left to right")
