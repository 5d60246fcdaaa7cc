"""Layers whose CPU kernels in torch are wrong or slow, replaced wherever gyrograd runs a model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack

from gyrograd.numerics.layer_mode import LayerMode, is_watched
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


def pool_activations(z: Tensor, activation: nn.Module, pool: nn.Module) -> Tensor:
    """`pool(activation(z))`; inside `CpuLayers` a Softplus comes after the max-pool, on a quarter of the numbers.

    Softplus rises, so that the largest value is that of the largest number: values and derivatives are the same. A
    hook or a recorder on the way sees the layers in their order.
    """
    swapped = (
        type(activation) is nn.Softplus
        and type(pool) is nn.MaxPool2d
        and not pool.return_indices
        # In double precision torch's Softplus falls by 2e-9 at its threshold.
        and z.dtype in (torch.float32, torch.bfloat16)
        and z.device.type == "cpu"
        and any(isinstance(mode, CpuLayers) for mode in _get_current_function_mode_stack())
        and not (is_watched() or _has_any_global_hook() or _has_hooks(activation) or _has_hooks(pool))
    )
    out: Tensor = activation(pool(z)) if swapped else pool(activation(z))
    return out


def _has_hooks(module: nn.Module) -> bool:
    return any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))
