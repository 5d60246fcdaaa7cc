"""Passes in bfloat16 on a CPU: twice as fast as single precision on processors that have instructions for it.

bfloat16 has the range of single precision and a third of its digits. That is too coarse for a number that is reported,
and enough to tell in which direction to step.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from gyrograd.types import Model

SHARPEST_BETA = 5.0
"""A sharper Softplus bends in a band around zero so narrow that rounding to bfloat16 blurs it, and with it the second
derivative."""


def bfloat16_pays(model: Model, x: Tensor) -> bool:
    """True if passes of the model on x are faster in bfloat16, and precise enough to be differentiated twice.

    They are for single-precision images on a CPU with instructions for bfloat16, if the model has a dense convolution
    and no sharp Softplus.
    """
    single = x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cpu"
    if not (single and is_fast_in_bfloat16()):
        return False
    modules = list(model.modules())
    dense = any(isinstance(module, nn.Conv2d) and module.groups == 1 for module in modules)
    sharp = any(isinstance(module, nn.Softplus) and module.beta > SHARPEST_BETA for module in modules)
    return dense and not sharp


@cache
def is_fast_in_bfloat16() -> bool:
    """True if this processor multiplies numbers in bfloat16; others convert them first, which is slower."""
    asked = [
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    ]
    # Kernels for smaller processors can be asked for (ATEN_CPU_CAPABILITY), and have no such instructions.
    largest = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return largest and torch.backends.mkldnn.is_available() and any(ask() for ask in asked if ask is not None)


def in_bfloat16() -> torch.autocast:
    """Run convolutions and linear layers on a CPU, and the layers that follow them, in bfloat16 for the block."""
    return torch.autocast("cpu", torch.bfloat16)
