"""The cost of training steps, in seconds and bytes: several objectives in turn in one process."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Step = Callable[[], None]


@dataclass(frozen=True)
class Cost:
    """Seconds and peak bytes of one step."""

    seconds: float
    memory: float


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors that were created in the block; `peak` is the maximum.

    PyTorch's CPU allocator reports no peak. A storage is counted once, however many views it has. Workspaces inside
    an operation are not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, Tensor):
                self._count(value)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def side_by_side(steps: Mapping[str, Step], rounds: int, device: str = "cpu") -> dict[str, list[Cost]]:
    """The cost of each step in each round. Each round runs all steps once, so a slow moment affects all of them."""
    for step in steps.values():
        step()  # warm up allocators, kernels and caches
    costs: dict[str, list[Cost]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            costs[name].append(Cost(_seconds(step, device), _bytes(step, device)))
    return costs


def _seconds(step: Step, device: str) -> float:
    _wait(device)
    started = time.perf_counter()
    step()
    _wait(device)
    return time.perf_counter() - started


def _bytes(step: Step, device: str) -> float:
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)  # the nets and optimizers of all compared steps
        step()
        return float(torch.cuda.max_memory_allocated(device) - before)
    with LiveBytes() as live:
        step()
    return float(live.peak)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
