"""Activations that backward computes again in place of keeping them, so that memory holds those of one part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.second_order import layers_as_now
from gyrograd.types import Model


def recomputed_in_backward(run: Callable[..., Tensor], model: Model, *inputs: Tensor) -> Tensor:
    """`run(*inputs)`, which passes the inputs through the model; a graph keeps the inputs and no activations."""
    if not torch.is_grad_enabled():
        return run(*inputs)
    mode = nullcontext if model.training else partial(eval_mode, model)
    layers = layers_as_now()

    def again(*inputs: Tensor) -> Tensor:
        # The recomputation may happen after the caller has restored the model's mode and attention kernel.
        with mode(), sdpa_kernel(SDPBackend.MATH), layers():
            return run(*inputs)

    # The reentrant kind supports neither torch.autograd.grad nor second derivatives.
    result: Tensor = checkpoint(again, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result
