"""wang2020 Figure 7: adversarial training in l2 balls of several radii."""

from __future__ import annotations

from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.maps import NAMES
from gyrograd.experiments.wang2020.measures import accuracy, attacked
from gyrograd.experiments.wang2020.sweeps import drawn_over, over_radii
from gyrograd.experiments.wang2020.ways import RADII
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "wang2020-figure7", paper="wang2020", equation="Figure 7")
def figure7() -> Experiment:
    """The top-k attack on ResNet-20 trained adversarially in l2 balls, over their radius."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    return all_of(run, over_radii(run), accuracy, *(attacked(run, "top_k", name) for name in NAMES))


def _drawn(results: Results) -> tuple[Section, ...]:
    return drawn_over(results, "radius", RADII, "radius of the l2 ball in training")
