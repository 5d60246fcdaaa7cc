"""Context managers that change a mode for a block and put it back: evaluation, frozen weights, denormal numbers."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gyrograd.types import Model

_IN_EVAL: WeakKeyDictionary[nn.Module, tuple[int, bool]] = WeakKeyDictionary()
"""Per module in an open block of `eval_mode`: the number of blocks, and its training flag before the first one."""
_FLAGS = Lock()


@contextmanager
def eval_mode(model: Model) -> Iterator[Model]:
    """Put every submodule into eval mode for the block; afterwards each has its own training flag again."""
    modules = list(model.modules())
    with _FLAGS:
        if not _IN_EVAL and not any(module.training for module in modules):
            modules = []  # most models are; setting the flag of every module takes as long as a small pass on a GPU
        # Counted, because blocks of two threads may overlap: the first to end must not end the eval mode of the other.
        for module in modules:
            blocks, flag = _IN_EVAL.get(module, (0, module.training))
            _IN_EVAL[module] = blocks + 1, flag
    try:
        if modules:
            model.eval()
        yield model
    finally:
        with _FLAGS:
            for module in modules:
                blocks, flag = _IN_EVAL.pop(module)
                if blocks > 1:
                    _IN_EVAL[module] = blocks - 1, flag
                else:
                    # Flag by flag: model.train() would also switch on layers that the user had frozen in eval mode.
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
    before = denormals_are_zero()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def denormals_are_zero() -> bool:
    """True if the processor counts numbers below 1e-38 as zero in this thread."""
    return bool(torch.tensor(1e-40) * 1 == 0)


def keep_freed_memory() -> None:
    """Let this process keep the memory it frees, for its next tensors. On Linux with glibc; elsewhere nothing changes.

    glibc hands blocks of more than 128 KB to 32 MB back to the system when they are freed. Activations are of that
    size, and getting each of them again, page by page, took a seventh of the time of an attack on SmoothGrad.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, 1 << 30) or mallopt(
            M_MMAP_THRESHOLD, 1 << 25
        )  # older ones allow no more than 32 MB
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h: how much freed memory is kept, and from which size on a block is mapped by itself."""
