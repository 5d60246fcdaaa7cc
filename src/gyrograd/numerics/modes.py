"""Training and evaluation mode, weights that learn, tiny numbers: changed for a block, left as found."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gyrograd.types import Model


@contextmanager
def eval_mode(model: Model) -> Iterator[Model]:
    """Every submodule in eval mode for the block; afterwards each has its own training flag back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def weights_held(*models: Model) -> Iterator[None]:
    """No weight requires a gradient for the block: second derivatives to the input alone cost half as much."""
    learning = [p for model in models for p in model.parameters() if p.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def without_autocast(x: Tensor) -> torch.autocast:
    """For the block, numbers on the device of x keep their precision: a caller's autocast is for the model alone."""
    return torch.autocast(x.device.type, enabled=False)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Numbers below 1e-38 count as zero. Softplus gradients are full of them and a CPU takes many times as long.

    The processor's state is put back: whoever calls this from Python has denormals again afterwards.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def denormals_are_zero() -> bool:
    """True if the processor counts numbers below 1e-38 as zero in this thread."""
    return bool(torch.tensor(1e-40) * 1 == 0)
