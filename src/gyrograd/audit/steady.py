"""The steady radius: how far pixels may change before an attacker has moved half of what a map ranks highest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gyrograd.errors import UserError
from gyrograd.measurement import Column
from gyrograd.numerics.statistics import NORMAL_FROM, Stat

SHARE = 0.5
"""More of the picture stays than goes."""
RESAMPLES = 2000


def steady_radius(kept: Sequence[Column], radii: Sequence[float], share: float = SHARE) -> Stat | None:
    """The largest radius, in units of 1/255, at which at least `share` of the top pixels stays, with its interval.

    `kept` has the share of each image at each of the rising `radii`; at radius 0 all stays. Between radii the mean is
    taken to fall on a straight line. A mean that is above `share` at the largest radius gives that radius: the map
    holds at least so far. The interval is a bootstrap over images. None where no image has a value at every radius.

    >>> steady_radius([{0: 0.75, 1: 0.75}, {0: 0.25, 1: 0.25}], [4 / 255, 8 / 255])["value"]
    6.0
    """
    if len(kept) != len(radii) or list(radii) != sorted(set(radii)) or not all(eps > 0 for eps in radii):
        raise UserError(
            f"There are {len(kept)} columns for the radii {list(radii)}; give one for each, rising."
        )
    images = [e for e in kept[0] if all(column.get(e) is not None for column in kept)]
    if not images:
        return None
    curves = np.array([[column[e] for column in kept] for e in images], dtype=np.float64)
    value = float(_crossing(curves.mean(0)[None], radii, share)[0])
    if len(images) == 1:
        return {"value": value, "low": None, "high": None, "n": 1}
    low, high = np.quantile(_crossing(_resampled_means(curves), radii, share), [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high), "n": len(images)}


def _resampled_means(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean curve of each resample of the images; of many images drawn from the normal distribution it then has."""
    generator, n = np.random.default_rng(0), len(curves)
    if n >= NORMAL_FROM:
        spread = np.atleast_2d(np.cov(curves.T)) / n
        return generator.multivariate_normal(curves.mean(0), spread, size=RESAMPLES, method="svd")
    rows = generator.integers(n, size=(RESAMPLES, n))
    return np.concatenate([curves[part].mean(1) for part in np.array_split(rows, max(1, rows.size >> 22))])


def _crossing(means: NDArray[np.float64], radii: Sequence[float], share: float) -> NDArray[np.float64]:
    """Where each row of means first falls below `share`, of 255."""
    levels: NDArray[np.float64] = np.array([0.0, *(255 * eps for eps in radii)])
    curve = np.concatenate([np.ones((len(means), 1)), means], axis=1)
    below = curve < share
    first = np.where(below.any(1), below.argmax(1), len(levels) - 1)
    row = np.arange(len(curve))
    high, low = curve[row, first - 1], curve[row, first]
    # The part of the last piece that is walked; all of it where the curve does not fall below.
    part = np.where(below.any(1), (high - share) / np.where(high > low, high - low, 1), 1.0)
    crossed: NDArray[np.float64] = levels[first - 1] + part * (levels[first] - levels[first - 1])
    return crossed
