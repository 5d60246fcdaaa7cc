"""joo2023 Appendix Table 4: Adv-Insertion at two strengths."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import ATTRIBUTIONS, all_of, attacked_game, selected
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register


@register("experiment", "joo2023-appendix-table4", paper="joo2023", equation="Appendix Table 4")
def appendix_table4() -> Experiment:
    """Adv-Insertion of the selected nets when the attack has eps 2 and 4."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    attacks = [attacked_game(name, eps) for name in ATTRIBUTIONS for eps in (2, 4)]
    return all_of(run, selected(run, SETTINGS), *attacks)
