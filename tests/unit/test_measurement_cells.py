"""Cells and shards: nothing is measured twice, lost, or dependent on how the work was cut or broken off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import gyrograd as gg
from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.measurement import Cell, fingerprint, finished, forget, run_cells, streams
from gyrograd.numerics import random
from gyrograd.records import Record


class Counted:
    """A measure that remembers what it was asked, and may break off after a number of calls."""

    def __init__(self, seed: int = 0, calls: int | None = None) -> None:
        self.seed, self.left = seed, calls
        self.asked: list[list[int]] = []

    def __call__(self, positions: Tensor) -> dict[str, Tensor]:
        if self.left is not None and len(self.asked) >= self.left:
            raise KeyboardInterrupt
        self.asked.append(positions.tolist())
        noise = random.uniform(streams(self.seed, positions), (3,))
        return {"place": positions, "draws": noise, "odd": positions % 2 == 1}


def cell(name: str, measure: Counted, **settings: object) -> Cell:
    return Cell(name, {"seed": measure.seed, **settings}, measure)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_record_holds_every_example_and_a_column_for_each_point(tmp_path: Path) -> None:
    record = run_cells([cell("a", Counted())], [4, 1, 7], tmp_path)["a"]
    assert record.examples == [1, 4, 7]
    assert record.values["place"] == [1.0, 4.0, 7.0]
    assert record.values["odd"] == [1.0, 0.0, 1.0]
    expected = random.uniform(random.keys(0, 8)[[1, 4, 7]], (3,))
    for point in range(3):
        assert record.values[f"draws[{point}]"] == expected[:, point].double().tolist()


@given(shard=st.integers(1, 12), n=st.integers(1, 12), seed=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_the_size_of_a_shard_does_not_show_in_the_record(
    shard: int, n: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cells = [cell("a", Counted(seed)), cell("b", Counted(seed + 1))]
    whole, cut = (tmp_path_factory.mktemp("run") for _ in range(2))
    assert run_cells(cells, range(n), cut, shard=shard) == run_cells(cells, range(n), whole, shard=100)


def test_a_second_run_measures_nothing(tmp_path: Path) -> None:
    first, second = Counted(), Counted()
    one = run_cells([cell("a", first)], range(7), tmp_path, shard=3)
    two = run_cells([cell("a", second)], range(7), tmp_path, shard=3)
    assert first.asked == [[0, 1, 2], [3, 4, 5], [6]]
    assert second.asked == []
    assert one == two


def test_more_examples_measure_only_the_new_shards(tmp_path: Path) -> None:
    run_cells([cell("a", Counted())], range(6), tmp_path, shard=3)
    more = Counted()
    run_cells([cell("a", more)], range(9), tmp_path, shard=3)
    assert more.asked == [[6, 7, 8]]


def test_other_settings_are_another_measurement(tmp_path: Path) -> None:
    run_cells([cell("a", Counted(), eps=0.1)], range(3), tmp_path)
    other = Counted()
    run_cells([cell("a", other, eps=0.2)], range(3), tmp_path)
    assert other.asked == [[0, 1, 2]]


@pytest.mark.parametrize("calls", [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)])
def test_an_interrupted_run_taken_up_again_leaves_the_same_bytes(
    tmp_path: Path, calls: tuple[int, int]
) -> None:
    run_cells([cell("a", Counted()), cell("b", Counted(1))], range(7), tmp_path / "whole", shard=3)
    with pytest.raises(KeyboardInterrupt):
        run_cells(
            [cell("a", Counted(0, calls[0])), cell("b", Counted(1, calls[1]))], range(7), tmp_path, shard=3
        )
    again = [Counted(), Counted(1)]
    run_cells([cell("a", again[0]), cell("b", again[1])], range(7), tmp_path, shard=3)
    assert sum(len(measure.asked) for measure in again) == 6 - _done(calls)
    assert contents(tmp_path / "records") == contents(tmp_path / "whole" / "records")


def _done(calls: tuple[int, int]) -> int:
    """How many of the measurements a0 b0 a1 b1 a2 b2 came before the one that broke off."""
    return min(2 * calls[0], 2 * calls[1] + 1)


def test_all_cells_see_the_first_examples_before_the_next(tmp_path: Path) -> None:
    order: list[tuple[str, int]] = []

    def noting(name: str) -> Cell:
        def measure(positions: Tensor) -> dict[str, Tensor]:
            order.append((name, int(positions[0])))
            return {"place": positions}

        return Cell(name, {}, measure)

    run_cells([noting("a"), noting("b")], range(4), tmp_path, shard=2)
    assert order == [("a", 0), ("b", 0), ("a", 2), ("b", 2)]


@pytest.mark.parametrize("shard", [1, 2, 3, 10])
def test_a_limited_cell_keeps_to_the_first_positions(tmp_path: Path, shard: int) -> None:
    few = Cell("few", {}, Counted(), limit=3)
    made = run_cells([few, cell("all", Counted())], [8, 6, 4, 2, 0], tmp_path, shard=shard)
    assert made["few"].examples == [4, 6, 8]
    assert made["all"].examples == [0, 2, 4, 6, 8]
    assert finished([few, cell("all", Counted())], [8, 6, 4, 2, 0], tmp_path, shard=shard) == made


def test_finished_gives_the_shards_that_every_cell_has(tmp_path: Path) -> None:
    cells = [cell("a", Counted()), cell("b", Counted(1, calls=1))]
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, range(6), tmp_path, shard=2)
    kept = finished(cells, range(6), tmp_path, shard=2)
    assert {name: record.examples for name, record in kept.items()} == {"a": [0, 1], "b": [0, 1]}
    assert finished(cells, range(6), tmp_path / "elsewhere", shard=2) == {}


def test_what_is_evaluated_in_shards_of_the_usual_size_is_found_finished(tmp_path: Path) -> None:
    cells = [cell("a", Counted())]
    whole = run_cells(cells, range(205), tmp_path)
    assert finished(cells, range(205), tmp_path) == whole


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 1}', "\x00\x01"])
def test_a_damaged_shard_is_measured_again_and_said_so(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_cells([cell("a", Counted())], range(4), tmp_path, shard=2)
    before = contents(tmp_path)
    path = sorted((tmp_path / "records").rglob("*.json"))[1]
    path.write_text(damage)
    again = Counted()
    assert run_cells([cell("a", again)], range(4), tmp_path, shard=2) == whole
    assert again.asked == [[2, 3]]
    assert contents(tmp_path) == before
    assert "measuring again" in capsys.readouterr().err


def test_a_shard_of_other_settings_under_this_name_is_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cells([cell("a", Counted())], range(2), tmp_path)
    (path,) = (tmp_path / "records").rglob("*.json")
    records.write(path, replace(records.read(path), settings={"seed": 5}))
    again = Counted()
    run_cells([cell("a", again)], range(2), tmp_path)
    assert again.asked == [[0, 1]]
    assert "does not hold what its name says" in capsys.readouterr().err


def test_a_shard_of_other_examples_under_this_name_is_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_cells([cell("a", Counted())], range(2), tmp_path)
    (path,) = (tmp_path / "records").rglob("*.json")
    records.write(path, replace(records.read(path), examples=[5, 6]))
    again = Counted()
    record = run_cells([cell("a", again)], range(2), tmp_path)["a"]
    assert again.asked == [[0, 1]]
    assert record.examples == [0, 1]
    assert "does not hold what its name says" in capsys.readouterr().err


def test_forget_removes_these_cells_and_nothing_else(tmp_path: Path) -> None:
    mine, other = cell("a", Counted()), cell("b", Counted())
    run_cells([mine, other], range(2), tmp_path)
    (tmp_path / "records" / "note.txt").write_text("kept")
    forget([mine], tmp_path)
    left = {path.name for path in (tmp_path / "records").iterdir()}
    assert left == {other.folder, "note.txt"}


def test_a_number_that_is_not_finite_is_missing_before_and_after_reading(tmp_path: Path) -> None:
    def measure(positions: Tensor) -> dict[str, Tensor]:
        return {"value": torch.tensor([1.0, torch.nan, torch.inf])}

    strange = Cell("a", {}, measure)
    fresh = run_cells([strange], range(3), tmp_path)["a"]
    assert fresh.values["value"] == [1.0, None, None]
    assert run_cells([strange], range(3), tmp_path)["a"] == fresh


def test_streams_belong_to_the_place_and_not_to_the_batch() -> None:
    together = streams(3, torch.tensor([5, 2, 9]))
    apart = [int(streams(3, torch.tensor([p]))) for p in (5, 2, 9)]
    assert together.tolist() == apart
    assert together.tolist() == random.keys(3, 10)[[5, 2, 9]].tolist()


def test_a_real_measurement_does_not_depend_on_the_shard(tmp_path: Path) -> None:
    data = gg.dataset("shapes", split="test", n=6)
    model = gg.model("lenet", activation="softplus", seed=0).eval()
    rps, gradient = gg.metric("rps", draws=2), gg.attribution("gradient")

    def measure(positions: Tensor) -> dict[str, Tensor]:
        x, y = data.pixels(positions), data.labels[positions]
        return {"rps": rps(model, gradient, x, y, seed=streams(0, positions))}

    rows = [
        run_cells([Cell("rps", {}, measure)], range(6), tmp_path / str(shard), shard=shard)["rps"].values[
            "rps"
        ]
        for shard in (2, 6)
    ]
    assert rows[0] == pytest.approx(rows[1], abs=1e-5)


def test_the_fingerprint_tells_settings_apart_and_not_their_order() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"positions": [1, 1]}, "named twice or below 0"),
        ({"positions": [-1]}, "named twice or below 0"),
        ({"positions": []}, "1 cells and 0 examples"),
        ({"shard": 0}, "shard is 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    asked: dict[str, object] = {"positions": [0, 1], "shard": 2} | change
    positions = asked.pop("positions")
    with pytest.raises(UserError, match=sentence):
        run_cells([cell("a", Counted())], positions, tmp_path, **asked)  # type: ignore[arg-type]
    assert contents(tmp_path) == {}


def test_two_cells_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Two cells are named 'a'"):
        run_cells([cell("a", Counted()), cell("a", Counted(1))], [0], tmp_path)


def test_settings_that_are_no_json_are_refused() -> None:
    with pytest.raises(UserError, match="must be plain JSON values"):
        Cell("a", {"weights": torch.zeros(2)}, Counted())


@pytest.mark.parametrize("shape", [(3,), (2, 2, 2), ()])
def test_a_column_of_another_length_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    def measure(positions: Tensor) -> dict[str, Tensor]:
        return {"value": torch.zeros(shape)}

    with pytest.raises(UserError, match="column 'value' has shape"):
        run_cells([Cell("a", {}, measure)], [0, 1], tmp_path)


def test_a_record_is_the_records_own_type(tmp_path: Path) -> None:
    record = run_cells([cell("a", Counted(), eps=0.5)], [3], tmp_path)["a"]
    assert record == Record("a", {"seed": 0, "eps": 0.5}, [3], record.values, {})


@given(
    first=st.integers(1, 9), more=st.integers(0, 9), shards=st.tuples(st.integers(1, 12), st.integers(1, 12))
)
@settings(max_examples=25, deadline=None)
def test_more_examples_or_other_shards_cost_only_what_is_new(
    first: int, more: int, shards: tuple[int, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    positions = [int(p) for p in torch.randperm(20, generator=torch.Generator().manual_seed(first))]
    folder, fresh = (tmp_path_factory.mktemp("run") for _ in range(2))
    measure = Counted()
    run_cells([cell("a", measure)], positions[:first], folder, shard=shards[0])
    grown = run_cells([cell("a", measure)], positions[: first + more], folder, shard=shards[1])["a"]
    assert sorted(p for asked in measure.asked for p in asked) == sorted(positions[: first + more])
    assert grown == run_cells([cell("a", Counted())], positions[: first + more], fresh, shard=shards[1])["a"]


def test_files_of_a_version_with_other_columns_are_not_mixed_in(tmp_path: Path) -> None:
    def older(positions: Tensor) -> dict[str, Tensor]:
        return {"place": positions}

    run_cells([Cell("a", {"seed": 0}, older)], [1, 2], tmp_path)
    record = run_cells([cell("a", Counted())], [1, 2, 3], tmp_path)["a"]
    assert record == run_cells([cell("a", Counted())], [1, 2, 3], tmp_path / "fresh")["a"]


def test_a_file_that_cannot_be_read_is_measured_again(tmp_path: Path) -> None:
    run_cells([cell("a", Counted())], [1, 2], tmp_path)
    (broken,) = tmp_path.rglob("*.json")
    broken.write_text("{")
    measure = Counted()
    run_cells([cell("a", measure)], [1, 2, 3], tmp_path)
    assert measure.asked == [[1, 2, 3]]
