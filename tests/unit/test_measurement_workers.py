"""Several processes measure what one would: the same bytes, whoever dies on the way; one sentence where they cannot."""

from __future__ import annotations

import io
import os
import pickle
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from small_audits import SMALL, small_images, small_net
from torch import Tensor, nn

from gyrograd.audit import audit
from gyrograd.errors import UserError
from gyrograd.measurement import Cell, machine, run_cells, workers
from gyrograd.measurement.cells import Task, Watch, in_this_process
from gyrograd.measurement.workers import MAX_DEATHS, Pool, Processes, ProcessesIfLong, Reply, packed, unpacked
from gyrograd.records import Record


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.json"))}


def test_two_workers_one_of_them_killed_leave_the_bytes_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    mark = tmp_path / "killed"
    net, (x, y) = small_net(), small_images()
    here = os.getpid()

    class DiesOnce(nn.Module):
        """As a model from a notebook: a class nobody can import."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            if os.getpid() != here and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return self.net(x)

    try:
        model = DiesOnce().eval()
        preset = replace(SMALL, attacks=("top_k",), sweep={})
        audit(model, x, y, preset=preset, out=tmp_path / "one")
        monkeypatch.setattr(Watch, "is_due", lambda self: True)
        audit(model, x, y, preset=preset, out=tmp_path / "two", workers=2)
    finally:
        torch.set_num_threads(threads)
    assert mark.exists()
    assert contents(tmp_path / "one" / "records") == contents(tmp_path / "two" / "records")
    pictures = [(tmp_path / name / "pictures.npz").read_bytes() for name in ("one", "two")]
    assert pictures[0] == pictures[1]
    # The page that grows was written last when all was measured; the report, which replaces it, is left out above.
    page = (tmp_path / "two" / "report.html").read_text()
    assert "being measured" in page
    assert page.count("(4 images)") >= 4


def test_a_worker_looks_for_garbage_but_not_among_its_imports() -> None:
    def looks(positions: Tensor) -> dict[str, Tensor]:
        import gc

        found = float(gc.isenabled() and gc.get_freeze_count() > 10_000)
        return {"looks": torch.full((len(positions),), found)}

    ((_, answer),) = Processes(1)([Cell("gc", {}, looks)], tasks(1))
    assert answer.values["looks"] == [1.0]


class Scripted:
    """A worker whose fate is written down: for each task of its slot a reply, or None if it dies."""

    def __init__(self, slot: int, say: Callable[[Reply], None], fate: Callable[[Task], Any]) -> None:
        self.slot, self.say, self.fate = slot, say, fate
        self.stopped = False
        say(Reply(slot, "ready"))

    def ask(self, task: Task) -> None:
        said = self.fate(task)
        self.say(Reply(self.slot, "lost", -9) if said is None else Reply(self.slot, *said))

    def stop(self) -> None:
        self.stopped = True


def record(task: Task) -> tuple[str, Record]:
    return "done", Record("a", {}, list(task.positions), {"v": [float(p) for p in task.positions]})


def tasks(count: int) -> list[Task]:
    return [Task(0, (i,), 0, ("", 1.0)) for i in range(count)]


def pool(fate: Callable[[Task], Any], made: list[Scripted], count: int = 2) -> Pool:
    def start(slot: int, say: Callable[[Reply], None]) -> Scripted:
        made.append(Scripted(slot, say, fate))
        return made[-1]

    return Pool(count, start)


def test_a_shard_whose_worker_died_is_given_to_another_and_every_shard_comes_once() -> None:
    died: list[Task] = []

    def fate(task: Task) -> Any:
        if task.positions[0] in (1, 4) and died.count(task) < MAX_DEATHS - 1:
            died.append(task)
            return None
        return record(task)

    made: list[Scripted] = []
    found = dict(pool(fate, made).finished(tasks(6)))
    assert {number: one.examples for number, one in found.items()} == {i: [i] for i in range(6)}
    assert len(made) == 2 + len(died)
    assert all(worker.stopped for worker in made)


def test_a_shard_that_ends_every_worker_is_one_sentence() -> None:
    made: list[Scripted] = []
    with pytest.raises(UserError, match=r"died 3 times on the same images \(SIGKILL.*fewer --workers"):
        list(pool(lambda task: None if task.positions == (2,) else record(task), made).finished(tasks(4)))
    assert len(made) == 2 + MAX_DEATHS - 1
    assert all(worker.stopped for worker in made)


def test_what_goes_wrong_in_a_worker_goes_wrong_here_and_ends_the_others() -> None:
    made: list[Scripted] = []
    wrong = UserError("The map is not finite; look at the model.")
    with pytest.raises(UserError, match="not finite"):
        list(pool(lambda task: ("failed", wrong), made).finished(tasks(4)))
    assert all(worker.stopped for worker in made)


def test_whoever_stops_listening_stops_the_workers() -> None:
    made: list[Scripted] = []
    arriving = pool(record, made).finished(tasks(4))
    next(arriving)
    arriving.close()
    assert all(worker.stopped for worker in made)


def test_the_first_images_come_first_the_cheapest_shards_soon_and_long_ones_before_short_ones() -> None:
    efforts = [(0, 4.0), (0, 9.0), (0, 1.0), (1, 20.0), (1, 21.0)]
    asked = [Task(0, (i,), turn, ("", size)) for i, (turn, size) in enumerate(efforts)]
    order = [number for number, _ in pool(record, [], count=1).finished(asked)]
    assert order == [2, 1, 0, 4, 3]


def test_only_what_earlier_files_miss_is_given_to_workers(tmp_path: Path) -> None:
    def measured(positions: Tensor) -> dict[str, Tensor]:
        return {"v": positions.double()}

    one = Cell("a", {}, measured)
    run_cells([one], [0, 1, 2], tmp_path, shard=3)
    asked: list[Task] = []

    def workers(cells: Any, tasks: Any) -> Any:
        asked.extend(tasks)
        for number, task in enumerate(tasks):
            yield number, cells[task.cell].record(list(task.positions))

    found = run_cells([one], [0, 1, 2, 3, 4], tmp_path, shard=5, workers=workers)
    assert [task.positions for task in asked] == [(3, 4)]
    assert found["a"].values["v"] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_script_travels_and_what_cannot_travel_is_one_sentence() -> None:
    script = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    cell = Cell("a", {}, lambda positions: {"v": script(torch.ones(len(positions), 2))[:, 0]})
    (again,) = unpacked(io.BytesIO(packed([cell])))
    assert again.record([0, 1]) == cell.record([0, 1])
    with pytest.raises(UserError, match=r"cannot be sent to other processes \(.*leave out --workers"):
        packed([_locked()])
    with pytest.raises(UserError, match="A worker cannot rebuild"):
        unpacked(io.BytesIO(pickle.dumps(42)[:-2]))


def _locked() -> Cell:
    lock = threading.Lock()
    return Cell("b", {}, lambda positions: {"v": lock})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("seconds", "cores", "gigabytes", "started"),
    [(89, 8, 64, 0), (1000, 1, 64, 0), (1000, 8, 2, 0), (95, 8, 64, 4), (1000, 2, 64, 2), (1000, 8, 5, 3)],
)
def test_long_work_is_shared_among_the_cores_by_itself(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    cores: int,
    gigabytes: int,
    started: int,
) -> None:
    counts: list[int] = []

    def processes(count: int) -> Any:
        counts.append(count)
        return in_this_process

    monkeypatch.setattr(workers, "Processes", processes)
    monkeypatch.setattr(workers, "usable_cores", lambda: cores)
    monkeypatch.setattr(workers, "free_memory", lambda: gigabytes << 30)
    cell = Cell("a", {}, lambda positions: {"v": positions.double()})
    asked = [Task(0, (i,), 0, ("", 100.0)) for i in range(10)]
    found = dict(ProcessesIfLong(seconds / 1000)([cell], asked))
    assert found == dict(in_this_process([cell], asked))
    assert counts == [started] * (started > 0)
    told = capsys.readouterr().err
    assert told == (
        f"gyrograd: {started} processes measure (--workers 1: only this one).\n" if started else ""
    )


def test_what_cannot_travel_is_measured_here_if_nobody_asked_for_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(workers, "free_memory", lambda: 64 << 30)
    lock = threading.Lock()

    def measured(positions: Tensor) -> dict[str, Tensor]:
        with lock:
            return {"v": positions.double()}

    found = dict(ProcessesIfLong(1000.0)([Cell("a", {}, measured)], tasks(3)))
    assert [found[i].values["v"] for i in range(3)] == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({}, 8),
    ],
)
def test_a_containers_share_of_the_processors_is_kept_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(machine, "_own_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine.usable_cores(tmp_path) == cores
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert machine.usable_cores(tmp_path) == 1


def test_no_workers_is_one_sentence() -> None:
    with pytest.raises(UserError, match="workers is 0; give at least 1"):
        Processes(0)


def test_who_watches_sees_the_table_grow_and_ever_less_often(tmp_path: Path) -> None:
    clock = iter(range(0, 10_000, 3))
    watch = Watch(lambda: float(next(clock)))
    seen = []
    for step in range(100):
        if watch.is_due():
            seen.append(step)
            with watch.paused():
                pass
    assert seen[0] <= 2
    assert 2 <= len(seen) <= 5
    assert sorted(later - sooner for sooner, later in pairwise(seen)) == [b - a for a, b in pairwise(seen)]


def test_what_is_shown_is_what_is_measured_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "is_due", lambda self: True)
    cells = [
        Cell(name, {}, lambda positions: {"v": positions.double()}, effort=("", effort))
        for name, effort in (("dear", 9.0), ("cheap", 1.0))
    ]
    seen: list[dict[str, list[int]]] = []
    run_cells(
        cells,
        range(4),
        tmp_path,
        shard=2,
        watch=lambda found: seen.append({name: record.examples for name, record in found.items()}),
    )
    assert seen == [
        {"cheap": [0, 1]},
        {"dear": [0, 1], "cheap": [0, 1]},
        {"dear": [0, 1], "cheap": [0, 1, 2, 3]},
        {"dear": [0, 1, 2, 3], "cheap": [0, 1, 2, 3]},
    ]
