"""A page with the maps of all methods: one row per image, one column per method."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from gyrograd.numerics.wording import number
from gyrograd.reporting.figures import Array
from gyrograd.reporting.page import render_template
from gyrograd.reporting.pictures import SCALE_END, colour_map, data_address, scale_bar, shared_scale


@dataclass(frozen=True)
class SheetColumn:
    """A method: label, a sentence about it, its settings; or the reason why it does not support this model."""

    key: str
    label: str
    about: str
    settings: str
    passes: int = 1
    refused: str = ""


@dataclass(frozen=True, eq=False)
class SheetRow:
    """An image `h w 3` in [0, 1], its caption, and its maps `h w` by the key of their column."""

    name: str
    words: str
    image: Array
    maps: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class _Cell:
    """A map as a picture, and its caption."""

    picture: str
    words: str


def contact_sheet(title: str, columns: list[SheetColumn], rows: list[SheetRow], notes: list[str]) -> str:
    """The page as one file. Each map has its own scale, which ends at a percentile that is printed below it."""
    cells = [[_cell(row.maps.get(column.key)) for column in columns if not column.refused] for row in rows]
    return render_template(
        "contact_sheet",
        title=title,
        shown=[column for column in columns if not column.refused],
        refused=[column for column in columns if column.refused],
        rows=[(row, data_address(row.image), line) for row, line in zip(rows, cells, strict=True)],
        notes=notes,
        scale=scale_bar(),
        percentile=SCALE_END,
    )


def _cell(map: Array | None) -> _Cell:
    if map is None:
        return _Cell("", "NaN or infinite numbers: no picture")
    if not np.any(map):
        return _Cell(data_address(colour_map(map, 1.0)), "zero everywhere")
    end = shared_scale(map, map)
    return _Cell(data_address(colour_map(map, end)), f"0 to {number(end)}")
