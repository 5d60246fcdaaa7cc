"""Versions and hardware behind the numbers, for records, cards and pages."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from gyrograd.registry import load_plugins
from gyrograd.version import __version__


def versions() -> dict[str, str]:
    """Versions that affect the results."""
    own = {"gyrograd": __version__, "torch": torch.__version__, "python": platform.python_version()}
    return own | load_plugins()


def hardware(device: torch.device | str = "cpu") -> str:
    """Number of cores and processor, or the accelerator if the device is one."""
    place = torch.device(device)
    extra = f", {torch.cuda.get_device_name(place)}" if place.type == "cuda" else ""
    return f"{_own_cores()} cores, {platform.machine()}{extra}"


def usable_cores(control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores that this process may keep busy: its own ones, less if a container has a quota of CPU time, and no more
    than torch has threads (OMP_NUM_THREADS=1 asks for one core)."""
    return max(1, min(_own_cores(), torch.get_num_threads(), _quota(control_group)))


def _own_cores() -> int:
    # Not os.cpu_count() alone, which counts all cores of the machine: a batch system may allow fewer.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota(control_group: Path) -> int:
    """Whole cores of a container's quota (control groups, version 2 and 1); without one, more than any machine has."""
    try:
        if (control_group / "cpu.max").exists():
            quota, period = (control_group / "cpu.max").read_text().split()
        else:
            quota, period = (
                (control_group / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
        # Version 1 writes -1 for no quota.
        return int(quota) // int(period) if int(quota) > 0 else UNLIMITED
    except (OSError, ValueError):  # no container, or "max"
        return UNLIMITED


UNLIMITED = 1 << 20


def free_memory() -> int:
    """Bytes of memory that are free or could be freed; without Linux's count, more than any machine has."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        # Not MemFree, which leaves out the cache of files, which the system gives up when asked.
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return 1 << 62
