"""Softplus with cheap values on a CPU and cheap derivatives everywhere; both are torch's up to rounding.

torch computes Softplus by log1p. On some processors with AVX-512 its log1p goes number by number, which takes longer
than the convolutions around it, and its log is never cheap. Here the logarithm is a sigmoid and a polynomial of it.
torch differentiates the gradient of Softplus in eight passes over memory; here the second derivative is one kernel on
CUDA, and on a CPU the sigmoid that every derivative needs is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.numerics.convolution import is_autocast
from gyrograd.numerics.kernels import softplus_bend
from gyrograd.numerics.memory_layout import in_layout_of, is_channels_last

SIGMOID_IS_ONE = 20
"""From here on the sigmoid is 1, and Softplus its argument, in single precision."""
NUMBERS_AT_ONCE = 1 << 17
"""Numbers per block on a CPU: the nine passes over a block stay in the cache."""
ARTANH = (0.99999983, 0.3333801, 0.19794582, 0.17113791)
"""Coefficients of 1, s^2, s^4 and s^6 in artanh(s) / s for s up to 1/3: relative error at most 1.7e-7, the least
possible with four."""
SHORT_ARTANH = (0.99966, 0.35737)
"""The same with two: relative error at most 3.5e-4, a tenth of the distance between numbers in bfloat16."""
# `addcmul` takes no plain number as its first argument.
_ZERO, _LOG_HALF, _SHORT_TERM, *_TERMS = (
    torch.tensor(number, dtype=torch.float32, device="cpu")
    for number in (0.0, math.log(0.5), SHORT_ARTANH[0], *ARTANH)
)


def softplus_on_cpu(z: Tensor, beta: float | int = 1, threshold: float | int = 20) -> Tensor:
    """Softplus, faster in single precision and in bfloat16 on a CPU; anything else is left to torch."""
    # In double precision the sigmoid is not 1 above torch's threshold, from which torch has Softplus linear.
    known = z.dtype in (torch.float32, torch.bfloat16) and z.device.type == "cpu"
    if not known or threshold < SIGMOID_IS_ONE or beta <= 0:
        return F.softplus(z, beta, threshold)
    if not (torch.is_grad_enabled() and z.requires_grad):
        return _values(z, float(beta))
    out: Tensor = _GatedSoftplus.apply(z, float(beta), float(threshold))
    return out


def _values(z: Tensor, beta: float) -> Tensor:
    """log(1 + exp(beta z)) / beta as max(z, 0) + log1p(e) / beta with e = exp(-|beta z|), which cannot overflow."""
    # log1p(e) = 2 artanh(s) with s = e / (2 + e), which is the sigmoid of -|beta z| - log(2). Small values of e keep
    # all their digits in s, and s is at most 1/3, where four terms of artanh suffice, and two for bfloat16.
    with torch._C.DisableTorchFunction():
        # Function modes need not see these operations, and each of them would cost as much as a small operation.
        out = torch.empty_like(z)
        for part, place in _blocks(z, out):
            if z.dtype == torch.bfloat16:
                wide = part.float()
                s = torch.add(_LOG_HALF, torch.abs(wide), alpha=-beta).sigmoid_()
                curve = torch.addcmul(_SHORT_TERM, s, s, value=SHORT_ARTANH[1])
                place.copy_(torch.relu(wide).addcmul_(curve, s, value=2 / beta))
                continue
            s = torch.add(_LOG_HALF, torch.abs(part, out=place), alpha=-beta, out=place).sigmoid_()
            square = s * s
            curve = torch.add(_TERMS[2], square, alpha=ARTANH[3])
            torch.addcmul(_TERMS[1], curve, square, out=curve)
            torch.addcmul(_TERMS[0], curve, square, out=curve)
            torch.addcmul(torch.relu(part), s, curve, value=2 / beta, out=place)
    return out


def _blocks(z: Tensor, out: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Pairs of blocks of two tensors as they lie in memory; both whole if z has gaps or an unusual order of axes."""
    if is_channels_last(z):
        z, out = z.movedim(1, -1), out.movedim(1, -1)
    if not z.is_contiguous():
        return [(z, out)]
    return zip(z.view(-1).split(NUMBERS_AT_ONCE), out.view(-1).split(NUMBERS_AT_ONCE), strict=True)


def softplus(z: Tensor, beta: float | int = 1, threshold: float | int = 20) -> Tensor:
    """Softplus with a second derivative in one kernel, for any device and precision."""
    if not z.requires_grad:
        return F.softplus(z, beta, threshold)
    # autocast computes Softplus in float32, but does not see a function of our own
    z = z.float() if is_autocast(z) else z
    out: Tensor = _Softplus.apply(z, float(beta), float(threshold))
    return out


class _GatedSoftplus(torch.autograd.Function):
    """Softplus for a CPU: the sigmoid, which every derivative needs, is computed once and kept."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.bend, ctx.gate = (beta, threshold), None
        return _values(z, beta)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        # From a linear layer it comes plain, and torch goes through two layouts number by number.
        slope = in_layout_of(z, slope)
        if ctx.gate is None and not torch.is_grad_enabled():
            # No further derivative will need the sigmoid; torch's kernel takes one pass over memory in place of three.
            return torch.ops.aten.softplus_backward(slope, z, *ctx.bend), None, None
        if ctx.gate is None:
            beta = ctx.bend[0]
            ctx.gate = torch.sigmoid(z.detach()) if beta == 1 else (z.detach() * beta).sigmoid_()
        return _Gated.apply(z, slope, ctx.gate, *ctx.bend), None, None


class _Gated(torch.autograd.Function):
    """First derivative of Softplus at z, times the slope; `gate` is the sigmoid of beta z."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, slope: Tensor, gate: Tensor, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z, slope, gate)
        ctx.bend = beta, threshold
        return slope * gate

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        z, slope, gate = ctx.saved_tensors
        v = in_layout_of(z, v)
        to_z = to_slope = None
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled():
                to_z = bent(z, slope, v, *ctx.bend)
            else:  # the same in two passes over memory
                both = torch.addcmul(_ZERO, v, slope, value=ctx.bend[0])
                to_z = torch.ops.aten.sigmoid_backward(both, gate)
        if ctx.needs_input_grad[1]:
            to_slope = _Gated.apply(z, v, gate, *ctx.bend)
        return to_z, to_slope, None, None, None


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
    """First derivative of Softplus at z, times the slope."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, slope: Tensor, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z, slope)
        ctx.bend = beta, threshold
        out: Tensor = torch.ops.aten.softplus_backward(slope, z, beta, threshold)
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        z, slope = ctx.saved_tensors
        # Skip what nobody asked for: to_z is the expensive kernel, and first-order callers do not need it.
        to_z = bent(z, slope, v, *ctx.bend) if ctx.needs_input_grad[0] else None
        to_slope = _SoftplusSlope.apply(z, v, *ctx.bend) if ctx.needs_input_grad[1] else None
        return to_z, to_slope, None, None


def bent(z: Tensor, slope: Tensor, v: Tensor, beta: float, threshold: float) -> Tensor:
    """Second derivative of Softplus at z, times slope and v; one kernel on CUDA if no graph is kept."""
    if z.is_cuda and not torch.is_grad_enabled():
        return softplus_bend(z, v, slope, beta, threshold)
    gate = torch.sigmoid(beta * z)
    bend = torch.where(
        beta * z > threshold, 0.0, beta * gate * (1 - gate)
    )  # torch is linear above the threshold
    return bend * slope * v
