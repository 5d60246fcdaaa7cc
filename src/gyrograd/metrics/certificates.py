"""Certificates: bounds that hold for every change within a Euclidean radius, for maps averaged over Gaussian noise.

The certified map is the *smoothed* one: many normal draws z around x, each explained separately. If a function of x + z
has values in [0, 1] and mean p, then after a shift of x by length r its mean is at least Phi(Phi^-1(p) - r / sigma)
(Cohen, Rosenfeld and Kolter 2019, Theorem 1, for two values; Salman et al. 2019, Lemma 2, for any). Both certificates
use a lower confidence bound for p, so each holds with probability 1 - alpha over the draws, per image. Radii are
Euclidean over all pixels and channels: on a 3 x 32 x 32 image 0.1 is 0.46/255 per value if all values change equally
(`per_value`).

`looks` above 1 allows early stopping: the draws are evaluated several times, with twice as many each time, and an image
stops once its answer is settled. Each look spends an equal part of alpha, so all bounds hold together (union bound) and
the best one counts, whatever the stopping rule. Stopping early can only lose a certificate, never invent one.
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
from gyrograd.metrics.passes import check_count, checked_target, explain_variants, parts
from gyrograd.metrics.reductions import check_reduction, reduce_map
from gyrograd.numerics import random
from gyrograd.numerics.checks import check_inputs
from gyrograd.numerics.maps import holds_nan, normalize, top_k_mask
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Inputs, Model, PerExample, Seed, Targets

SETTLED = 0.99
"""An image stops when this share of its pixels is settled."""
HOPELESS = 0.01
"""Give up a pixel if the chance that it could still be certified is at most this."""
PRECISE = 0.02
"""Stop drawing when a direction's bound is this close to the mean of its draws."""


def per_value(radius: float, shape: tuple[int, ...]) -> float:
    """A Euclidean radius in grey levels (1/255) per value, if all values change equally.

    >>> round(per_value(0.1, (3, 32, 32)), 2)
    0.46
    """
    return 255 * radius / math.sqrt(math.prod(shape))


