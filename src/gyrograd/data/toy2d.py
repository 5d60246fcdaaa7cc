"""Points of the plane in two interleaved classes, for the pictures of a two-layer network."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gyrograd.data.dataset import Dataset
from gyrograd.errors import UserError, did_you_mean
from gyrograd.numerics import random
from gyrograd.registry import register

SPLITS = {"train": 0, "test": 1}


@register("dataset", "toy2d", paper="joo2023", equation="Figure 1")
def toy2d(split: str = "train", n: int = 500, seed: int = 0, noise: float = 0.06) -> Dataset:
    """Two interleaved half moons in [0, 1] x [0, 1]: joo2023 Figure 1 shows such a set but gives no recipe.

    Args:
        split: train or test; they share no random numbers.
        n: how many points; a larger n extends a smaller one.
        seed: another seed is another draw.
        noise: standard deviation of each coordinate about its moon, in units of the square's side.

    >>> import gyrograd as gg
    >>> gg.dataset("toy2d", n=10).pixels().shape
    torch.Size([10, 2])
    """
    if split not in SPLITS:
        raise UserError(f"toy2d has no split '{split}': {did_you_mean(split, SPLITS)}")
    if n < 1 or not noise >= 0:
        raise UserError(f"toy2d was asked for n={n} points with noise={noise}; give n >= 1 and noise >= 0.")
    keys = random.subkeys(random.keys(seed, n), SPLITS[split])
    labels = torch.arange(n) % 2
    points = moon(random.uniform(keys, ()), labels) + noise * random.normal(keys, (2,), stream=1)
    return Dataset(points.clamp(0, 1), labels, ("upper", "lower"), f"toy2d {split}")


def moon(place: Float[Tensor, " b"], label: Int[Tensor, " b"]) -> Float[Tensor, "b 2"]:
    """The point at `place` (0 to 1) along the moon of its label; the second moon is the first half turned."""
    angle = math.pi * place
    upper = torch.stack((0.37 + 0.25 * angle.cos(), 0.44 + 0.25 * angle.sin()), 1)
    return torch.where(label[:, None] == 0, upper, 1 - upper)
