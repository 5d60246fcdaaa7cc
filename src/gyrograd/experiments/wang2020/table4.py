"""wang2020 Table 4: what more of the curvature in the loss costs."""

from __future__ import annotations

from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.measures import accuracy, train_accuracy
from gyrograd.experiments.wang2020.sweeps import over_betas
from gyrograd.registry import register


@register("experiment", "wang2020-table4", paper="wang2020", equation="Table 4")
def table4() -> Experiment:
    """Training accuracy of ResNet-20 under SSR with the shares 0.3 to 0.9 of the curvature, in half the epochs."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    subjects = over_betas(run)
    return Found(train_accuracy(run, subjects) + all_of(run, subjects, accuracy).records)
