"""What a training step costs: seconds and bytes, of several objectives side by side in one process."""

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
    """Counts the bytes of tensors made in the block that are alive at once; `peak` is the most.

    The CPU's allocator tells no peak. Storages are counted once however many views they have; workspaces inside an
    operation are not seen, as they are not by CUDA's counter of tensors.
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
    """The cost of each step in each round. In a round all steps run once, so that a slow moment hits all alike."""
    for step in steps.values():
        step()  # allocators, kernels and caches are warm before anything counts
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
        before = torch.cuda.memory_allocated(device)  # nets and optimizers of all the steps that are compared
        step()
        return float(torch.cuda.max_memory_allocated(device) - before)
    with LiveBytes() as live:
        step()
    return float(live.peak)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
