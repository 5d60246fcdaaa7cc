"""Numbers of the smallest audit and training stay what they were; `same_numbers.py` compares larger work to the bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from same_numbers import PARTS, STORED, differences, flat

TOLERANCE = {"audit-small": 1e-4, "train-small": 1e-3}
"""Relative to the largest value of a column: other machines round otherwise. The audit runs in float64."""


@pytest.mark.parametrize("part", TOLERANCE)
def test_numbers_are_those_of_the_golden_file(part: str, tmp_path: Path) -> None:
    stored = json.loads(STORED.read_text(encoding="utf-8"))[part]
    found = PARTS[part](tmp_path)
    assert sorted(found) == sorted(stored)
    for key, column in stored.items():
        assert found[key] == pytest.approx(column, rel=0, abs=TOLERANCE[part] * largest(column)), key


def largest(column: list[float | None]) -> float:
    return max((abs(value) for value in column if value is not None), default=0.0) + 1e-9


def test_a_changed_bit_a_lost_column_and_a_new_one_are_reported() -> None:
    before = {"same": [1.0, None], "moved": [0.5, 0.25], "lost": [3.0]}
    after = {"same": [1.0, None], "moved": [0.5, 0.25 + 2**-54], "new": [4.0]}
    assert [line.split()[0] for line in differences(before, after)] == ["moved", "lost", "new"]


def test_a_renamed_column_is_no_difference() -> None:
    assert differences({"a": [1.0], "b": [2.0]}, {"c": [2.0], "a": [1.0]}) == []


def test_times_and_versions_are_left_out_of_a_card() -> None:
    card = {
        "schema": 1,
        "rerun": {"seconds": 3.0},
        "accuracy": {"value": 0.5, "n": 2},
        "flags": [{"measured": None}],
    }
    assert flat("card", card) == {"card.accuracy.value": [0.5], "card.accuracy.n": [2.0]}
