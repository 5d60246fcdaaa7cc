"""How many rows a pass takes: on a CPU, on a device of some size, for images of some size."""

from __future__ import annotations

import torch

from gyrograd.attributions import batching
from gyrograd.attributions.batching import CPU_ROWS, FEWEST_ROWS, MAX_BATCH, rows_at_once


def test_a_cpu_takes_what_its_cache_holds_and_never_more_than_asked() -> None:
    x = torch.zeros(1, 3, 32, 32)
    assert rows_at_once(MAX_BATCH, x) == CPU_ROWS
    assert rows_at_once(7, x) == 7


def test_a_device_takes_rows_by_its_memory_and_the_images_pixels() -> None:
    gigabytes = 2**30

    def rows(side: int, memory: int) -> int:
        return batching._rows_for(torch.zeros(1, 3, side, side), memory * gigabytes)

    assert rows(32, 16) == MAX_BATCH
    assert rows(32, 128) == 8 * MAX_BATCH
    assert rows(64, 16) == MAX_BATCH // 4
    assert rows(224, 16) == FEWEST_ROWS
    assert rows(224, 128) > FEWEST_ROWS
    assert batching._rows_for(torch.zeros(1, 5), 16 * gigabytes) == MAX_BATCH * 1024
