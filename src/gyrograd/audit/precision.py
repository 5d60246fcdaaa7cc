"""Measure until the numbers are precise enough (`--precision 0.02`), instead of a fixed number of images.

Images are measured in random order, shard after shard. Each method stops when the interval of its share of top pixels
kept under attack, by which maps are graded, has a half-width of at most `precision`. Stopping as soon as an interval
looks narrow would invalidate one made for a fixed number of images; these are confidence sequences, which hold for all
numbers of images at once (`numerics.statistics.confidence_sequence`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gyrograd.audit.presets import Preset
from gyrograd.audit.table import method_columns, stat
from gyrograd.data.streamed import Streamed
from gyrograd.measurement import Column, Sample, Table
from gyrograd.numerics import random
from gyrograd.numerics.statistics import Stat, confidence_sequence

GRADED = "top_k_kept"
SHARES = {"rps", "noise_kept", "attack_cosine", GRADED, "prediction_kept", "insertion", "deletion"} | {
    "adversarial_insertion"
}
"""Columns of the card whose values lie between 0 and 1."""
GROWTH = 1.5
"""Factor by which the number of images grows between two looks."""
ORDER = 1 << 35
"""Random stream of the order of the images."""


def in_random_order(sample: Sample, seed: int) -> Sample:
    """The images in an order drawn by the seed, because those of a folder are sorted by class."""
    order = random.permutation(random.keys(seed, 1), len(sample.x), stream=ORDER)[0]
    index = tuple(sample.index[i] for i in order.tolist())
    x = sample.x.rows(order) if isinstance(sample.x, Streamed) else sample.x[order]
    return Sample(x, sample.target[order], index)


def measure_until_precise(
    measure: Callable[[Mapping[str, int]], Table],
    methods: Sequence[str],
    images: Sequence[int],
    preset: Preset,
) -> Table:
    """The table with as many images per method as the precision takes; `measure` takes the number per method."""
    assert preset.precision is not None
    limits = dict.fromkeys(methods, min(preset.shard, len(images)))
    while True:
        table = measure(limits)
        wide = [
            name
            for name in methods
            if limits[name] < len(images)
            # None: no attack had a derivative to follow, and more images would not change that.
            and (graded := sequential_stat(GRADED, method_columns(table, name, preset)[GRADED], images))
            and _half_width(graded) > preset.precision
        ]
        if not wide:
            return table
        for name in wide:
            more = max(limits[name] + 1, int(GROWTH * limits[name]))
            shards = -(-more // preset.shard)
            limits[name] = min(len(images), shards * preset.shard)


def sequential_stat(key: str, values: Column, images: Sequence[int]) -> Stat | None:
    """A column's mean and confidence sequence; `images` are all images of the audit, in the order of measuring."""
    present = [v for i in images if (v := values.get(i)) is not None]
    if key not in SHARES or not present:
        return stat(values)
    return confidence_sequence(np.clip(present, 0.0, 1.0)).plain()  # a cosine may be 1 + 1e-7


def shortfall(columns: Mapping[str, Mapping[str, Stat | None]], precision: float) -> str | None:
    """A note if there were too few images for the precision."""
    graded = [stats[GRADED] for stats in columns.values() if stats.get(GRADED)]
    widest = max((_half_width(found) for found in graded if found), default=0.0)
    if widest <= precision:
        return None
    return (
        f"The images did not suffice for a precision of {precision:g}: the top pixels kept are known to "
        f"{widest:.2g}; give more (--images)."
    )


def _half_width(found: Stat) -> float:
    low, high = found["low"], found["high"]
    return float("inf") if low is None or high is None else (high - low) / 2
