"""Objectives of attacks: functions from the map (b c h w) and the logits (b k) to one number per example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from gyrograd.attributions.layout import logits_of
from gyrograd.errors import UserError
from gyrograd.numerics.maps import frame_target, holds_nan, mass_center, normalize, reduce, top_k_mask
from gyrograd.numerics.quantities import quantity_of, with_full_precision
from gyrograd.numerics.similarity import cosine, l2_distance, pearson, spearman
from gyrograd.types import Attribution, Images, Inputs, Labels, Logits, Model, PerExample

Objective: TypeAlias = Callable[..., Tensor]
"""Maps (map, logits, perturbed images) to one number per example, which the attack minimises."""
PixelMaps: TypeAlias = Float[Tensor, "b h w"]


@dataclass(frozen=True)
class Scene:
    """The clean side of an objective: images, classes, maps and logits, and the goal map if the attack has one."""

    x: Images
    target: Labels
    map: Inputs
    logits: Logits
    goal: PixelMaps | None = None
    model: Model | None = None

    def rows(self, chosen: Tensor) -> Scene:
        """The scene of these examples."""
        goal = None if self.goal is None else self.goal[chosen]
        rows = (self.x[chosen], self.target[chosen], self.map[chosen], self.logits[chosen])
        return Scene(*rows, goal, self.model)


@runtime_checkable
class PixelCurve(Protocol):
    """The part of the insertion metric that an objective needs; this folder may not import metrics."""

    def curve_of_map(self, model: Model, map: Images, x: Images, target: Labels) -> Tensor: ...

    def empty_image(self, model: Model, x: Images) -> Images: ...


@dataclass(frozen=True)
class Aim:
    """`descend` is differentiated; `judge` selects the iterate and is reported. Usually the same function."""

    descend: Objective
    judge: Objective


def scaled_map(map: Images, how: str, scale: str) -> PixelMaps:
    """One number per pixel, normalised: "max" (joo2023), "sum" (Dombrowski et al.) or "area" (wang2020)."""
    return normalize(reduce(map, how), scale)


def toward(goal: PixelMaps, how: str, scale: str = "max") -> Objective:
    """Half the squared distance to the goal map (joo2023 AAM; its text writes the distance itself)."""
    return lambda map, *_: 0.5 * (scaled_map(map, how, scale) - goal).square().flatten(1).sum(1)


def unlike(goal: PixelMaps, how: str) -> Objective:
    """Minus the cosine to the goal map."""
    return lambda map, *_: -cosine(reduce(map, how), goal)


def away_from(clean: Images, how: str, measure: str) -> Objective:
    """Similarity to the clean map: the cosine, or minus half the squared distance of max-normalised maps."""
    old = scaled_map(clean, how, "max")
    if measure == "cosine":
        return lambda map, *_: cosine(reduce(map, how), old)
    return lambda map, *_: -0.5 * (scaled_map(map, how, "max") - old).square().flatten(1).sum(1)


def mass_on(mask: Bool[Tensor, "b h w"], how: str) -> Objective:
    """Share of the map's mass on these pixels: k-in as wang2020's supplement writes it (Evaluation Metrics)."""
    return lambda map, *_: (scaled_map(map, how, "sum").abs() * mask).flatten(1).sum(1)


def mass_on_own_top(k: int, how: str) -> Objective:
    """Share of the mass on the map's own k largest pixels (the mask of wang2020's notebooks)."""
    return lambda map, *_: scaled_map(map, how, "sum").abs().flatten(1).topk(k, dim=1).values.sum(1)


def overlap_with(mask: Bool[Tensor, "b h w"], how: str) -> Objective:
    """Share of the mask's pixels still among the k largest: k-in as wang2020's code counts it. Not differentiable."""

    def overlap(map: Tensor, *_: Tensor) -> Tensor:
        k = int(mask[0].sum())
        both = top_k_mask(reduce(map, how).abs(), k) & mask
        share = both.flatten(1).sum(1).to(map.dtype) / k
        # NaN counts as largest: without this an attack would win by an image whose map does not exist.
        return torch.where(holds_nan(map), torch.nan, share)

    return overlap


SHARPNESS = 0.4
"""Width of the sigmoid in `soft_overlap`, relative to the k-th largest pixel; a narrower one would see few pixels."""


def soft_overlap(mask: Bool[Tensor, "b h w"], how: str) -> Objective:
    """Smooth version of `overlap_with`: soft membership in the top k of the mask's pixels minus that of all others.

    A pixel's membership is the sigmoid of its lead over the k-th largest, so the gradient acts on pixels near that
    threshold: those of the mask are pushed below it, others above it.
    """
    inside = mask.flatten(1)
    k = int(mask[0].sum())

    def swap(map: Tensor, *_: Tensor) -> Tensor:
        pixels = scaled_map(map, how, "area").abs().flatten(1)
        threshold = pixels.detach().topk(k, dim=1).values[:, -1:]
        width = SHARPNESS * torch.where(threshold > 0, threshold, 1)
        member = torch.sigmoid((pixels - threshold) / width)
        return torch.where(inside, member, -member).sum(1) / k

    return swap


def like_ranks(clean: Images, how: str) -> Objective:
    """Smooth version of `rank_order`: correlation of the logarithm of the pixels with the clean ranks."""
    ranks = reduce(clean, how).flatten(1).argsort(1).argsort(1).to(clean.dtype)

    def alike(map: Tensor, *_: Tensor) -> Tensor:
        pixels = scaled_map(map, how, "area").flatten(1)
        return pearson((pixels.abs() + 0.05).log() * pixels.sign(), ranks)

    return alike


def rank_order(clean: Images, how: str) -> Objective:
    """Spearman's correlation with the clean map. Not differentiable."""
    old = reduce(clean, how)
    return lambda map, *_: spearman(reduce(map, how), old)


