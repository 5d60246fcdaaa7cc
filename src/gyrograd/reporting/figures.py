"""Figures from arrays, as PNG bytes. Needs no torch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
Pictures = Array | Sequence[Array]
"""One picture `h w 3` in [0, 1] per row."""

MAP_COLOURS = "magma"
"""A colour map with even steps in brightness: readable in grey and for the colour-blind."""


def picture_grid(
    columns: Mapping[str, Pictures], labels: Sequence[str], *, side: float = 1.5, note: str = ""
) -> bytes:
    """Pictures in rows and titled columns, as a PNG file.

    Args:
        columns: pictures by column title, one per row.
        labels: text at the left of each row.
        side: side of a picture, in inches.
        note: text below the grid.
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
    """One row per example: its images (n h w 3 in [0, 1]), then its maps (n h w, each on its own scale)."""
    from gyrograd.reporting.pictures import colour_map, scale_end

    drawn = {name: [colour_map(map, scale_end(map)) for map in values] for name, values in maps.items()}
    return picture_grid({**images, **drawn}, labels, side=1.35)


NO_USUAL_LAYOUT: dict[Any, bool] = {"figure.autolayout": False, "figure.constrained_layout.use": False}
"""Settings of matplotlib under which a figure stays without a layout engine; users may have others."""


def figure_png(figure: Any) -> bytes:
    """The figure as a PNG file, without time stamp and version, so that equal figures are equal bytes."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context(NO_USUAL_LAYOUT):
        # File names may have characters that no font has; a box in their place is acceptable.
        warnings.filterwarnings("ignore", "Glyph")
        lay_out(figure, FigureCanvasAgg)
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def lay_out(figure: Any, canvas: Any) -> None:
    """Run the figure's layout engine once, for the fonts of this canvas, and remove it.

    With a layout engine, even one that does nothing, each `savefig` draws the whole figure twice. Lay out and save
    under `NO_USUAL_LAYOUT`.
    """
    canvas(figure)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)
