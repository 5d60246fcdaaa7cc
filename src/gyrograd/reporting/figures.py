"""Figures from arrays: no torch, no state, PNG bytes out."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MAP_COLOURS = "magma"
"""Even steps in brightness: readable in grey and by the colour-blind."""


def map_grid(images: dict[str, Array], maps: dict[str, Array], labels: list[str]) -> bytes:
    """A row an example: its images (n h w 3 in [0, 1]), then its maps (n h w, each on its own scale from 0 to 1)."""
    from matplotlib.figure import Figure

    rows, columns = len(labels), len(images) + len(maps)
    figure = Figure(figsize=(1.35 * columns, 1.4 * rows + 0.3), dpi=120, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for column, (name, values) in enumerate((images | maps).items()):
        axes[0, column].set_title(name, fontsize=8)
        for row in range(rows):
            picture = values[row].clip(0, 1) if name in images else _share_of_max(values[row])
            axes[row, column].imshow(picture, cmap=MAP_COLOURS, vmin=0, vmax=1, interpolation="nearest")
    for row, label in enumerate(labels):
        axes[row, 0].set_ylabel(label, fontsize=8)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure_png(figure)


def _share_of_max(values: Array) -> Array:
    largest = float(np.abs(values).max())
    return np.abs(values) / largest if largest > 0 else np.zeros_like(values)


def figure_png(figure: Any) -> bytes:
    """The figure as a PNG file, without a time stamp or version in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
