"""wang2020 Table 5: the attacks on an adversarially trained ImageNet net."""

from __future__ import annotations

from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.maps import NAMES
from gyrograd.experiments.wang2020.measures import ATTACKS, attacked
from gyrograd.experiments.wang2020.ways import trained
from gyrograd.registry import register


@register("experiment", "wang2020-table5", paper="wang2020", equation="Table 5")
def table5() -> Experiment:
    """The top-k and the manipulate attack on a net trained adversarially (l-inf, eps 8), beside the natural one."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    attacks = [attacked(run, attack, name) for attack in ATTACKS for name in NAMES]
    return all_of(run, trained(run, ("imagenet",), ("natural", "robust")), *attacks)
