"""What numbers were made with: versions and the machine, as records, cards and pages say it."""

from __future__ import annotations

import os
import platform

import torch

from gyrograd.registry import load_plugins
from gyrograd.version import __version__


def versions() -> dict[str, str]:
    """Versions that affect the results."""
    own = {"gyrograd": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return own | load_plugins()


def hardware(device: torch.device | str = "cpu") -> str:
    """Cores and processor; the accelerator where the work is done on one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    place = torch.device(device)
    extra = f", {torch.cuda.get_device_name(place)}" if place.type == "cuda" else ""
    return f"{cores} cores, {platform.machine()}{extra}"
