"""Baselines: the image a path starts from, or that fills hidden parts."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.numerics.modes import without_autocast
from gyrograd.types import Inputs

Baseline = str | float | int | tuple[float, ...] | Tensor
"""`zero`, `mean` (each image's own mean colour), `blur` (the image, blurred), a grey value, a colour, or images."""

NAMED = ("zero", "mean", "blur")


def check_baseline(baseline: Baseline) -> None:
    """Refuse an unknown name of a baseline."""
    if isinstance(baseline, str):
        check_name("baseline", baseline, NAMED)


def baseline_of(x: Inputs, baseline: Baseline) -> Inputs:
    """The baseline per example, shaped like x. `mean` and `blur` depend on x, and derivatives pass through them."""
    check_baseline(baseline)
    if isinstance(baseline, tuple):
        if len(baseline) != x.shape[1]:
            raise UserError(
                f"The baseline colour has {len(baseline)} values for {x.shape[1]} channels; give one each."
            )
        colour = torch.tensor(baseline, dtype=x.dtype, device=x.device)
        return colour.reshape(-1, *[1] * (x.dim() - 2)).expand_as(x)
    if not isinstance(baseline, str):
        return _broadcast(x, baseline)
    if baseline == "zero":
        return torch.zeros_like(x)
    if x.dim() != 4:
        raise UserError(
            f"Baseline '{baseline}' needs images b c h w, not {tuple(x.shape)}; use baseline='zero' or a number."
        )
    return _blur(x) if baseline == "blur" else x.flatten(2).mean(2)[..., None, None].expand_as(x)


def examples_of(x: Inputs, baseline: Tensor) -> Tensor:
    """Several examples that serve as baselines, with the type and device of x."""
    if baseline.shape[1:] != x.shape[1:] or not len(baseline):
        raise UserError(
            f"The baselines are shaped {tuple(baseline.shape)} for examples of {tuple(x.shape[1:])}; give "
            "several examples of that shape."
        )
    return baseline.to(x.device, x.dtype)


def _broadcast(x: Tensor, baseline: float | Tensor) -> Tensor:
    """A number everywhere, or a tensor that broadcasts to x."""
    fill = torch.as_tensor(baseline, dtype=x.dtype, device=x.device)
    try:
        return fill.expand_as(x)
    except RuntimeError:
        raise UserError(
            f"The baseline is shaped {tuple(fill.shape)} and does not broadcast to {tuple(x.shape)}; "
            "give it the shape of x or of one image."
        ) from None


def _blur(x: Tensor) -> Tensor:
    """Gaussian blur with a standard deviation of an eighth of the shorter side; edges repeat."""
    sigma = min(x.shape[2:]) / 8
    radius = min(math.ceil(2 * sigma), min(x.shape[2:]) - 1)
    offsets = torch.arange(-radius, radius + 1, dtype=x.dtype, device=x.device)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2)
    weights = (weights / weights.sum()).repeat(x.shape[1], 1, 1, 1)
    padded = F.pad(x, (radius, radius, radius, radius), mode="replicate")
    with without_autocast(x):
        # A Gaussian is separable: rows, then columns, take 2 n products per pixel in place of n^2.
        rows = F.conv2d(padded, weights, groups=x.shape[1])
        return F.conv2d(rows, weights.transpose(2, 3), groups=x.shape[1])
