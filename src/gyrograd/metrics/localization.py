"""Localization: does the map lie on the object? These metrics need masks or boxes of it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import max_pool2d

from gyrograd.errors import UserError
from gyrograd.metrics.insertion import positions
from gyrograd.metrics.passes import checked_target
from gyrograd.metrics.reductions import check_reduction, reduce_map
from gyrograd.numerics.maps import holds_nan
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Metric, Model, PerExample, Seed, Targets

Mask = Bool[Tensor, "b h w"]
Sizes = Float[Tensor, "b h w"]
PER_PIXEL = ("abs_sum", "sum_abs", "max_abs", "l2")
"""Reductions that give one number of at least 0 per pixel."""


class MaskMetric(ABC):
    """Share of the map that lies on the object; subclasses define which pixels count, and how much."""

    reduce: str
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        check_reduction(self.reduce)
        if self.reduce not in PER_PIXEL:
            raise UserError(
                f"reduce is '{self.reduce}', which gives no size per pixel; give one of {', '.join(PER_PIXEL)}."
            )

    def __call__(
        self,
        model: Model,
        attribution: Attribution,
        x: Images,
        target: Targets,
        *,
        seed: Seed = 0,
        mask: Tensor | None = None,
        boxes: Tensor | None = None,
    ) -> PerExample:
        target = checked_target(model, x, target)
        inside = _check_mask(x, mask, boxes)
        sizes = reduce_map(attribution(model, x, target).detach(), self.reduce)[:, 0]
        return torch.where(holds_nan(sizes), torch.nan, self.on_object(sizes, inside))

    @abstractmethod
    def on_object(self, sizes: Sizes, inside: Mask) -> PerExample:
        """The share, from one magnitude per pixel and the mask of the object."""


@register(
    "metric",
    "mass_in_mask",
    aliases=("relevance_mass", "localization", "localisation"),
    paper="Arras et al. 2022",
    equation="relevance mass accuracy",
    direction="higher is better",
    label="Mass in mask",
)
@dataclass(frozen=True)
class MassInMask(MaskMetric):
    """Share of the map's total magnitude that lies on the object; 0 for a map of zeros.

    A constant map scores the object's share of the image.

    >>> import gyrograd as gg
    >>> model, data = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2)
    >>> x, lrp = data.pixels(), gg.attribution("lrp")
    >>> share = gg.metric("mass_in_mask")(model, lrp, x, gg.predict(model, x), mask=data.masks)
    >>> bool((0 < share).all() and (share < 1).all())
    True
    """

    reduce: str = "abs_sum"

    def on_object(self, sizes: Sizes, inside: Mask) -> PerExample:
        whole = sizes.flatten(1).sum(1)
        return (sizes * inside).flatten(1).sum(1) / torch.where(whole > 0, whole, 1)


@register(
    "metric",
    "pointing_game",
    paper="Zhang et al. 2018",
    equation="Section 4.2",
    direction="higher is better",
    label="Pointing game",
)
@dataclass(frozen=True)
class PointingGame(MaskMetric):
    """1 if the strongest pixel lies on the object, or within `tolerance` pixels of it, else 0.

    If several pixels are equally strong: the share of them that does, the expected score of a random choice.

    >>> import gyrograd as gg
    >>> model, data = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2)
    >>> x, lrp = data.pixels(), gg.attribution("lrp")
    >>> everywhere = data.masks | True
    >>> gg.metric("pointing_game")(model, lrp, x, gg.predict(model, x), mask=everywhere).tolist()
    [1.0, 1.0]
    """

    tolerance: int = 0
    reduce: str = "abs_sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerance < 0:
            raise UserError(f"tolerance is {self.tolerance}; give at least 0 pixels.")

    def on_object(self, sizes: Sizes, inside: Mask) -> PerExample:
        if self.tolerance:
            # A max-pool of zeros and ones widens the object by the tolerance.
            side = 2 * self.tolerance + 1
            inside = max_pool2d(inside[:, None].to(sizes), side, 1, self.tolerance)[:, 0].bool()
        strongest = sizes == sizes.amax((1, 2), keepdim=True)
        return (strongest & inside).flatten(1).sum(1).to(sizes) / strongest.flatten(1).sum(1)


@register(
    "metric",
    "top_k_in_mask",
    aliases=("relevance_rank",),
    paper="Arras et al. 2022",
    equation="relevance rank accuracy",
    direction="higher is better",
    label="Top pixels in mask",
)
@dataclass(frozen=True)
class TopKInMask(MaskMetric):
    """Share of the k strongest pixels that lies on the object; k is the object's number of pixels unless given.

    Equal pixels are taken in image order, so that exactly k count.

    >>> import gyrograd as gg
    >>> model, data = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2)
    >>> x, lrp = data.pixels(), gg.attribution("lrp")
    >>> share = gg.metric("top_k_in_mask", k=20)(model, lrp, x, gg.predict(model, x), mask=data.masks)
    >>> bool((0 <= share).all() and (share <= 1).all())
    True
    """

    k: int | None = None
    reduce: str = "abs_sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k is not None and self.k < 1:
            raise UserError(f"k is {self.k}; give at least 1 pixel, or None for as many as the object has.")

    def on_object(self, sizes: Sizes, inside: Mask) -> PerExample:
        pixels = sizes[0].numel()
        if self.k is not None and self.k > pixels:
            raise UserError(f"k is {self.k} and the map has {pixels} pixels; give at most {pixels}.")
        count = (
            inside.flatten(1).sum(1)
            if self.k is None
            else inside.new_full((len(inside),), self.k, dtype=torch.long)
        )
        top = positions(sizes[:, None])[:, 0] < count[:, None, None]
        return (top & inside).flatten(1).sum(1).to(sizes) / count


def looks_at_masks(metric: Metric) -> bool:
    """True if the metric needs the object's place as `mask=` or `boxes=`."""
    return "mask" in inspect.signature(type(metric).__call__).parameters


