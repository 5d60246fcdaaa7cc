"""What an attack did to a map: the clean map against the map of the perturbed input.

A measure compares two maps: `TopKIntersection(k=100)(clean, attacked)`. The metric of the same name also computes the
maps. Metrics do not run attacks; they take the inputs that an attack returned,
`gg.metric("k_in", k=100)(model, attribution, x, target, perturbed=result.x)`.
Two zero maps count as equal: similarity 1, distance 0 (but the mass on the k largest pixels of a zero map is 0).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.metrics.reductions import SIMILARITIES, check_reduction, reduce_map
from gyrograd.numerics import similarity as alike
from gyrograd.numerics.checks import class_indices
from gyrograd.numerics.maps import frame_target, mass_center, normalize
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Metric, Model, PerExample, Seed, Targets

VARIANTS = ("code", "supplement")


@runtime_checkable
class Measure(Protocol):
    """Compares two batches of maps; one number per example, within `range`."""

    range: ClassVar[tuple[float, float]]

    def __call__(self, clean: Tensor, attacked: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class TopKIntersection:
    """Overlap of the k largest pixels of both maps.

    "code": share of the old top k that is in the new top k. "supplement": share of the new map's mass on the old top k;
    even an unmoved map scores below 1 unless all of its mass is there.
    """

    k: int = 100
    variant: str = "code"
    reduce: str = "abs_sum"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_name("variant", self.variant, VARIANTS)
        check_reduction(self.reduce)

    def __call__(self, clean: Inputs, attacked: Inputs) -> PerExample:
        measure = alike.top_k_overlap if self.variant == "code" else alike.top_k_mass
        return measure(reduce_map(clean, self.reduce), reduce_map(attacked, self.reduce), self.k)


@dataclass(frozen=True)
class TopKNearby:
    """Overlap of the k largest pixels, where a pixel that moved by up to `window` pixels counts as kept.

    k defaults to a tenth of the pixels.
    """

    k: int | None = None
    window: int = 1
    reduce: str = "abs_sum"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_reduction(self.reduce)
        if self.window < 0:
            raise UserError(f"window is {self.window}; give a distance in pixels of 0 or more, 1 is usual.")

    def __call__(self, clean: Inputs, attacked: Inputs) -> PerExample:
        before, after = (reduce_map(map, self.reduce) for map in (clean, attacked))
        k = max(1, round(before[0].numel() / 10)) if self.k is None else self.k
        return alike.top_k_nearby(before, after, k, self.window)


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation of the two maps; ties get their average rank."""

    reduce: str = "abs_sum"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        check_reduction(self.reduce)

    def __call__(self, clean: Inputs, attacked: Inputs) -> PerExample:
        return alike.spearman(reduce_map(clean, self.reduce), reduce_map(attacked, self.reduce))


@dataclass(frozen=True)
class CenterDislocation:
    """How far the map's centre of mass moved.

    "code": Euclidean distance of the two centres, in pixels. "supplement": the formula printed there, the sum of
    |z - z'| over pixels, for maps whose sizes add up to the number of pixels (the code's scale).
    """

    variant: str = "code"
    reduce: str = "abs_sum"
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        check_name("variant", self.variant, VARIANTS)
        check_reduction(self.reduce)

    def __call__(self, clean: Inputs, attacked: Inputs) -> PerExample:
        before, after = reduce_map(clean, self.reduce), reduce_map(attacked, self.reduce)
        if self.variant == "code":
            return alike.l2_distance(mass_center(before), mass_center(after))
        return (normalize(before, "area") - normalize(after, "area")).abs().flatten(1).sum(1)


@dataclass(frozen=True)
class CosineDistance:
    """1 - cosine of the two maps; at most 1 unless `reduce` keeps signs. joo2023's cosine distance is half of it."""

    reduce: str = "abs_sum"
    range: ClassVar[tuple[float, float]] = (0.0, 2.0)

    def __post_init__(self) -> None:
        check_reduction(self.reduce)

    def __call__(self, clean: Inputs, attacked: Inputs) -> PerExample:
        return 2 * alike.cosine_distance(reduce_map(clean, self.reduce), reduce_map(attacked, self.reduce))


