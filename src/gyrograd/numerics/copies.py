"""Noisy copies of images, whose first convolution and its derivatives are computed once per image on a CPU.

A convolution is linear: that of image plus noise is that of the image plus that of the noise. Of n copies of b images
it takes b + n rows in place of n b, and in backward, where only the sum over the copies is wanted, b rows. Convolutions
of three channels are slow for their size, so this saves several per cent of a SmoothGrad map of a small net.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyrograd.numerics.memory_layout import is_channels_last

_NAME = "_gyrograd_copies"


@dataclass(frozen=True)
class Copies:
    """The parts of rows that are image plus noise: images b c h w, and constant noise n c h w, one per copy.

    `version` counts the writes into the rows when they were marked.
    """

    image: Tensor
    noise: Tensor
    version: int


def mark_copies(rows: Tensor, image: Tensor, noise: Tensor) -> None:
    """Note on these rows, copy after copy, that they are this image plus this noise."""
    if not rows.is_inference():  # such tensors do not count writes, and have no derivatives
        setattr(rows, _NAME, Copies(image, noise, rows._version))


def copies_of(rows: Tensor) -> Copies | None:
    """The parts of these rows; None if they are unknown, or if the rows were written to since."""
    copies: Copies | None = getattr(rows, _NAME, None)
    return copies if copies is not None and copies.version == rows._version else None


def convolve_copies(
    convolution: Callable[..., Tensor],
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *settings: Any,
    **named: Any,
) -> Tensor | None:
    """The convolution of rows of known parts, by parts; None if they are unknown or no derivative is wanted."""
    copies = copies_of(rows)
    if copies is None or rows.device.type != "cpu" or not torch.is_grad_enabled():
        return None
    if not copies.image.requires_grad or copies.noise.requires_grad:
        return None
    of_image = convolution(copies.image, weight, bias, *settings, **named)
    of_noise = convolution(copies.noise, weight, None, *settings, **named)
    last = is_channels_last(of_image)
    of_image, of_noise = (part.movedim(1, -1) if last else part for part in (of_image, of_noise))
    # As they lie in memory: the sum over the copies in backward takes ten times as long along the axes of images.
    out = of_image.reshape(1, len(of_image), -1) + of_noise.reshape(len(of_noise), 1, -1)
    out = out.view(-1, *of_image.shape[1:])
    return out.movedim(-1, 1) if last else out
