"""joo2023 Appendix Table 1: RPS of Grad and xGrad."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import RPS_EPS, accuracy, all_of, every, rps
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register


@register("experiment", "joo2023-appendix-table1", paper="joo2023", equation="Appendix Table 1")
def appendix_table1() -> Experiment:
    """RPS of Grad and xGrad for every weight: eps 4, 8 and 16, in cosine, Pearson and SSIM."""
    return Experiment(_measured)


def _measured(run: Run) -> Found:
    noise = [rps(name, eps) for name in ("grad", "xgrad") for eps in RPS_EPS]
    return all_of(run, every(run, SETTINGS), accuracy, *noise)
