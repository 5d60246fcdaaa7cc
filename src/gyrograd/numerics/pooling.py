"""Max-pooling by 2 x 2 on a CPU, and pooling whose second derivative is cheap: torch's values and derivatives.

torch's CPU kernel for max-pooling goes pixel by pixel unless channels come last: of a small net it takes as long as a
convolution. Windows of 2 x 2 that do not overlap are the larger of two rows and then of two columns, which torch
computes many pixels at a time. A slope moves straight to the position of the maximum and back: along the pixels of its
channel, or along all numbers in memory if channels come last, where going channel by channel would take twice as long.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.numerics.memory_layout import in_layout_of, is_channels_last

MAX_POOLS = {F.max_pool2d, torch.max_pool2d}
"""The functions that `max_pool_on_cpu` takes the place of."""


def max_pool_on_cpu(
    z: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d`, faster for 2 x 2 windows of even images on a CPU; anything else is left to torch."""
    window = pair(kernel_size), pair(stride or kernel_size), pair(padding), pair(dilation)
    usual = window == ([2, 2], [2, 2], [0, 0], [1, 1]) and not return_indices and z.dim() == 4
    dense = z.is_contiguous() or is_channels_last(z)
    if not usual or z.device.type != "cpu" or not dense or z.shape[2] % 2 or z.shape[3] % 2:
        pool: Any = F.max_pool2d
        return pool(z, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    if not (torch.is_grad_enabled() and z.requires_grad):
        return _largest(z)
    return _MaxPool.apply(z)


def pair(value: Any) -> list[int]:
    """One number, or a list of two or one, as a list of two."""
    if isinstance(value, int):
        return [value, value]
    return [*value] * (2 // max(1, len(value)))


def _largest(z: Tensor) -> Tensor:
    # Function modes need not see these operations, and each of them would cost as much as a small operation.
    with torch._C.DisableTorchFunction():
        rows = torch.maximum(z[:, :, ::2], z[:, :, 1::2])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _places(z: Tensor) -> Tensor:
    """The position of each window's maximum in its channel, the first of equals, as torch has it."""
    h, w = z.shape[2:]
    with torch._C.DisableTorchFunction():
        upper, lower = z[:, :, ::2], z[:, :, 1::2]
        below, column = lower > upper, torch.maximum(upper, lower)
        left, right = column[..., ::2], column[..., 1::2]
        below_left, below_right = below[..., ::2], below[..., 1::2]
        # Of two equal columns the left one, unless its maximum is below that of the right one. For flags, a > b is
        # "a and not b".
        is_right = (right > left) | ((right == left) & (below_left > below_right))
        is_below = (is_right & below_right) | (below_left > is_right)  # torch.where takes four times as long
        first = torch.arange(0, h, 2)[:, None] * w + torch.arange(0, w, 2)
        return (first + is_right).add_(is_below, alpha=w).flatten(2)


def places_in_memory(places: Tensor, shape: torch.Size) -> Tensor:
    """Positions in their channels, as torch's max-pool returns them, as positions in memory if channels come last."""
    (b, c, h, w), device = shape, places.device
    images = torch.arange(0, b * h * w * c, h * w * c, device=device)
    first = images.view(-1, 1, 1, 1) + torch.arange(c, device=device)
    return torch.add(first, places.permute(0, 2, 3, 1), alpha=c).flatten()


def windows_are_apart(kernel_size: Any, stride: Any = None, dilation: Any = 1, **_: Any) -> bool:
    """True if no pixel is in two windows of a max-pool with these settings, so that none is the maximum twice."""
    size, step = pair(kernel_size), pair(stride or kernel_size)
    return size[0] <= step[0] and size[1] <= step[1] and pair(dilation) == [1, 1]


class _MaxPool(torch.autograd.Function):
    """The largest value of each window of 2 x 2, and the positions of the maxima, to which slopes go back.

    With channels last a kernel of torch takes many channels at a time, and finds both. In the plain layout positions
    are looked up only if a slope comes back.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        ctx.places = ctx.in_channels = None
        if not is_channels_last(z):
            return _largest(z)
        with torch._C.DisableTorchFunction():
            largest: Tensor
            largest, ctx.in_channels = torch.ops.aten.max_pool2d_with_indices(z, [2, 2], [2, 2])
        return largest

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        if ctx.in_channels is None:
            if ctx.places is None:
                ctx.places = _places(z.detach())
            return Placed.apply(slope.flatten(2), ctx.places, z.shape)
        if not torch.is_grad_enabled() and z.dtype == torch.float32:
            # Faster than `PlacedInMemory`, but torch's derivative of it is not. (In bfloat16 it is slower.)
            window = ([2, 2], [2, 2], [0, 0], [1, 1], False)
            back = torch.ops.aten.max_pool2d_with_indices_backward
            return back(in_layout_of(z, slope), z, *window, ctx.in_channels)
        if ctx.places is None:
            with torch._C.DisableTorchFunction():
                ctx.places = places_in_memory(ctx.in_channels, z.shape)
        return PlacedInMemory.apply(slope, ctx.places, z.shape)


class Picked(torch.autograd.Function):
    """The pixels of each channel at given positions, no position twice. The derivative is `Placed`."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = z.shape
        return z.flatten(2).gather(2, places)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return Placed.apply(slope, places, ctx.shape), None


class Placed(torch.autograd.Function):
    """An image that is zero except at given positions. The derivative is `Picked`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(places)
        return values.new_zeros(shape).flatten(2).scatter_(2, places, values).view(shape)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return Picked.apply(v, places), None, None


class PickedInMemory(torch.autograd.Function):
    """The numbers at given positions in memory, none twice, in this shape, with channels last.

    The derivative is `PlacedInMemory`.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = z.shape
        return _with_channels_last(_by_pixels(z).index_select(0, places), shape)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return PlacedInMemory.apply(slope, places, ctx.shape), None, None


class PlacedInMemory(torch.autograd.Function):
    """An image with channels last that is zero except at given positions in memory. The derivative is
    `PickedInMemory`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = values.shape
        image, row = values.new_zeros(shape.numel()), _by_pixels(values)
        if row.dtype == torch.bfloat16:
            # Only bits are moved, and torch moves those of whole numbers three times as fast.
            image.view(torch.int16).scatter_(0, places, row.view(torch.int16))
            return _with_channels_last(image, shape)
        return _with_channels_last(image.scatter_(0, places, row), shape)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return PickedInMemory.apply(v, places, ctx.shape), None, None


def _by_pixels(z: Tensor) -> Tensor:
    """The numbers of an image in one row, pixel by pixel; a copy unless channels come last in memory."""
    return z.permute(0, 2, 3, 1).reshape(-1)


def _with_channels_last(row: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `_by_pixels`: a view of this shape."""
    b, c, h, w = shape
    return row.view(b, h, w, c).permute(0, 3, 1, 2)
