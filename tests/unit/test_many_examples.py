"""Thousands of examples: columns as arrays on disk, intervals by the normal approximation, the same meaning."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from gyrograd import records
from gyrograd.audit.engine import rows_per_pass, shard_of
from gyrograd.audit.presets import PRESETS
from gyrograd.audit.table import steady_radius
from gyrograd.errors import UserError
from gyrograd.measurement import Cell, run_cells
from gyrograd.measurement.cells import COLUMNAR_FROM
from gyrograd.numerics import statistics
from gyrograd.numerics.statistics import NORMAL_FROM, bootstrap_interval
from gyrograd.records import Record


def measured(positions: Tensor) -> dict[str, Tensor]:
    return {"v": torch.where(positions % 7 == 3, torch.nan, positions.double().sqrt()), "n": positions}


def test_a_large_shard_is_a_file_of_arrays_with_the_same_record_and_is_not_measured_again(
    tmp_path: Path,
) -> None:
    n = COLUMNAR_FROM + 5
    large = run_cells([Cell("a", {"s": 1}, measured)], range(n), tmp_path / "large", shard=n)
    small = run_cells([Cell("a", {"s": 1}, measured)], range(n), tmp_path / "small", shard=50)
    assert large == small
    assert [p.suffix for p in (tmp_path / "large").rglob("*.*")] == [".npz"]
    again = run_cells([Cell("a", {"s": 1}, lambda _: {})], range(n), tmp_path / "large", shard=n)
    cut = run_cells([Cell("a", {"s": 1}, lambda _: {})], range(n), tmp_path / "large", shard=9)
    assert again == cut == large


def test_a_file_of_arrays_holds_a_record_to_the_bit_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    record = Record(
        "a b", {"x": [1, 2.5]}, [3, 9, 4], {"v": [0.1, None, -0.0], "w": [1e-300, 2.0, 3.0]}, {"f": "é"}
    )
    for name in ("one.npz", "two.npz"):
        records.write(tmp_path / name, record)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    assert records.read(tmp_path / "one.npz") == record
    records.write(tmp_path / "none.npz", Record("nothing", {}, [], {}))
    assert records.read(tmp_path / "none.npz") == Record("nothing", {}, [], {})


def test_a_damaged_file_of_arrays_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "one.npz"
    records.write(path, Record("a", {}, list(range(50)), {"v": [float(i) for i in range(50)]}))
    whole = path.read_bytes()
    at = whole.index(np.float64(41.0).tobytes())
    for content in (whole[:-30], whole[:at] + b"\1" + whole[at + 1 :], b"PK", b""):
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged or edited"):
            records.read(path)
    path.write_bytes(whole)
    with np.load(path) as file:
        arrays = dict(file)
    for name in ("examples", "numbers"):  # a whole file, by its own checksums, in which a number is another
        edited = {**arrays, name: arrays[name] + (arrays[name] == 41)}
        np.savez(path, **edited)
        with pytest.raises(UserError, match="damaged or edited"):
            records.read(path)
    with pytest.raises(UserError, match="no record"):
        records.read(tmp_path / "gone.npz")


def test_the_interval_of_many_values_is_the_bootstraps(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).beta(0.5, 2, NORMAL_FROM)
    normal = bootstrap_interval(values, level=0.9)
    monkeypatch.setattr(statistics, "NORMAL_FROM", NORMAL_FROM + 1)
    drawn = bootstrap_interval(values, level=0.9, resamples=400)
    assert normal.value == drawn.value
    half = (normal.high - normal.low) / 2
    assert abs(normal.low - drawn.low) < 0.3 * half
    assert abs(normal.high - drawn.high) < 0.3 * half
    assert half == pytest.approx(1.6449 * values.std() / NORMAL_FROM**0.5, rel=1e-3)


def test_the_steady_radius_of_many_images_has_the_interval_of_their_means() -> None:
    draws = np.random.default_rng(0)
    near, far = draws.beta(8, 2, NORMAL_FROM), draws.beta(2, 8, NORMAL_FROM)
    kept = [dict(enumerate(column.tolist())) for column in (near, far)]
    found = steady_radius(kept, [4 / 255, 8 / 255])
    assert found is not None
    low, value, high = found["low"], found["value"], found["high"]
    assert low < value < high
    # between the radii the mean falls by about 0.6 in 4 / 255, and is known to about 0.0018
    assert 0.005 < high - low < 0.05


def test_a_shard_holds_so_many_images_as_memory_allows_and_never_fewer_than_the_preset() -> None:
    quick = PRESETS["quick"]
    assert shard_of(quick, (100, 3, 32, 32)) == quick.shard
    assert shard_of(quick, (50_000, 3, 32, 32)) == 1000
    large = shard_of(quick, (50_000, 3, 224, 224))
    assert 200 <= large <= 250
    assert large == shard_of(quick, (1_280_000, 3, 224, 224))
    assert shard_of(quick, (50_000, 3, 4000, 4000)) == quick.shard
    # Where only many images fill a pass, a shard holds as many; an audit of single images keeps to one.
    assert shard_of(quick, (1000, 3, 224, 224), at_once=120) == 120
    assert shard_of(quick, (1000, 3, 224, 224), at_once=1000) == large
    assert shard_of(PRESETS["glance"], (4, 3, 224, 224), at_once=120) == 1


def test_a_larger_gpu_takes_more_images_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = 3 * 224 * 224
    assert rows_per_pass(torch.device("cpu"), photo) == 2
    for gigabytes, rows in ((8, 41), (24, 41), (139, 242)):
        there = SimpleNamespace(total_memory=gigabytes << 30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, there=there: there)
        assert rows_per_pass(torch.device("cuda"), photo) == rows
