"""Every fault of the lists fits the code as it is: its text stands in the file once, and its tests are there."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = [
    pytest.param(fault, id=f"{path.stem}: {fault['fault']}")
    for path in sorted((ROOT / "tests" / "mutation").glob("*.toml"))
    for faults in tomllib.loads(path.read_text(encoding="utf-8")).values()
    for fault in faults
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_can_be_written_into_the_code(fault: dict[str, str]) -> None:
    text = (ROOT / "src" / "gyrograd" / fault["file"]).read_text(encoding="utf-8")
    assert text.count(fault["old"]) == 1
    assert fault["old"] != fault["new"]
    files = [word.partition("::")[0] for word in shlex.split(fault["tests"]) if word.startswith("tests/")]
    assert files
    assert all((ROOT / file).exists() for file in files)
