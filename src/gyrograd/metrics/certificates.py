"""Guarantees, not attacks: what no change within a Euclidean radius can do to a map that is averaged over noise.

What is certified is the *smoothed* map: many normal draws z around x, each explained on its own. If a function of x + z
has values in [0, 1] and the mean p, a shift of x by a length r leaves a mean of at least Phi(Phi^-1(p) - r / sigma)
(Cohen, Rosenfeld and Kolter 2019, Theorem 1, for two values; Salman et al. 2019, Lemma 2, for any). Both certificates
put a lower confidence bound in place of p: each holds with probability 1 - alpha over the draws, image by image.

Radii are Euclidean over all pixels and channels. On a 3 x 32 x 32 image 0.1 is 0.46/255 per value if all change alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, rows_at_once
from gyrograd.errors import UserError
from gyrograd.metrics.noise import GaussianNoise, neighbours
from gyrograd.metrics.passes import check_classes, check_count, explained, parts
from gyrograd.metrics.pictures import check_picture, picture
from gyrograd.numerics import random
from gyrograd.numerics.checks import check_inputs, class_indices
from gyrograd.numerics.maps import normalize, top_k_mask
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Inputs, Model, PerExample, Seed, Targets


@dataclass(frozen=True, eq=False)
class PixelCertificate:
    """For each pixel, whether most draws have it in the top, and how far that is certain.

    in_top: the guess out of the held-out draws. radius: within this distance of x most draws have it so; 0 where that
    could not be shown. All pixels of an image hold together with the confidence asked for.
    """

    in_top: Bool[Tensor, "b h w"]
    radius: Float[Tensor, "b h w"]

    def share(self, radius: float) -> PerExample:
        """Share of each image's pixels that are certified to this radius."""
        return (self.radius >= radius).double().mean((1, 2))

    def states(self, radius: float) -> Int[Tensor, "b h w"]:
        """1: certainly in the top; -1: certainly not; 0: undecided at this radius."""
        return torch.where(self.radius >= radius, torch.where(self.in_top, 1, -1), 0)


