"""Stability under everyday changes of an image: JPEG, brightness, shift, rotation.

After FASS (CVPR 2026): images whose prediction changes are left out, because a different prediction deserves a
different explanation. A change has one or more variants (brighter and darker; four directions of shift; two of
rotation). An image's value is the mean over the variants that keep its prediction, or NaN if none does; audits count
NaN as left out.

Under shift and rotation the map should move with the image. The clean map, its channels merged, is moved by the same
function as the image, and both maps are compared on a window of pixels that come from inside the original image:
- shift by d whole pixels: new pixels repeat the border; the window leaves out the rows or columns that are new;
- rotation: bilinear about the centre, beyond the border the nearest pixel; the window is the largest centred rectangle
  with equal margins whose pixels all come from inside. Interpolation smooths a map, so that even one that rotates
  exactly with its image scores below 1.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.errors import UserError
from gyrograd.metrics.passes import checked_target, explain_variants, in_parts, logits_in_parts
from gyrograd.metrics.reductions import reduce_map
from gyrograd.metrics.response import MapSimilarity
from gyrograd.numerics.checks import check_images
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Inputs, Model, PerExample, Seed, Targets

Window = tuple[slice, slice]
"""Rows and columns."""


@runtime_checkable
class Change(Protocol):
    """A change of images, in numbered variants."""

    @property
    def variants(self) -> int: ...
    def transform(self, x: Images, variant: int) -> Images: ...


@runtime_checkable
class Move(Change, Protocol):
    """A change that moves pixels; `window` gives the rows and columns that come from inside the original image."""

    def window(self, h: int, w: int, variant: int) -> Window: ...


@dataclass(frozen=True)
class Jpeg:
    """JPEG compression at this quality, with chroma subsampling 4:2:0."""

    quality: int
    variants: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 95:
            raise UserError(f"quality is {self.quality}; give a JPEG quality of 1 to 95, 50 is usual.")

    def transform(self, x: Images, variant: int) -> Images:
        if x.shape[1] not in (1, 3):
            raise UserError(
                f"A JPEG has 1 or 3 channels and the images have {x.shape[1]}; leave this metric out."
            )
        # Rounded: byte() alone would cut off, and darken the image by half a level.
        levels = (x * 255).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy()
        read = np.stack([_through_jpeg(image, self.quality) for image in levels])
        return torch.from_numpy(read).to(x.device).permute(0, 3, 1, 2).to(x.dtype) / 255


def _through_jpeg(levels: NDArray[Any], quality: int) -> NDArray[Any]:
    # Imported here: the command line starts without Pillow.
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(levels.squeeze(2) if levels.shape[2] == 1 else levels).save(
        file, "JPEG", quality=quality, subsampling=2
    )
    read: NDArray[Any] = np.asarray(Image.open(file))
    return read[:, :, None] if read.ndim == 2 else read


@dataclass(frozen=True)
class Brightness:
    """All values raised or lowered by `amount`, clipped to [0, 1]."""

    amount: float
    variants: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 < self.amount < 1:
            raise UserError(
                f"amount is {self.amount}; give a step of brightness between 0 and 1, such as 0.1."
            )

    def transform(self, x: Images, variant: int) -> Images:
        return (x + (self.amount if variant == 0 else -self.amount)).clamp(0, 1)


@dataclass(frozen=True)
class Shift:
    """Shift up, down, left and right by a share of the shorter side, at least one pixel."""

    share: float
    variants: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if not 0 < self.share <= 0.5:
            raise UserError(
                f"share is {self.share}; give a fraction of the image's side up to 0.5, such as 1/16."
            )

    def transform(self, x: Images, variant: int) -> Images:
        h, w = x.shape[2:]
        down, right = self._step(h, w, variant)
        rows = (torch.arange(h, device=x.device) - down).clamp(0, h - 1)
        columns = (torch.arange(w, device=x.device) - right).clamp(0, w - 1)
        return x[:, :, rows][:, :, :, columns]

    def window(self, h: int, w: int, variant: int) -> Window:
        down, right = self._step(h, w, variant)
        return slice(max(0, down), h + min(0, down)), slice(max(0, right), w + min(0, right))

    def _step(self, h: int, w: int, variant: int) -> tuple[int, int]:
        """Pixels down and to the right."""
        pixels = max(1, round(self.share * min(h, w)))
        if pixels >= min(h, w):
            raise UserError(
                f"Images of {h} x {w} pixels shifted by {pixels} leave nothing in sight; leave this metric out."
            )
        return ((-pixels, 0), (pixels, 0), (0, -pixels), (0, pixels))[variant]


@dataclass(frozen=True)
class Rotation:
    """Rotation about the centre by this angle, in both directions, with bilinear interpolation."""

    degrees: float
    variants: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 < self.degrees <= 45:
            raise UserError(f"degrees is {self.degrees}; give an angle above 0 and up to 45, 10 is usual.")

    def transform(self, x: Images, variant: int) -> Images:
        h, w = x.shape[2:]
        row, column = self._sources(h, w, variant)
        # grid_sample's convention: -1 and 1 are the outer edges of the first and last pixel; columns come first.
        grid = torch.stack([(2 * column + 1) / w - 1, (2 * row + 1) / h - 1], 2).to(x)
        return F.grid_sample(x, grid.expand(len(x), -1, -1, -1), padding_mode="border", align_corners=False)

    def window(self, h: int, w: int, variant: int) -> Window:
        row, column = self._sources(h, w, variant)
        slack = 1e-6
        inside = (row >= -slack) & (row <= h - 1 + slack) & (column >= -slack) & (column <= w - 1 + slack)
        for margin in range(min(h, w) // 2):
            rows, columns = slice(margin, h - margin), slice(margin, w - margin)
            if inside[rows, columns].all():
                return rows, columns
        raise UserError(
            f"Images of {h} x {w} pixels turned by {self.degrees} degrees leave nothing in sight; give fewer degrees."
        )

    def _sources(self, h: int, w: int, variant: int) -> tuple[Float[Tensor, "h w"], Float[Tensor, "h w"]]:
        """Source row and column of each pixel."""
        angle = math.radians(self.degrees if variant == 0 else -self.degrees)
        down = torch.arange(h, dtype=torch.float64)[:, None] - (h - 1) / 2
        right = torch.arange(w, dtype=torch.float64)[None] - (w - 1) / 2
        return (
            math.cos(angle) * down - math.sin(angle) * right + (h - 1) / 2,
            math.sin(angle) * down + math.cos(angle) * right + (w - 1) / 2,
        )


@dataclass(frozen=True)
class TransformedSimilarity:
    """Similarity of the map of a changed image to the clean map, moved like the image."""

    change: Change
    measure: MapSimilarity
    max_batch: int = MAX_BATCH
    leaves_out: ClassVar[str] = "images whose prediction changes"
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        return self.per_variant(model, attribution, x, target, seed=seed).nanmean(1)

    def per_variant(
        self, model: Model, attribution: Attribution, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> Float[Tensor, "b n"]:
        """The similarity of each variant; NaN where the prediction changes."""
        target, x = checked_target(model, x, target), x.detach()
        if x.dim() != 4:
            raise UserError(
                f"{type(self.change).__name__} changes images b c h w and got {tuple(x.shape)}; leave this metric out."
            )
        check_images(x)
        clean = reduce_map(attribution(model, x, target).detach(), self.measure.reduce)
        answer = logits_in_parts(model, x, self.max_batch).argmax(1)

        def values(examples: slice, these: slice) -> Tensor:
            variants = range(these.start, these.stop)
            near = torch.stack([self.change.transform(x[examples], variant) for variant in variants], 1)
            same = logits_in_parts(model, near.flatten(0, 1), self.max_batch).argmax(1).view(near.shape[:2])
            maps = explain_variants(attribution, model, near, target[examples])
            alike = [
                self._compare(clean[examples], map, variant)
                for map, variant in zip(maps.unbind(1), variants, strict=True)
            ]
            return torch.where(same == answer[examples, None], torch.stack(alike, 1), torch.nan)

        return in_parts(values, x, self.change.variants, self.max_batch)

    def _compare(self, clean: Tensor, map: Tensor, variant: int) -> Tensor:
        seen = reduce_map(map, self.measure.reduce)
        if isinstance(self.change, Move):
            h, w = clean.shape[2:]
            rows, columns = self.change.window(h, w, variant)
            moved = self.change.transform(clean, variant)
            clean, seen = moved[:, :, rows, columns], seen[:, :, rows, columns]
        return self.measure(clean, seen)


@register(
    "metric",
    "jpeg_similarity",
    paper="FASS 2026",
    equation="compression",
    direction="higher is better",
    label="Steady under JPEG",
    group="transform",
)
def jpeg_similarity(
    quality: int = 50, similarity: str = "cosine", reduce: str = "abs_sum", max_batch: int = MAX_BATCH
) -> TransformedSimilarity:
    """Cosine of the maps of an image and of its JPEG of quality 50; images whose prediction changes are left out.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> steady = gg.metric("jpeg_similarity", quality=90)
    >>> values = steady(model, gg.attribution("lrp"), x, gg.predict(model, x))
    >>> bool((values[~values.isnan()] > 0.5).all())
    True
    """
    return TransformedSimilarity(Jpeg(quality), MapSimilarity(similarity, reduce), max_batch)


@register(
    "metric",
    "brightness_similarity",
    paper="FASS 2026",
    equation="photometric changes",
    direction="higher is better",
    label="Steady under brightness",
    group="transform",
)
def brightness_similarity(
    amount: float = 0.1, similarity: str = "cosine", reduce: str = "abs_sum", max_batch: int = MAX_BATCH
) -> TransformedSimilarity:
    """Cosine of the maps of an image and its versions 0.1 brighter and darker; changed predictions are left out.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> steady = gg.metric("brightness_similarity", amount=0.01)
    >>> bool((steady(model, gg.attribution("lrp"), x, gg.predict(model, x)) > 0.5).all())
    True
    """
    return TransformedSimilarity(Brightness(amount), MapSimilarity(similarity, reduce), max_batch)


@register(
    "metric",
    "shift_similarity",
    paper="FASS 2026",
    equation="geometric changes",
    direction="higher is better",
    label="Moves with a shift",
    group="transform",
)
def shift_similarity(
    share: float = 1 / 16, similarity: str = "cosine", reduce: str = "abs_sum", max_batch: int = MAX_BATCH
) -> TransformedSimilarity:
    """Cosine of the shifted map and the map of the image shifted by 1/16 of its side; changed predictions are left out.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> shifted = gg.metric("shift_similarity").per_variant(model, gg.attribution("lrp"), x, gg.predict(model, x))
    >>> shifted.shape      # up, down, left, right
    torch.Size([2, 4])
    """
    return TransformedSimilarity(Shift(share), MapSimilarity(similarity, reduce), max_batch)


@register(
    "metric",
    "rotation_similarity",
    paper="FASS 2026",
    equation="geometric changes",
    direction="higher is better",
    label="Turns with a rotation",
    group="transform",
)
def rotation_similarity(
    degrees: float = 10.0, similarity: str = "cosine", reduce: str = "abs_sum", max_batch: int = MAX_BATCH
) -> TransformedSimilarity:
    """Cosine of the turned map and the map of the image turned by 10 degrees; changed predictions are left out.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> turned = gg.metric("rotation_similarity").per_variant(model, gg.attribution("lrp"), x, gg.predict(model, x))
    >>> turned.shape      # either way
    torch.Size([2, 2])
    """
    return TransformedSimilarity(Rotation(degrees), MapSimilarity(similarity, reduce), max_batch)
