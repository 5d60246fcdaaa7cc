"""tan2023 Figure 2: the function of two variables whose SmoothGrad forgets which one matters."""

from __future__ import annotations

import torch
from torch import Tensor

from gyrograd.attributions import smoothgrad
from gyrograd.experiments.engine import ExperimentOutput, MeasuredNets, measure_cells
from gyrograd.experiments.plots import figures_of, line
from gyrograd.experiments.results import Results
from gyrograd.experiments.scales import pick_evenly
from gyrograd.experiments.trained_nets import Columns
from gyrograd.measurement import Cell
from gyrograd.reporting import Section
from gyrograd.theory.toy import TwoVariableToy, toy_gradient, toy_smoothgrad

WHERE = "toy"
POINT_OF_FIGURE = (1.0, -1.5)
"""x = (D, -1.5 D) with D = 1."""
SIGMAS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0)
DRAWS = 1000


def measure_toy(measured: MeasuredNets) -> ExperimentOutput:
    """SmoothGrad of the toy at one point, for several seeds of its noise."""
    sizes = measured.run.sizes(WHERE)
    levels = (None, *pick_evenly(list(SIGMAS), sizes.get("levels")))
    cells = {_row(sigma): _cell(sigma, int(sizes.get("draws", DRAWS))) for sigma in levels}
    return ExperimentOutput(measure_cells(measured.run, WHERE, cells, "smoothing the toy"))


def _row(sigma: float | None) -> str:
    return "gradient" if sigma is None else f"sigma {sigma:g}"


def _cell(sigma: float | None, draws: int) -> Cell:
    def measure(seeds: Tensor) -> Columns:
        x = torch.tensor([POINT_OF_FIGURE], dtype=torch.float64)
        exact = toy_gradient(x) if sigma is None else toy_smoothgrad(x, sigma)
        columns = {f"x{i + 1}": exact[0, i].repeat(len(seeds)) for i in range(2)}
        if sigma is None:
            return columns
        samples = torch.cat([sampled(x, sigma, draws, int(seed)) for seed in seeds])
        return {**columns, "x1 drawn": samples[:, 0], "x2 drawn": samples[:, 1]}

    return Cell(f"{WHERE} {_row(sigma)}", {"sigma": sigma, "draws": draws}, measure)


def sampled(x: Tensor, sigma: float, draws: int, seed: int) -> Tensor:
    """SmoothGrad of the toy by sampling."""
    target = torch.zeros(len(x), dtype=torch.int64)
    return smoothgrad(sigma, draws, seed)(TwoVariableToy().double(), x, target)


def drawn(results: Results) -> tuple[Section, ...]:
    """Plot the exact and the sampled values over the noise."""
    lines = [
        line(column, [(s, results.column_of(WHERE, f"sigma {s:g}", column)) for s in SIGMAS], group, style)
        for style, kind in enumerate(("", " drawn"))
        for group, column in enumerate((f"x1{kind}", f"x2{kind}"))
    ]
    panels = {"SmoothGrad at (D, -1.5 D)": lines}
    figures = figures_of(panels, "sigma / D", "attribution", "Solid: exact. Dashed: drawn.")
    return (Section("Over the noise", (), None, figures),) if figures else ()
