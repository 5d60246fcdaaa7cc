"""Context managers that change a mode for a block and put it back: evaluation, frozen weights, denormal numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gyrograd.types import Model


@contextmanager
def eval_mode(model: Model) -> Iterator[Model]:
    """Put every submodule into eval mode for the block; afterwards each has its own training flag again."""
    # Flag by flag: model.train() afterwards would also switch on layers that the user had frozen in eval mode.
    flags = [(module, module.training) for module in model.modules()]
    if not any(training for _, training in flags):
        yield model  # most models are; setting the flag of every module takes as long as a small pass on a GPU
        return
    model.eval()
    try:
        yield model
    finally:
        for module, flag in flags:
            module.training = flag


@contextmanager
def freeze_weights(*models: Model) -> Iterator[None]:
    """Let no weight require a gradient for the block: second derivatives to the input then cost half as much."""
    learning = [p for model in models for p in model.parameters() if p.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


def without_autocast(x: Tensor) -> torch.autocast:
    """Turn autocast off for the block on the device of x: a caller's autocast is meant for the model only."""
    return torch.autocast(x.device.type, enabled=False)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Treat numbers below 1e-38 as zero for the block.

    Softplus gradients are full of such numbers, and a CPU takes many times as long for each.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def denormals_are_zero() -> bool:
    """True if the processor counts numbers below 1e-38 as zero in this thread."""
    return bool(torch.tensor(1e-40) * 1 == 0)
