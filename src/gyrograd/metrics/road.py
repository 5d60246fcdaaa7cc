"""ROAD (Rong et al. 2022): remove pixels in the order of a map and impute them, so that no visible mark remains."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import pad

from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.errors import UserError
from gyrograd.metrics.insertion import RANGES, positions
from gyrograd.metrics.passes import checked_target, in_parts, score_variants
from gyrograd.metrics.reductions import check_reduction, reduce_map
from gyrograd.numerics import random
from gyrograd.numerics.maps import holds_nan
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Labels, Model, PerExample, Seed, Targets

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DIRECT, DIAGONAL = 1 / 6, 1 / 12
"""Weights of a pixel's neighbours in its mean (Rong et al. 2022, Section 4.2)."""
MOST_ITERATIONS = 2000


@register(
    "metric",
    "road",
    paper="Rong et al. 2022",
    equation="Section 4.2",
    direction="lower is better",
    group="faithfulness",
    label="ROAD",
)
@dataclass(frozen=True)
class Road:
    """Mean probability of the class as pixels are removed, the highest in the map first, and imputed from neighbours.

    A removed pixel becomes the weighted mean of its eight neighbours, including removed ones (a linear system), plus
    normal noise of deviation sigma. Unlike with `deletion`, no black pixels show the model where the map was bright.
    Rong et al. report the accuracy over many images; here each image has a value, the probability (`quantity`).

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> road = gg.metric("road", ratios=(0.2, 0.5))
    >>> road(model, gg.attribution("gradient"), x, gg.predict(model, x)).shape
    torch.Size([2])
    """

    ratios: tuple[float, ...] = SHARES
    sigma: float = 0.01
    reduce: str = "abs_sum"
    quantity: str = "probability"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_reduction(self.reduce)
        check_quantity(self.quantity)
        if self.reduce in ("none", "abs"):
            raise UserError(f"reduce is '{self.reduce}', and ROAD removes whole pixels; give abs_sum.")
        if not self.ratios or not all(0 <= ratio < 1 for ratio in self.ratios):
            raise UserError(
                f"The ratios are {self.ratios}; give fractions from 0 to below 1, such as (0.1, 0.5, 0.9)."
            )
        if not 0 <= self.sigma < math.inf:
            raise UserError(f"sigma is {self.sigma}; give a finite number of at least 0, such as 0.01.")

    @property
    def range(self) -> tuple[float, float]:
        """Where the values lie."""
        return RANGES.get(self.quantity, (-math.inf, math.inf))

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        return self.curve(model, attribution, x, target, seed=seed).mean(1)

    def curve(
        self, model: Model, attribution: Attribution, x: Images, target: Targets, *, seed: Seed = 0
    ) -> Tensor:
        """The value at each share of removed pixels."""
        target = checked_target(model, x, target)
        keys = random.keys(seed, len(x), x.device)
        return self.curve_of_map(model, attribution(model, x, target).detach(), x.detach(), target, keys)

    def curve_of_map(self, model: Model, map: Images, x: Images, target: Labels, keys: random.Keys) -> Tensor:
        """As `curve`, for a given map; share number i draws its noise from stream i of each example's key.

        NaN if the map holds NaN.
        """
        place = positions(reduce_map(map, self.reduce))[:, 0]
        counts = [int(ratio * place[0].numel() + 1e-9) for ratio in self.ratios]

        def values(examples: slice, these: slice) -> Tensor:
            here, noted = x[examples], keys[examples]
            filled = []
            for number in range(these.start, these.stop):
                removed = place[examples] < counts[number]
                noise = self.sigma * random.normal(noted, tuple(x.shape[1:]), stream=number, dtype=x.dtype)
                filled.append(impute_pixels(here, removed) + removed[:, None] * noise)
            return score_variants(model, torch.stack(filled, 1), target[examples], self.quantity)

        curve = in_parts(values, x, len(counts), self.max_batch)
        return torch.where(holds_nan(map)[:, None], torch.nan, curve)


def impute_pixels(x: Images, removed: Bool[Tensor, "b h w"]) -> Images:
    """The images with each removed pixel replaced by the weighted mean of its neighbours inside the image.

    The linear system of an image is symmetric positive definite if at least one pixel is left. Conjugate gradients
    solve it without a matrix, in the same way on every device. Each image converges separately, so that the values do
    not depend on the batch.
    """
    if bool(removed.flatten(1).all(1).any()):
        raise UserError(
            "All pixels of an image are removed, and none is left to fill them from; remove fewer."
        )
    gone = removed[:, None].to(x)

    def neighbours(values: Tensor) -> Tensor:
        """Weighted sum of the eight neighbours, zero outside the image."""
        padded = pad(values, (1, 1, 1, 1))
        sides = padded[..., :-2] + padded[..., 2:]  # left + right of each pixel, including the padded rows
        direct = sides[..., 1:-1, :] + padded[..., :-2, 1:-1] + padded[..., 2:, 1:-1]
        return DIRECT * direct + DIAGONAL * (sides[..., :-2, :] + sides[..., 2:, :])

    weight = neighbours(torch.ones_like(gone))

    def system(values: Tensor) -> Tensor:
        return gone * (weight * values - neighbours(values))

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)

    wanted = gone * neighbours((1 - gone) * x)
    # Start at the mean of the remaining pixels: deep inside a large hole the solution is close to it.
    left = ((1 - gone) * x).sum((2, 3), keepdim=True) / (1 - gone).sum((2, 3), keepdim=True)
    found = gone * left
    rest = wanted - system(found)
    direction, size = rest, dot(rest, rest)
    # Squared, like the sizes: the residual may be a hundred roundings of the right side.
    accuracy = (100 * torch.finfo(x.dtype).eps) ** 2 * dot(wanted, wanted)
    for _ in range(MOST_ITERATIONS):
        going = size > accuracy
        if not bool(going.any()):
            break
        applied = system(direction)
        curvature = dot(direction, applied)
        # A converged image takes steps of zero while others of the batch go on.
        step = torch.where(going & (curvature > 0), size / torch.where(curvature > 0, curvature, 1), 0)
        found = found + step * direction
        rest = rest - step * applied
        after = dot(rest, rest)
        direction = torch.where(going, rest + after / torch.where(size > 0, size, 1) * direction, direction)
        size = torch.where(going, after, size)
    return torch.where(removed[:, None], found, x)