@dataclass(frozen=True)
class MapSimilarity:
    """Cosine, Pearson, Spearman or SSIM of the two maps, each divided by its largest magnitude."""

    similarity: str = "cosine"
    reduce: str = "abs_sum"
    normalize: str = "max"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        check_name("similarity", self.similarity, SIMILARITIES)
        check_reduction(self.reduce, self.normalize)

    def __call__(self, clean: Inputs, attacked: Inputs) -> PerExample:
        before, after = (reduce_map(map, self.reduce, self.normalize) for map in (clean, attacked))
        return SIMILARITIES[self.similarity](before, after)


@dataclass(frozen=True)
class AttackResponse:
    """A measure as a metric: compares the maps at x and at the attacked inputs."""

    measure: Measure

    @property
    def range(self) -> tuple[float, float]:
        """Where the values lie."""
        return self.measure.range

    def __call__(
        self,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Targets,
        *,
        seed: Seed = 0,
        perturbed: Inputs | None = None,
    ) -> PerExample:
        target = class_indices(target, x)
        attacked = attacked_map(model, attribution, x, target, perturbed)
        return self.measure(attribution(model, x, target).detach(), attacked)

    def over_eps(
        self,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Targets,
        perturbed: Mapping[int | float, Any],
    ) -> Float[Tensor, "b e"]:
        """The values at several eps, one column each in rising order, from `{eps: perturbed inputs}`.

        `numerics.statistics.area_over_eps(values)` is then wang2020's area: trapezoids one step wide.
        """
        if len(perturbed) < 2:
            raise UserError(
                f"There are inputs for {len(perturbed)} eps; give at least two for an area over eps."
            )
        target = class_indices(target, x)
        clean = attribution(model, x, target).detach()
        moved = (attacked_map(model, attribution, x, target, perturbed[eps]) for eps in sorted(perturbed))
        return torch.stack([self.measure(clean, one) for one in moved], 1)


@register(
    "metric",
    "top_k_intersection",
    aliases=("k_in",),
    paper="wang2020",
    equation="Evaluation Metrics, k-in",
    direction="higher is better",
    group="attack",
)
def top_k_intersection(k: int = 100, variant: str = "code", reduce: str = "abs_sum") -> AttackResponse:
    """Share of the k largest pixels kept ("code"), or of the new map's mass on the old k ("supplement").

    wang2020 takes k = 1000 on ImageNet. Its UniGrad rows on CIFAR-10 do so too, by mistake: 1000 of 1024.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> kept = gg.metric("top_k_intersection", k=102)
    >>> kept(model, lrp, x, target, perturbed=x).tolist()
    [1.0, 1.0]
    >>> bool((kept(model, lrp, x, target, perturbed=hit.x) < 1).all())
    True
    """
    return AttackResponse(TopKIntersection(k, variant, reduce))


@register(
    "metric",
    "top_k_nearby",
    aliases=("lens",),
    paper="LENS 2024",
    equation="locality-sensitive top-k",
    direction="higher is better",
    group="attack",
    label="Top pixels kept nearby",
)
def top_k_nearby(k: int | None = None, window: int = 1, reduce: str = "abs_sum") -> AttackResponse:
    """Share of the top tenth of the pixels with a new top pixel within one pixel: small moves count as kept.

    Plain top-k counts a pixel that moved to its neighbour as lost, so that noise can look as strong as an attack
    (Kamath et al. 2024, LENS). `window=0` is `top_k_intersection`. k defaults to a tenth of the pixels.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> near = gg.metric("top_k_nearby", k=100)(model, lrp, x, target, perturbed=hit.x)
    >>> bool((near >= gg.metric("top_k_intersection", k=100)(model, lrp, x, target, perturbed=hit.x)).all())
    True
    """
    return AttackResponse(TopKNearby(k, window, reduce))


@register(
    "metric",
    "rank_correlation",
    aliases=("cor",),
    paper="wang2020",
    equation="Evaluation Metrics, cor",
    direction="higher is better",
    group="attack",
)
def rank_correlation(reduce: str = "abs_sum") -> AttackResponse:
    """Spearman's rank correlation of the clean and the attacked map.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> correlation = gg.metric("rank_correlation")(model, lrp, x, target, perturbed=hit.x)
    >>> bool((correlation < 1).all())
    True
    """
    return AttackResponse(RankCorrelation(reduce))


@register(
    "metric",
    "center_dislocation",
    aliases=("cdl",),
    paper="wang2020",
    equation="Evaluation Metrics, cdl",
    direction="lower is better",
    group="attack",
)
def center_dislocation(variant: str = "code", reduce: str = "abs_sum") -> AttackResponse:
    """Distance in pixels of the maps' centres of mass ("code"), or the sum of |z - z'| ("supplement").

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> moved = gg.metric("center_dislocation")(model, lrp, x, target, perturbed=hit.x)
    >>> bool((moved > 0).all())
    True
    """
    return AttackResponse(CenterDislocation(variant, reduce))