@register(
    "metric",
    "certified_pixels",
    paper="own",
    equation="Anani et al. 2025; Cohen et al. 2019, Theorem 1",
    direction="higher is better",
    group="certificate",
)
@dataclass(frozen=True)
class CertifiedPixels:
    """Share of the pixels whose place, in or out of the top, no change within the radius can alter.

    Each pixel's majority over `held_out` draws is the guess; `draws` further ones test it (Clopper-Pearson, `alpha`
    divided by the number of pixels). A pixel whose bound does not reach the radius is not counted.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(1, 3, 32, 32)
    >>> certified = gg.metric("certified_pixels", draws=60, held_out=10, radius=0.02)
    >>> share = certified(model, gg.attribution("gradient"), x, gg.predicted(model, x))
    >>> bool(0 <= share <= 1)
    True
    """

    radius: float = 0.10
    sigma: float = 0.15
    top: float = 0.5
    draws: int = 1000
    held_out: int = 100
    alpha: float = 0.001
    reduce: str = "abs_sum"
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)
        if not 0 < self.top < 1:
            raise UserError(
                f"top is {self.top}; give the share of pixels that count as the top, such as 0.5."
            )
        check_picture(self.reduce)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        check_inputs(x)
        pixels = picture(x[:1], self.reduce)[0].numel()
        unanimous = torch.tensor((self.alpha / pixels) ** (1 / self.draws), dtype=torch.float64)
        largest = self.sigma * float(torch.special.ndtri(unanimous))
        if largest < self.radius:
            raise UserError(
                f"{self.draws} draws certify {pixels} pixels to {max(largest, 0):.2g} at most, even if all agree, and "
                f"the radius is {self.radius:g}; give more draws, a larger sigma or a smaller radius."
            )
        return self.certificate(model, attribution, x, target, seed=seed).share(self.radius).to(x.dtype)

    def certificate(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PixelCertificate:
        """Every pixel's guess and radius."""
        counts: dict[bool, Tensor] = {}
        for testing, examples, maps in _drawn(self, model, attribution, x, target, seed):
            pictures = picture(maps.flatten(0, 1), self.reduce)
            in_top = top_k_mask(pictures, max(1, round(self.top * pictures[0].numel())))
            found = in_top.flatten(1, 2).unflatten(0, maps.shape[:2]).sum(1)
            if testing not in counts:
                counts[testing] = found.new_zeros(len(x), *found.shape[1:])
            counts[testing][examples] += found
        guess = 2 * counts[False] > self.held_out
        agreeing = torch.where(guess, counts[True], self.draws - counts[True])
        low = lower_share(agreeing, self.draws, self.alpha / guess[0].numel())
        return PixelCertificate(guess, (self.sigma * torch.special.ndtri(low)).clamp_min(0))


@dataclass(frozen=True, eq=False)
class DirectionCertificate:
    """A map of length one, and how near the smoothed map of every image around stays to it.

    direction: the mean of the held-out draws' maps, each of length one. low: a lower bound of (1 + cosine) / 2 between
    it and a draw's map, on average over all draws.
    """

    direction: Images
    low: PerExample
    sigma: float

    def cosine(self, radius: float) -> PerExample:
        """For every change within the radius: the smoothed map's cosine to the direction is at least this.

        -1, which says nothing, where no positive bound could be shown: a mean of directions is shorter than one, so a
        negative bound of its part along the direction bounds no angle.
        """
        along = 2 * torch.special.ndtr(torch.special.ndtri(self.low) - radius / self.sigma) - 1
        return torch.where(along > 0, along, -1.0)


@register(
    "metric",
    "certified_cosine",
    paper="own",
    equation="Salman et al. 2019, Lemma 2, of the part along a fixed direction",
    direction="higher is better",
    group="certificate",
)
@dataclass(frozen=True)
class CertifiedCosine:
    """No change within the radius turns the smoothed map further away than this cosine; -1: nothing is certain.

    Each draw's map is scaled to length one. The direction is the mean of `held_out` draws; `draws` further ones bound
    their mean cosine to it from below (empirical Bernstein, Maurer and Pontil 2009, Theorem 4). joo2023's cosine
    criterion, lowered in training, raises exactly this mean.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(1, 3, 32, 32)
    >>> certified = gg.metric("certified_cosine", draws=60, held_out=10, radius=0.02)
    >>> bool(certified(model, gg.attribution("gradient"), x, gg.predicted(model, x)) <= 1)
    True
    """

    radius: float = 0.05
    sigma: float = 0.10
    draws: int = 1000
    held_out: int = 100
    alpha: float = 0.001
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)
        if self.draws < 2:
            raise UserError(
                "One draw has no variance, which the bound needs; give at least 2 draws, 1000 is usual."
            )

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        found = self.certificate(model, attribution, x, target, seed=seed)
        return found.cosine(self.radius).to(x.dtype)

    def certificate(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> DirectionCertificate:
        """The direction and its bound."""
        check_inputs(x)
        mean = torch.zeros_like(x, dtype=torch.float64)
        total, squares = (torch.zeros(len(x), dtype=torch.float64, device=x.device) for _ in range(2))
        direction: Tensor | None = None
        for testing, examples, maps in _drawn(self, model, attribution, x, target, seed):
            unit = normalize(maps.flatten(0, 1).double(), "l2").unflatten(0, maps.shape[:2])
            if not testing:
                mean[examples] += unit.sum(1)
                continue
            if direction is None:
                direction = normalize(mean, "l2")
            halves = (1 + (unit * direction[examples, None]).flatten(2).sum(2)).clamp(0, 2) / 2
            total[examples] += halves.sum(1)
            squares[examples] += halves.square().sum(1)
        average = total / self.draws
        variance = ((squares - self.draws * average.square()) / (self.draws - 1)).clamp_min(0)
        doubt = math.log(2 / self.alpha)
        low = average - (2 * variance * doubt / self.draws).sqrt() - 7 * doubt / (3 * (self.draws - 1))
        assert direction is not None  # there is at least one draw to test it
        return DirectionCertificate(direction.to(x.dtype), low.clamp(0, 1), self.sigma)


def lower_share(agreeing: Int[Tensor, "*shape"], draws: int, alpha: float) -> Float[Tensor, "*shape"]:
    """A share that the true one is below with probability alpha at most (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    seen, places = agreeing.unique(return_inverse=True)
    counts = seen.cpu().double().numpy()
    low = torch.from_numpy(betaincinv(counts.clip(1), draws - counts.clip(1) + 1, alpha))
    return torch.where(seen > 0, low.to(seen.device), 0.0)[places]


def _drawn(
    metric: CertifiedPixels | CertifiedCosine,
    model: Model,
    attribution: Attribution,
    x: Inputs,
    target: Targets,
    seed: Seed,
) -> Iterator[tuple[bool, slice, Tensor]]:
    """Maps `e n ...` of all draws in parts: first the held-out ones, then (True) those that test.

    Draws are not clipped to [0, 1]: the theorems are about normal noise.
    """
    target, keys, x = class_indices(target, x), random.keys(seed, len(x), x.device), x.detach()
    check_classes(model, x, target)
    noise = GaussianNoise(metric.sigma)
    for testing, first, count in ((False, 0, metric.held_out), (True, metric.held_out, metric.draws)):
        for examples, these in parts(len(x), count, rows_at_once(metric.max_batch, x)):
            near = neighbours(
                noise, x[examples], keys[examples], slice(first + these.start, first + these.stop)
            )
            yield testing, examples, explained(attribution, model, near, target[examples]).detach()


def _check(metric: Any) -> None:
    GaussianNoise(metric.sigma)
    check_count("draws", metric.draws, 1000)
    check_count("held_out", metric.held_out, 100)
    if not (math.isfinite(metric.radius) and metric.radius >= 0):
        raise UserError(f"radius is {metric.radius}; give a Euclidean length of 0 or more, such as 0.1.")
    if not 0 < metric.alpha < 1:
        raise UserError(f"alpha is {metric.alpha}; give the chance of being wrong, such as 0.001.")