def look_ends(draws: int, looks: int) -> list[int]:
    """Number of draws before each look: doubling, up to all of them.

    >>> look_ends(1000, 4)
    [125, 250, 500, 1000]
    """
    # A set: with few draws several looks end at the same number.
    return sorted({-(-draws // 2**back) for back in range(looks)})


@dataclass(frozen=True, eq=False)
class PixelCertificate:
    """Per pixel: whether it is in the top, and the radius within which that is certain.

    in_top: the majority of the held-out draws. radius: within this distance of x most draws agree with `in_top`; 0 if
    that could not be shown. All pixels of an image hold jointly with confidence 1 - alpha. draws: number per image.
    """

    in_top: Bool[Tensor, "b h w"]
    radius: Float[Tensor, "b h w"]
    draws: Int[Tensor, " b"]

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
    """Share of the pixels that no change within the radius can move into or out of the top.

    The majority of `held_out` draws gives a guess per pixel; `draws` further ones test it (Clopper-Pearson, `alpha`
    divided by the number of pixels). Pixels whose bound does not reach the radius do not count.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(1, 3, 32, 32)
    >>> certified = gg.metric("certified_pixels", draws=60, held_out=10, radius=0.02)
    >>> share = certified(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool(0 <= share <= 1)
    True
    """

    radius: float = 0.10
    sigma: float = 0.15
    top: float = 0.5
    draws: int = 1000
    held_out: int = 100
    alpha: float = 0.001
    looks: int = 1
    reduce: str = "abs_sum"
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)
        if not 0 < self.top < 1:
            raise UserError(
                f"top is {self.top}; give the fraction of pixels that count as the top, above 0 and below 1."
            )
        check_reduction(self.reduce)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        check_inputs(x)
        pixels = reduce_map(x[:1], self.reduce)[0].numel()
        alpha = self.alpha / len(look_ends(self.draws, self.looks)) / pixels
        # The Clopper-Pearson bound if all draws agree: no pixel can have a higher one.
        unanimous = torch.tensor(alpha ** (1 / self.draws), dtype=torch.float64)
        largest = self.sigma * float(torch.special.ndtri(unanimous))
        if largest < self.radius:
            raise UserError(
                f"radius is {self.radius:g}, and {self.draws} draws certify {pixels} pixels up to "
                f"{max(largest, 0):.2g} even if all agree; give more draws, a larger sigma or a smaller radius."
            )
        return self.certificate(model, attribution, x, target, seed=seed).share(self.radius).to(x.dtype)

    def certificate(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PixelCertificate:
        """The guess and the certified radius of every pixel."""
        around = _Draws(self, model, attribution, x, target, seed)
        everyone = torch.arange(len(x), device=x.device)
        # The guess has draws of its own: a bound from the draws that chose it would be too high.
        guess = 2 * self._count_in_top(around, everyone, slice(0, self.held_out)) > self.held_out
        agreeing = torch.zeros_like(guess, dtype=torch.int64)
        radius = torch.zeros_like(guess, dtype=torch.float64)
        taken = torch.zeros_like(everyone)
        active, ends = everyone, look_ends(self.draws, self.looks)
        # A union bound over the looks and the pixels: all bounds hold together with probability 1 - alpha.
        alpha, wanted = self.alpha / len(ends) / guess[0].numel(), _needed_share(self.radius, self.sigma)
        # Begin and end of each look; the last end begins none.
        for start, end in zip([0, *ends], ends, strict=False):
            found = self._count_in_top(around, active, slice(self.held_out + start, self.held_out + end))
            agreeing[active] += torch.where(guess[active], found, end - start - found)
            low = lower_share(agreeing[active], end, alpha)
            # Each look has its share of alpha, so the best bound of all looks may be taken.
            # A share below one half gives a negative radius, which the 0 at the start replaces.
            radius[active] = radius[active].maximum(self.sigma * torch.special.ndtri(low))
            taken[active] = end
            # Settled: certified at the radius, or almost certainly below the share that this takes.
            high = 1 - lower_share(end - agreeing[active], end, HOPELESS)
            settled = (radius[active] >= self.radius) | (high < wanted)
            active = active[settled.flatten(1).double().mean(1) < SETTLED]
            if not len(active):
                break
        # Nothing is certain about the top of a map that holds NaN.
        radius[around.lost] = 0.0
        return PixelCertificate(guess, radius, taken)

    def _count_in_top(self, around: _Draws, rows: Tensor, draws: slice) -> Int[Tensor, "b h w"]:
        """Number of these draws that have each pixel in the top."""
        counts: Tensor | None = None
        for examples, _, maps in around.maps(rows, draws):
            found = _in_top(self, maps).sum(1)
            counts = found.new_zeros(len(rows), *found.shape[1:]) if counts is None else counts
            counts[examples] += found
        assert counts is not None  # there is at least one image and one draw
        return counts


@dataclass(frozen=True, eq=False)
class DirectionCertificate:
    """A direction, and how close to it the smoothed maps of all nearby images stay.

    direction: the mean of the held-out draws' maps, each scaled to length one, scaled again. low: lower bound of the
    mean of (1 + cosine) / 2 between the direction and a draw's map. draws: number per image.
    """

    direction: Images
    low: PerExample
    sigma: float
    draws: Int[Tensor, " b"]

    def cosine(self, radius: float) -> PerExample:
        """Lower bound of the smoothed map's cosine to the direction, for every change within the radius.

        -1, the trivial bound, if no positive bound could be shown: a mean of unit maps is shorter than one, so a
        negative bound on its component along the direction does not bound the angle.
        """
        # From the mean of (1 + cosine) / 2 back to the mean cosine, which is the part along the direction.
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
    """Certified cosine: no change within the radius turns the smoothed map further away; -1 if nothing is certain.

    Each draw's map is scaled to length one. The direction is the mean of `held_out` draws; `draws` further ones give a
    lower bound of the mean cosine to it (empirical Bernstein, Maurer and Pontil 2009, Theorem 4). Training with
    joo2023's cosine criterion raises exactly this mean.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(1, 3, 32, 32)
    >>> certified = gg.metric("certified_cosine", draws=60, held_out=10, radius=0.02)
    >>> bool(certified(model, gg.attribution("gradient"), x, gg.predict(model, x)) <= 1)
    True
    """

    radius: float = 0.05
    sigma: float = 0.10
    draws: int = 1000
    held_out: int = 100
    alpha: float = 0.001
    looks: int = 1
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        _check(self)
        if look_ends(self.draws, self.looks)[0] < 2:
            raise UserError(
                "One draw has no variance, which the bound needs; give at least 2 draws per look, 1000 is usual."
            )

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        found = self.certificate(model, attribution, x, target, seed=seed)
        return found.cosine(self.radius).to(x.dtype)

    def certificate(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> DirectionCertificate:
        """The direction and the bound behind the certificate."""
        around = _Draws(self, model, attribution, x, target, seed)
        active = torch.arange(len(x), device=x.device)
        mean = torch.zeros_like(x, dtype=torch.float64)
        # As for pixels, the direction has draws of its own.
        for examples, _, maps in around.maps(active, slice(0, self.held_out)):
            mean[examples] += _unit(maps).sum(1)
        direction = normalize(mean, "l2")
        low, total, squares = (torch.zeros(len(x), dtype=torch.float64, device=x.device) for _ in range(3))
        taken, ends = torch.zeros_like(active), look_ends(self.draws, self.looks)
        for start, end in zip([0, *ends], ends, strict=False):
            for examples, _, maps in around.maps(active, slice(self.held_out + start, self.held_out + end)):
                rows = active[examples]
                # In [0, 1], as the bound requires; rounding can make a cosine larger than 1.
                halves = (1 + (_unit(maps) * direction[rows, None]).flatten(2).sum(2)).clamp(0, 2) / 2
                total[rows] += halves.sum(1)
                squares[rows] += halves.square().sum(1)
            average = total[active] / end
            doubt = _doubt(average, squares[active], end, self.alpha / len(ends))
            low[active] = low[active].maximum(average - doubt)
            taken[active] = end
            # Settled: known precisely, or almost certainly too low for any bound at the radius.
            highest = average + _doubt(average, squares[active], end, HOPELESS)
            hopeless = highest < _needed_share(self.radius, self.sigma)
            active = active[~hopeless & (doubt > PRECISE)]
            if not len(active):
                break
        return DirectionCertificate(direction.to(x.dtype), low.clamp(0, 1), self.sigma, taken)


def _needed_share(radius: float, sigma: float) -> float:
    """The mean needed at x so that it is still one half at the radius."""
    return (1 + math.erf(radius / sigma / math.sqrt(2))) / 2


def _unit(maps: Float[Tensor, "e n *shape"]) -> Float[Tensor, "e n *shape"]:
    """Each draw's map scaled to length one."""
    return normalize(maps.flatten(0, 1).double(), "l2").view_as(maps)


def _doubt(average: Tensor, squares: Tensor, n: int, alpha: float) -> Tensor:
    """Half-width of the confidence bound for the mean of n numbers in [0, 1], wrong with probability alpha.

    Empirical Bernstein (Maurer and Pontil 2009, Theorem 4).
    """
    # Rounding can make it negative if the draws are almost equal.
    variance = ((squares - n * average.square()) / (n - 1)).clamp_min(0)
    far = math.log(2 / alpha)
    return (2 * variance * far / n).sqrt() + 7 * far / (3 * (n - 1))


TRIES = 3
"""Directions in which `find_refuted` looks for a counterexample."""


def find_refuted(
    metric: CertifiedPixels,
    model: Model,
    attribution: Attribution,
    x: Inputs,
    target: Targets,
    found: PixelCertificate,
    *,
    draws: int = 400,
    seed: Seed = 0,
) -> Bool[Tensor, "b h w"]:
    """Undecided pixels for which a change within the metric's radius that moves them in or out of the top was found.

    The change follows the steepest slope of the undecided pixels' agreement (the derivative of E f(x + z) is
    E f(x + z) z / sigma^2). It counts if a majority of fresh draws puts the pixel on the other side, with certainty
    (Clopper-Pearson, alpha shared by pixels and tries). Pixels that are not refuted are undecided, not safe.
    """
    undecided = found.radius < metric.radius
    pixels = found.in_top[0].numel()
    keys = random.keys(seed, len(x), x.device)
    everyone, moved = torch.arange(len(x), device=x.device), torch.zeros_like(undecided)
    for number in range(TRIES):
        around = _Draws(metric, model, attribution, x, target, random.subkeys(keys, 2 * number))
        way = torch.zeros_like(around.x)
        for part, near, maps in around.maps(everyone, slice(0, draws)):
            held = _in_top(metric, maps) == found.in_top[part, None]
            agree = (held & undecided[part, None]).flatten(2).sum(2).to(x.dtype)
            # Centred, which leaves the expected slope as it is (E z = 0) and removes most of its noise.
            drop = agree.mean(1, keepdim=True) - agree
            way[part] += torch.einsum("bn,bn...->b...", drop, near - around.x[part, None])
        there = around.x + metric.radius * normalize(way, "l2")
        # Other draws than those that chose the change, which are biased in its favour.
        fresh = _Draws(metric, model, attribution, there, target, random.subkeys(keys, 2 * number + 1))
        counts = metric._count_in_top(fresh, everyone, slice(0, draws))
        against = torch.where(found.in_top, draws - counts, counts)
        moved |= undecided & (lower_share(against, draws, metric.alpha / pixels / TRIES) > 0.5)
    return moved


def _in_top(metric: CertifiedPixels, maps: Float[Tensor, "e n *shape"]) -> Bool[Tensor, "e n h w"]:
    """True for each pixel of each map that is in the top."""
    pictures = reduce_map(maps.flatten(0, 1), metric.reduce)
    top = top_k_mask(pictures, max(1, round(metric.top * pictures[0].numel())))
    return top.flatten(1, 2).view(*maps.shape[:2], -1, top.shape[-1])


def lower_share(agreeing: Int[Tensor, "*shape"], draws: int, alpha: float) -> Float[Tensor, "*shape"]:
    """Lower confidence bound of the true share, wrong with probability at most alpha (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    # The inverse of the beta distribution is slow and runs on the CPU, and many pixels have the same count.
    seen, places = agreeing.unique(return_inverse=True)
    # A count of 0 has no beta distribution; its bound is 0.
    counts = seen.cpu().double().numpy()
    low = torch.from_numpy(betaincinv(counts.clip(1), draws - counts.clip(1) + 1, alpha))
    return torch.where(seen > 0, low.to(seen.device), 0.0)[places]


class _Draws:
    """Maps of numbered draws around x; draw i of an image is always the same, for every look and every caller."""

    def __init__(
        self,
        metric: CertifiedPixels | CertifiedCosine,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Targets,
        seed: Seed,
    ) -> None:
        self.target, self.x = checked_target(model, x, target), x.detach()
        self.keys, self.noise = random.keys(seed, len(x), x.device), GaussianNoise(metric.sigma)
        self.model, self.attribution = model, attribution
        self.rows_at_once = rows_at_once(metric.max_batch, x)
        self.lost = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        """Images of which a draw's map held NaN."""

    def maps(self, rows: Int[Tensor, " r"], draws: slice) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Slices of `rows`, each with the points `e n ...` of these draws and their maps `e n ...`.

        Draws are not clipped to [0, 1], because the theorems hold for unclipped normal noise.
        """
        x, keys, target = self.x[rows], self.keys[rows], self.target[rows]
        for part, these in parts(len(rows), draws.stop - draws.start, self.rows_at_once):
            # A draw is its number: later looks go on counting, and the size of parts changes nothing.
            numbers = slice(draws.start + these.start, draws.start + these.stop)
            near = neighbours(self.noise, x[part], keys[part], numbers)
            maps = explain_variants(self.attribution, self.model, near, target[part])
            self.lost[rows[part]] |= holds_nan(maps)
            yield part, near, maps


def _check(metric: Any) -> None:
    # Refuses a sigma that is not above 0.
    GaussianNoise(metric.sigma)
    check_count("draws", metric.draws, 1000)
    check_count("held_out", metric.held_out, 100)
    check_count("looks", metric.looks, 1)
    if not (math.isfinite(metric.radius) and metric.radius >= 0):
        raise UserError(f"radius is {metric.radius}; give a Euclidean length of 0 or more, such as 0.1.")
    check_alpha(metric.alpha)


def check_alpha(alpha: float) -> None:
    """Refuse an alpha outside of (0, 1)."""
    if not 0 < alpha < 1:
        raise UserError(f"alpha is {alpha}; give a chance of being wrong between 0 and 1, such as 0.001.")
