"""Convolutions with a cheap second derivative; values and derivatives are those of torch.

torch differentiates a convolution's gradient by convolutions with kernels as large as the image, and computes weight
gradients that nobody asked for. Here each derivative of a convolution, of any order, is one of three operations: the
convolution, its gradient to the input, its gradient to the weight. All three have fast kernels and are derivatives of
one another, so nothing else is ever called.

Each derivative has the layout in memory of the convolution's input. torch gives a result the layout of its first
argument, which may be a slope in the plain layout among activations with channels last: every operation on both then
takes several times as long as the copy that is made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyrograd.numerics.layer_mode import LayerMode
from gyrograd.numerics.memory_layout import in_layout_of

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


class FastConvolutions(LayerMode):
    """Makes second derivatives of convolutions cheap, for the block; `backward` may be called outside of it.

    `held_only`: only convolutions with frozen weights; the others are left to torch.
    """

    def __init__(self, held_only: bool = False) -> None:
        super().__init__()
        self.held_only = held_only

    def includes(self, other: LayerMode) -> bool:
        return isinstance(other, FastConvolutions) and self.held_only == other.held_only

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _DIMENSIONS and args and torch.is_grad_enabled():
            return _convolution(func, self.held_only, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Geometry:
    """How the kernel moves over the image."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out: Tensor = torch.ops.aten.convolution(x, weight, bias, *self._numbers())
        return out

    def input_gradient(self, slope: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Gradient to the input, given the slope at the output; only the shape of x matters."""
        settings = (*self._numbers(), [True, False, False])
        out: Tensor = torch.ops.aten.convolution_backward(slope, x, weight, None, *settings)[0]
        return out

    def weight_gradient(self, slope: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        """Gradient to the weight, given the slope at the output; only the shape of the weight matters."""
        settings = (*self._numbers(), [False, True, False])
        out: Tensor = torch.ops.aten.convolution_backward(slope, x, weight, None, *settings)[1]
        return out

    def _numbers(self) -> tuple[Any, ...]:
        still = [0] * len(self.stride)  # output padding, which only transposed convolutions have
        return list(self.stride), list(self.padding), list(self.dilation), False, still, self.groups


def _convolution(
    func: Any,
    held_only: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    n, trained = _DIMENSIONS[func], weight.requires_grad
    to_torch = trained if held_only else not (trained or x.requires_grad)
    if to_torch or isinstance(padding, str) or x.dim() != n + 2:
        out: Tensor = func(x, weight, bias, stride, padding, dilation, groups)
        return out
    x, weight = as_autocast(x), as_autocast(weight)
    geometry = Geometry(_each(stride, n), _each(padding, n), _each(dilation, n), groups)
    if x.device.type == "cpu" and not (trained or (bias is not None and bias.requires_grad)):
        # oneDNN adds the bias on the way, which saves a pass over memory.
        constant = None if bias is None else as_autocast(bias)
        whole: Tensor = _Convolution.apply(x, weight, geometry, True, constant)
        return whole
    out = _Convolution.apply(x, weight, geometry, True)
    if weight.requires_grad:
        # The weight gets a node of its own, which torch visits only if a gradient to a weight is asked for: an
        # autograd.Function is told which inputs require grad, not which gradients this backward pass needs.
        out = _Joined.apply(out, _AlongWeight.apply(weight, (x,), geometry, out.shape))
    return out if bias is None else out + as_autocast(bias).view(-1, *(1 for _ in range(n)))


def as_autocast(tensor: Tensor) -> Tensor:
    """The tensor in the precision of the `torch.autocast` block, which does not see our own functions."""
    return tensor.to(torch.get_autocast_dtype(tensor.device.type)) if is_autocast(tensor) else tensor


def is_autocast(tensor: Tensor) -> bool:
    """True if a `torch.autocast` block applies to the tensor; it leaves double precision alone."""
    return tensor.dtype != torch.float64 and torch.is_autocast_enabled(tensor.device.type)


def _each(value: Any, n: int) -> tuple[int, ...]:
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return numbers * n if len(numbers) == 1 else numbers


class _AlongWeight(torch.autograd.Function):
    """Adds nothing to the value and the gradient to the weight to the derivative."""

    # x comes in a tuple: a tensor argument would be an edge to x, and torch would visit this node for x's gradient too.

    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: tuple[Tensor], geometry: Geometry, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(weight)
        (ctx.x,), ctx.geometry = x, geometry
        return weight.new_empty(()).expand(shape)  # never read, so it takes no memory

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _WeightGradient.apply(slope, ctx.x, weight.detach(), ctx.geometry), None, None, None


class _Joined(torch.autograd.Function):
    """Returns the first argument; the slope goes to both."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, _: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return slope, slope


class _Convolution(torch.autograd.Function):
    """Linear in the input and in the weight, plus a constant per channel.

    `weight_apart`: `_AlongWeight` handles the gradient to the weight.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        geometry: Geometry,
        weight_apart: bool,
        constant: Tensor | None = None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry, ctx.weight_apart = geometry, weight_apart
        return geometry.convolution(x, weight, constant)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        slope = in_layout_of(x, slope)
        to_x, to_weight = ctx.needs_input_grad[0], ctx.needs_input_grad[1] and not ctx.weight_apart
        return (
            # Detached, because only the shape of x is used.
            _InputGradient.apply(slope, weight, x.detach(), ctx.geometry) if to_x else None,
            _WeightGradient.apply(slope, x, weight.detach(), ctx.geometry) if to_weight else None,
            None,
            None,
            None,
        )


class _InputGradient(torch.autograd.Function):
    """Linear in the slope and in the weight."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, weight: Tensor, like: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(slope, weight)
        ctx.geometry = geometry
        return geometry.input_gradient(slope, weight, like)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        slope, weight = ctx.saved_tensors
        v = in_layout_of(slope, v)
        to_slope, to_weight = ctx.needs_input_grad[:2]
        return (
            _Convolution.apply(v, weight, ctx.geometry, False) if to_slope else None,
            _WeightGradient.apply(slope, v, weight.detach(), ctx.geometry) if to_weight else None,
            None,
            None,
        )


class _WeightGradient(torch.autograd.Function):
    """Linear in the slope and in the input."""

    @staticmethod
    def forward(ctx: Any, slope: Tensor, x: Tensor, like: Tensor, geometry: Geometry) -> Tensor:
        ctx.save_for_backward(slope, x)
        ctx.geometry = geometry
        return geometry.weight_gradient(slope, like, x)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        slope, x = ctx.saved_tensors
        to_slope, to_x = ctx.needs_input_grad[:2]
        return (
            _Convolution.apply(x, v, ctx.geometry, False) if to_slope else None,
            _InputGradient.apply(slope, v, x.detach(), ctx.geometry) if to_x else None,
            None,
            None,
        )
