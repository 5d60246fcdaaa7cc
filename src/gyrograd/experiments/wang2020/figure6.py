"""wang2020 Figure 6: how much SSR nets differ from one another."""

from __future__ import annotations

from gyrograd.experiments.panels import figures_of
from gyrograd.experiments.plots import Line
from gyrograd.experiments.results import Estimate, Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.subjects import all_of
from gyrograd.experiments.wang2020.measures import METRICS, attacked
from gyrograd.experiments.wang2020.sweeps import repeated
from gyrograd.experiments.wang2020.ways import RESNET20, trained
from gyrograd.registry import register
from gyrograd.reporting import Section

OTHERS = ("natural", "adversarial", "ig_norm")


@register("experiment", "wang2020-figure6", paper="wang2020", equation="Figure 6")
def figure6() -> Experiment:
    """The top-k attack on the saliency map of 11 ResNet-20 trained with SSR, beside the other ways to train.

    The interval of SSR is over images and nets.
    """
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    return all_of(run, repeated(run, "ssr") + trained(run, RESNET20, OTHERS), attacked(run, "top_k", "sm"))


def _drawn(results: Results) -> tuple[Section, ...]:
    panels = {metric: _lines(results, metric) for metric in METRICS}
    caption = "Solid: each SSR net. Dashed: the mean of the other ways to train, with its 95 % interval."
    figures = figures_of(panels, "SSR net", "area over eps", caption)
    return (Section("SSR nets one by one", (), None, figures),) if figures else ()


def _lines(results: Results, metric: str) -> list[Line]:
    lines = []
    ssr = results.column_of(RESNET20[0], "ssr sm", f"top_k {metric}")
    nets = ssr.by_seed if ssr else ()
    numbers = tuple(float(number) for number in range(1, len(nets) + 1))
    if ssr:
        lines.append(Line("ssr", numbers, tuple(Estimate(net, net, net, ssr.images) for net in nets)))
    for group, way in enumerate(OTHERS, 1):
        other = results.column_of(RESNET20[0], f"{way} sm", f"top_k {metric}")
        if other:
            ends = (1.0, float(max(2, len(nets))))
            lines.append(Line(way, ends, (other, other), group, 1))
    return lines