def mask_of_boxes(boxes: Float[Tensor, "b 4"], height: int, width: int) -> Mask:
    """The pixels inside boxes of left, top, right, bottom in pixels; right and bottom are the first outside."""
    left, top, right, bottom = (boxes[:, place, None] for place in range(4))
    across, down = (torch.arange(side, device=boxes.device) for side in (width, height))
    columns, rows = (across >= left) & (across < right), (down >= top) & (down < bottom)
    return rows[:, :, None] & columns[:, None, :]


def _check_mask(x: Tensor, mask: Tensor | None, boxes: Tensor | None) -> Tensor:
    if (mask is None) == (boxes is None):
        raise UserError(
            "This metric must know where the object is; pass metric(..., mask=masks), True on the object, shaped b h "
            "w, or boxes=, one row of left, top, right, bottom in pixels per image."
        )
    b, height, width = len(x), *x.shape[-2:]
    if boxes is not None:
        if boxes.shape != (b, 4):
            raise UserError(f"The boxes have shape {tuple(boxes.shape)} for {b} images; give {(b, 4)}.")
        inside = mask_of_boxes(boxes.to(x.device), height, width)
    else:
        assert mask is not None
        inside = (mask[:, 0] if mask.dim() == 4 and mask.shape[1] == 1 else mask).to(x.device)
        if inside.shape != (b, height, width):
            raise UserError(
                f"The masks have shape {tuple(mask.shape)} for images of shape {tuple(x.shape)}; give "
                f"{(b, height, width)}."
            )
        if inside.dtype != torch.bool:
            if not bool(((inside == 0) | (inside == 1)).all()):
                raise UserError(
                    "The masks hold other values than 0 and 1; give True on the object, such as mask > 0.5."
                )
            inside = inside.bool()
    empty = (~inside.flatten(1).any(1)).nonzero()
    if len(empty):
        raise UserError(f"Image {int(empty[0])} has no pixel of the object in its mask or box; leave it out.")
    return inside
