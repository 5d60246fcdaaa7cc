"""A regulariser: the gradient is to be small on the left."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from gyrograd.registry import register
from gyrograd_halves.left_half import LeftHalf


@register("regularizer", "left_penalty", paper="own")
@dataclass(frozen=True)
class LeftPenalty:
    """Mean squared gradient of the label's logit on the left half of the image."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: object = None) -> Tensor:
        """One penalty per example."""
        return LeftHalf()(model, x, y, create_graph=True).square().flatten(1).mean(1)
