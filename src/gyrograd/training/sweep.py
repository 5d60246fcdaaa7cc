"""Train a grid of settings with several seeds, in this process or on a Ray cluster, and compare them in one table.

The best point is chosen as in joo2023: highest Grad RPS among those within one point of cross-entropy's accuracy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.numerics.statistics import Interval
from gyrograd.numerics.wording import UNKNOWN, interval_text
from gyrograd.occupancy import exclusive_folder
from gyrograd.records import JsonObject, Record
from gyrograd.training.clusters import Cluster, Outcome, Outcomes, attempt
from gyrograd.training.tables import Table, across, difference, interval, plain
from gyrograd.training.trials import REFERENCE, Measuring, Trial, run_trial, trials_of

ROUNDING = 1e-9
"""A loss of exactly one point is within one point."""
Says = Callable[[Trial, Outcome, int, int], None]
"""Called with each finished trial, its outcome, the number of finished trials and the total."""


@dataclass(frozen=True, eq=False)
class SweepResult:
    """The points and the choice, the records by trial, the errors of failed trials, and the path of the table."""

    selection: Selection
    records: dict[str, Record]
    failures: dict[str, str]
    path: Path


def sweep(
    base: Mapping[str, Any],
    grid: Mapping[str, Any],
    *,
    out: Path | str,
    seeds: Sequence[Any] = (0,),
    max_accuracy_loss: float = 0.01,
    measuring: Measuring | None = None,
    ray: Cluster | str | None = None,
    says: Says | None = None,
) -> SweepResult:
    """Train every point of the grid with every seed, and cross-entropy alone; then choose the best point.

    The rule (joo2023, the selections of Table 1): the highest Grad RPS among the points that lose at most one point of
    cross-entropy's accuracy. A finished trial is not run again, and an unfinished one is resumed. The table lists
    failed trials; a failure of cross-entropy ends the sweep, because nothing could be compared.

    Args:
        base: settings all trials share, as in a YAML file of `gyrograd train`.
        grid: dotted keys with lists of values: {"terms.l2_cosine.l2": [0.01, 0.1]}.
        out: folder for trials, `sweep.json` and `sweep.md`.
        seeds: every point is trained once with each.
        max_accuracy_loss: largest loss of accuracy against cross-entropy, as a share of 1.
        measuring: number of images and noise for RPS.
        ray: a cluster or its address (local, auto, ...); None runs in this process.
        says: called with each trial that ends.
    """
    if not 0 <= max_accuracy_loss <= 1:
        raise UserError(
            f"max_accuracy_loss is {max_accuracy_loss}; give a fraction from 0 to 1, such as 0.01."
        )
    cluster = Cluster(ray) if isinstance(ray, str) else ray
    folder = Path(out).absolute()
    trials = trials_of(base, grid, seeds, Measuring() if measuring is None else measuring, folder)
    try:
        (folder / "trials").mkdir(parents=True, exist_ok=True)
    except OSError as trouble:
        raise UserError(f"{folder} cannot be written ({trouble.strerror}); give another folder.") from None
    with exclusive_folder(folder):
        return _write_results(trials, _run_all(trials, cluster, says), max_accuracy_loss, folder)


def _run_all(trials: Sequence[Trial], cluster: Cluster | None, says: Says | None) -> dict[str, Outcome]:
    """The outcome of every trial by name; those of an earlier sweep are read from disk."""
    ended: dict[str, Outcome] = {t.name: known for t in trials if (known := t.known()) is not None}
    left = [trial for trial in trials if trial.name not in ended]
    outcomes: Outcomes = ((trial, attempt(run_trial, trial)) for trial in left)
    if cluster is not None and left:
        outcomes = cluster.outcomes(left, run_trial)
    with closing(outcomes):
        for trial, outcome in outcomes:
            if isinstance(outcome, Record):
                records.write(trial.record_path, outcome)
            elif trial.point == REFERENCE:
                raise UserError(
                    f"The trial of cross-entropy failed, and nothing can be compared without it: {outcome}"
                )
            ended[trial.name] = outcome
            if says is not None:
                says(trial, outcome, len(ended), len(trials))
    return ended


def _write_results(
    trials: Sequence[Trial], ended: Mapping[str, Outcome], limit: float, out: Path
) -> SweepResult:
    """Choose the best point and write the table as JSON and Markdown."""
    failures = {name: outcome for name, outcome in ended.items() if isinstance(outcome, str)}
    found = {name: outcome for name, outcome in ended.items() if isinstance(outcome, Record)}
    by_point: dict[str, list[Record]] = {trial.point: [] for trial in trials}
    folders: dict[str, list[str]] = {trial.point: [] for trial in trials}
    for trial in trials:
        by_point[trial.point] += [found[trial.name]] if trial.name in found else []
        folders[trial.point].append(str(trial.folder.relative_to(out)))
    reasons = {trial.point: failures[trial.name] for trial in trials if trial.name in failures}
    selection = choose_point(by_point, reasons, limit=limit)
    document = {"schema": 1, "kind": "sweep", **selection.document(), "folders": folders}
    records.write_text(out / "sweep.json", json.dumps(document, indent=1) + "\n")
    text = f"# Sweep\n\n{selection.sentence}\n\n{selection.table().markdown()}\n"
    records.write_text(out / "sweep.md", text)
    return SweepResult(selection, found, failures, out / "sweep.md")


@dataclass(frozen=True)
class Point:
    """A point of the grid; an image's value is the mean over the seeds."""

    name: str
    seeds: int
    accuracy: Interval | None
    rps: Interval | None
    accuracy_change: Interval | None
    rps_change: Interval | None
    failure: str = ""

    def within(self, limit: float) -> bool:
        """True if it lost no more accuracy than allowed and no trial failed."""
        change = self.accuracy_change
        return not self.failure and change is not None and change.value >= -limit - ROUNDING


