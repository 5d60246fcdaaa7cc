"""Tables of numbers, for a terminal or Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gyrograd.errors import UserError
from gyrograd.numerics.statistics import Interval, Stat, bootstrap_interval, paired_difference


@dataclass(frozen=True)
class Table:
    """A header and rows of text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table as Markdown; bars inside cells are escaped."""
        lines: Iterable[Sequence[str]] = (self.header, ("---",) * len(self.header), *self.rows)
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )


def interval(values: Sequence[float | None]) -> Interval | None:
    """Mean and 95 % bootstrap interval, or None if there is no value at all."""
    return None if _empty(values) else bootstrap_interval(values)


def difference(after: Sequence[float | None], before: Sequence[float | None]) -> Interval | None:
    """The paired difference, image by image, or None if no image has both."""
    pairs = [None if a is None or b is None else a - b for a, b in zip(after, before, strict=True)]
    return None if _empty(pairs) else paired_difference(after, before)


def plain(found: Interval | None) -> Stat | None:
    """The interval for JSON."""
    return None if found is None else found.plain()


def across(columns: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean over several columns (seeds), image by image, or None if any has none."""
    if len({len(column) for column in columns}) != 1:
        raise UserError(
            "The trials were measured on different images; give all of them the same test images."
        )
    return [
        None if any(value is None for value in row) else sum(value or 0.0 for value in row) / len(row)
        for row in zip(*columns, strict=True)
    ]


def _empty(values: Sequence[float | None]) -> bool:
    return all(value is None for value in values)
