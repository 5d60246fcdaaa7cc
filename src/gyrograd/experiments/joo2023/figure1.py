"""joo2023 Figure 1: four small nets on the plane, and how far the gradient turns near their decision boundary."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor

from gyrograd.experiments.engine import ExperimentOutput, MeasuredNets, measure_cells
from gyrograd.experiments.pictures import BAR, Arrays
from gyrograd.experiments.results import Results
from gyrograd.experiments.trained_nets import Columns
from gyrograd.measurement import Cell
from gyrograd.registry import make
from gyrograd.reporting import Figure, Section
from gyrograd.reporting.figures import figure_png
from gyrograd.theory.alignment_toy import PANELS, Panel, Turn, logit, sharpest_turn, trained_net
from gyrograd.types import Model

WHERE = "toy2d"
TICKS = 60


def measure_toy(measured: MeasuredNets) -> ExperimentOutput:
    """Train the toy nets, one cell per draw of the data, and measure the sharpest turn of the gradient."""
    steps = int(measured.run.sizes(WHERE)["steps"])
    cells = {row: _cell(panel, steps) for row, panel in rows().items()}
    found = measure_cells(measured.run, WHERE, cells, "training toys", shard=1)
    pictures = {key: array for _, row, *_ in found for key, array in _level_curves(row, steps).items()}
    return ExperimentOutput(found, pictures)


def rows() -> dict[str, Panel]:
    """The four nets by their captions."""
    return {f"{panel.letter} {panel.title}": panel for panel in PANELS}


def _cell(panel: Panel, steps: int) -> Cell:
    def measure(draws: Tensor) -> Columns:
        turns = [_turn(panel, steps, int(seed))[1] for seed in draws]
        return {key: torch.tensor([getattr(turn, key) for turn in turns]) for key in ("l2", "cosine")}

    return Cell(f"{WHERE} {panel.letter}", {"panel": asdict(panel), "steps": steps}, measure)


def _turn(panel: Panel, steps: int, seed: int) -> tuple[Model, Turn]:
    penalty = make("regularizer", panel.regularizer, **panel.settings) if panel.regularizer else None
    model, data = trained_net(panel, penalty, seed=seed, steps=steps)
    return model, sharpest_turn(model, data.pixels())


def _level_curves(row: str, steps: int) -> Arrays:
    """For the first draw: the logit on a grid, the two points and their gradients."""
    model, turn = _turn(rows()[row], steps, 0)
    ticks = torch.linspace(0, 1, TICKS)
    across, up = torch.meshgrid(ticks, ticks, indexing="xy")
    with torch.no_grad():
        z = logit(model, torch.stack((across.flatten(), up.flatten()), 1)).view(TICKS, TICKS)
    arrays = {"levels": z, "points": turn.points, "gradients": turn.gradients}
    return {f"{row}{BAR}{name}": np.asarray(array, dtype=np.float32) for name, array in arrays.items()}


def drawn(results: Results) -> tuple[Section, ...]:
    """Plot level curves and gradients of the first draw."""
    shown = [row for row in rows() if f"{row}{BAR}levels" in results.pictures]
    if not shown:
        return ()
    caption = "Level curves of the logit; arrows: its gradients at two points 0.03 apart on the boundary (first draw)."
    return (Section("The four nets", (), None, (Figure(_picture(results, shown), caption),)),)


def _picture(results: Results, shown: list[str]) -> bytes:
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(3.1 * len(shown), 3.2), dpi=120, layout="constrained")
    ticks = np.linspace(0, 1, TICKS)
    for axis, row in zip(canvas.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        levels, points, gradients = (
            results.pictures[f"{row}{BAR}{name}"] for name in ("levels", "points", "gradients")
        )
        axis.contour(ticks, ticks, levels, 15, cmap="viridis", linewidths=0.7)
        axis.contour(ticks, ticks, levels, [0.0], colors="black", linewidths=1.4)
        arrows = gradients / np.abs(gradients).max() * 0.2
        axis.quiver(
            *points.T, *arrows.T, angles="xy", scale_units="xy", scale=1, color="#d55e00", width=0.012
        )
        axis.set(title=row, xticks=[], yticks=[], aspect="equal")
    return figure_png(canvas)
