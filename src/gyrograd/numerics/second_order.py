"""Layers whose second derivative costs what it should: same values, same derivatives of every order, fewer passes.

torch differentiates the gradient of Softplus in eight passes over memory, that of a batch normalisation in some twenty
(with sums for weights nobody asked about), and looks up every input of a max-pool again. Here the second derivative of
Softplus is one kernel, batch normalisation by running statistics is what it is, a scale and a shift for each channel,
and a max-pool whose windows do not overlap carries slopes straight to the winners' places and back. Convolutions are
those of `numerics.convolution`. Written out are Hardsigmoid, of which torch has no second derivative at all, and
`normalize`, whose is NaN for a vector of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from gyrograd.numerics.convolution import FastConvolutions, is_autocast
from gyrograd.numerics.kernels import softplus_bend
from gyrograd.numerics.normalization import ExactNormalization


def made_for_second_derivatives(x: Tensor) -> ExitStack:
    """For the block, layers are made to be differentiated twice. The graph keeps it: `backward` may come after.

    On a CPU those that pay there: convolutions whose weights are held and batch normalisation by running statistics,
    which together take a fifth to a third of an attack's step on small nets. Others are made exact, as for a first
    derivative.
    """
    if x.is_cuda:
        return all_layers()
    modes = ExitStack()
    modes.enter_context(ExactNormalization())  # sees what the others leave to torch
    modes.enter_context(SecondOrder(_ON_CPU))
    modes.enter_context(FastConvolutions(held_only=True))
    return modes


def all_layers() -> ExitStack:
    """The block itself, on any device."""
    modes = ExitStack()
    modes.enter_context(SecondOrder())
    modes.enter_context(FastConvolutions())
    return modes


def missing_derivatives() -> SecondOrder:
    """For the block, what torch can differentiate once only is made of what it can differentiate twice."""
    return SecondOrder(_MISSING)


def layers_as_now(x: Tensor) -> Callable[[], ExitStack]:
    """What opens, at any later time, the block that is open now, if there is one.

    For what torch computes again in `backward`: on CUDA a thread of its own does, which knows nothing of the block.
    """
    on = any(
        isinstance(mode, SecondOrder | ExactNormalization) for mode in _get_current_function_mode_stack()
    )
    return (lambda: made_for_second_derivatives(x)) if on else ExitStack


class SecondOrder(TorchFunctionMode):
    """For the block, these layers: Softplus, batch normalisation by given statistics, max-pools without overlap, and
    what torch has no second derivative of.
    """

    def __init__(self, layers: dict[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self.layers = _LAYERS if layers is None else layers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.layers and torch.is_grad_enabled() and isinstance(args[0], Tensor):
            return self.layers[func](*args, **kwargs)
        return func(*args, **kwargs)


def _softplus(z: Tensor, beta: float | int = 1, threshold: float | int = 20) -> Tensor:
    if not z.requires_grad:
        return F.softplus(z, beta, threshold)
    # autocast computes Softplus in float32, and does not see this one
    z = z.float() if is_autocast(z) else z
    out: Tensor = _Softplus.apply(z, float(beta), float(threshold))
    return out


class _Softplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.bend = beta, threshold
        return F.softplus(z, beta, threshold)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        return _SoftplusSlope.apply(z, slope, *ctx.bend), None, None


class _SoftplusSlope(torch.autograd.Function):
    """The first derivative of Softplus at z times the slope."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, slope: Tensor, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z, slope)
        ctx.bend = beta, threshold
        out: Tensor = torch.ops.aten.softplus_backward(slope, z, beta, threshold)
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        z, slope = ctx.saved_tensors
        to_z = bent(z, slope, v, *ctx.bend) if ctx.needs_input_grad[0] else None
        to_slope = _SoftplusSlope.apply(z, v, *ctx.bend) if ctx.needs_input_grad[1] else None
        return to_z, to_slope, None, None


def bent(z: Tensor, slope: Tensor, v: Tensor, beta: float, threshold: float) -> Tensor:
    """The second derivative of Softplus at z, times slope and v. One kernel on CUDA where no graph is kept."""
    if z.is_cuda and not torch.is_grad_enabled():
        return softplus_bend(z, v, slope, beta, threshold)
    gate = torch.sigmoid(beta * z)
    bend = torch.where(beta * z > threshold, 0.0, beta * gate * (1 - gate))
    return bend * slope * v


def _batch_normed(
    z: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if training or running_mean is None or running_var is None:
        return F.batch_norm(z, running_mean, running_var, weight, bias, training, momentum, eps)
    shape = (1, -1, *(1 for _ in z.shape[2:]))
    scale = torch.rsqrt(single(running_var) + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    return torch.addcmul(shift.view(shape), z, scale.view(shape)).to(z.dtype)


def single(z: Tensor) -> Tensor:
    """Half precision as single precision, in which torch's own normalisation computes; others as they are."""
    return z.float() if z.dtype in (torch.bfloat16, torch.float16) else z


def _max_pooled(
    z: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    size, step = _pair(kernel_size), _pair(stride or kernel_size)
    apart = size[0] <= step[0] and size[1] <= step[1]
    if return_indices or not apart or _pair(dilation) != [1, 1] or z.dim() != 4 or not z.requires_grad:
        pool: Any = F.max_pool2d
        return pool(z, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    value, places = torch.ops.aten.max_pool2d_with_indices(
        z.detach(), size, step, _pair(padding), [1, 1], ceil_mode
    )
    return _Picked.apply(z, places.flatten(2)).view_as(value)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _Picked(torch.autograd.Function):
    """The pixels at these places of each channel, no place twice."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.shape = z.shape
        return z.flatten(2).gather(2, places)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Placed.apply(slope, places, ctx.shape), None


class _Placed(torch.autograd.Function):
    """An image that is zero but at these places."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(places)
        return values.new_zeros(shape).flatten(2).scatter_(2, places, values).view(shape)

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        (places,) = ctx.saved_tensors
        return _Picked.apply(v, places), None, None


def _hardsigmoid(z: Tensor, inplace: bool = False) -> Tensor:
    out = F.relu6(z + 3) / 6
    return z.copy_(out) if inplace else out


def _normalized(
    z: Tensor, p: float | int = 2.0, dim: Any = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    """torch's second derivative of the size of a vector of zeros is NaN; Swin V2 has them, where it pads windows."""
    if p != 2 or out is not None:
        return F.normalize(z, p, dim, eps, out)
    squares = single(z).square().sum(dim, keepdim=True)
    zero = squares == 0
    size = squares.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
    return (single(z) / size.clamp_min(eps)).to(z.dtype)


_MISSING: dict[Any, Callable[..., Any]] = {F.hardsigmoid: _hardsigmoid, F.normalize: _normalized}
_ON_CPU: dict[Any, Callable[..., Any]] = {**_MISSING, F.batch_norm: _batch_normed}
_LAYERS: dict[Any, Callable[..., Any]] = {
    **_ON_CPU,
    F.softplus: _softplus,
    F.max_pool2d: _max_pooled,
    torch.max_pool2d: _max_pooled,
}
