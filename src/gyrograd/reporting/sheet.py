"""Images and their maps side by side, for a notebook or a file. Accepts tensors without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gyrograd.errors import UserError
from gyrograd.records import write_bytes
from gyrograd.reporting.figures import Array, Pictures, picture_grid
from gyrograd.reporting.pictures import overlay

MOST_ROWS = 8
"""Most examples on a sheet; the caption says if some are left out."""


@dataclass(frozen=True)
class Sheet:
    """A picture that a notebook shows and `save` writes."""

    png: bytes = field(repr=False)

    def save(self, path: Path | str) -> Path:
        """Write the PNG file; returns its path."""
        write_bytes(Path(path), self.png)
        return Path(path)

    def _repr_png_(self) -> bytes:
        return self.png


def show(x: Any, maps: Any = None, labels: Sequence[str] | None = None) -> Sheet:
    """One row per example: the image, then each map laid over it.

    Args:
        x: images `b c h w` in [0, 1]; or the result of an attack, to show its images and maps before and after.
        maps: maps shaped like x; several in a dictionary by name.
        labels: names of the rows.

    Each map has its own scale, because only the ranking of its pixels matters. Strength is the magnitude summed over
    channels; the brightest colour is its 99.5th percentile.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(2, 3, 32, 32)
    >>> target = gg.predict(model, x)
    >>> maps = {name: gg.attribution(name)(model, x, target) for name in ("gradient", "lrp")}
    >>> gg.show(x, maps).png[:4]
    b'\\x89PNG'
    """
    if hasattr(x, "map_clean"):
        images, attacked = _images(x.x_clean), _images(x.x)
        before, after = _strength(x.map_clean, images), _strength(x.map, images)
        columns: dict[str, Pictures] = {
            "image": images,
            "attacked": attacked,
            "map before": list(map(overlay, images, before)),
            "map after": list(map(overlay, attacked, after)),
        }
    else:
        if maps is None:
            raise UserError("There are no maps to show; give show(images, maps), or the result of an attack.")
        images = _images(x)
        columns = {"image": images}
        for name, several in (maps if isinstance(maps, Mapping) else {"map": maps}).items():
            columns[name] = list(map(overlay, images, _strength(several, images)))
    count = len(images)
    if labels is not None and len(labels) != count:
        raise UserError(f"There are {len(labels)} labels for {count} images; give one for each.")
    rows = (labels or [""] * count)[:MOST_ROWS]
    note = f"the first {MOST_ROWS} of {count} images" if count > MOST_ROWS else ""
    return Sheet(picture_grid(columns, rows, note=note))


def _array(values: Any) -> Array:
    detached = values.detach().float().cpu() if hasattr(values, "detach") else values
    return np.asarray(detached, dtype=np.float64)


def _images(x: Any) -> Array:
    """b h w 3, grey images in three equal channels."""
    images = np.nan_to_num(_array(x))
    if images.ndim == 3:
        raise UserError(
            f"The images have shape {images.shape}, without a batch axis; give x[None] and maps[None]."
        )
    if images.ndim == 4 and images.max(initial=0.0) > 2:
        raise UserError(f"The images reach up to {images.max():.4g} and pixels lie in [0, 1]; divide by 255.")
    if images.ndim != 4 or len(images) == 0:
        raise UserError(f"The images have shape {images.shape}; give batch, channels, height and width.")
    images = np.moveaxis(images, 1, -1)
    return images if images.shape[-1] == 3 else images[..., :1].repeat(3, -1)


def _strength(map: Any, images: Array) -> Array:
    """Magnitudes of a map summed over channels, b h w."""
    values = np.abs(_array(map))
    if not np.isfinite(values).all():
        raise UserError(
            "The maps hold NaN or infinite values, so a picture would look like an empty map; check the model's "
            "weights and logits."
        )
    strength: Array = values.sum(1) if values.ndim == 4 else values
    if strength.shape != images.shape[:3]:
        raise UserError(
            f"The maps have shape {values.shape} and the images show {images.shape[0]} of "
            f"{images.shape[1]} x {images.shape[2]}; give maps shaped like the images."
        )
    return strength