@register(
    "metric",
    "cosine_distance",
    aliases=("cosd",),
    paper="wang2020",
    equation="Evaluation Metrics, cosd",
    direction="lower is better",
    group="attack",
)
def cosine_distance(reduce: str = "abs_sum") -> AttackResponse:
    """1 - cosine of the clean and the attacked map.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> distance = gg.metric("cosine_distance")(model, lrp, x, target, perturbed=hit.x)
    >>> bool((distance > 0).all())
    True
    """
    return AttackResponse(CosineDistance(reduce))


@register(
    "metric",
    "similarity_to_clean",
    paper="joo2023",
    equation="Metrics, the S of RPS",
    direction="higher is better",
    group="attack",
)
def similarity_to_clean(
    similarity: str = "cosine", reduce: str = "abs_sum", normalize: str = "max"
) -> AttackResponse:
    """Cosine, Pearson, Spearman or SSIM of the attacked map to the clean one: RPS with an attack in place of noise.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> similarity = gg.metric("similarity_to_clean", similarity="spearman")
    >>> bool((similarity(model, lrp, x, target, perturbed=hit.x) < 1).all())
    True
    """
    return AttackResponse(MapSimilarity(similarity, reduce, normalize))


@register(
    "metric",
    "similarity_to_target",
    paper="joo2023",
    equation="Metrics, the S of RPS, to AAM's target map",
    direction="lower is better",
    group="attack",
)
@dataclass(frozen=True)
class SimilarityToTarget:
    """Cosine, Pearson, Spearman or SSIM of the attacked map to the attack's target map.

    `target_map`, `h w` or one per example, defaults to joo2023's frame.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gradient, target = gg.attribution("gradient"), gg.predict(model, x)
    >>> hit = gg.attack("targeted_map", eps=4 / 255, steps=3)(model, gradient, x, target)
    >>> to_frame = gg.metric("similarity_to_target")
    >>> nearer = to_frame(model, gradient, x, target, perturbed=hit.x)
    >>> bool((nearer > to_frame(model, gradient, x, target, perturbed=x)).all())
    True
    """

    similarity: str = "cosine"
    reduce: str = "abs_sum"
    normalize: str = "max"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        MapSimilarity(self.similarity, self.reduce, self.normalize)

    def __call__(
        self,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Targets,
        *,
        seed: Seed = 0,
        perturbed: Inputs | None = None,
        target_map: Tensor | None = None,
    ) -> PerExample:
        attacked = attacked_map(model, attribution, x, class_indices(target, x), perturbed)
        after = reduce_map(attacked, self.reduce, self.normalize)
        aim = normalize(_aim(target_map, after), self.normalize)
        # The target first: SSIM takes its range from the second map.
        return SIMILARITIES[self.similarity](aim, after)


def looks_at_attacked(metric: Metric) -> bool:
    """True if the metric needs attacked inputs as `perturbed=`."""
    takes = "perturbed" in inspect.signature(type(metric).__call__).parameters
    return takes and bool(getattr(metric, "attacked", True))


def attacked_map(
    model: Model, attribution: Attribution, x: Tensor, target: Tensor, perturbed: Tensor | None
) -> Tensor:
    """The map at the perturbed inputs, which must be given and shaped like x."""
    if perturbed is None:
        raise UserError(
            "This metric looks at attacked inputs and got none; run an attack and pass its result: "
            "metric(..., perturbed=result.x)."
        )
    if perturbed.shape != x.shape:
        raise UserError(
            f"The perturbed inputs have shape {tuple(perturbed.shape)} and x {tuple(x.shape)}; "
            "pass the attack's result for this x."
        )
    return attribution(model, perturbed, target).detach()


def _aim(target_map: Tensor | None, after: Tensor) -> Tensor:
    """The target map, broadcast to the shape of the attacked maps."""
    b, _, h, w = after.shape
    chosen = frame_target(h, w) if target_map is None else target_map
    if tuple(chosen.shape) not in {(h, w), (b, h, w)}:
        raise UserError(
            f"The target map has shape {tuple(chosen.shape)}; give ({h}, {w}) or ({b}, {h}, {w})."
        )
    return chosen.to(after).expand(b, h, w).unsqueeze(1).expand_as(after)