def steepness(clean: Images, x: Images) -> Objective:
    """Minus the slope of the map: -|map' - map| / |x' - x|, both l2 over all elements; 0 at x itself."""

    def slope(map: Tensor, _: Tensor, perturbed: Tensor) -> Tensor:
        walked = l2_distance(perturbed, x)
        return -l2_distance(map, clean) / torch.where(walked > 0, walked, 1)

    return slope


def map_change(clean: Images) -> Objective:
    """Minus the change of the map.

    Its gradient lies along J^T (map' - map), so a step along it, projected to the ball, is a step of the power
    iteration for the direction in which the map is steepest.
    """
    return lambda map, *_: -l2_distance(map, clean)


def in_insertion_order(scene: Scene, curve: PixelCurve) -> Objective:
    """Insertion: mean probability as the clean image's pixels are inserted in the map's order. Not differentiable."""
    return lambda map, *_: curve.curve_of_map(_model(scene), map, scene.x, scene.target).mean(1)


SOFT_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The points of the insertion curve that `soft_insertion` uses."""


def soft_insertion(scene: Scene, curve: PixelCurve, how: str) -> Objective:
    """Smooth version of `in_insertion_order`: soft membership in the top m inserts pixels, as in `soft_overlap`."""
    model = _model(scene)
    empty = curve.empty_image(model, scene.x)
    content, n = scene.x - empty, len(SOFT_SHARES)
    target = scene.target.repeat_interleave(n)

    def inserted(map: Tensor, *_: Tensor) -> Tensor:
        pixels = scaled_map(map, how, "area").flatten(1)
        places = [max(1, round(share * pixels.shape[1])) - 1 for share in SOFT_SHARES]
        thresholds = pixels.detach().sort(dim=1, descending=True).values[:, places, None]
        width = SHARPNESS * torch.where(thresholds != 0, thresholds.abs(), 1)
        member = torch.sigmoid((pixels[:, None] - thresholds) / width)
        images = empty[:, None] + member.view(-1, n, 1, *map.shape[2:]) * content[:, None]
        # The map comes in single precision, the model takes that of the images.
        logits = logits_of(model, images.flatten(0, 1).to(empty.dtype))
        return quantity_of(logits, target, "probability").view(-1, n).mean(1)

    return inserted


def the_goal(scene: Scene) -> PixelMaps:
    """The scene's goal map, which attacks with a goal always have."""
    if scene.goal is None:
        raise UserError("This objective needs a goal map; call the attack itself, which makes one.")
    return scene.goal


