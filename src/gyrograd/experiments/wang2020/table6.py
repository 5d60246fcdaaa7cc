"""wang2020 Table 6: an attack on one map, seen by the others."""

from __future__ import annotations

from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.wang2020.measures import transferred
from gyrograd.experiments.wang2020.ways import SETTINGS, trained
from gyrograd.registry import register


@register("experiment", "wang2020-table6", paper="wang2020", equation="Table 6")
def table6() -> Experiment:
    """The mass-centre attack on the saliency map, and what it does to SM, IG, SG and UG."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    return Found(transferred(run, trained(run, SETTINGS, ("natural",))))
