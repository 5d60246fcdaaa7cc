"""wang2020 Figure 8: SSR with several shares of the curvature."""

from __future__ import annotations

from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.maps import NAMES
from gyrograd.experiments.wang2020.measures import attacked
from gyrograd.experiments.wang2020.sweeps import drawn_over, over_betas
from gyrograd.experiments.wang2020.ways import BETAS
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "wang2020-figure8", paper="wang2020", equation="Figure 8")
def figure8() -> Experiment:
    """The top-k attack on the SSR nets of Table 4, over the share of the curvature in the loss."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    return all_of(run, over_betas(run), *(attacked(run, "top_k", name) for name in NAMES))


def _drawn(results: Results) -> tuple[Section, ...]:
    return drawn_over(results, "beta", BETAS, "beta of SSR")
