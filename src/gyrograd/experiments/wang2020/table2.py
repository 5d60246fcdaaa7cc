"""wang2020 Table 2: two attacks on four maps of naturally trained nets."""

from __future__ import annotations

from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.maps import NAMES
from gyrograd.experiments.wang2020.measures import ATTACKS, attacked
from gyrograd.experiments.wang2020.ways import SETTINGS, trained
from gyrograd.registry import register


@register("experiment", "wang2020-table2", paper="wang2020", equation="Table 2")
def table2() -> Experiment:
    """How far the top-k and the manipulate attack move SM, IG, SG and UG on three data sets: areas over eps."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    attacks = [attacked(run, attack, name) for attack in ATTACKS for name in NAMES]
    return all_of(run, trained(run, SETTINGS, ("natural",)), *attacks)
