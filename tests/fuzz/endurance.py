"""Audit one image many times in one process and watch what grows: `make endurance [AUDITS=1000]`.

Every `--every` audits it prints resident memory, threads, open files and Python objects. The first tenth warms up
(libraries imported on first use, caches filled). After it, threads and open files must not rise at all, objects by less
than one per audit, and memory by less than 20 kB per audit: the exit code is 1 if one does.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn

import gyrograd as gg
from gyrograd.audit import Preset

SMALLEST = Preset(
    methods=("gradient",),
    attacks=("top_k",),
    curve=(),
    steps=1,
    draws=1,
    points=2,
    sweep={},
    bound_images=1,
    bound_draws=1,
    flag_images=1,
    pictures=1,
)
BOUNDS = {"memory_kb": 20.0, "threads": 0.0, "files": 0.0, "objects": 1.0}
"""What each may rise by per audit, once warm."""


def tiny_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(3), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()


def state() -> dict[str, int]:
    """What a leak would raise, after a collection of garbage. Threads are the system's, torch's own among them."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    words = {line.split(":")[0]: line.split()[1] for line in status.splitlines() if len(line.split()) > 1}
    return {
        "memory_kb": int(words["VmRSS"]),
        "threads": max(int(words["Threads"]), threading.active_count()),
        "files": len(os.listdir("/proc/self/fd")),
        "objects": len(gc.get_objects()),
    }


def rises(history: list[tuple[int, dict[str, int]]]) -> list[str]:
    """A sentence for each number that rose by more than its bound per audit, from the first reading to the last."""
    (first, before), (last, after) = history[0], history[-1]
    grown = {name: (after[name] - before[name]) / max(1, last - first) for name in BOUNDS}
    return [
        f"{name} rises by {grown[name]:.3g} per audit; at most {bound:g} is allowed"
        for name, bound in BOUNDS.items()
        if grown[name] > bound
    ]


def watch(audits: int, every: int) -> list[tuple[int, dict[str, int]]]:
    """The readings after each `every` audits, the first once warm."""
    model, x, y = tiny_net(), torch.rand(1, 3, 8, 8), torch.tensor([1])
    history: list[tuple[int, dict[str, int]]] = []
    started = time.monotonic()
    for number in range(1, audits + 1):
        gg.audit(model, x, y, preset=SMALLEST, seed=number)
        if number % every == 0 or number == audits:
            now = state()
            if number >= audits / 10:
                history.append((number, now))
            told = "  ".join(f"{name} {value:,}" for name, value in now.items())
            print(f"{number:6} audits  {time.monotonic() - started:6.0f} s  {told}", flush=True)
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    given = parser.parse_args()
    troubles = rises(watch(given.audits, given.every))
    print("\n".join(troubles) or "Nothing grows.")
    return int(bool(troubles))


if __name__ == "__main__":
    sys.exit(main())
