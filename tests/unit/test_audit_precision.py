"""An audit to a precision: intervals that hold wherever one stops, on as many images as they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_audits import SMALL, small_images, small_net

from gyrograd.audit import audit
from gyrograd.audit.precision import GRADED, in_random_order, measure_until_precise, sequential_stat
from gyrograd.audit.presets import preset_of
from gyrograd.errors import UserError
from gyrograd.measurement import Sample, Table
from gyrograd.numerics.statistics import confidence_sequence

LOOKS = range(10, 101, 10)
RUNS = 60


def ever_missed(draws: Any, mean: float, interval: Any) -> bool:
    """Whether somebody who looks after every ten values could have stopped with an interval without the mean."""
    found = (interval(draws[:n]) for n in LOOKS)
    return any(not low <= mean <= high for low, high in found)


def of_fixed_n(x: Any) -> tuple[float, float]:
    half = 1.96 * x.std(ddof=1) / np.sqrt(len(x))
    return x.mean() - half, x.mean() + half


def at_all_n(x: Any) -> tuple[float, float]:
    found = confidence_sequence(x)
    return found.low, found.high


def test_a_confidence_sequence_holds_wherever_one_stops_and_an_ordinary_interval_does_not() -> None:
    draws = np.random.default_rng(0).beta(2, 5, size=(RUNS, LOOKS[-1]))
    missed = [sum(ever_missed(row, 2 / 7, interval) for row in draws) for interval in (at_all_n, of_fixed_n)]
    assert missed[0] <= 0.05 * RUNS
    assert missed[1] > 0.1 * RUNS  # the looks are many enough to tell the two apart


def test_the_sequence_narrows_and_is_rounded_outwards_and_scales_with_the_bounds() -> None:
    x = np.random.default_rng(1).beta(2, 5, size=800)
    widths = [(found := confidence_sequence(x[:n])).high - found.low for n in (20, 80, 200, 800)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.07
    one, other = confidence_sequence(x), confidence_sequence(4 * x - 1, low=-1.0, high=3.0)
    assert (other.low, other.high) == pytest.approx((4 * one.low - 1, 4 * one.high - 1))
    same = confidence_sequence([1.0] * 50)
    assert same.high == 1.0
    assert same.low < 0.95
    with pytest.raises(UserError, match="outside 0.0 to 1.0"):
        confidence_sequence([0.5, 1.5])


def test_images_of_a_folder_are_measured_in_a_random_order_fixed_by_the_seed() -> None:
    sample = Sample(torch.arange(50.0).reshape(50, 1, 1, 1), torch.arange(50), tuple(range(100, 150)))
    mixed, again, other = (in_random_order(sample, seed) for seed in (3, 3, 4))
    assert mixed.index == again.index != other.index
    assert sorted(mixed.index) == list(sample.index)
    assert [int(v) + 100 for v in mixed.x.flatten()] == list(mixed.index)
    assert (mixed.target + 100).tolist() == list(mixed.index)


class Kept(Table):
    """A table in which a method's top pixels kept are these."""

    def __init__(self, values: dict[str, Any], limits: dict[str, int]) -> None:
        super().__init__([])
        self.columns = {
            name: {GRADED: dict(enumerate(values[name][:n].tolist()))} for name, n in limits.items()
        }


def test_each_method_is_measured_until_it_is_known_well_enough_or_images_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws = np.random.default_rng(0)
    values = {"steady": np.full(2000, 0.7), "wild": draws.beta(0.3, 0.3, 2000)}
    monkeypatch.setattr("gyrograd.audit.precision.method_columns", lambda table, name, _: table.columns[name])
    asked: list[dict[str, int]] = []

    def measured(limits: dict[str, int]) -> Any:
        asked.append(dict(limits))
        return Kept(values, limits)

    preset = preset_of("quick", precision=0.06)
    table: Any = measure_until_precise(measured, list(values), range(2000), preset)
    first, last = asked[0], asked[-1]
    assert first == {"steady": preset.shard, "wild": preset.shard}
    assert last["steady"] < last["wild"] < 2000
    for name in values:
        found = sequential_stat(GRADED, table.columns[name][GRADED], range(2000))
        assert found is not None
        assert (found["high"] - found["low"]) / 2 <= 0.06
    measure_until_precise(measured, ["wild"], range(100), preset)
    assert asked[-1] == {"wild": 100}


def test_an_audit_of_single_images_to_a_precision_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One and a half times one image is one image: `--preset glance --precision` never ended."""
    monkeypatch.setattr("gyrograd.audit.precision.method_columns", lambda table, name, _: table.columns[name])
    values = {"wild": np.random.default_rng(0).beta(0.3, 0.3, 40)}
    looks: list[int] = []

    def measured(limits: dict[str, int]) -> Any:
        looks.append(limits["wild"])
        assert looks == sorted(set(looks)), "the same images again"
        return Kept(values, limits)

    measure_until_precise(measured, ["wild"], range(40), preset_of("glance", precision=0.06))
    assert looks[:4] == [1, 2, 3, 4]
    assert looks[-1] == 40


def test_an_audit_to_a_precision_says_if_its_images_did_not_suffice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)
    x, y = small_images()
    settings: Any = {"preset": SMALL, "sweep": {}, "attacks": ["top_k"], "methods": ["gradient"]}
    card = audit(small_net(), x, y, **settings, precision=0.01, out=tmp_path)
    assert any(
        "did not suffice for a precision of 0.01" in note for note in card.document["settings"]["notes"]
    )
    kept = card.document["methods"][0]["columns"][GRADED]
    assert kept["n"] == len(x)
    # In the same folder: nothing is measured, and the first shard suffices.
    rough = audit(small_net(), x, y, **settings, precision=0.7, out=tmp_path)
    assert rough.document["methods"][0]["columns"][GRADED]["n"] == SMALL.shard
    with pytest.raises(UserError, match="precision is 2"):
        audit(small_net(), x, y, precision=2.0)
