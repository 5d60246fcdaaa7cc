"""A metric: how much of the map lies on the left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from gyrograd.registry import register
from gyrograd.types import Attribution


@register("metric", "left_mass", paper="own", direction="higher is better")
@dataclass(frozen=True)
class LeftMass:
    """Share of the map's size that lies on the left half of the image; 0 for a map of zeros."""

    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(
        self, model: nn.Module, attribution: Attribution, x: Tensor, target: Tensor, *, seed: object = 0
    ) -> Tensor:
        """One number per example."""
        sizes = attribution(model, x, target).abs()
        whole = sizes.flatten(1).sum(1)
        return sizes[..., : x.shape[3] // 2].flatten(1).sum(1) / whole.where(whole > 0, 1)
