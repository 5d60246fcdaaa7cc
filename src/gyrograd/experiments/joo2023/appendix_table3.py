"""joo2023 Appendix Table 3: Insertion and Adv-Insertion."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import (
    ATTRIBUTIONS,
    accuracy,
    all_of,
    attacked_game,
    every,
    insertion_game,
)
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register


@register("experiment", "joo2023-appendix-table3", paper="joo2023", equation="Appendix Table 3")
def appendix_table3() -> Experiment:
    """Insertion and Adv-Insertion of four attributions for every weight."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    games = [make(name) for name in ATTRIBUTIONS for make in (insertion_game, attacked_game)]
    return all_of(run, every(run, SETTINGS), accuracy, *games)
