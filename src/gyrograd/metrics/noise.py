"""Random neighbours of examples; draw number i around x depends only on the example's key and i."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.checks import in_grey_levels
from gyrograd.types import Inputs


@dataclass(frozen=True)
class UniformNoise:
    """x plus independent uniform noise in [-eps, eps]; `clip` cuts images to [0, 1]."""

    eps: float
    clip: bool = False

    def __post_init__(self) -> None:
        check_size("eps", self.eps, "8 / 255")

    def __call__(self, x: Inputs, keys: random.Keys, draw: int) -> Inputs:
        check_pixel_size("eps", self.eps, x)
        # One stream per draw: the first draws stay the same if more are asked for.
        noise = random.uniform(keys, tuple(x.shape[1:]), stream=draw, dtype=x.dtype)
        return _clip(x + (2 * noise - 1) * self.eps, self.clip)


@dataclass(frozen=True)
class GaussianNoise:
    """x plus independent normal noise of deviation sigma; `clip` cuts images to [0, 1]."""

    sigma: float
    clip: bool = False

    def __post_init__(self) -> None:
        check_size("sigma", self.sigma, "0.03")

    def __call__(self, x: Inputs, keys: random.Keys, draw: int) -> Inputs:
        check_pixel_size("sigma", self.sigma, x)
        noise = random.normal(keys, tuple(x.shape[1:]), stream=draw, dtype=x.dtype)
        return _clip(x + noise * self.sigma, self.clip)


Noise = Callable[[Tensor, Tensor, int], Tensor]


def neighbours(noise: Noise, x: Inputs, keys: random.Keys, draws: slice) -> Float[Tensor, "b n *shape"]:
    """The draws numbered `draws` around each example."""
    return torch.stack([noise(x, keys, draw) for draw in range(draws.start, draws.stop)], 1)


def check_size(name: str, value: float, usual: str) -> None:
    """Refuse noise of no size: every map would look stable."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} is {value}; give the noise a size above 0 in pixel units, such as {usual}.")


def check_pixel_size(name: str, value: float, x: Inputs) -> None:
    """Refuse noise larger than the range of pixels, such as 8 for 8 / 255; features may have any range."""
    if x.dim() == 4 and value > 1:
        raise in_grey_levels(name, value)


def _clip(x: Tensor, clip: bool) -> Tensor:
    return x.clamp(0, 1) if clip and x.dim() == 4 else x  # only images have this range
