"""The table of methods on the page: values, marks for the best and for those level with it, and bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gyrograd.numerics.wording import Number, bracket, number
from gyrograd.reporting.schema import AuditCard, CardColumn
from gyrograd.reporting.wording import Stat, counted_images, is_known, overlap

GROUPS = {
    "noise": "Under noise",
    "attack": "Under attack",
    "transform": "Under everyday changes",
    "certificate": "Certified",
    "faithfulness": "Faithfulness",
    "other": "Other",
}
"""Headings of the parts of the table by metric group, in order."""
Mark = Literal["best", "level", ""]


@dataclass(frozen=True)
class Bar:
    """Positions of a value and its interval in the column's range, in per cent."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class Cell:
    """A value as text. `mark`: best, level with the best (their intervals overlap), or neither."""

    column: CardColumn
    value: str
    interval: str
    mark: Mark
    bar: Bar | None
    first: bool
    """True for the first cell of its group."""

    @property
    def key(self) -> str:
        """The key of its column."""
        return str(self.column["key"])


@dataclass(frozen=True)
class Row:
    """A method and its cells."""

    name: str
    label: str
    notes: tuple[str, ...]
    standing: str
    cells: tuple[Cell, ...]


def standing(method: Mapping[str, Any]) -> str:
    """How a method stands among the others: "recommended", or only "best here" if its map is unsafe; else empty."""
    if not method.get("recommended"):
        return ""
    return "best here" if method.get("grade") == "unsafe" else "recommended"


def grouped_columns(card: AuditCard) -> list[tuple[str, list[CardColumn]]]:
    """The columns by group, in the order of `GROUPS`; empty groups are left out."""
    groups = [(title, [c for c in card["columns"] if c["group"] == key]) for key, title in GROUPS.items()]
    return [(title, columns) for title, columns in groups if columns]


def counts(card: AuditCard) -> dict[str, str]:
    """Number of images by column key, as text: `12 images`, or `8 to 12 images` if methods differ."""
    found: dict[str, str] = {}
    for column in card["columns"]:
        n = image_counts(card, column["key"])
        if n:
            found[column["key"]] = f"{n[0]:,} to {n[-1]:,} images" if len(n) > 1 else counted_images(n[0])
    return found


def image_counts(card: Mapping[str, Any], key: str) -> list[int]:
    """The numbers of images behind a column's means, rising; several if the methods differ."""
    stats = [method["columns"].get(key) for method in card["methods"]]
    return sorted({stat["n"] for stat in stats if is_known(stat) and stat.get("n")})


def rows(card: AuditCard) -> list[Row]:
    """One row per method, with cells in the order of the groups."""
    cells: dict[str, list[Cell]] = {method["name"]: [] for method in card["methods"]}
    for column, is_first in [(c, c is group[0]) for _, group in grouped_columns(card) for c in group]:
        stats = {method["name"]: method["columns"].get(column["key"]) for method in card["methods"]}
        best = best_value(list(stats.values()), column["direction"])
        winners = [stat for stat in stats.values() if is_known(stat) and stat["value"] == best]
        for name, stat in stats.items():
            value = number(None if stat is None else stat["value"])
            mark, bar = _mark(stat, best, winners), _bar(stat, column.get("range"))
            cells[name].append(Cell(column, value, bracket(stat), mark, bar, is_first))
    return [
        Row(
            method["name"],
            method.get("label") or method["name"],
            tuple(method.get("notes") or ()),
            standing(method),
            tuple(cells[method["name"]]),
        )
        for method in card["methods"]
    ]


def best_value(stats: list[Stat | None], direction: str) -> float | None:
    """The highest or the lowest known value."""
    values = [stat["value"] for stat in stats if stat is not None and is_known(stat)]
    if not values:
        return None
    return float(max(values) if direction == "higher" else min(values))


def _mark(stat: Stat | None, best: float | None, winners: list[Stat]) -> Mark:
    if stat is None or not is_known(stat):
        return ""
    if stat["value"] == best:
        return "best"
    return "level" if any(overlap(stat, winner) for winner in winners) else ""


def _bar(stat: Stat | None, span: list[Number] | None) -> Bar | None:
    if stat is None or not is_known(stat) or span is None:
        return None

    def share(value: Number | None) -> float:
        place = stat["value"] if value is None else value
        return round(100 * min(1.0, max(0.0, (place - span[0]) / (span[1] - span[0]))), 1)

    return Bar(share(stat.get("low")), share(stat["value"]), share(stat.get("high")))
