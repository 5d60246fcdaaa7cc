"""Batch and instance normalisation whose derivative is right on a CPU, whatever the strides.

torch's CPU kernel for the backward pass of batch normalisation (seen in 2.15, evaluation and training mode) reads its
input and the incoming slope in the wrong order where one of them has an axis of length one with an unusual stride. A
batch of one gets such a slope from `flatten(2).transpose(1, 2)`, the step from image to tokens; the gradient is then
off by a factor, in silence. Instance normalisation runs on the same kernel. The smallest program that shows it is in
docs/decisions/0011-a-batch-of-one.md.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten
_BATCH = {
    F.batch_norm,
    torch.batch_norm,
    # what models saved with torch.export call
    _aten.batch_norm.default,
    _aten._native_batch_norm_legit_no_training.default,
    _aten._native_batch_norm_legit.default,
}
_INSTANCE = {F.instance_norm, torch.instance_norm, _aten.instance_norm.default}


class ExactNormalization(TorchFunctionMode):
    """For the block, normalisations have torch's values and right derivatives. The graph keeps it: `backward` may
    come after.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _BATCH and func not in _INSTANCE:
            return func(*args, **kwargs)
        z, rest, named = (
            (args[0], args[1:], kwargs) if args else (kwargs["input"], (), _without_input(kwargs))
        )
        if not torch.is_grad_enabled() or not _is_at_risk(z, func in _INSTANCE):
            return func(*args, **kwargs)
        out = func(in_plain_strides(z), *rest, **named)
        return in_plain_strides(out) if isinstance(out, Tensor) else (in_plain_strides(out[0]), *out[1:])


def _without_input(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "input"}


def _is_at_risk(z: Tensor, instance: bool) -> bool:
    """Only an axis of length one leaves a stride open, and instance normalisation makes one of batch and channels."""
    return z.device.type == "cpu" and z.dim() in (4, 5) and (instance or 1 in z.shape)


def in_plain_strides(z: Tensor) -> Tensor:
    """z itself with the strides its shape and layout call for; the slope that comes back to it has them too.

    By way of one axis: the derivative of a view that joins all axes must bring the slope into order first. Nothing is
    copied on the way forward unless z is neither contiguous nor channels last.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if z.is_contiguous() or not z.is_contiguous(memory_format=formats[z.dim()]):
        return z.flatten().view(z.shape)
    last = z.movedim(1, -1)
    return last.flatten().view(last.shape).movedim(-1, 1)
