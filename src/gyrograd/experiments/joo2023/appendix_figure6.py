"""joo2023 Appendix Figure 6: the cosine criterion alone."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import accuracy, all_of, attacked_game, every, insertion_game, rps
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.joo2023.ways import cosine_alone
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "joo2023-appendix-figure6", paper="joo2023", equation="Appendix Figure 6")
def appendix_figure6() -> Experiment:
    """Maps of Grad on CIFAR-10 LeNet trained with the cosine criterion alone: a large weight ruins them."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = every(run, ("cifar10-lenet",), cosine_alone)
    measures = (accuracy, rps("grad", 16), insertion_game("grad"), attacked_game("grad"))
    return Found(all_of(run, subjects, *measures).records, under_attack(run, subjects, ("grad",)))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "weights rise from left to right")
