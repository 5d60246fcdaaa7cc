"""Images and their maps side by side, for a notebook or a file. Takes tensors without needing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gyrograd.errors import UserError
from gyrograd.records import write_bytes
from gyrograd.reporting.figures import Array, figure_png
from gyrograd.reporting.pictures import overlay, shared_scale

MOST_ROWS = 8
"""Examples on one sheet; the rest is left out, and the caption says so."""


@dataclass(frozen=True)
class Sheet:
    """A picture: a notebook shows it, `save` writes it."""

    png: bytes

    def save(self, path: Path | str) -> Path:
        """Write the PNG file; returns its path."""
        write_bytes(Path(path), self.png)
        return Path(path)

    def _repr_png_(self) -> bytes:
        return self.png


def show(x: Any, maps: Any = None, labels: Sequence[str] | None = None) -> Sheet:
    """One row per example: the image, then each map laid over it.

    Args:
        x: images `b c h w` in [0, 1]; or the result of an attack, whose images and maps before and after are shown.
        maps: maps shaped like x; several in a dictionary by name.
        labels: a name for each row.

    Maps of one example share a scale only if they are an attack's before and after: two methods have no common unit.
    Strength is the sum of sizes over the channels; brightest is the 99.5th percentile.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(2, 3, 32, 32)
    >>> target = gg.predicted(model, x)
    >>> maps = {name: gg.attribution(name)(model, x, target) for name in ("gradient", "lrp")}
    >>> gg.show(x, maps).png[:4]
    b'\\x89PNG'
    """
    if hasattr(x, "map_clean"):
        attacked = x
        images = {"image": _images(attacked.x_clean), "attacked": _images(attacked.x)}
        before, after = (
            _strength(attacked.map_clean, images["image"]),
            _strength(attacked.map, images["image"]),
        )
        ends = [[shared_scale(b, a)] * 2 for b, a in zip(before, after, strict=True)]
        named = {"map before": (before, "image"), "map after": (after, "attacked")}
    else:
        if maps is None:
            raise UserError("There are no maps to show; give show(images, maps), or the result of an attack.")
        images = {"image": _images(x)}
        several = maps if isinstance(maps, Mapping) else {"map": maps}
        named = {name: (_strength(map, images["image"]), "image") for name, map in several.items()}
        ends = [
            [shared_scale(m[row], m[row]) for m, _ in named.values()] for row in range(len(images["image"]))
        ]
    count = len(images["image"])
    if labels is not None and len(labels) != count:
        raise UserError(f"There are {len(labels)} labels for {count} images; give one for each.")
    return Sheet(_drawn(images, named, ends, labels or [""] * count))


def _drawn(
    images: dict[str, Array],
    maps: dict[str, tuple[Array, str]],
    ends: list[list[float]],
    labels: Sequence[str],
) -> bytes:
    from matplotlib.figure import Figure

    rows, columns = min(len(labels), MOST_ROWS), len(images) + len(maps)
    figure = Figure(figsize=(1.5 * columns, 1.6 * rows + 0.4), dpi=120, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for row in range(rows):
        cells = {name: pictures[row] for name, pictures in images.items()}
        for (name, (map, under)), end in zip(maps.items(), ends[row], strict=True):
            cells[name] = overlay(images[under][row], map[row], end)
        for axis, (name, cell) in zip(axes[row], cells.items(), strict=True):
            axis.imshow(cell.clip(0, 1), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(name, fontsize=8, parse_math=False)
        axes[row, 0].set_ylabel(labels[row], fontsize=8, parse_math=False)
    if rows < len(labels):
        figure.supxlabel(f"the first {rows} of {len(labels)} images", fontsize=7)
    return figure_png(figure)


def _array(values: Any) -> Array:
    detached = values.detach().float().cpu() if hasattr(values, "detach") else values
    return np.nan_to_num(np.asarray(detached, dtype=np.float64))


def _images(x: Any) -> Array:
    """b h w 3, grey images in three equal channels."""
    images = _array(x)
    if images.ndim != 4 or len(images) == 0:
        raise UserError(f"The images have shape {images.shape}; give batch, channels, height and width.")
    images = np.moveaxis(images, 1, -1)
    return images if images.shape[-1] == 3 else images[..., :1].repeat(3, -1)


def _strength(map: Any, images: Array) -> Array:
    """b h w: the sizes of a map's values, added over its channels."""
    values = np.abs(_array(map))
    strength: Array = values.sum(1) if values.ndim == 4 else values
    if strength.shape != images.shape[:3]:
        raise UserError(
            f"The maps have shape {values.shape} and the images show {images.shape[0]} of "
            f"{images.shape[1]} x {images.shape[2]}; give maps shaped like the images."
        )
    return strength
