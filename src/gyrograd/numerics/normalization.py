"""Batch and instance normalisation with the right derivative on a CPU, for all strides.

torch's CPU kernel for the backward pass of batch normalisation (seen in 2.15, evaluation and training mode) reads its
input and the incoming slope in the wrong order if one of them has an axis of length one with an unusual stride. A
batch of one gets such a slope from `flatten(2).transpose(1, 2)`, the step from image to tokens; the gradient is then
silently off by a factor. Instance normalisation runs on the same kernel. The smallest program that shows it is in
docs/decisions/0011-a-batch-of-one.md.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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


NORMALIZATIONS = _BATCH | _INSTANCE
"""The functions that `exact_normalization` takes the place of."""


def exact_normalization(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a normalisation so that its derivatives are right, also in a `backward` that comes later."""
    z = args[0] if args else kwargs["input"]
    # Only an axis of length one can have an arbitrary stride; instance normalisation makes one itself, by joining
    # batch and channels.
    at_risk = z.device.type == "cpu" and z.dim() in (4, 5) and (func in _INSTANCE or 1 in z.shape)
    if not torch.is_grad_enabled() or not at_risk:
        return func(*args, **kwargs)
    named = {name: value for name, value in kwargs.items() if name != "input"}
    out = func(in_plain_strides(z), *args[1:], **named)
    return in_plain_strides(out) if isinstance(out, Tensor) else (in_plain_strides(out[0]), *out[1:])


def in_plain_strides(z: Tensor) -> Tensor:
    """z with the strides that its shape and layout imply; the slope that comes back has them, too.

    Nothing is copied on the way forward unless z is neither contiguous nor channels last.
    """
    # Through one flat axis: to differentiate a view that joins all axes torch has to put the slope in order first.
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if z.is_contiguous() or not z.is_contiguous(memory_format=formats[z.dim()]):
        return z.flatten().view(z.shape)
    last = z.movedim(1, -1)
    return last.flatten().view(last.shape).movedim(-1, 1)
