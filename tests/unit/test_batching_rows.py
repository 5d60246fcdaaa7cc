"""How many rows a pass takes: on a CPU, on a device of some size, for images of some size."""

from __future__ import annotations

import pytest
import torch

from gyrograd.attributions import batching
from gyrograd.attributions.batching import CPU_ROWS, FEWEST_ROWS, MAX_BATCH, in_parts, rows_at_once


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


@pytest.mark.parametrize(
    ("fit", "expected"),
    [(9, ["0-4", "4-7"]), (3, ["0-2", "2-4", "4-6", "6-7"]), (1, [f"{i}-{i + 1}" for i in range(7)])],
)
def test_parts_are_halved_until_they_fit_down_to_one_row(fit: int, expected: list[str]) -> None:
    def run(rows: slice) -> str:
        if rows.stop - rows.start > fit:
            raise torch.OutOfMemoryError
        return f"{rows.start}-{rows.stop}"

    assert list(in_parts(run, 7, 4)) == expected


@pytest.mark.parametrize("wrong", [torch.OutOfMemoryError("of the device"), RuntimeError("another reason")])
def test_one_row_without_memory_and_other_errors_are_raised(wrong: RuntimeError) -> None:
    sizes = []

    def run(rows: slice) -> None:
        sizes.append(rows.stop - rows.start)
        raise wrong

    with pytest.raises(RuntimeError) as raised:
        list(in_parts(run, 7, 4))
    assert raised.value is wrong
    assert sizes == ([4, 2, 1] if isinstance(wrong, torch.OutOfMemoryError) else [4])
