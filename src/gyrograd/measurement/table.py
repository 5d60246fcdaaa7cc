"""The result of a plan: one value per method, condition, eps, metric and example."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from gyrograd.errors import UserError
from gyrograd.records import Record

Column: TypeAlias = dict[int, float | None]
"""Values by example; None if there is no value."""


class Key(NamedTuple):
    """Identifies a column. eps: radius of the attack, None on clean images. point: position on a curve, or None."""

    method: str
    condition: str
    eps: float | None
    metric: str
    point: int | None


class Row(NamedTuple):
    """One number of the table."""

    key: Key
    example: int
    value: float | None


class Source(NamedTuple):
    """A record with its method and condition. Its columns are METRIC[POINT], or METRIC[RADIUS][POINT] if attacked."""

    method: str
    condition: str
    radii: tuple[float, ...]
    record: Record


class Table:
    """The numbers of a plan; `records` are the records behind them, by their names."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.records: dict[str, Record] = {}
        self._radii: dict[tuple[str, str], tuple[float, ...]] = {}
        self._columns: dict[Key, Column] = {}
        for method, condition, radii, record in sources:
            self.records[record.name] = record
            self._radii[method, condition] = radii
            for name, values in record.values.items():
                # With a group in the pattern `split` also returns the numbers, in turn with the texts between them.
                metric, *places = re.split(r"\[(\d+)\]", name)
                numbers = [int(place) for place in places[::2]]
                eps = _rounded(radii[numbers.pop(0)]) if radii else None
                key = Key(method, condition, eps, metric, numbers[0] if numbers else None)
                self._columns[key] = dict(zip(record.examples, values, strict=True))

    def of(self, *, method: str, metric: str, condition: str = "clean", eps: float | None = None) -> Column:
        """One column: values by example."""
        return self._found(Key(method, condition, _rounded(eps), metric, None))

    def curve(
        self, *, method: str, metric: str, condition: str = "clean", eps: float | None = None
    ) -> list[Column]:
        """The columns of a curve, one per point."""
        first = Key(method, condition, _rounded(eps), metric, 0)
        self._found(first)
        points: list[Column] = []
        while (key := first._replace(point=len(points))) in self._columns:
            points.append(self._columns[key])
        return points

    def has(self, *, method: str, metric: str, condition: str = "clean", eps: float | None = None) -> bool:
        """True if this column, or a curve of it, was measured."""
        keys = [Key(method, condition, _rounded(eps), metric, point) for point in (None, 0)]
        return any(key in self._columns for key in keys)

    def metrics(
        self, *, method: str, condition: str = "clean", eps: float | None = None
    ) -> dict[str, Column]:
        """Every column of a method in a condition, by metric; curves are left out."""
        place = (method, condition, _rounded(eps))
        return {k.metric: column for k, column in self._columns.items() if k[:3] == place and k.point is None}

    def radii(self, *, method: str, condition: str) -> tuple[float, ...]:
        """The radii at which a method was attacked in a condition, in the order of the plan."""
        return self._radii[method, condition]

    def __iter__(self) -> Iterator[Row]:
        """Iterate over all numbers."""
        for key, column in self._columns.items():
            for example, value in column.items():
                yield Row(key, example, value)

    def _found(self, key: Key) -> Column:
        if key not in self._columns:
            alike = [k for k in self._columns if (k.method, k.condition) == (key.method, key.condition)]
            known = sorted({f"{k.metric} at eps {k.eps}" if k.eps else k.metric for k in alike})
            raise UserError(
                f"The table has no {key.metric} of {key.method} under {key.condition}, eps {key.eps}; "
                + (f"ask for one of: {', '.join(known)}." if known else "measure it first.")
            )
        return self._columns[key]


def mean_over(columns: Sequence[Column]) -> Column:
    """The mean of several columns per example; None if one of them has no value."""
    means: Column = {}
    for example in columns[0]:
        present = [v for v in (c[example] for c in columns) if v is not None]
        means[example] = sum(present) / len(present) if len(present) == len(columns) else None
    return means


def _rounded(eps: float | None) -> float | None:
    """eps as a key: 8 / 255 and 0.03137254902 are the same radius."""
    return None if eps is None else round(eps, 9)
