"""The numbers of an experiment, each with an interval over images and seeds. Needs no torch."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.numerics.statistics import Numbers, Statistic, bootstrap_interval, mean
from gyrograd.records import JsonObject

Pictures: TypeAlias = Mapping[str, NDArray[Any]]

SEPARATOR = " | "
MEDIAN = ", median"
"""A column with this suffix is summarized by the median over images, for values with a heavy tail."""
RESAMPLED_NUMBERS = 2_000_000
"""Numbers drawn for one bootstrap interval: 2000 resamples of 1000 images, fewer for more images."""


@dataclass(frozen=True, order=True)
class Quantity:
    """Identifies a number: setting (data set and model), row (a training variant), and column (a metric)."""

    setting: str
    row: str
    column: str

    @property
    def key(self) -> str:
        """The name of the quantity in files."""
        return SEPARATOR.join((self.setting, self.row, self.column))


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and images with its 95 % bounds, and the mean of each seed."""

    low: float
    value: float
    high: float
    images: int
    missing: int = 0
    by_seed: tuple[float, ...] = ()

    @property
    def bounded(self) -> bool:
        """Whether both bounds are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Results:
    """All numbers of a run, the arrays for its figures, and facts about machine and time."""

    name: str
    scale: str
    settings: JsonObject = field(default_factory=dict)
    estimates: dict[Quantity, Estimate] = field(default_factory=dict)
    pictures: Pictures = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)

    def column_of(self, setting: str, row: str, column: str) -> Estimate | None:
        """The estimate of a quantity; None if it was not measured."""
        return self.estimates.get(Quantity(setting, row, column))

    def rows(self, setting: str) -> list[str]:
        """The rows measured in a setting, in order of measurement."""
        return list(dict.fromkeys(q.row for q in self.estimates if q.setting == setting))

    def columns(self, setting: str) -> list[str]:
        """The columns measured in a setting."""
        return list(dict.fromkeys(q.column for q in self.estimates if q.setting == setting))

    @property
    def measured_in(self) -> list[str]:
        """The settings measured."""
        return list(dict.fromkeys(q.setting for q in self.estimates))


def median(values: Numbers) -> Any:
    """The median over the last axis."""
    return np.median(values, axis=-1)


def estimate(by_seed: Sequence[Sequence[float | None]], statistic: Statistic = mean) -> Estimate:
    """The mean (or another statistic over images) of values `seeds x images` with its interval.

    Images are resampled for the mean over seeds (the seeds see the same images). With two seeds or more Student's
    interval of the seeds' means is added in quadrature, since the two errors are independent. With one seed the
    interval does not cover the variation between trainings.
    """
    if len({len(column) for column in by_seed}) != 1:
        raise UserError("The seeds of a row measured different images; run the missing ones again.")
    table = np.array(by_seed, dtype=np.float64)
    absent = np.isnan(table).any(0)
    if absent.all():
        raise UserError("No image has a value in every seed; measure more images.")
    resamples = max(200, min(2000, RESAMPLED_NUMBERS // table.shape[1]))
    over_seeds = np.where(absent, np.nan, table.mean(0))
    over_images = bootstrap_interval(over_seeds, resamples=resamples, statistic=statistic)
    means = tuple(float(one) for one in statistic(table[:, ~absent]))
    wobble = _seed_error(means)
    low = over_images.value - math.hypot(over_images.value - over_images.low, wobble)
    high = over_images.value + math.hypot(over_images.high - over_images.value, wobble)
    return Estimate(low, over_images.value, high, over_images.n, over_images.missing, means)


def seed_by_seed(lower: Estimate, higher: Estimate) -> Estimate | None:
    """The difference `higher - lower`, paired by seed: its mean over seeds with Student's interval.

    Rows of one seed start at the same weights and use the same images, so the effect of the seed cancels. None with
    only one seed, or if the numbers of seeds differ.
    """
    if len(lower.by_seed) < 2 or len(lower.by_seed) != len(higher.by_seed):
        return None
    steps = tuple(there - here for here, there in zip(lower.by_seed, higher.by_seed, strict=True))
    mean, wobble = float(np.mean(steps)), _seed_error(steps)
    return Estimate(mean - wobble, mean, mean + wobble, min(lower.images, higher.images), by_seed=steps)


def _seed_error(means: tuple[float, ...]) -> float:
    """Half the width of Student's interval of the mean over seeds; 0 for one seed."""
    n = len(means)
    if n == 1:
        return 0.0
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    # Three decimals, as in printed tables, so that intervals of earlier runs stay as they are.
    quantile = round(float(stdtrit(n - 1, 0.975)), 3)
    return quantile * float(np.std(means, ddof=1)) / math.sqrt(n)


