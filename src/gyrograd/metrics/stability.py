"""Stability: how much a map, or the model's output, changes under random noise on the input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions import Gradient
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.errors import check_name
from gyrograd.metrics.noise import GaussianNoise, Noise, UniformNoise, neighbours
from gyrograd.metrics.passes import check_count, explain_variants, in_parts, score_variants, scores
from gyrograd.metrics.reductions import SIMILARITIES, check_reduction, reduce_map
from gyrograd.numerics import random
from gyrograd.numerics.checks import class_indices
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Model, PerExample, Seed, Targets

PerDraw = Float[Tensor, "b n"]


class MapUnderNoise(ABC):
    """Compares the map at x with the maps of random neighbours; subclasses give the noise and the comparison."""

    draws: int
    reduce: str
    normalize: str = "none"
    max_batch: int

    def __post_init__(self) -> None:
        self.noise()  # checks its size
        check_count("draws", self.draws, type(self).draws)
        check_reduction(self.reduce, self.normalize)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        return self.over_draws(self.per_draw(model, attribution, x, target, seed=seed))

    def per_draw(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerDraw:
        """The value of each draw."""
        target, noise = class_indices(target, x), self.noise()
        keys, x = random.keys(seed, len(x), x.device), x.detach()
        clean = self._seen(attribution(model, x, target).detach())

        def values(examples: slice, these: slice) -> Tensor:
            near = neighbours(noise, x[examples], keys[examples], these)
            maps = explain_variants(attribution, model, near, target[examples])
            moved = self._seen(maps.flatten(0, 1)).unflatten(0, near.shape[:2])
            return self.compare(clean[examples, None], moved, x[examples, None], near)

        return in_parts(values, x, self.draws, self.max_batch)

    def _seen(self, map: Tensor) -> Tensor:
        return reduce_map(map, self.reduce, self.normalize)

    @abstractmethod
    def noise(self) -> Noise:
        """The noise by which the neighbours differ from x."""

    @abstractmethod
    def compare(self, clean: Tensor, moved: Tensor, x: Tensor, near: Tensor) -> Tensor:
        """The value of each draw, `e n`, from the maps at x, `e 1 ...`, and at its neighbours, `e n ...`."""

    @abstractmethod
    def over_draws(self, values: PerDraw) -> PerExample:
        """The value of an example."""


@register(
    "metric",
    "random_perturbation_similarity",
    aliases=("rps",),
    paper="joo2023",
    equation="Metrics, RPS",
    direction="higher is better",
    group="noise",
)
@dataclass(frozen=True)
class RandomPerturbationSimilarity(MapUnderNoise):
    """Mean similarity of the maps at x and at x plus uniform noise in [-eps, eps].

    Deviations from joo2023's code: noisy images are clipped to [0, 1] (there: to the range of the batch), Pearson of a
    map with itself is 1 (there: (n - 1) / n), SSIM uses each image's own range, and the clean map stays max-normalised
    in every draw (there it is overwritten after the first).
    The paper's text does not clip: `clip=False`.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> similarity, target = gg.metric("rps", eps=16 / 255, draws=3), gg.predict(model, x)
    >>> lrp = similarity(model, gg.attribution("lrp"), x, target)
    >>> bool((lrp > similarity(model, gg.attribution("gradient"), x, target)).all())      # LRP is steadier
    True
    """

    eps: float = 16 / 255
    draws: int = 10
    similarity: str = "cosine"
    reduce: str = "abs_sum"
    normalize: str = "max"
    clip: bool = True
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("similarity", self.similarity, SIMILARITIES)

    def noise(self) -> Noise:
        return UniformNoise(self.eps, self.clip)

    def compare(self, clean: Tensor, moved: Tensor, x: Tensor, near: Tensor) -> Tensor:
        pairs = (maps.flatten(0, 1) for maps in (clean.expand_as(moved), moved))
        return SIMILARITIES[self.similarity](*pairs).view(moved.shape[:2])

    def over_draws(self, values: PerDraw) -> PerExample:
        return values.mean(1)


@register(
    "metric",
    "local_lipschitz",
    aliases=("lle",),
    paper="tan2023",
    equation="Definition 3.1, Eq. 4, Appendix B.3",
    direction="lower is better",
    group="noise",
)
@dataclass(frozen=True)
class LocalLipschitz(MapUnderNoise):
    """Largest |map(x) - map(x')| / |x - x'| over normal draws x', both l2.

    The defaults are tan2023's: 50 draws, sigma 0.03 in pixel units, signed maps of all elements, no clipping.
    `normalize="max"` divides each map by its largest magnitude first (Quantus' default, there by the largest of the
    batch).
    A draw that clipping returns to x counts 0. A lower bound of the true constant: more draws only raise it.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lipschitz = gg.metric("local_lipschitz", draws=3)
    >>> values = lipschitz(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((values > 0).all())
    True
    """

    sigma: float = 0.03
    draws: int = 50
    reduce: str = "none"
    normalize: str = "none"
    clip: bool = False
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def noise(self) -> Noise:
        return GaussianNoise(self.sigma, self.clip)

    def compare(self, clean: Tensor, moved: Tensor, x: Tensor, near: Tensor) -> Tensor:
        return _ratio(_lengths(moved - clean), _lengths(near - x))

    def over_draws(self, values: PerDraw) -> PerExample:
        return values.amax(1)


@register(
    "metric",
    "max_sensitivity",
    paper="own",
    equation="Yeh et al. 2019, Eq. 2",
    direction="lower is better",
    group="noise",
)
@dataclass(frozen=True)
class MaxSensitivity(MapUnderNoise):
    """Largest |map(x) - map(x')| / |map(x)| over uniform draws x' in the l-inf ball of radius eps.

    Yeh et al. 2019 define the numerator alone. Captum and Quantus divide by the l2 norm of the clean map, which removes
    the units. If the clean map is zero, the value is the numerator, as in Captum. No clipping by default, as in both.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> sensitivity = gg.metric("max_sensitivity", eps=0.02, draws=3)
    >>> values = sensitivity(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((values > 0).all())
    True
    """

    eps: float = 0.02
    draws: int = 10
    relative: bool = True
    reduce: str = "none"
    clip: bool = False
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def noise(self) -> Noise:
        return UniformNoise(self.eps, self.clip)

    def compare(self, clean: Tensor, moved: Tensor, x: Tensor, near: Tensor) -> Tensor:
        size = _lengths(clean)
        scale = torch.where((size > 0) & self.relative, size, 1)
        return _lengths(moved - clean) / scale

    def over_draws(self, values: PerDraw) -> PerExample:
        return values.amax(1)


@register(
    "metric",
    "model_lipschitz",
    paper="tan2023",
    equation="Definition 3.2",
    direction="lower is better",
    group="noise",
)
@dataclass(frozen=True)
class ModelLipschitz:
    """Largest |f(x) - f(x')| / |x - x'| over normal draws x', the slope of the model; the attribution is not used.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> slope = gg.metric("model_lipschitz", draws=3)
    >>> bool((slope(model, None, x, gg.predict(model, x)) > 0).all())
    True
    """

    sigma: float = 0.03
    draws: int = 50
    quantity: str = "logit"
    clip: bool = False
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        GaussianNoise(self.sigma)
        check_count("draws", self.draws, 50)
        check_quantity(self.quantity)

    def __call__(
        self, model: Model, attribution: Attribution | None, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        target = class_indices(target, x)
        noise, keys, x = GaussianNoise(self.sigma, self.clip), random.keys(seed, len(x), x.device), x.detach()
        clean = scores(model, x, target, self.quantity, self.max_batch)

        def slopes(examples: slice, draws: slice) -> Tensor:
            near = neighbours(noise, x[examples], keys[examples], draws)
            moved = score_variants(model, near, target[examples], self.quantity)
            away = (near - x[examples, None]).flatten(2).norm(dim=2)
            return _ratio((moved - clean[examples, None]).abs(), away)

        return in_parts(slopes, x, self.draws, self.max_batch).amax(1)


@register(
    "metric",
    "model_smoothness",
    paper="tan2023",
    equation="Definition 3.3",
    direction="lower is better",
    group="noise",
)
@dataclass(frozen=True)
class ModelSmoothness:
    """Largest |grad f(x) - grad f(x')| / |x - x'| over normal draws x'; the attribution is not used.

    Equals `local_lipschitz` of the gradient.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> target = gg.predict(model, x)
    >>> smoothness = gg.metric("model_smoothness", draws=3)(model, None, x, target)
    >>> of_the_map = gg.metric("local_lipschitz", draws=3)(model, gg.attribution("gradient"), x, target)
    >>> bool((abs(smoothness / of_the_map - 1) < 1e-3).all())
    True
    """

    sigma: float = 0.03
    draws: int = 50
    quantity: str = "logit"
    clip: bool = False
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        self._of_gradient()

    def __call__(
        self, model: Model, attribution: Attribution | None, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        gradient = Gradient(self.quantity, self.max_batch)
        return self._of_gradient()(model, gradient, x, target, seed=seed)

    def _of_gradient(self) -> LocalLipschitz:
        return LocalLipschitz(self.sigma, self.draws, clip=self.clip, max_batch=self.max_batch)


def _lengths(gap: Float[Tensor, "e n ..."]) -> Float[Tensor, "e n"]:
    """Euclidean length per example and draw, without underflow or overflow.

    Squares of tiny or huge entries leave the range of floats. Only then is the gap scaled first, which takes three
    times as long. An accelerator always scales, because checking would make the host wait.
    """
    flat = gap.flatten(2)
    length: Tensor = torch.linalg.vector_norm(flat, dim=2)
    if not gap.is_cuda and bool(((length > 1e-15) & (length < 1e15)).all()):
        return length
    largest = flat.abs().amax(2)
    scale = torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(flat / scale[:, :, None], dim=2)
    return length * scale


def _ratio(change: Tensor, distance: Tensor) -> Tensor:
    """change / distance; 0 if the distance is 0."""
    return torch.where(distance > 0, change / torch.where(distance > 0, distance, 1), 0)
