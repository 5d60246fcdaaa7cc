"""Heat maps as PNG files in the colours of the reports, alone and over the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def heat(map: Array) -> Array:
    """A map `h w` as colours `h w 3`, on its own scale."""
    from gyrograd.reporting.pictures import coloured, shared_scale

    return coloured(map, shared_scale(map, map))


def overlay(image: Array, map: Array) -> Array:
    """The map's colours over the grey image (`h w 3` in [0, 1]); strong values cover the image."""
    from gyrograd.reporting import pictures

    return pictures.overlay(image, map, pictures.shared_scale(map, map))


def write_png(path: Path, picture: Array) -> None:
    """A picture `h w 3` in [0, 1], enlarged if it is small; written whole or not at all."""
    from gyrograd.records import write_bytes
    from gyrograd.reporting.pictures import png

    write_bytes(path, png(picture))
