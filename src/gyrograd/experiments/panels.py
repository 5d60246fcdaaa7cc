"""Figures of a few panels each: more than three side by side cannot be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gyrograd.experiments.plots import Line, curves
from gyrograd.reporting import Figure


def figures_of(
    panels: Mapping[str, Sequence[Line]], x_label: str, y_label: str, caption: str, *, across: int = 2
) -> tuple[Figure, ...]:
    """The panels, `across` of them to a figure; panels without a point are left out."""
    shown = [(title, [line for line in lines if line.x]) for title, lines in panels.items()]
    kept = [(title, lines) for title, lines in shown if lines]
    parts = [kept[first : first + across] for first in range(0, len(kept), across)]
    return tuple(Figure(curves(dict(part), x_label, y_label), caption) for part in parts)
