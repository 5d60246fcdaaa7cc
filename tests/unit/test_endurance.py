"""The endurance run in small: it audits, reads its own process, and tells what grows."""

from __future__ import annotations

import sys

import pytest
import torch
from fuzz.endurance import rises, watch

from gyrograd.numerics.modes import keep_freed_memory

CALM = {"memory_kb": 1000, "threads": 2, "files": 9, "objects": 500}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_few_audits_in_one_process_open_no_files_and_start_no_threads(capsys):
    history = watch(4, 1)
    assert [number for number, _ in history] == [1, 2, 3, 4]
    assert {now["files"] for _, now in history[1:]} == {history[1][1]["files"]}
    assert {now["threads"] for _, now in history[1:]} == {history[1][1]["threads"]}
    assert capsys.readouterr().out.count("audits") == 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, []),
        ({"memory_kb": 1000 + 1999}, []),
        ({"memory_kb": 1000 + 2100}, ["memory_kb rises by 21 per audit; at most 20 is allowed"]),
        ({"threads": 3}, ["threads rises by 0.01 per audit; at most 0 is allowed"]),
        ({"files": 10}, ["files rises by 0.01 per audit; at most 0 is allowed"]),
        ({"objects": 700}, ["objects rises by 2 per audit; at most 1 is allowed"]),
    ],
)
def test_what_rises_above_its_bound_is_named(change, told):
    assert rises([(100, CALM), (200, CALM | change)]) == told


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_freed_memory_is_kept_for_the_next_tensors():
    import resource

    def pages_given() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            _held = [torch.ones(6 << 20) for _ in range(3)]  # 24 MB each, as activations are
            del _held
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    keep_freed_memory()
    pages_given()
    once = 3 * (24 << 20) // resource.getpagesize()
    assert pages_given() < once
