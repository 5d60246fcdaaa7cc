"""Heat maps as PNG files: the map in the colours of the reports, alone and laid over its image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

SIDE = 224
"""Pixels a side at least: small images are enlarged by whole numbers, so that each of their pixels is a square."""
LEAST_IMAGE = 0.15
"""Share of the grey image that shows through where the map is strongest."""


def heat(map: Array) -> Array:
    """A map `h w` as colours `h w 3`, on its own scale."""
    from gyrograd.reporting.pictures import coloured, shared_scale

    return coloured(map, shared_scale(map, map))


def overlay(image: Array, map: Array) -> Array:
    """The map's colours over the image (`h w 3` in [0, 1]) in grey, the stronger the less of the image is seen."""
    from gyrograd.reporting.pictures import shared_scale

    grey = image.mean(-1, keepdims=True)
    strength = (np.abs(map) / shared_scale(map, map)).clip(0, 1)[..., None] * (1 - LEAST_IMAGE)
    mixed: Array = grey * (1 - strength) + heat(map) * strength
    return mixed


def write_png(path: Path, picture: Array) -> None:
    """A picture `h w 3` in [0, 1], enlarged if it is small; written whole or not at all."""
    from PIL import Image

    from gyrograd.records import write_bytes

    pixels = (picture.clip(0, 1) * 255).round().astype(np.uint8)
    times = max(1, -(-SIDE // max(pixels.shape[:2])))
    encoded = io.BytesIO()
    Image.fromarray(pixels.repeat(times, 0).repeat(times, 1)).save(encoded, "PNG")
    write_bytes(path, encoded.getvalue())
