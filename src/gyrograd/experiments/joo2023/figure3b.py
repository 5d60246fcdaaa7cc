"""joo2023 Figure 3b: the cosine criterion and its bound."""

from __future__ import annotations

import torch
from torch import Tensor

from gyrograd.experiments.plots import Line, curves, line
from gyrograd.experiments.report import POINT
from gyrograd.experiments.results import Results
from gyrograd.experiments.scales import pick_evenly
from gyrograd.experiments.trained_nets import Columns, Part, TrainedNet
from gyrograd.numerics import random
from gyrograd.reporting import Figure, Section
from gyrograd.theory import cosine_criterion, product_bound, squared_bound
from gyrograd.types import Inputs, Labels, Model

WHERE = "cifar10-lenet"
LEVELS = (1, 2, 4, 8, 16)
LINES = {
    "criterion": "the criterion",
    "bound": "its bound",
    "squared bound": "squared bound (not in the paper)",
}


def criterion_and_bound(trained_net: TrainedNet) -> list[Part]:
    """The criterion and the bound without its remainder, over eps."""
    draws = int(trained_net.sizes["draws"])
    levels = pick_evenly(list(LEVELS), trained_net.sizes.get("levels"))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
        found: Columns = {}
        for eps in levels:
            for name, values in _at(model, x, y, keys, eps, draws).items():
                found[f"{name} {POINT}{eps}"] = values
        # The eps of training is in the table too.
        return {**found, **{name: found[f"{name} {POINT}{levels[len(levels) // 2]}"] for name in LINES}}

    return [trained_net.part(trained_net.way, "bound", {"draws": draws, "levels": levels}, columns)]


def _at(model: Model, x: Inputs, y: Labels, keys: Tensor, eps: int, draws: int) -> Columns:
    """The means over draws of the criterion and the bounds at one eps."""
    totals = {name: torch.zeros(len(x), device=x.device) for name in LINES}
    for draw in range(draws):
        unit = random.uniform(keys, tuple(x.shape[1:]), stream=draw, dtype=x.dtype)
        delta = eps / 255 * (2 * unit - 1)
        totals["criterion"] += cosine_criterion(model, x, y, delta) / draws
        totals["bound"] += product_bound(model, x, y, delta) / draws
        totals["squared bound"] += squared_bound(model, x, y, delta) / draws
    return totals


def drawn(results: Results) -> tuple[Section, ...]:
    """Plot one panel per row."""
    panels: dict[str, list[Line]] = {row: [] for row in results.rows(WHERE)}
    for row, lines in panels.items():
        for style, (name, label) in enumerate(LINES.items()):
            points = [(e, results.column_of(WHERE, row, f"{name} {POINT}{e}")) for e in LEVELS]
            lines.append(line(label, points, style, style))
    png = curves(panels, "eps (of 255)", "mean over images", logarithmic=True)
    return (Section("Criterion and bound", (), None, (Figure(png, "Bands: 95 % intervals."),)),)
