"""The simulation of a run counts what a run would do: tasks, files, numbers; and ends when its last worker does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gyrograd.measurement import Cell, run_cells
from gyrograd.measurement.simulation import Cost, Timed, predicted


def test_one_worker_takes_the_sum_and_several_take_the_longest_share() -> None:
    costs = [Cost(2.0, 3), Cost(1.0, 1, limit=5)]
    one = predicted(costs, 10, 1, shard=5, rest_s=4.0)
    assert one.seconds == pytest.approx(4 + 2 * 10 + 1 * 5)
    assert one.busy == pytest.approx(1.0)
    # two rounds: 10 s and 5 s, then 10 s; the second worker takes the 5 s and then the last 10 s
    two = predicted(costs, 10, 2, shard=5, start_s=1.0)
    assert two.seconds == pytest.approx(1 + 15)
    assert predicted(costs, 10, 50, shard=5).seconds == pytest.approx(10)


def test_files_and_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    timed = Timed()
    cells = [
        Cell("a", {}, lambda positions: {"v": torch.rand(len(positions), 3)}),
        Cell("b", {}, lambda positions: {"v": positions.double().sqrt()}, limit=4),
    ]
    run_cells(cells, range(10), tmp_path, shard=3, workers=timed)
    costs = timed.costs()
    assert [(cost.columns, cost.limit) for cost in costs] == [(3, None), (1, 4)]
    assert all(cost.seconds > 0 for cost in costs)
    found = predicted(costs, 10, 1, shard=3)
    files = list(tmp_path.rglob("*.json"))
    assert found.files == len(files)
    held = sum(file.stat().st_size for file in files)
    assert found.disk_bytes == pytest.approx(held, rel=0.3)
    large = predicted(costs, 100_000, 4, shard=1000)
    assert large.files == 101
    assert large.memory_bytes > 1000 * found.memory_bytes
