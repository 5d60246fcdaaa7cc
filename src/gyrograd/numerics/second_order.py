"""Layers with a cheap second derivative: torch's values, torch's derivatives of every order, fewer passes over memory.

torch differentiates the gradient of batch normalisation in some twenty passes over memory (with sums for weights that
need no gradient), and looks up every input of a max-pool again. Here batch normalisation by running statistics is a
scale and a shift per channel; a max-pool whose windows do not overlap moves slopes straight to the positions of the
maxima and back. Convolutions are those of `numerics.convolution`, Softplus is that of `numerics.softplus`. Hardsigmoid
and `normalize` are written out: torch has no second derivative of the first, and returns NaN for that of the second at
a vector of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from gyrograd.numerics.convolution import FastConvolutions
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.layer_mode import LayerMode
from gyrograd.numerics.pooling import Picked, pair, windows_are_apart
from gyrograd.numerics.softplus import softplus


def made_for_second_derivatives(x: Tensor) -> ExitStack:
    """Use layers that can be differentiated twice, for the block; `backward` may be called after it.

    On a CPU only the layers that are cheaper there: convolutions with frozen weights (torch differentiates grouped ones
    group by group, which took half the time of an EfficientNet), batch normalisation by running statistics, and those
    that every run of a model has there (`CpuLayers`).
    """
    if x.is_cuda:
        return all_layers()
    modes = ExitStack()
    modes.enter_context(CpuLayers())  # sees what the others leave to torch
    modes.enter_context(SecondOrder(_ON_CPU))
    modes.enter_context(FastConvolutions(held_only=True))
    return modes


def all_layers() -> ExitStack:
    """All replacements, on any device, for the block."""
    modes = ExitStack()
    modes.enter_context(SecondOrder())
    modes.enter_context(FastConvolutions())
    return modes


def missing_derivatives() -> SecondOrder:
    """Replace layers that torch can differentiate only once, for the block."""
    return SecondOrder(_MISSING)


def layers_as_now() -> Callable[[], ExitStack]:
    """A function that reopens, at any later time, the replacements that are open now.

    For parts that torch recomputes in `backward`: after the block, and on CUDA in another thread, which does not have
    the function modes of this one.
    """
    of_ours = (SecondOrder, CpuLayers, FastConvolutions)
    wanted = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, of_ours)]

    def reopen() -> ExitStack:
        # A mode that is still open must not be opened again on top: a recorder below it would see inside its layers.
        missing = [mode for mode in wanted if mode not in _get_current_function_mode_stack()]
        modes = ExitStack()
        for mode in missing:
            modes.enter_context(mode)
        return modes

    return reopen


class SecondOrder(LayerMode):
    """Replaces layers for the block: all of this module, or those given."""

    def __init__(self, layers: dict[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self.layers = _LAYERS if layers is None else layers

    def includes(self, other: LayerMode) -> bool:
        return isinstance(other, SecondOrder) and self.layers is other.layers

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.layers and torch.is_grad_enabled() and args and isinstance(args[0], Tensor):
            return self.layers[func](*args, **kwargs)
        return func(*args, **kwargs)


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
    # With fixed statistics the layer is affine; written so, its second derivative to z is known to be zero.
    shape = (1, -1, *(1 for _ in z.shape[2:]))
    scale = torch.rsqrt(single(running_var) + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    return torch.addcmul(shift.view(shape), z, scale.view(shape)).to(z.dtype)


def single(z: Tensor) -> Tensor:
    """Half precision converted to single, in which torch's own normalisation computes; others unchanged."""
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
    # In overlapping windows a pixel can be the maximum twice, and `scatter_` would lose one of its slopes.
    apart = windows_are_apart(kernel_size, stride, dilation)
    if return_indices or not apart or z.dim() != 4 or not z.requires_grad:
        pool: Any = F.max_pool2d
        return pool(z, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    size, step = pair(kernel_size), pair(stride or kernel_size)
    value, places = torch.ops.aten.max_pool2d_with_indices(
        z.detach(), size, step, pair(padding), [1, 1], ceil_mode
    )
    return Picked.apply(z, places.flatten(2)).view_as(value)


def _hardsigmoid(z: Tensor, inplace: bool = False) -> Tensor:
    out = F.relu6(z + 3) / 6
    return z.copy_(out) if inplace else out


def _normalize(
    z: Tensor, p: float | int = 2.0, dim: Any = 1, eps: float = 1e-12, out: Tensor | None = None
) -> Tensor:
    # torch's second derivative of the norm of a zero vector is NaN, and Swin V2 has such vectors in padded windows.
    if p != 2 or out is not None:
        return F.normalize(z, p, dim, eps, out)
    squares = single(z).square().sum(dim, keepdim=True)
    zero = squares == 0
    # The root is taken of 1 in place of 0, so that no infinite slope is multiplied by zero.
    size = squares.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)
    return (single(z) / size.clamp_min(eps)).to(z.dtype)


_MISSING: dict[Any, Callable[..., Any]] = {F.hardsigmoid: _hardsigmoid, F.normalize: _normalize}
_ON_CPU: dict[Any, Callable[..., Any]] = {
    **_MISSING,
    F.batch_norm: _batch_normed,
}
_LAYERS: dict[Any, Callable[..., Any]] = {
    **_ON_CPU,
    F.softplus: softplus,
    F.max_pool2d: _max_pooled,
    torch.max_pool2d: _max_pooled,
}
