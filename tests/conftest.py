"""What holds for every test: checked signatures, one thread, the same draws."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Two test processes share two cores: one thread each is faster than two that wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from shape_checks import install

# No test may pass because this machine happens to have a data set, or fail because it has not.
os.environ["GYROGRAD_DATA"] = str(Path(__file__).parent / "no_data_sets_here")

# Tests start some hundred processes. Each would compile gyrograd again, for seconds, where byte code is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Files are written as always, but no test cuts the power: waiting for the disk shows nothing. Tests that ask what
# happens while it is waited for put a function of their own here.
os.fsync = lambda _: None
install()

settings.register_profile("gyrograd", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("gyrograd")


@pytest.fixture(autouse=True)
def _same_draws_in_any_order() -> None:
    """What a test draws from torch's own generator does not depend on the tests before it."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def smoke_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every experiment has run twice. Nothing may be written or changed in it."""
    from smoke_runs import finished_runs

    return finished_runs(tmp_path_factory)
