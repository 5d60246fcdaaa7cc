"""The order of an image's axes in memory: plain (channel by channel), or channels last (pixel by pixel)."""

from __future__ import annotations

import torch
from torch import Tensor


def is_channels_last(z: Tensor) -> bool:
    """True if the channels of `b c h w` come last in memory, without gaps, and the plain layout differs from that."""
    return z.dim() == 4 and not z.is_contiguous() and z.is_contiguous(memory_format=torch.channels_last)


def in_layout_of(there: Tensor, tensor: Tensor) -> Tensor:
    """The tensor with its channels last in memory if those of `there` come last, else as it is."""
    return tensor.contiguous(memory_format=torch.channels_last) if is_channels_last(there) else tensor
