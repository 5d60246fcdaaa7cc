"""joo2023 Appendix Figure 1: maps of the selected nets."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import ATTRIBUTIONS, all_of, attacked_game, selected
from gyrograd.experiments.joo2023.pictures import attack_sections, under_attack
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "joo2023-appendix-figure1", paper="joo2023", equation="Appendix Figure 1")
def appendix_figure1() -> Experiment:
    """Maps of four attributions before and after the attack, for the nets of Table 1."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = selected(run, SETTINGS)
    found = all_of(run, subjects, *(attacked_game(name) for name in ATTRIBUTIONS))
    return Found(found.records, under_attack(run, subjects, tuple(ATTRIBUTIONS)))


def _drawn(results: Results) -> tuple[Section, ...]:
    return attack_sections(results, "the nets of Table 1")
