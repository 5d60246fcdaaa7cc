"""Measuring until the numbers are known well enough: `--precision 0.02`, and not a fixed number of images.

Images are measured in a random order, shard after shard, and each method until the interval of the share of top pixels
it keeps under attack, by which maps are graded, reaches no further than `precision` to either side. Whoever looks at an
interval again and again and stops when it pleases would fool himself with one made for a fixed number of images; these
are confidence sequences, which hold at all numbers of images at once (`numerics.statistics.confidence_sequence`).
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
"""How many times as many images are looked at next."""
ORDER = 1 << 35
"""The stream the order of the images is drawn from."""


def in_random_order(sample: Sample, seed: int) -> Sample:
    """The same images in an order fixed by the seed: those of a folder come class by class."""
    order = random.permutation(random.keys(seed, 1), len(sample.x), stream=ORDER)[0]
    index = tuple(sample.index[i] for i in order.tolist())
    x = sample.x.rows(order) if isinstance(sample.x, Streamed) else sample.x[order]
    return Sample(x, sample.target[order], index)


def measured_until_precise(
    measured: Callable[[Mapping[str, int] | None], Table],
    methods: Sequence[str],
    images: Sequence[int],
    preset: Preset,
) -> Table:
    """The table, each method over as many images as the precision takes; without one, over all of them.

    `measured` takes the number of images of each method.
    """
    if preset.precision is None:
        return measured(None)
    limits = dict.fromkeys(methods, min(preset.shard, len(images)))
    while True:
        table = measured(limits)
        wide = [
            name
            for name in methods
            if limits[name] < len(images)
            # None: no attack had anything to follow, and more images change nothing.
            and (graded := sequential_stat(GRADED, method_columns(table, name, preset)[GRADED], images))
            and _half_width(graded) > preset.precision
        ]
        if not wide:
            return table
        for name in wide:
            shards = -(-int(GROWTH * limits[name]) // preset.shard)
            limits[name] = min(len(images), shards * preset.shard)


def sequential_stat(key: str, values: Column, images: Sequence[int]) -> Stat | None:
    """A column's mean and its confidence sequence; `images` are all of the audit, in the order of measuring."""
    present = [v for i in images if (v := values.get(i)) is not None]
    if key not in SHARES or not present:
        return stat(values)
    return confidence_sequence(np.clip(present, 0.0, 1.0)).plain()  # a cosine may be 1 + 1e-7


def shortfall(columns: Mapping[str, Mapping[str, Stat | None]], precision: float) -> str | None:
    """A note if the images did not suffice."""
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
