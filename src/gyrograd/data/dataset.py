"""A data set as tensors, and its batches; images stay bytes until they are used, so that CIFAR-10 fits on any device.

Batches are made and augmented where the data lives: no loader workers, no global random numbers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from gyrograd.data.streamed import Streamed
from gyrograd.errors import UserError, check_counts
from gyrograd.numerics import random
from gyrograd.types import Bytes, Images, Inputs, Labels

SUBSET_STREAM = 1 << 32  # keeps the choice of examples apart from the order of an epoch (streams 0, 1, ...)
MAX_ASPECT = 4 / 3
"""Largest ratio of the sides of a random resized crop, as in torchvision."""
_ZOOM_STREAM, _CUTOUT_STREAM = 2, 3
"""Streams of `zoom_in` and, one for each axis, of `cut_out`; `augment` draws from 0 and 1."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples, their labels and, if known, the pixels of the object.

    Images are uint8 `b c h w`; other inputs (the 2-D toy) are floats. A set that does not fit memory holds the places
    of its images (`Streamed`), and `pixels` reads them when asked.
    """

    images: Bytes | Inputs | Streamed
    labels: Labels
    classes: tuple[str, ...]
    name: str
    masks: Bool[Tensor, "b h w"] | None = None

    def __post_init__(self) -> None:
        if len(self.labels) == 0:
            raise UserError(f"{self.name} holds no examples; give at least one.")
        if len(self.images) != len(self.labels):
            raise UserError(
                f"{self.name} has {len(self.images)} images and {len(self.labels)} labels; give a label to each."
            )
        seen = None if self.masks is None else tuple(self.masks.shape)
        expected = (len(self.images), *self.images.shape[2:])
        if seen not in (None, expected):
            raise UserError(f"{self.name} has masks of shape {seen}; give one mask per image, {expected}.")
        if self.labels.is_floating_point() or self.labels.dtype == torch.bool:
            raise UserError(
                f"{self.name} has labels of type {self.labels.dtype}; give whole numbers (int64)."
            )
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise UserError(
                f"{self.name} has labels from {low} to {high} and {len(self.classes)} classes; "
                f"labels count from 0 to {len(self.classes) - 1}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.images.shape[1:])
        return f"Dataset({self.name}: {len(self)} examples of {shape}, {len(self.classes)} classes)"

    def to(self, device: torch.device | str) -> Dataset:
        """The same examples on this device; the data set itself if it is there already."""
        parts = (self.images, self.labels, self.masks)
        if {part.device for part in parts if part is not None} == {torch.device(device)}:
            return self
        masks = None if self.masks is None else self.masks.to(device)
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), masks=masks)

    def rows(self, index: Int[Tensor, " n"] | Bool[Tensor, " every"]) -> Dataset:
        """These examples, in this order."""
        index = index.to(self.labels.device)
        masks = None if self.masks is None else self.masks[index]
        images = self.images.rows(index) if isinstance(self.images, Streamed) else self.images[index]
        return replace(self, images=images, labels=self.labels[index], masks=masks)

    def subset(self, n: int, seed: int = 0) -> Dataset:
        """The first n examples of a permutation by the seed; a larger n extends a smaller one.

        It is not stratified. The permutation is drawn on the CPU, so every device gets the same examples.
        """
        return self.rows(self.chosen(n, seed))

    def chosen(self, n: int, seed: int = 0) -> Int[Tensor, " n"]:
        """Indices of the examples that `subset(n, seed)` takes."""
        if not 1 <= n <= len(self):
            raise UserError(f"A subset of {n} cannot be taken from {self.name}: give 1 to {len(self)}.")
        return random.permutation(random.keys(seed, 1), len(self), stream=SUBSET_STREAM)[0, :n]

    def pixels(self, index: Int[Tensor, " n"] | Bool[Tensor, " every"] | None = None) -> Inputs:
        """Examples as float32 with pixels in [0, 1]; all of them if no index is given."""
        every = slice(None) if isinstance(self.images, Streamed) else ...
        images: Tensor = self.images[every if index is None else index.to(self.labels.device)]  # type: ignore[index]
        return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images

    def digest(self) -> str:
        """The sha256 of images, labels and masks: equal digests, equal data."""
        total = hashlib.sha256()
        if isinstance(self.images, Streamed):
            total.update(self.images.digest().encode())
            parts = [self.labels]
        else:
            parts = [self.images, self.labels]
        parts += [] if self.masks is None else [self.masks]
        for part in parts:
            total.update(part.cpu().contiguous().numpy().tobytes())
        return total.hexdigest()


def batches(
    dataset: Dataset, size: int, *, shuffle_seed: int | None = None, epoch: int = 0, drop_last: bool = False
) -> Iterator[tuple[Inputs, Labels, Int[Tensor, " b"]]]:
    """Batches of (float examples, labels, index in the data set).

    They come in the order of the data set, or shuffled by (shuffle_seed, epoch): batch size and device do not change
    the order. With drop_last a smaller last batch is left out.
    """
    check_counts(size=size)
    if drop_last and size > len(dataset):
        raise UserError(
            f"drop_last leaves no batch: give a size up to {len(dataset)}, all of {dataset.name}."
        )
    index = order(len(dataset), shuffle_seed, epoch).to(dataset.labels.device)
    whole = (rows for rows in index.split(size) if len(rows) == size or not drop_last)
    return ((dataset.pixels(rows), dataset.labels[rows], rows) for rows in whole)


def order(
    n: int, shuffle_seed: int | None, epoch: int = 0, device: torch.device | str | None = None
) -> Int[Tensor, " n"]:
    """The order of an epoch: a permutation by seed and epoch, or 0 .. n-1 without a seed; the same on any device."""
    if shuffle_seed is None:
        return torch.arange(n, device=device)
    return random.permutation(random.keys(shuffle_seed, 1, device), n, stream=epoch)[0]


def augment(
    images: UInt8[Tensor, "b c h w"] | Float[Tensor, "b c h w"],
    keys: Int[Tensor, " b"],
    pad: int = 4,
    flip: bool = True,
) -> UInt8[Tensor, "b c h w"] | Float[Tensor, "b c h w"]:
    """Each image moved by up to `pad` pixels each way (zeros come in), and mirrored with probability 1/2.

    The same as padding with zeros, cropping at random and flipping. The keys decide: an example with the same
    key gets the same crop in any batch.
    """
    if pad < 0:
        raise UserError(f"The padding is {pad}; give 0 (no crop) or more.")
    b, _, h, w = images.shape
    shift = random.integers(keys, (2,), 2 * pad + 1, stream=0)
    rows = shift[:, :1] + torch.arange(h, device=images.device)
    columns = shift[:, 1:] + torch.arange(w, device=images.device)
    if flip:
        mirrored = random.integers(keys, (1,), 2, stream=1) == 1
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (pad, pad, pad, pad))
    example = torch.arange(b, device=images.device)[:, None, None]
    # Indexing puts the indexed axes first and the channels last, so the channels are moved back.
    return padded[example, :, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def zoom_in(x: Images, keys: Int[Tensor, " b"], smallest: float) -> Images:
    """A random part of each image, scaled to its size: `smallest` to all of its area, sides 3:4 to 4:3.

    Deviation from torchvision's RandomResizedCrop: a part that would stick out is cut to the image instead of drawn
    again, and the enlargement is bilinear without anti-aliasing.
    """
    u = random.uniform(keys, (4,), stream=_ZOOM_STREAM, dtype=x.dtype)
    area = smallest + (1 - smallest) * u[:, 0]
    ratio = torch.exp((2 * u[:, 1] - 1) * math.log(MAX_ASPECT))
    high, wide = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    # affine_grid runs from -1 to 1: a part of side s has its centre within 1 - s of 0
    down, right = (2 * u[:, 2] - 1) * (1 - high), (2 * u[:, 3] - 1) * (1 - wide)
    zero = torch.zeros_like(high)
    frames = torch.stack((wide, zero, right, zero, high, down), 1).view(-1, 2, 3)
    grid = F.affine_grid(frames, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def cut_out(x: Images, keys: Int[Tensor, " b"], side: int) -> Images:
    """Each image with a square of `side` pixels, centred on a random pixel, replaced by the image's mean colour.

    Near the border a part of the square lies outside, as in DeVries and Taylor 2017. Deviation: their squares have the
    mean colour of the data set.
    """

    def covered(n: int, stream: int) -> Bool[Tensor, "b n"]:
        first = random.integers(keys, (1,), n, stream=stream) - side // 2
        place = torch.arange(n, device=x.device)
        return (first <= place) & (place < first + side)

    rows, columns = (covered(x.shape[axis], _CUTOUT_STREAM + axis) for axis in (2, 3))
    square = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(square, x.mean((2, 3), keepdim=True), x)
