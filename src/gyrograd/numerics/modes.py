"""Training and evaluation mode, left as found."""

from collections.abc import Iterator
from contextlib import contextmanager

from gyrograd.types import Model


@contextmanager
def evaluating(model: Model) -> Iterator[Model]:
    """Every submodule in eval mode for the block; afterwards each has its own training flag back."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, flag in flags:
            module.training = flag