def _model(scene: Scene) -> Model:
    """The model of the scene, which scenes of a run always have."""
    if scene.model is None:
        raise UserError("Insertion needs the model; call the attack itself, which passes it on.")
    return scene.model


def far_from(center: Float[Tensor, "b 2"], how: str) -> Objective:
    """Minus the squared distance of the mass centre from this point, in pixels squared (Ghorbani et al.)."""
    return lambda map, *_: -(mass_center(reduce(map, how)) - center).square().sum(1)


def mean_square_to(goal: PixelMaps, how: str, scale: str, weight: float) -> Objective:
    """weight times the mean squared difference to the goal map (Dombrowski et al. 2019, with weight 1e11)."""
    return lambda map, *_: weight * (scaled_map(map, how, scale) - goal).square().flatten(1).mean(1)


def with_penalty(objective: Objective, weight: float, clean: Logits, on: str) -> Objective:
    """The objective plus weight times the mean squared change of the logits, or of the probabilities."""
    if weight == 0:
        return objective
    outputs = _probabilities if on == "probabilities" else with_full_precision
    before = outputs(clean).detach()
    return lambda map, logits, *x: (
        objective(map, logits, *x) + weight * (outputs(logits) - before).square().mean(1)
    )


def minus_cross_entropy(target: Labels) -> Objective:
    """Minus the loss of the class (Madry et al. 2018)."""
    return lambda _, logits, *__: -quantity_of(logits, target, "loss")


def margin(target: Labels) -> Objective:
    """The logit of the class over the best other one: below zero the prediction has changed."""

    def lead(_: Tensor, logits: Tensor, *__: Tensor) -> PerExample:
        mine = F.one_hot(target, logits.shape[1]).bool()
        return quantity_of(logits, target) - logits.masked_fill(mine, -torch.inf).amax(1)

    return lead


def goal_maps(
    goal: str | Tensor, model: Model, attribution: Attribution, x: Images, how: str, scale: str
) -> PixelMaps:
    """The goal map per example, from "frame" (joo2023: 5 pixels of 32), maps `h w` or `b h w`, or images.

    For images (`1 c h w` or `b c h w`) the goal is their map under the same attribution, for the class that the model
    predicts (Dombrowski et al.).
    """
    h, w = x.shape[2:]
    if isinstance(goal, str):
        maps = frame_target(h, w).to(x)[None]
    elif goal.dim() == 4:
        images = goal.to(x)
        with torch.no_grad():
            predicted = model(images).argmax(1)
        maps = reduce(attribution(model, images, predicted), how)
    else:
        maps = goal.to(x).reshape(-1, *goal.shape[-2:])
    if maps.shape[1:] != (h, w) or len(maps) not in (1, len(x)):
        raise UserError(
            f"The goal has shape {tuple(goal.shape) if isinstance(goal, Tensor) else goal} for images "
            f"{tuple(x.shape)}; give 'frame', one map {h} x {w}, a map for each image, or images."
        )
    if bool(holds_nan(maps).any()):
        raise UserError("The goal map holds NaN; give a map that exists.")
    return normalize(maps, scale).detach().expand(len(x), h, w)


def _probabilities(logits: Tensor) -> Tensor:
    return with_full_precision(logits).softmax(1)
