"""Plots of curves with intervals, as PNG bytes. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyrograd.experiments.results import Estimate
from gyrograd.reporting import Figure
from gyrograd.reporting.figures import figure_png

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""The palette of Okabe and Ito, which colour-blind readers can distinguish."""
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Line:
    """Estimates over x; lines of one `group` share a colour, those of one `style` a dash.

    With `names`, one for each point, the points are not joined, and each name has its own marker.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[Estimate, ...]
    group: int = 0
    style: int = 0
    names: tuple[str, ...] = ()


def line(
    label: str, points: Iterable[tuple[float | int, Estimate | None]], group: int = 0, style: int = 0
) -> Line:
    """A line through the measured points."""
    known = [(float(x), y) for x, y in points if y is not None]
    return Line(label, tuple(x for x, _ in known), tuple(y for _, y in known), group, style)


def figures_of(
    panels: Mapping[str, Sequence[Line]], x_label: str, y_label: str, caption: str, *, across: int = 2
) -> tuple[Figure, ...]:
    """Figures of `across` panels each, as more are not legible; panels without points are left out."""
    shown = [(title, [line for line in lines if line.x]) for title, lines in panels.items()]
    kept = [(title, lines) for title, lines in shown if lines]
    parts = [kept[first : first + across] for first in range(0, len(kept), across)]
    return tuple(Figure(curves(dict(part), x_label, y_label), caption) for part in parts)


def curves(
    panels: Mapping[str, Sequence[Line]], x_label: str, y_label: str, *, logarithmic: bool = False
) -> bytes:
    """One panel per name, side by side; bands are 95 % intervals."""
    from matplotlib.figure import Figure as Canvas

    figure = Canvas(figsize=(3.8 * len(panels) + 1.4, 3.3), dpi=130, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(name for lines in panels.values() for line in lines for name in line.names))
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for line in lines:
            if line.names:
                _draw_points(axis, line, names)
                continue
            colour = COLOURS[line.group % len(COLOURS)]
            middle = [y.value for y in line.y]
            axis.plot(
                line.x, middle, DASHES[line.style % len(DASHES)], color=colour, lw=1.6, label=line.label
            )
            low, high = [y.low for y in line.y], [y.high for y in line.y]
            axis.fill_between(line.x, low, high, color=colour, alpha=0.15, lw=0)
        axis.set(title=title, xlabel=x_label, ylabel=y_label)
        if logarithmic:
            axis.set(xscale="log", yscale="log")
        axis.grid(alpha=0.25)
    handles, labels = axes[0].get_legend_handles_labels()
    if names:
        handles, labels = _legend_of_points([line for lines in panels.values() for line in lines], names)
    figure.legend(handles, labels, fontsize=7, frameon=False, loc="outside right upper")
    return figure_png(figure)


def _draw_points(axis: Any, line: Line, names: list[str]) -> None:
    """Draw each point with its interval; nothing was measured between points, so no line joins them."""
    colour = COLOURS[line.group % len(COLOURS)]
    for x, y, name in zip(line.x, line.y, line.names, strict=True):
        below, above = max(0.0, y.value - y.low), max(0.0, y.high - y.value)
        marker = MARKERS[names.index(name) % len(MARKERS)]
        axis.errorbar([x], [y.value], [[below], [above]], fmt=marker, color=colour, ms=5, lw=1, capsize=2)


def _legend_of_points(lines: Sequence[Line], names: list[str]) -> tuple[list[Any], list[str]]:
    """The legend: a colour for each line's label, a marker for each point's name."""
    from matplotlib.lines import Line2D

    groups = {line.label: COLOURS[line.group % len(COLOURS)] for line in lines}
    by_colour = [Line2D([], [], color=colour, marker="o", ls="") for colour in groups.values()]
    by_marker = [
        Line2D([], [], color="grey", marker=MARKERS[place % len(MARKERS)], ls="")
        for place in range(len(names))
    ]
    return [*by_colour, *by_marker], [*groups, *names]
