"""wang2020 Table 3: the same attacks on nets trained four ways."""

from __future__ import annotations

from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.maps import NAMES
from gyrograd.experiments.wang2020.measures import ATTACKS, accuracy, attacked, train_accuracy
from gyrograd.experiments.wang2020.ways import OF_GIVEN, RESNET20, trained
from gyrograd.registry import register


@register("experiment", "wang2020-table3", paper="wang2020", equation="Table 3")
def table3() -> Experiment:
    """The top-k and the manipulate attack on ResNet-20 trained naturally, with SSR, adversarially and with IG-NORM."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    subjects = trained(run, RESNET20 + OF_GIVEN, ("natural", "ssr", "adversarial", "ig_norm"))
    attacks = [attacked(run, attack, name) for attack in ATTACKS for name in NAMES]
    found = all_of(run, subjects, accuracy, *attacks)
    return Found(train_accuracy(run, subjects) + found.records)
