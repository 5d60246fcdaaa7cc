"""joo2023's choice of hyper-parameters: the highest Grad RPS among those within one point of CE's accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyrograd.numerics.statistics import Interval
from gyrograd.records import Record
from gyrograd.training.tables import UNKNOWN, Table, across, difference, interval, plain, shown, signed

ROUNDING = 1e-9
"""A loss of exactly one point is within one point."""


@dataclass(frozen=True)
class Point:
    """A point of the grid over its seeds: an image's value is the mean over the seeds."""

    name: str
    seeds: int
    accuracy: Interval | None
    rps: Interval | None
    accuracy_change: Interval | None
    rps_change: Interval | None
    failure: str = ""

    def within(self, limit: float) -> bool:
        """Whether it lost no more accuracy than allowed; one with a failed trial never is."""
        change = self.accuracy_change
        return not self.failure and change is not None and change.value >= -limit - ROUNDING


@dataclass(frozen=True)
class Selection:
    """Every point, the reference first, and the one chosen, if any is within the limit."""

    points: tuple[Point, ...]
    chosen: str | None
    limit: float

    @property
    def sentence(self) -> str:
        """What was chosen, or that nothing could be."""
        if self.chosen is None:
            return (
                f"No point is within {self.limit:g} of cross-entropy's accuracy; try smaller weights, or a larger "
                "max_accuracy_loss."
            )
        point = next(point for point in self.points if point.name == self.chosen)
        return (
            f"Chosen: {point.name}, the highest Grad RPS within {self.limit:g} of cross-entropy's accuracy "
            f"(RPS {signed(point.rps_change)}, accuracy {signed(point.accuracy_change)} against it)."
        )

    def table(self) -> Table:
        """A row for each point."""
        header = ("point", "seeds", "accuracy", "Grad RPS", "accuracy - CE", "RPS - CE", "")
        return Table(header, tuple(self._row(point) for point in self.points))

    def document(self) -> dict[str, Any]:
        """The same as JSON values."""
        points = [
            {
                "name": point.name,
                "seeds": point.seeds,
                "accuracy": plain(point.accuracy),
                "rps": plain(point.rps),
                "accuracy_change": plain(point.accuracy_change),
                "rps_change": plain(point.rps_change),
                "within_limit": point.within(self.limit),
                "failure": point.failure or None,
            }
            for point in self.points
        ]
        return {
            "chosen": self.chosen,
            "max_accuracy_loss": self.limit,
            "points": points,
            "sentence": self.sentence,
        }

    def _row(self, point: Point) -> tuple[str, ...]:
        first = point is self.points[0]
        changes = (UNKNOWN, UNKNOWN) if first else (signed(point.accuracy_change), signed(point.rps_change))
        return (
            point.name,
            str(point.seeds),
            shown(point.accuracy),
            shown(point.rps),
            *changes,
            self._mark(point, first),
        )

    def _mark(self, point: Point, first: bool) -> str:
        if point.failure:
            return f"failed: {point.failure}"
        if first:
            return "reference"
        if point.name == self.chosen:
            return "chosen"
        return "" if point.within(self.limit) else "loses too much accuracy"


def selected(
    found: Mapping[str, Sequence[Record]], failures: Mapping[str, str], *, limit: float = 0.01
) -> Selection:
    """Choose among the points. `found`: records by point, the reference first; `failures`: sentences by point.

    joo2023 chooses on test images; so does this, on the images the trials were measured on. Give a validation split
    as `test` where the chosen model's own numbers are to be reported.
    """
    reference = next(iter(found.values()))
    base = {key: _column(reference, key) for key in ("accuracy", "rps")}
    points = tuple(_point(name, parts, base, failures.get(name, "")) for name, parts in found.items())
    open_to = [point for point in points[1:] if point.within(limit) and point.rps is not None]
    best = max(open_to, key=lambda point: point.rps.value if point.rps else 0.0, default=None)
    return Selection(points, None if best is None else best.name, limit)


def _point(name: str, parts: Sequence[Record], base: Mapping[str, list[float | None]], failure: str) -> Point:
    if not parts:
        return Point(name, 0, None, None, None, None, failure)
    own = {key: _column(parts, key) for key in base}
    return Point(
        name,
        len(parts),
        interval(own["accuracy"]),
        interval(own["rps"]),
        difference(own["accuracy"], base["accuracy"]),
        difference(own["rps"], base["rps"]),
        failure,
    )


def _column(parts: Sequence[Record], key: str) -> list[float | None]:
    return across([part.values[key] for part in parts])
