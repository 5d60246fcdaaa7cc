"""Sweeps over a training setting, and plots of an attack's areas over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gyrograd.experiments.engine import Draw, ExperimentContext
from gyrograd.experiments.nets import Net
from gyrograd.experiments.plots import Line, figures_of, line
from gyrograd.experiments.results import Estimate, Results
from gyrograd.experiments.scales import pick_evenly
from gyrograd.experiments.trained_nets import TrainedNet
from gyrograd.experiments.wang2020.maps import NAMES
from gyrograd.experiments.wang2020.measures import METRICS
from gyrograd.experiments.wang2020.variants import BETAS, RADII, RESNET20, ball_net, ssr_net, way_net
from gyrograd.reporting import Section

OTHERS = ("natural", "adversarial", "ig_norm")
"""Rows that Figure 6 compares with the SSR nets."""


def over_betas(run: ExperimentContext) -> list[TrainedNet]:
    """SSR nets of Table 4 and Figure 8."""
    return _over(run, "beta", BETAS, ssr_net)


def over_betas_of_bytes(run: ExperimentContext) -> list[TrainedNet]:
    """The same nets with the released scale, on [0, 255], to see which of the two gives Table 4's accuracies."""
    return _over(run, "bytes beta", BETAS, partial(ssr_net, way="ssr_bytes"))


def over_radii(run: ExperimentContext) -> list[TrainedNet]:
    """Adversarially trained nets of Figure 7."""
    return _over(run, "radius", RADII, ball_net)


def repeated(run: ExperimentContext, way: str, nets: int = 11) -> list[TrainedNet]:
    """Nets of one way to train with different seeds (Figure 6: 11 nets)."""
    return [
        TrainedNet(setting, way, seed, way_net(sizes, way, seed), sizes)
        for setting in run.included(RESNET20)
        for sizes in (run.sizes(setting),)
        for seed in range(int(sizes.get("rounds", nets)))
        if run.select_rows([way])
    ]


def _over(
    run: ExperimentContext,
    what: str,
    values: Sequence[float],
    net: Callable[[Mapping[str, Any], float, int], Net],
) -> list[TrainedNet]:
    return run.trained_nets(
        RESNET20,
        lambda _, sizes: {
            f"{what} {value:g}": partial(net, sizes, value)
            for value in pick_evenly(list(values), sizes.get("grid"))
        },
    )


def drawn_over(what: str, values: Sequence[float], label: str) -> Draw:
    """Plot the area of the top-k attack over the setting, one panel per metric, one line per map."""

    def drawn(results: Results) -> tuple[Section, ...]:
        panels: dict[str, list[Line]] = {metric: [] for metric in METRICS}
        for metric, lines in panels.items():
            for group, name in enumerate(NAMES):
                found = [
                    results.column_of(RESNET20[0], f"{what} {v:g} {name}", f"top_k {metric}") for v in values
                ]
                lines.append(line(name, zip(values, found, strict=True), group))
        figures = figures_of(panels, label, "area over eps", "Bands: 95 % intervals.")
        return (Section("The top-k attack", (), None, figures),) if figures else ()

    return drawn


def drawn_net_by_net(results: Results) -> tuple[Section, ...]:
    """Plot every SSR net and the mean of the other ways to train, one panel per metric."""
    panels = {metric: _nets(results, metric) for metric in METRICS}
    caption = "Solid: each SSR net. Dashed: the mean of the other ways to train, with its 95 % interval."
    figures = figures_of(panels, "SSR net", "area over eps", caption)
    return (Section("SSR nets one by one", (), None, figures),) if figures else ()


def _nets(results: Results, metric: str) -> list[Line]:
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