def of_prefix(record: records.Record, start: str) -> records.Record:
    """The columns that start with a prefix, which is removed; for records that hold several maps or rows."""
    mine = {key.removeprefix(start): values for key, values in record.values.items() if key.startswith(start)}
    return records.Record(record.name, record.settings, record.examples, mine)


def estimates(found: Iterable[tuple[str, str, int, records.Record]]) -> dict[Quantity, Estimate]:
    """Estimates of all columns of the records (setting, row, seed, record), over the seeds of each row.

    A column without a value, such as that of an attack that had no gradient to follow on any image, is left out.
    """
    columns: dict[Quantity, dict[int, list[float | None]]] = {}
    for setting, row, seed, record in found:
        # Sorted, because a record that was written and read again has lost the order of measurement.
        for column, values in sorted(record.values.items(), key=lambda item: _by_numbers(item[0])):
            columns.setdefault(Quantity(setting, row, column), {})[seed] = values
    made = {}
    for q, seeds in columns.items():
        by_seed = [seeds[seed] for seed in sorted(seeds)]
        if all(None in values for values in zip(*by_seed, strict=False)):
            print(f"gyrograd: left out, as no image has a value in every seed: {q.key}", file=sys.stderr)
        else:
            made[q] = estimate(by_seed, median if q.column.endswith(MEDIAN) else mean)
    return made


def _by_numbers(name: str) -> list[tuple[bool, float, str]]:
    """Sort key that compares numbers in names by value: `rps @ 2` comes before `rps @ 16`."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(True, float(part), "") if place % 2 else (False, 0.0, part) for place, part in enumerate(parts)]


def write_results(folder: Path, results: Results) -> None:
    """Write `results.json`, a record whose examples are the seeds, and `pictures.npz` if there are pictures."""
    if results.pictures:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **dict(results.pictures))  # type: ignore[arg-type]
        records.write_bytes(folder / "pictures.npz", buffer.getvalue())
    most = max((len(e.by_seed) for e in results.estimates.values()), default=0)
    values: dict[str, list[float | None]] = {
        q.key: [*e.by_seed, *[None] * (most - len(e.by_seed))] for q, e in results.estimates.items()
    }
    bounds = {q.key: [e.low, e.value, e.high, e.images, e.missing] for q, e in results.estimates.items()}
    facts = {**results.facts, "intervals": bounds, "order": [q.key for q in results.estimates]}
    settings = {**results.settings, "scale": results.scale}
    records.write(
        folder / "results.json", records.Record(results.name, settings, list(range(most)), values, facts)
    )


def read_results(folder: Path) -> Results:
    """Read what `write_results` wrote."""
    record = records.read(folder / "results.json")
    facts = dict(record.facts)
    bounds, order = facts.pop("intervals"), facts.pop("order")
    found = {
        Quantity(*key.split(SEPARATOR)): _read_estimate(bounds[key], record.values[key]) for key in order
    }
    settings = dict(record.settings)
    scale = settings.pop("scale")
    path = folder / "pictures.npz"
    pictures: dict[str, NDArray[Any]] = {}
    if path.exists():
        with np.load(path, allow_pickle=False) as arrays:
            pictures = {name: arrays[name] for name in arrays.files}
    return Results(record.name, scale, settings, found, pictures, facts)


def _read_estimate(bounds: Sequence[Any], by_seed: Sequence[float | None]) -> Estimate:
    low, value, high, images, missing = bounds
    seeds = tuple(float(mean) for mean in by_seed if mean is not None)
    # JSON has no infinity: null stands for an infinite bound.
    low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    return Estimate(float(low), float(value), float(high), int(images), int(missing), seeds)
