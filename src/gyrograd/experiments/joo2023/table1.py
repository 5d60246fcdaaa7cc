"""joo2023 Table 1: six ways to train, four attributions, three measures."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import (
    ATTRIBUTIONS,
    accuracy,
    all_of,
    attacked_game,
    insertion_game,
    rps,
    selected,
)
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register


@register("experiment", "joo2023-table1", paper="joo2023", equation="Table 1")
def table1() -> Experiment:
    """Accuracy, RPS at eps 16, Insertion and Adv-Insertion of four attributions, for six ways to train."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    games = [make(name) for name in ATTRIBUTIONS for make in (insertion_game, attacked_game)]
    noise = [rps(name, 16) for name in ATTRIBUTIONS]
    return all_of(run, selected(run, SETTINGS), accuracy, *noise, *games)
