"""Large linear layers on a CPU by oneDNN, which torch uses for convolutions: torch's values up to rounding.

torch multiplies matrices with MKL, which runs at half the speed of oneDNN on processors that are not Intel's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.numerics.convolution import is_autocast

FEWEST_WEIGHTS = 1 << 16
"""Smaller layers take no longer with MKL."""


def linear_on_cpu(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, held: bool = False) -> Tensor:
    """`F.linear`, faster for large layers with constant weights in single precision; others are left to torch.

    `held`: no gradient to a weight will be asked for, though the weights require one.
    """
    trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    if not _is_fast(x, weight) or (torch.is_grad_enabled() and trained and not held):
        return F.linear(x, weight, bias)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _product(x, weight, bias)
    out: Tensor = _Linear.apply(x, weight.detach(), None if bias is None else bias.detach())
    return out


def _is_fast(x: Tensor, weight: Tensor) -> bool:
    matrices = x.dim() == 2 and weight.dim() == 2 and len(x) > 0 and weight.numel() >= FEWEST_WEIGHTS
    single = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    fits = matrices and single and x.shape[1] == weight.shape[1] and not is_autocast(x)
    return fits and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Function modes need not see this operation, and a recorder would not know it.
    with torch._C.DisableTorchFunction():
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out


class _Linear(torch.autograd.Function):
    """The product of x and the transposed weight, whose derivative is a product with the weight: the same again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _Linear.apply(slope, weight.t(), None), None, None
