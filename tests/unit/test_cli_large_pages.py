"""Verbs that compute let torch use large memory pages, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys

class Watch:
    def find_spec(self, name, *_):
        if name == "torch":  # once when the verb looks for torch, and once when it is imported
            seen.append(os.environ.get("THP_MEM_ALLOC_ENABLE"))

seen = []
sys.meta_path.insert(0, Watch())
from gyrograd.cli import _quick_numbers
_quick_numbers(sys.argv[1])
print(seen[-1] if seen else "torch was not imported")
"""


@pytest.mark.parametrize(("own", "expected"), [(None, "1"), ("0", "0")])
def test_torch_is_told_before_it_is_imported(own: str | None, expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    if own is not None:
        environment["THP_MEM_ALLOC_ENABLE"] = own
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, "audit"], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[-1] == expected


def test_garbage_is_looked_for_again_after_the_import() -> None:
    program = (
        "import gc; from gyrograd.cli import _quick_numbers; _quick_numbers('audit'); print(gc.isenabled())"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.split()[-1] == "True"
