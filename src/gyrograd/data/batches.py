"""Batches and augmentation on the device the data lives on: no loader workers, no global random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from gyrograd.data.dataset import Dataset
from gyrograd.errors import UserError, check_counts
from gyrograd.numerics import random
from gyrograd.types import Images, Inputs, Labels

MAX_ASPECT = 4 / 3
"""Largest ratio of the sides of a random resized crop, as in torchvision."""
_ZOOM_STREAM = 2
"""Stream of `zoom_in`; `augment` draws from 0 and 1."""


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
    return _batches(dataset, size, order(len(dataset), shuffle_seed, epoch), drop_last)


def _batches(
    dataset: Dataset, size: int, index: Int[Tensor, " n"], drop_last: bool
) -> Iterator[tuple[Inputs, Labels, Int[Tensor, " b"]]]:
    for rows in index.to(dataset.labels.device).split(size):
        if len(rows) == size or not drop_last:
            yield dataset.pixels(rows), dataset.labels[rows], rows


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
