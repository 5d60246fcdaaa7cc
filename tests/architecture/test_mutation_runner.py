"""The runner of mutants, on a project of one function: it trusts no test that it has not seen green."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parents[1] / "mutation" / "run.py"
CODE = "def larger(a, b):\n    return a if a > b else b\n"
TESTS = """
from gyrograd.numbers import larger

def test_the_larger_comes_back():
    assert larger(1, 2) == 2

def test_the_sum_comes_back():
    assert larger(1, 2) == 3
"""
FAULT = """
[[numbers]]
fault = "{fault}"
file = "numbers.py"
old = "{old}"
new = "{new}"
tests = "tests/test_numbers.py -k {tests}"
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation_run", HERE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in [
        ("src/gyrograd/__init__.py", ""),
        ("src/gyrograd/numbers.py", CODE),
        ("tests/test_numbers.py", TESTS),
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tests" / "mutation").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of the time of so small a run
    return module


def verdicts(runner: ModuleType, capsys: pytest.CaptureFixture[str], *faults: dict[str, str]) -> list[str]:
    (runner.ROOT / "tests/mutation/list.toml").write_text("".join(FAULT.format(**fault) for fault in faults))
    code = runner.main([])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert code == int(any(not line.startswith("caught") for line in lines[:-1]))
    return lines


TURNED = {"fault": "the smaller", "old": "a > b", "new": "a < b", "tests": "larger"}


def test_a_fault_is_caught_survives_or_has_tests_that_are_red_without_it(runner, capsys):
    unseen = {"fault": "equal values swapped", "old": "a > b", "new": "a >= b", "tests": "larger"}
    red = TURNED | {"fault": "leans on a red test", "tests": "sum"}
    none = TURNED | {"fault": "leans on no test", "tests": "absent"}
    lines = verdicts(runner, capsys, TURNED, unseen, red, none)
    assert [line.split()[0] for line in lines[:-1]] == ["caught", "SURVIVED", "ERROR", "ERROR"]
    assert lines[0].endswith("test_the_larger_comes_back - assert 1 == 2")
    assert "test_the_sum_comes_back" in lines[2]
    assert lines[2].endswith("without the fault")
    assert lines[-1] == "1 of 4 faults caught, 2 errors of the lists"


def test_tests_that_faults_share_run_once_without_a_fault(runner, capsys, monkeypatch):
    seen: list[str] = []
    monkeypatch.setattr(runner, "trouble_without_fault", lambda tests: seen.append(tests) or "")
    verdicts(runner, capsys, TURNED, TURNED | {"fault": "always the first", "new": "True"})
    assert seen == ["tests/test_numbers.py -k larger"]


def test_a_fault_that_no_longer_fits_the_code_is_named(runner, capsys):
    with pytest.raises(SystemExit, match="'the smaller': the text to replace stands 0 times in numbers.py"):
        verdicts(runner, capsys, TURNED | {"old": "a is larger"})


def test_an_area_that_is_in_no_list_is_named(runner):
    with pytest.raises(SystemExit, match="No faults in nowhere"):
        runner.main(["nowhere"])
