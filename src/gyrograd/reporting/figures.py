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
    parts: Mapping[str, Mapping[str, Pictures]],
    labels: Sequence[str],
    *,
    side: float = 1.5,
    font: int = 8,
    words: Mapping[str, Sequence[str]] | None = None,
    note: str = "",
) -> bytes:
    """Pictures in rows and titled columns, as a PNG file.

    Args:
        parts: columns by their title, grouped under titles of their own if there are several parts; a column has
            one picture per row.
        labels: at the left of each row.
        side: of a picture, in inches.
        font: size of the titles.
        words: by part, a few for each row, below its last picture.
        note: below everything.
    """
    from matplotlib.figure import Figure

    rows, widths = len(labels), [len(columns) for columns in parts.values()]
    height = (1.05 * side + (0.2 if words else 0)) * rows + 0.4
    figure = Figure(figsize=(side * sum(widths), height), dpi=120, layout="constrained")
    panels: Any = figure.subfigures(1, len(parts), width_ratios=widths, squeeze=False)
    for panel, (part, columns) in zip(panels[0], parts.items(), strict=True):
        axes = panel.subplots(rows, len(columns), squeeze=False)
        if len(parts) > 1:  # a space holds the place, so that all parts begin at one height
            panel.suptitle(part or " ", fontsize=font + 2, weight="bold", parse_math=False)
        for column, (title, pictures) in enumerate(columns.items()):
            axes[0, column].set_title(title, fontsize=font, parse_math=False)
            for row in range(rows):
                axes[row, column].imshow(pictures[row].clip(0, 1), interpolation="nearest")
                axes[row, column].set(xticks=[], yticks=[])
                axes[row, column].spines[:].set_visible(False)
        for row in range(rows):
            if panel is panels[0][0]:
                axes[row, 0].set_ylabel(labels[row], fontsize=font, parse_math=False)
            if words:  # a space holds the place here too
                below = words[part][row] if part in words else " "
                axes[row, -1].set_xlabel(below, fontsize=font, parse_math=False)
    if note:
        figure.supxlabel(note, fontsize=font - 1)
    return figure_png(figure)


def map_grid(images: dict[str, Array], maps: dict[str, Array], labels: list[str]) -> bytes:
    """A row an example: its images (n h w 3 in [0, 1]), then its maps (n h w, each on its own scale from 0 to 1)."""
    from gyrograd.reporting.pictures import coloured

    drawn = {name: [coloured(map, _largest(map)) for map in values] for name, values in maps.items()}
    return picture_grid({"": {**images, **drawn}}, labels, side=1.35)


def side_by_side(images: Array, nets: dict[str, tuple[Array, Array, list[str]]]) -> bytes:
    """A row per image: the image, then for each net its map and the map after an attack, both over the image.

    images: n h w 3 in [0, 1]. nets: by title, the maps before and after (n h w, on one scale per row) and a few words
    for each row, written below the map after.
    """
    from gyrograd.reporting.pictures import overlay, shared_scale

    parts: dict[str, dict[str, Pictures]] = {"": {"image": images}}
    for title, (before, after, _) in nets.items():
        ends = [shared_scale(*maps) for maps in zip(before, after, strict=True)]
        over = {"its explanation": before, "after the attack": after}
        parts[title] = {
            name: [overlay(*cell) for cell in zip(images, maps, ends, strict=True)]
            for name, maps in over.items()
        }
    words = {title: words for title, (_, _, words) in nets.items()}
    return picture_grid(parts, [""] * len(images), side=2.1, font=11, words=words)


def _largest(map: Array) -> float:
    """The end of a map's own scale; 1 for a map of zeros."""
    return float(np.abs(map).max()) or 1.0


def figure_png(figure: Any) -> bytes:
    """The figure as a PNG file, without a time stamp or version in it."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Names of files have letters that no font here has; a box in their place is enough.
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
