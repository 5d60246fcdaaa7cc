"""Soft stability: does the prediction from the top segments survive when more of the image is revealed?

Show the model the top-scoring segments alone, the rest replaced by a baseline, and call its prediction c. Then reveal
up to r further segments. The stability rate is the share of all such additions that leave the prediction at c.

**Theorem.** Let n additions be drawn independently, each uniformly out of all sets of at most r segments that are not
shown yet, and let k of them leave the prediction at c. The Clopper-Pearson bound of k out of n at level alpha exceeds
the stability rate with probability alpha at most.

Proof: each draw keeps the prediction with exactly that probability, so k is binomial; Clopper and Pearson (1934).

Assumptions: the model is deterministic, and segments and scores are fixed before the first draw (they depend only on
the image). Nothing else is assumed about model, method or segments.

Limits: the bound says nothing about other images, about an attacker, who would pick the worst addition, or about hiding
segments; and c may differ from the prediction on the whole image (`SegmentCertificate.shown`).

After Jin et al. 2025 (NeurIPS, "soft stability"), who estimate the rate to within .05 to .1 by Hoeffding's inequality.
If all of 1,000 draws agree, at alpha = .001, Hoeffding's bound is .941 and Clopper-Pearson's .993.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, baseline_of, check_baseline
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.segments import (
    Coalitions,
    Segments,
    as_images,
    has_segments,
    over_coalitions,
    over_groups,
    segment,
    segments_of,
)
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import UserError
from gyrograd.metrics.certificates import check_alpha, lower_share
from gyrograd.metrics.passes import check_count, checked_target
from gyrograd.numerics import random
from gyrograd.numerics.maps import holds_nan
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Model, PerExample, Seed, Targets


@dataclass(frozen=True, eq=False)
class SegmentCertificate:
    """Bound on the stability rate per image.

    low: lower bound of the stability rate. shown: the class predicted from the top segments alone. agreeing: number of
    the metric's `draws` additions that left the prediction there.
    """

    low: PerExample
    shown: Int[Tensor, " b"]
    agreeing: Int[Tensor, " b"]


@register(
    "metric",
    "soft_stability",
    paper="Jin et al. 2025",
    equation="soft stability rate, bounded by Clopper-Pearson",
    direction="higher is better",
    group="certificate",
)
@dataclass(frozen=True, eq=False)
class SoftStability(ComparedBySettings):
    """Share of random additions of up to `radius` segments that leave the prediction from the top segments as it is.

    The value is a lower bound that holds with probability 1 - alpha per image. LIME and SHAP bring their own segments;
    other maps use `grid` x `grid` cells (single values, if the input has fewer rows or columns). The score of a segment
    is the mean of the map over it; the `top` share of the segments, at least one, is shown. An image with fewer than
    `radius` further segments gets all of them.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lime = gg.attribution("lime", segments="grid", grid=4, draws=50)
    >>> stable = gg.metric("soft_stability", draws=100)(model, lime, x, gg.predict(model, x))
    >>> bool(((0 <= stable) & (stable <= 1)).all())
    True
    """

    radius: int = 4
    top: float = 0.25
    draws: int = 1000
    alpha: float = 0.001
    grid: int = 8
    baseline: Baseline = "zero"
    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_count("radius", self.radius, 4)
        check_count("draws", self.draws, 1000)
        check_count("grid", self.grid, 8)
        check_baseline(self.baseline)
        if not 0 < self.top < 1:
            raise UserError(
                f"top is {self.top}; give the fraction of the segments that is shown, such as 0.25."
            )
        check_alpha(self.alpha)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        return self.certificate(model, attribution, x, target, seed=seed).low.to(x.dtype)

    def certificate(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> SegmentCertificate:
        """The bound, the class predicted from the top segments, and the number of agreeing additions."""
        target, x = checked_target(model, x, target), x.detach()
        keys = random.keys(seed, len(x), x.device)
        segments = self._segments(attribution, x)
        map = attribution(model, x, target).detach().double()
        # Row 0 shows the top segments alone; the additions follow.
        coalitions = [
            torch.cat([top[None], additions(top, self.radius, self.draws, key)])
            for top, key in zip(self._top(map, segments), keys.split(1), strict=True)
        ]
        predicted = over_coalitions(
            model,
            x,
            baseline_of(x, self.baseline),
            segments,
            coalitions,
            lambda logits, _: logits.argmax(1),
            self.max_batch,
        )
        shown = torch.stack([classes[0] for classes in predicted])
        agreeing = torch.stack([(classes[1:] == classes[0]).sum() for classes in predicted])
        low = lower_share(agreeing, self.draws, self.alpha)
        return SegmentCertificate(torch.where(holds_nan(map), torch.nan, low), shown, agreeing)

    def _segments(self, attribution: Any, x: Inputs) -> Segments:
        """The method's own segments, or the cells of a grid."""
        if has_segments(attribution):
            return segments_of(attribution, x)
        images = as_images(x)
        return segment(images, "grid" if min(images.shape[2:]) >= self.grid else "pixels", grid=self.grid)

    def _top(self, map: Inputs, segments: Segments) -> list[Bool[Tensor, " s"]]:
        """Per image, the mask of the shown segments: those with the highest mean of the map."""
        means = over_groups(map, segments) / over_groups(torch.ones_like(map), segments)
        shown = []
        for row, count in zip(means, (segments.flatten(1).amax(1) + 1).tolist(), strict=True):
            first = row[:count].argsort(descending=True, stable=True)[: max(1, round(self.top * count))]
            shown.append(torch.zeros(count, dtype=torch.bool, device=row.device).index_fill_(0, first, True))
        return shown


def additions(shown: Bool[Tensor, " s"], most: int, draws: int, key: random.Keys) -> Coalitions:
    """Random supersets of the shown segments with at most `most` more, uniform over all such sets.

    Of m hidden segments there are binomial(m, j) sets of size j, so the size is drawn first with that weight, then the
    members.

    >>> import torch
    >>> from gyrograd.numerics import random
    >>> shown = torch.tensor([True, False, False])
    >>> sets = additions(shown, 1, 3000, random.keys(0, 1))
    >>> [round(float(share), 1) for share in sets.double().mean(0)]      # nothing, the second, the third: a third each
    [1.0, 0.3, 0.3]
    """
    hidden = int((~shown).sum())
    numbers = torch.arange(min(most, hidden) + 1, dtype=torch.float64, device=shown.device)
    # Logarithms of the binomials up to a constant, which the softmax removes; the binomials themselves may overflow.
    ways = -(torch.lgamma(numbers + 1) + torch.lgamma(hidden - numbers + 1))
    upto = ways.softmax(0).cumsum(0)
    drawn = random.uniform(key, (draws, len(shown) + 1), dtype=torch.float64)[0]
    count = torch.searchsorted(upto, drawn[:, 0].contiguous(), right=True).clamp(max=len(numbers) - 1)
    # Hidden segments in random order first, shown ones after them.
    place = drawn[:, 1:].masked_fill(shown, 2.0).argsort(1).argsort(1)
    return shown | (place < count[:, None])
