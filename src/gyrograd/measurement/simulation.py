"""Predict the time of an audit of many images on many workers from a few images: `gyrograd bench --scale`.

The tasks of a run are known in advance and each cell's seconds per image are measured, so its schedule can be
simulated.
"""

from __future__ import annotations

import heapq
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gyrograd.measurement.cells import COLUMNAR_FROM, Cell, Finished, Task
from gyrograd.measurement.workers import long_first

BYTES_PER_NUMBER = {"json": 22.0, "npz": 8.1}
"""Bytes on disk per number, besides the header of the file."""
HEAD_BYTES = 250
"""Bytes of a file's header, besides its settings."""
HELD_BYTES = 140
"""Bytes in memory per number in the process that makes the card: in the record, the table and the card."""


@dataclass
class Timed:
    """Workers that measure in this process and record the time of each cell."""

    cells: dict[str, Cell] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    images: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    columns: dict[str, int] = field(default_factory=dict)

    def __call__(self, cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
        """Measure the tasks one after another."""
        for number, task in enumerate(tasks):
            cell = cells[task.cell]
            began = time.perf_counter()
            record = cell.record(list(task.positions))
            self.seconds[cell.name] += time.perf_counter() - began
            self.images[cell.name] += len(task.positions)
            self.cells[cell.name], self.columns[cell.name] = cell, len(record.values)
            yield number, record

    def costs(self) -> list[Cost]:
        """The cost of each cell per image."""
        return [
            Cost(
                self.seconds[name] / self.images[name],
                self.columns[name],
                cell.limit,
                HEAD_BYTES + len(json.dumps(cell.settings, indent=1)),
            )
            for name, cell in self.cells.items()
        ]


@dataclass(frozen=True)
class Cost:
    """Cost of a cell: seconds and numbers per image, its limit of images, and header bytes per file."""

    seconds: float
    columns: int
    limit: int | None = None
    head: int = HEAD_BYTES


@dataclass(frozen=True)
class Prediction:
    """Predicted cost of a run. `busy`: the share of the workers' time that they spend measuring."""

    images: int
    workers: int
    seconds: float
    busy: float
    files: int
    disk_bytes: int
    memory_bytes: int


def predicted(
    costs: Sequence[Cost], images: int, workers: int, *, shard: int, start_s: float = 0.0, rest_s: float = 0.0
) -> Prediction:
    """Simulate the schedule: a free worker takes the next task.

    `start_s`: seconds until a worker is ready. `rest_s`: seconds of the serial work before and after.
    """
    tasks, files, disk, numbers = [], 0, 0.0, 0
    for cell, cost in enumerate(costs):
        whole = min(images, cost.limit or images)
        for turn, first in enumerate(range(0, whole, shard)):
            n = min(shard, whole - first)
            tasks.append(Task(cell, tuple(range(n)), turn, ("", cost.seconds * n)))
            kind = "npz" if n >= COLUMNAR_FROM else "json"
            disk += cost.head + BYTES_PER_NUMBER[kind] * n * (cost.columns + 1)
            files += 1
        numbers += whole * cost.columns
    free = [start_s if workers > 1 else 0.0] * workers
    for number in long_first(tasks):
        # The worker that is free first takes the next task.
        heapq.heapreplace(free, free[0] + tasks[number].guess[1])
    measured, span = sum(task.guess[1] for task in tasks), max(free)
    return Prediction(
        images,
        workers,
        rest_s + span,
        measured / (workers * span) if span else 0.0,
        files,
        round(disk),
        numbers * HELD_BYTES,
    )
