"""Figures from arrays: no torch, no state, PNG bytes out."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Pictures = Array | Sequence[Array]
"""One picture `h w 3` in [0, 1] per row."""

MAP_COLOURS = "magma"
"""Even steps in brightness: readable in grey and by the colour-blind."""


def picture_grid(
    columns: Mapping[str, Pictures], labels: Sequence[str], *, side: float = 1.5, note: str = ""
) -> bytes:
    """Pictures in rows and titled columns, as a PNG file.

    Args:
        columns: by their title, one picture per row.
        labels: at the left of each row.
        side: of a picture, in inches.
        note: below everything.
    """
    from matplotlib.figure import Figure

    rows = len(labels)
    size = (side * len(columns), 1.05 * side * rows + 0.4)
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    axes: Any = figure.subplots(rows, len(columns), squeeze=False)
    for column, (title, pictures) in enumerate(columns.items()):
        axes[0, column].set_title(title, fontsize=8, parse_math=False)
        for row in range(rows):
            axes[row, column].imshow(pictures[row].clip(0, 1), interpolation="nearest")
            axes[row, column].set(xticks=[], yticks=[])
            axes[row, column].spines[:].set_visible(False)
    for row in range(rows):
        axes[row, 0].set_ylabel(labels[row], fontsize=8, parse_math=False)
    if note:
        figure.supxlabel(note, fontsize=7)
    return figure_png(figure)


def map_grid(images: dict[str, Array], maps: dict[str, Array], labels: list[str]) -> bytes:
    """A row per example: its images (n h w 3 in [0, 1]), then its maps (n h w, each on its own scale from 0 to 1)."""
    from gyrograd.reporting.pictures import coloured

    drawn = {  # the scale of a map of zeros ends at 1
        name: [coloured(map, float(np.abs(map).max()) or 1.0) for map in values]
        for name, values in maps.items()
    }
    return picture_grid({**images, **drawn}, labels, side=1.35)


def figure_png(figure: Any) -> bytes:
    """The figure as a PNG file, without a time stamp or version in it."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Names of files have letters that no font here has; a box in their place is enough.
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
