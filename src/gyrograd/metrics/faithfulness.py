"""Faithfulness: does the map predict what removing or perturbing parts of the input does to the model?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, baseline_of, check_baseline
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.segments import SEGMENTS, Segments, as_images, over_groups, segment
from gyrograd.errors import UserError, check_name
from gyrograd.metrics.noise import check_size
from gyrograd.metrics.passes import check_count, in_parts, score_variants, scores
from gyrograd.numerics import random
from gyrograd.numerics.checks import class_indices
from gyrograd.numerics.quantities import check_quantity
from gyrograd.numerics.similarity import cosine, l2_distance, pearson, spearman
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Labels, Model, PerExample, Seed, Targets

PerGroup = Float[Tensor, "b groups"]


def inverse_l2(a: Tensor, b: Tensor) -> Tensor:
    """1 / |a - b|, infinite where they are equal (tan2023 Eq. 5)."""
    return 1 / l2_distance(a, b)


AGREEMENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "inverse_l2": inverse_l2,
    "pearson": pearson,
    "spearman": spearman,
    "cosine": cosine,
}


@register(
    "metric",
    "faithfulness",
    paper="tan2023",
    equation="Definition 3.4 (Eq. 1), Eq. 5, Appendix B.4",
    direction="higher is better",
    group="faithfulness",
)
@dataclass(frozen=True)
class Faithfulness:
    """Agreement of a map, summed over groups of pixels, with the effect of setting each group to a reference value.

    `contribution` is the effect of group g: "slope" is (f(x) - f(x without g)) / (mean of x - reference over g), which
    for groups of one element is tan2023's Eq. 1 (0 if that mean is 0). "difference" is the numerator alone, for maps
    that already contain the factor x (integrated gradients, SHAP, LIME).
    tan2023 splits the pixels into about 100 groups and specifies neither the groups nor how a map is compared with
    them. Here a group is a cell of a grid x grid (10 x 10) with all channels, and the map is summed over it.
    `segments="quickshift"` uses superpixels, "pixels" single pixels.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> faithfulness = gg.metric("faithfulness", grid=4)
    >>> faithfulness(model, gg.attribution("gradient"), x, gg.predict(model, x)).shape
    torch.Size([2])
    """

    similarity: str = "inverse_l2"
    segments: str = "grid"
    grid: int = 10
    reference: Baseline = "zero"
    contribution: str = "slope"
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_name("similarity", self.similarity, AGREEMENTS)
        check_name("segmentation", self.segments, SEGMENTS)
        check_name("contribution", self.contribution, ("slope", "difference"))
        check_count("grid", self.grid, 10)
        check_baseline(self.reference)
        check_quantity(self.quantity)

    @property
    def range(self) -> tuple[float, float]:
        """Where the values lie."""
        return (0.0, math.inf) if self.similarity == "inverse_l2" else (-1.0, 1.0)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        target = class_indices(target, x)
        map = attribution(model, x, target).detach()
        groups = segment(as_images(x.detach()), self.segments, grid=self.grid)
        importance = over_groups(map, groups)
        contribution = self.contributions(model, x, target, groups)
        # Images may have different numbers of superpixels, so each is compared on its own.
        counts = (groups.flatten(1).amax(1) + 1).tolist()
        rows = zip(importance, contribution, counts, strict=True)
        agree = AGREEMENTS[self.similarity]
        return torch.cat([agree(phi[None, :n], p[None, :n]) for phi, p, n in rows])

    def contributions(self, model: Model, x: Inputs, target: Labels, groups: Segments) -> PerGroup:
        """The contribution of each group; zeros after the last group of an image."""
        x = x.detach()
        reference = baseline_of(x, self.reference)
        whole = scores(model, x, target, self.quantity, self.max_batch)
        n = int(groups.max()) + 1

        def losses(examples: slice, these: slice) -> Tensor:
            number = torch.arange(these.start, these.stop, device=x.device).view(1, -1, 1, 1)
            removed = (groups[examples, None] == number).unsqueeze(2)
            gone, kept = (as_images(t[examples])[:, None] for t in (reference, x))
            without = torch.where(removed, gone, kept).flatten(2).unflatten(2, x.shape[1:])
            return whole[examples, None] - score_variants(model, without, target[examples], self.quantity)

        loss = in_parts(losses, x, n, self.max_batch)
        if self.contribution == "difference":
            return loss
        away = x - reference
        elements = over_groups(torch.ones_like(away), groups)
        mean = over_groups(away, groups) / torch.where(elements > 0, elements, 1)
        return torch.where(mean == 0, 0, loss / torch.where(mean == 0, 1, mean))


@register(
    "metric",
    "infidelity",
    paper="own",
    equation="Yeh et al. 2019, Eq. 1",
    direction="lower is better",
    group="faithfulness",
)
@dataclass(frozen=True)
class Infidelity:
    """Mean square of I . map - (f(x) - f(x - I)) over random perturbations I.

    perturbation: "gaussian" is normal noise of deviation sigma; "square" sets one random square of side `patch` to the
    baseline. `rescale` multiplies each map by the factor that fits best (Yeh et al. 2019, Section 2.1), so that maps
    that differ only by a factor score the same. Values are in squared units of the quantity; nothing is clipped.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> infidelity = gg.metric("infidelity", sigma=0.01, draws=5)
    >>> values = infidelity(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((values >= 0).all())
    True
    """

    sigma: float = 0.1
    draws: int = 50
    perturbation: str = "gaussian"
    patch: int = 8
    baseline: Baseline = "zero"
    rescale: bool = False
    quantity: str = "logit"
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, math.inf)

    def __post_init__(self) -> None:
        check_size("sigma", self.sigma, "0.1")
        check_count("draws", self.draws, 50)
        check_count("patch", self.patch, 8)
        check_name("perturbation", self.perturbation, ("gaussian", "square"))
        check_baseline(self.baseline)
        check_quantity(self.quantity)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        target = class_indices(target, x)
        map = attribution(model, x, target).detach()
        promised, happened = self.per_draw(model, map, x, target, seed=seed).unbind(2)
        if self.rescale:
            square = promised.square().sum(1, keepdim=True)
            fit = (promised * happened).sum(1, keepdim=True) / torch.where(square > 0, square, 1)
            promised = promised * fit
        return (promised - happened).square().mean(1)

    def per_draw(
        self, model: Model, map: Inputs, x: Inputs, target: Labels, *, seed: Seed = 0
    ) -> Float[Tensor, "b n 2"]:
        """Per draw: the predicted change I . map and the true change f(x) - f(x - I)."""
        keys = random.keys(seed, len(x), x.device)
        x = x.detach()
        whole = scores(model, x, target, self.quantity, self.max_batch)

        def both(examples: slice, draws: slice) -> Tensor:
            here = x[examples]
            shake = torch.stack(
                [self.shake(here, keys[examples], i) for i in range(draws.start, draws.stop)], 1
            )
            after = score_variants(model, here[:, None] - shake, target[examples], self.quantity)
            promised = (shake * map[examples, None]).flatten(2).sum(2)
            return torch.stack([promised, whole[examples, None] - after], 2)

        return in_parts(both, x, self.draws, self.max_batch)

    def shake(self, x: Inputs, keys: random.Keys, draw: int) -> Inputs:
        """Perturbation number `draw` of each example; the model sees x minus it."""
        if self.perturbation == "gaussian":
            return self.sigma * random.normal(keys, tuple(x.shape[1:]), stream=draw, dtype=x.dtype)
        return torch.where(self._square(x, keys, draw), x - baseline_of(x, self.baseline), 0)

    def _square(self, x: Tensor, keys: Tensor, draw: int) -> Tensor:
        if x.dim() != 4 or self.patch > min(x.shape[2:]):
            raise UserError(
                f"A square of {self.patch} pixels does not fit inputs of shape {tuple(x.shape)}; "
                "give a smaller patch, or perturbation='gaussian'."
            )
        # Every corner for which the square fits is equally likely.
        corner = random.uniform(keys, (2,), stream=draw, dtype=torch.float64)
        inside = []
        for axis, side in enumerate(x.shape[2:]):
            start = (corner[:, axis, None] * (side - self.patch + 1)).floor()
            offset = torch.arange(side, device=x.device) - start
            inside.append((offset >= 0) & (offset < self.patch))
        return (inside[0][:, :, None] & inside[1][:, None, :]).unsqueeze(1)
