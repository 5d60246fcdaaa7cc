"""Statistics of per-example values: means with intervals, paired differences, areas under curves. Needs no torch.

Missing values (None or NaN: an image that an attack could not use) are left out and counted, never guessed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gyrograd.errors import UserError, check_counts, check_name

Numbers: TypeAlias = NDArray[np.float64]
Values: TypeAlias = ArrayLike | Sequence[float | None]
"""One value per example; None or NaN if it is missing."""
Statistic: TypeAlias = Callable[[Numbers], Any]
"""Reduces the last axis."""

_RESAMPLE_NUMBERS = 1 << 22
"""Most numbers drawn at once by the bootstrap: 32 MB."""
MIN_IMAGES_FOR_CI = 10
"""With fewer images a bootstrap interval is far too narrow: with two it is just their range."""
NORMAL_FROM = 10_000
"""Number of values from which the interval of a mean is the normal one."""
_MEANS_TRIED = 1000
"""Grid of candidate means for a confidence sequence, from the lowest to the highest possible."""
_MAX_STAKE = 0.5
"""Largest share of the capital that one bet of a confidence sequence may lose."""


class Stat(TypedDict):
    """An interval in JSON: a mean over n examples and its bounds, null if unknown."""

    value: float | None
    low: float | None
    high: float | None
    n: int | None


@dataclass(frozen=True)
class Interval:
    """A statistic of n values and its bounds; `missing` values were left out."""

    low: float
    value: float
    high: float
    n: int
    missing: int = 0

    def plain(self) -> Stat:
        """The interval for JSON; an unknown bound (of a single value) is null."""
        low, high = (bound if np.isfinite(bound) else None for bound in (self.low, self.high))
        return {"value": self.value, "low": low, "high": high, "n": self.n}

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def mean(values: Numbers) -> Any:
    """The average over the last axis."""
    return np.mean(values, axis=-1)


def bootstrap_interval(
    values: Values,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    statistic: Statistic = mean,
) -> Interval:
    """A statistic with its percentile bootstrap interval over the examples (Efron 1979).

    The interval of a single value is infinite. The mean of `NORMAL_FROM` or more values gets the normal interval: a
    bootstrap with 2000 resamples would differ from it by chance only, and takes a million times as long.
    """
    _check_settings(level, resamples)
    kept, missing = _present(values)
    value = float(statistic(kept))
    if len(kept) == 1:
        return Interval(-np.inf, value, np.inf, 1, missing)
    if statistic is mean and len(kept) >= NORMAL_FROM:
        half = NormalDist().inv_cdf((1 + level) / 2) * float(kept.std(ddof=1)) / len(kept) ** 0.5
        return Interval(value - half, value, value + half, len(kept), missing)
    repeats = _resample(kept, resamples, seed, statistic)
    low, high = np.quantile(repeats, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), value, float(high), len(kept), missing)


def share_interval(values: Values, *, level: float = 0.95) -> Interval:
    """The share of ones among zeros and ones, with its interval (Wilson 1927).

    A bootstrap of values that are all equal, such as four right answers of four, returns that value as both bounds.

    >>> found = share_interval([1, 1, 1, 1])
    >>> round(found.low, 2), found.high
    (0.51, 1.0)
    """
    kept, missing = _present(values)
    n, share = len(kept), float(kept.mean())
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle, weight = share + z**2 / (2 * n), 1 + z**2 / n
    half = z * (share * (1 - share) / n + (z / (2 * n)) ** 2) ** 0.5
    # Exactly 0 and 1 for a share of 0 and 1, which rounding would miss.
    low, high = min(share, (middle - half) / weight), max(share, (middle + half) / weight)
    return Interval(max(0.0, low), share, min(1.0, high), n, missing)


def confidence_sequence(
    values: Values, *, low: float = 0.0, high: float = 1.0, level: float = 0.95
) -> Interval:
    """The mean of bounded values with an interval that holds at every number of examples at once.

    For looking at the numbers while they come in and stopping when the interval is narrow enough. Theorem 3 of
    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B, 2024), the hedged
    capital process with predictable plug-in bets: with probability `level` the interval holds the true mean at all n,
    hence also at the n where one stops. It assumes that every value lies between low and high and that, given the
    values before it, each has the same expectation: images in random order. The distribution is arbitrary.

    The values count in their order. From some hundred values on it is about twice as wide as an interval for an n
    fixed beforehand, for fewer wider.
    """
    _check_settings(level, 1)
    kept, missing = _present(values)
    if kept.min() < low or kept.max() > high or not low < high:
        raise UserError(f"Values lie outside {low} to {high}; give the bounds of what was measured.")
    x = (kept - low) / (high - low)
    bound = np.log(2 / (1 - level))
    bets = _bets(x, bound)
    grid = np.linspace(0, 1, _MEANS_TRIED + 1)
    # A gambler who bets that the mean is above m, and one who bets below, with half the money each: if m is the mean,
    # neither is ever likely to be rich. Bets are cut so that no single value can ruin one.
    above, below = np.zeros(len(grid)), np.zeros(len(grid))
    with np.errstate(divide="ignore"):
        most_above, most_below = _MAX_STAKE / grid, _MAX_STAKE / (1 - grid)
    for rows in np.array_split(np.arange(len(x)), -(-len(x) // 1024)):
        gain = x[rows, None] - grid
        above += np.log1p(np.minimum(bets[rows, None], most_above) * gain).sum(0)
        below += np.log1p(-np.minimum(bets[rows, None], most_below) * gain).sum(0)
    inside = np.flatnonzero(np.maximum(above, below) < bound)
    middle = round(float(x.mean()) * _MEANS_TRIED)
    first, last = (inside[0], inside[-1]) if len(inside) else (middle, middle)
    # The next point of the grid is outside: the interval is rounded outwards.
    ends = np.clip([(first - 1) / _MEANS_TRIED, (last + 1) / _MEANS_TRIED], 0, 1) * (high - low) + low
    return Interval(float(ends[0]), float(kept.mean()), float(ends[1]), len(kept), missing)


def _bets(x: Numbers, bound: float) -> Numbers:
    """The stake on each value, from mean and variance of the values before it: a bet must not look ahead."""
    t = np.arange(1, len(x) + 1)
    centre = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - centre) ** 2)) / (t + 1)
    # Variance of the values before each one; for the first the largest possible, 1/4.
    before = np.concatenate([[0.25], variance[:-1]])
    stake: Numbers = np.sqrt(2 * bound / (before * t * np.log1p(t)))
    return stake


def paired_difference(
    a: Values,
    b: Values,
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    statistic: Statistic = mean,
) -> Interval:
    """The interval of a - b per example; a pair with a missing value is left out."""
    first, second = _row(a), _row(b)
    if len(first) != len(second):
        raise UserError(f"There are {len(first)} and {len(second)} values; give one of each per example.")
    return bootstrap_interval(
        first - second, level=level, resamples=resamples, seed=seed, statistic=statistic
    )


def area_over_eps(
    values: Values | Sequence[Sequence[float | None]],
    eps: ArrayLike | None = None,
    *,
    spacing: Literal["true", "log2"] = "true",
) -> Numbers:
    """Area under each row of values (..., e) by the trapezoid rule; NaN if a row misses a value.

    Without eps neighbours are one step apart (wang2020's tables: eps 2, 4, 8, 16, so at most 3 for values up to 1);
    with eps they are as far apart as eps, or log2 of it.
    """
    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim == 0 or curve.shape[-1] < 2:
        raise UserError(
            f"An area needs at least two points and got shape {curve.shape}; measure at more eps."
        )
    widths = np.ones(curve.shape[-1] - 1) if eps is None else _widths(eps, curve.shape[-1], spacing)
    area: Numbers = np.asarray(((curve[..., 1:] + curve[..., :-1]) / 2 * widths).sum(-1))
    return area


def _widths(eps: ArrayLike, points: int, spacing: str) -> Numbers:
    radii = _row(eps)
    if len(radii) != points:
        raise UserError(f"There are {len(radii)} eps for {points} points; give one eps for each point.")
    check_name("spacing", spacing, ("true", "log2"))
    if spacing == "log2" and not (radii > 0).all():
        raise UserError("log2 spacing needs every eps above 0; leave out eps 0 or use spacing 'true'.")
    widths = np.diff(np.log2(radii) if spacing == "log2" else radii)
    if not (widths > 0).all():
        raise UserError("The eps of an area must rise; sort them and their values.")
    return widths


def _resample(kept: Numbers, resamples: int, seed: int, statistic: Statistic) -> Numbers:
    """The statistic of each resample, drawn in parts from one stream of random numbers."""
    generator = np.random.default_rng(seed)
    rows = max(1, _RESAMPLE_NUMBERS // len(kept))
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    parts = [statistic(kept[generator.integers(len(kept), size=(size, len(kept)))]) for size in sizes]
    repeats = np.concatenate([np.atleast_1d(part) for part in parts])
    if repeats.shape != (resamples,):
        raise UserError("The statistic must reduce the last axis, such as lambda v: np.median(v, axis=-1).")
    return repeats


def _present(values: Values) -> tuple[Numbers, int]:
    """The values that are present, and the number that is missing."""
    row = _row(values)
    kept = row[~np.isnan(row)]
    if len(kept) == 0:
        raise UserError(f"There is no value among {len(row)} to average; measure at least one example.")
    if np.isinf(kept).any():
        raise UserError("There are infinite values; leave those examples out or mark them missing (None).")
    return kept, len(row) - len(kept)


def _row(values: Values) -> Numbers:
    row = np.asarray(values, dtype=np.float64)
    if row.ndim != 1:
        raise UserError(f"The values have shape {row.shape}; give one number for each example.")
    return row


def _check_settings(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise UserError(f"level is {level}; give a fraction between 0 and 1, such as 0.95.")
    check_counts(resamples=resamples)
