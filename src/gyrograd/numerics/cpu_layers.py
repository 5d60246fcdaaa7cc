"""Layers whose CPU kernels in torch are wrong or slow, replaced wherever gyrograd runs a model."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gyrograd.numerics.layer_mode import LayerMode
from gyrograd.numerics.linear import linear_on_cpu
from gyrograd.numerics.normalization import NORMALIZATIONS, exact_normalization
from gyrograd.numerics.pooling import MAX_POOLS, max_pool_on_cpu
from gyrograd.numerics.softplus import softplus_on_cpu


class CpuLayers(LayerMode):
    """Normalisations with the right derivative, and fast layers on a CPU, for the block.

    `backward` may be called after it. On other devices nothing changes. `held`: no gradient to weights will be asked
    for, though they may require one.
    """

    def __init__(self, held: bool = False) -> None:
        super().__init__()
        self.held = held

    def includes(self, other: LayerMode) -> bool:
        return isinstance(other, CpuLayers) and self.held >= other.held

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.softplus and args and isinstance(args[0], Tensor):
            return softplus_on_cpu(*args, **kwargs)
        if func in MAX_POOLS and args and isinstance(args[0], Tensor):
            return max_pool_on_cpu(*args, **kwargs)
        if func is F.linear and args and isinstance(args[0], Tensor):
            return linear_on_cpu(*args, **kwargs, held=self.held)
        return exact_normalization(func, args, kwargs) if func in NORMALIZATIONS else func(*args, **kwargs)
