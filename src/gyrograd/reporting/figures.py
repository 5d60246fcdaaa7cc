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


def side_by_side(images: Array, nets: dict[str, tuple[Array, Array, list[str]]]) -> bytes:
    """A row per image: the image, then for each net its map and the map after an attack, both over the image.

    images: n h w 3 in [0, 1]. nets: by title, the maps before and after (n h w, on one scale per row) and a few words
    for each row, written below the map after.
    """
    from matplotlib.figure import Figure

    from gyrograd.reporting.pictures import overlay, shared_scale

    rows = len(images)
    figure = Figure(figsize=(2 + 4.2 * len(nets), 2.3 * rows + 0.7), dpi=120, layout="constrained")
    parts: Any = figure.subfigures(1, 1 + len(nets), width_ratios=[2] + [4.2] * len(nets))
    panels = [parts[0].subplots(rows, 1, squeeze=False)]
    panels += [part.subplots(rows, 2, squeeze=False) for part in parts[1:]]
    parts[0].suptitle(" ")
    panels[0][0, 0].set_title("image", fontsize=11)
    for row in range(rows):
        panels[0][row, 0].imshow(images[row].clip(0, 1), interpolation="nearest")
    for part, axes, (title, (before, after, words)) in zip(parts[1:], panels[1:], nets.items(), strict=True):
        part.suptitle(title, fontsize=13, weight="bold")
        axes[0, 0].set_title("its explanation", fontsize=11)
        axes[0, 1].set_title("after the attack", fontsize=11)
        for row in range(rows):
            end = shared_scale(before[row], after[row])
            for axis, map in zip(axes[row], (before[row], after[row]), strict=True):
                axis.imshow(overlay(images[row], map, end).clip(0, 1), interpolation="nearest")
            axes[row, 1].set_xlabel(words[row], fontsize=11)
    for axis in (axis for axes in panels for axis in axes.flat):
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
