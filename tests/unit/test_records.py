from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.records import Record

finite = st.floats(allow_nan=False, allow_infinity=False)


def record(examples, values, **changes):
    fields = {
        "name": "rps",
        "settings": {"eps": 16 / 255},
        "examples": examples,
        "values": {"cosine": values},
    }
    return Record(**(fields | changes))


@given(st.lists(finite, min_size=1, max_size=20))
def test_what_is_written_is_read_back_bit_for_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("r") / "deep" / "a.json"
    original = record(list(range(len(values))), values, facts={"seconds": 1.5})
    records.write(path, original)
    assert records.read(path) == original


def test_numbers_that_are_not_finite_become_null(tmp_path):
    records.write(tmp_path / "a.json", record([0, 1, 2], [math.nan, math.inf, 1.0]))
    assert records.read(tmp_path / "a.json").values["cosine"] == [None, None, 1.0]


@given(st.permutations(range(9)), st.integers(1, 8))
def test_merging_shards_in_any_order_gives_the_whole(order, cut):
    whole = record(list(range(9)), [float(i * i) for i in range(9)])
    halves = [record(list(part), [float(i * i) for i in part]) for part in (order[:cut], order[cut:])]
    merged = records.merge(halves)
    assert (merged.examples, merged.values) == (whole.examples, whole.values)
    assert records.merge([whole]) == whole


@pytest.mark.parametrize(
    ("shards", "sentence"),
    [
        ([], "no records to merge"),
        ([record([0], [1.0]), record([1], [1.0], settings={"eps": 0})], "merge shards of one run only"),
        ([record([0], [1.0]), record([0], [1.0])], "lists an example twice"),
        (
            [record([0], [1.0]), Record("rps", {"eps": 16 / 255}, [1], {"ssim": [1.0]})],
            "measure different things",
        ),
    ],
)
def test_shards_that_do_not_fit_are_refused(shards, sentence):
    with pytest.raises(UserError, match=sentence):
        records.merge(shards)


def test_a_column_of_the_wrong_length_is_refused():
    with pytest.raises(UserError, match="1 values for 2 examples"):
        record([0, 1], [1.0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "no valid JSON"),
        ("[1]", "names no schema"),
        ('{"name": "x"}', "names no schema"),
        ('{"schema": 99, "name": "x"}', "schema 99 .* upgrade"),
        ('{"schema": 1, "name": "x", "colour": 1}', "lacks or adds fields"),
    ],
)
def test_a_file_that_is_no_record_gives_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        records.read(path)


def test_a_missing_record_gives_one_sentence(tmp_path):
    with pytest.raises(UserError, match="There is no record at"):
        records.read(tmp_path / "none.json")


def test_a_write_that_fails_leaves_the_old_record_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    records.write(path, record([0], [1.0]))
    before = path.read_bytes()

    def full_disk(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        records.write(path, record([0], [2.0]))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.skipif(os.name != "posix", reason="permissions of this kind are POSIX's")
def test_what_is_written_can_be_read_by_everyone(tmp_path):
    # The file is made under a temporary name, and such files are private.
    records.write(tmp_path / "a.json", record([0], [1.0]))
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


def test_records_and_registry_import_without_torch(tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from gyrograd import records, registry\n"
        f"records.write({str(tmp_path / 'a.json')!r}, records.Record('x', examples=[0], values={{'v': [1.0]}}))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert json.loads(Path(tmp_path / "a.json").read_text())["schema"] == records.SCHEMA