@dataclass(frozen=True)
class Selection:
    """All points, the reference first, and the chosen one, if any is within the limit."""

    points: tuple[Point, ...]
    chosen: str | None
    limit: float

    @property
    def sentence(self) -> str:
        """One sentence on the chosen point, or on why there is none."""
        if self.chosen is None:
            return (
                f"No point is within {self.limit:g} of cross-entropy's accuracy; try smaller weights, or a larger "
                "max_accuracy_loss."
            )
        point = next(point for point in self.points if point.name == self.chosen)
        rps, accuracy = (interval_text(one, "+.3f") for one in (point.rps_change, point.accuracy_change))
        gains = point.rps_change is not None and point.rps_change.low > 0
        doubt = "" if gains else " It is not significantly steadier than cross-entropy."
        return (
            f"Chosen: {point.name}, the highest Grad RPS within {self.limit:g} of cross-entropy's accuracy "
            f"(RPS {rps}, accuracy {accuracy} against it).{doubt}"
        )

    def table(self) -> Table:
        header = ("point", "seeds", "accuracy", "Grad RPS", "accuracy - CE", "RPS - CE", "")
        return Table(header, tuple(self._row(point) for point in self.points))

    def document(self) -> JsonObject:
        measured = ("accuracy", "rps", "accuracy_change", "rps_change")
        points = [
            {
                "name": point.name,
                "seeds": point.seeds,
                **{key: plain(getattr(point, key)) for key in measured},
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
        values = [interval_text(one, ".3f") for one in (point.accuracy, point.rps)]
        changes = [interval_text(one, "+.3f") for one in (point.accuracy_change, point.rps_change)]
        changes = [UNKNOWN, UNKNOWN] if first else changes
        return (point.name, str(point.seeds), *values, *changes, self._mark(point, first))

    def _mark(self, point: Point, first: bool) -> str:
        if point.failure:
            # Without the advice on how to resume, which is for a run of its own; sweep.json has all of it.
            return f"failed: {point.failure.partition(';')[0]}"
        if first:
            return "reference"
        if point.name == self.chosen:
            return "chosen"
        return "" if point.within(self.limit) else "loses too much accuracy"


def choose_point(
    found: Mapping[str, Sequence[Record]], failures: Mapping[str, str], *, limit: float = 0.01
) -> Selection:
    """Choose the best point. `found`: records by point, the reference first; `failures`: error messages by point.

    Like joo2023 it chooses on the test images. Give a validation split as `test` if you report the numbers of the
    chosen model.
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
    values = {key: interval(own[key]) for key in base}
    changes = {f"{key}_change": difference(own[key], base[key]) for key in base}
    return Point(name, len(parts), **values, **changes, failure=failure)


def _column(parts: Sequence[Record], key: str) -> list[float | None]:
    return across([part.values[key] for part in parts])
