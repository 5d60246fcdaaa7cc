"""joo2023 Appendix Figure 3: ResNet18 over its weights."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import all_of, attacked_game, every, rps
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "joo2023-appendix-figure3", paper="joo2023", equation="Appendix Figure 3")
def appendix_figure3() -> Experiment:
    """Maps of Grad on CIFAR-10 ResNet18 before and after the attack at eps 4, for every weight."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = every(run, ("cifar10-resnet18",))
    found = all_of(run, subjects, rps("grad", 16), attacked_game("grad", 4))
    return Found(found.records, under_attack(run, subjects, ("grad",), eps=4))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "weights rise from left to right")
