"""Sparseness: is the map concentrated on few pixels?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from gyrograd.metrics.passes import checked_target
from gyrograd.metrics.reductions import check_reduction, reduce_map
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Model, PerExample, Seed, Targets


@register(
    "metric",
    "sparseness",
    aliases=("gini",),
    paper="Chalasani et al. 2020",
    equation="Section 3, Gini index",
    direction="higher is better",
    label="Sparseness",
)
@dataclass(frozen=True)
class Sparseness:
    """Gini index of the pixels' magnitudes: 0 if all are equal (or zero), near 1 if one pixel has everything.

    A sparse map is easier to read, not more faithful: compare maps of equal faithfulness.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> sparseness = gg.metric("sparseness")
    >>> flat = gg.attribution(lambda model, x, target: x * 0 + 1)
    >>> [round(value, 3) for value in sparseness(model, flat, x, gg.predict(model, x)).abs().tolist()]
    [0.0, 0.0]
    """

    reduce: str = "abs_sum"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_reduction(self.reduce)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        target = checked_target(model, x, target)
        sizes = (
            reduce_map(attribution(model, x, target).detach(), self.reduce).flatten(1).abs().sort(1).values
        )
        n = sizes.shape[1]
        # Gini: the sum over rising ranks i of (2 i - n - 1) / n times the share of the i-th smallest.
        rank = torch.arange(1, n + 1, device=sizes.device, dtype=sizes.dtype)
        whole = sizes.sum(1)
        # Scaled first: magnitudes times ranks overflow half precision. Equal magnitudes may round to below 0.
        parts = sizes / torch.where(whole > 0, whole, 1)[:, None]
        return (parts * ((2 * rank - n - 1) / n)).sum(1).clamp(0, 1)
