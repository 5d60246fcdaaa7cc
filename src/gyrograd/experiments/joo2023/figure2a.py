"""joo2023 Figure 2a: Insertion and Adv-Insertion curves."""

from __future__ import annotations

from gyrograd.experiments.joo2023.measures import SHARES, all_of, attacked_game, insertion_game, selected
from gyrograd.experiments.joo2023.ways import ATTACK_EPS, IMAGENETS
from gyrograd.experiments.plots import Line, curves
from gyrograd.experiments.report import POINT
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.registry import register
from gyrograd.reporting import Figure, Section

WHERE = ("cifar10-resnet18", *IMAGENETS)


@register("experiment", "joo2023-figure2a", paper="joo2023", equation="Figure 2a")
def figure2a() -> Experiment:
    """Insertion and Adv-Insertion curves of Grad on the two ResNet18, over the share of pixels put in."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    return all_of(run, selected(run, WHERE), insertion_game("grad"), attacked_game("grad"))


def _drawn(results: Results) -> tuple[Section, ...]:
    panels = {setting: _lines(results, setting) for setting in results.measured_in}
    caption = "Solid: Insertion. Dashed: Adv-Insertion. Bands: 95 % intervals."
    figure = Figure(curves(panels, "share of pixels", "probability of the label (%)"), caption)
    return (Section("Insertion curves", (), None, (figure,)),)


def _lines(results: Results, setting: str) -> list[Line]:
    games = ("grad ins", f"grad a-ins {ATTACK_EPS[setting]}")
    lines = []
    for group, row in enumerate(results.rows(setting)):
        for style, game in enumerate(games):
            found = [results.column_of(setting, row, f"{game} {POINT}{share:g}") for share in SHARES]
            points = tuple(point for point in found if point is not None)
            lines.append(Line(row if style == 0 else f"{row}, attacked", SHARES, points, group, style))
    return lines
