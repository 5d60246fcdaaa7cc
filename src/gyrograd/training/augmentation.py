"""What a training image may look like: moved, mirrored, or a part of it enlarged. On the device, by key."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from gyrograd.data import Dataset, augment
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.training.settings import TrainSettings
from gyrograd.types import Images, Inputs

LONGEST = 4 / 3
"""Largest ratio of the sides of a random resized crop, as torchvision has it."""
_ZOOM = 2
"""Its stream; `augment` draws from 0 and 1."""


def augmented(x: Inputs, keys: Int[Tensor, " b"], settings: TrainSettings) -> Inputs:
    """x as the settings let it vary; the same key gives the same picture in any batch."""
    if settings.zoom < 1:
        x = zoomed(x, keys, settings.zoom)
    if settings.crop or settings.flip:
        x = augment(x, keys, pad=settings.crop, flip=settings.flip)
    return x


def zoomed(x: Images, keys: Int[Tensor, " b"], smallest: float) -> Images:
    """A random part of each image, of `smallest` to all of its area and sides 3:4 to 4:3, in the image's size.

    Deviation from torchvision's RandomResizedCrop: a part that would stick out is cut to the image instead of drawn
    again, and the enlargement is bilinear without anti-aliasing.
    """
    u = random.uniform(keys, (4,), stream=_ZOOM, dtype=x.dtype)
    area = smallest + (1 - smallest) * u[:, 0]
    ratio = torch.exp((2 * u[:, 1] - 1) * math.log(LONGEST))
    high, wide = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
    # affine_grid counts from -1 to 1: a part of side s has its centre within 1 - s of 0
    down, right = (2 * u[:, 2] - 1) * (1 - high), (2 * u[:, 3] - 1) * (1 - wide)
    zero = torch.zeros_like(high)
    frames = torch.stack((wide, zero, right, zero, high, down), 1).view(-1, 2, 3)
    grid = F.affine_grid(frames, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def check_augmentation(data: Dataset, settings: TrainSettings) -> None:
    """Refuse to move what is not a picture."""
    asked = [key for key in ("crop", "flip") if getattr(settings, key)] + ["zoom"] * (settings.zoom < 1)
    if asked and data.images.dim() != 4:
        raise UserError(f"{data.name} is not made of images, so {asked[0]} cannot be used; leave it out.")
    if settings.crop >= min(data.images.shape[2:], default=1 << 30):
        raise UserError(f"crop is {settings.crop}, as large as the images of {data.name}; give fewer pixels.")
