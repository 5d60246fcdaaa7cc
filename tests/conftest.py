"""Shapes in signatures are checked at run time in the tests, and only there."""

from __future__ import annotations

import os

# Two test processes share two cores: one thread each is faster than two that wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("gyrograd", "beartype.beartype")

settings.register_profile("gyrograd", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("gyrograd")


@pytest.fixture(autouse=True)
def _same_draws_in_any_order() -> None:
    """What a test draws from torch's own generator does not depend on the tests before it."""
    import torch

    torch.manual_seed(0)
