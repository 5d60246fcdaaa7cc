"""Faults drawn by rule: what is drawn, that it can be compiled, and that every file has tests to catch it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
TEXT = '''
def scaled(x: int = 3, *, keep: bool = True) -> float:
    """A number 5 in words."""
    if x < 4 and not keep:
        raise ValueError(f"{x + 1} is small")
    return abs(x).real * 2.5 + sum([x], start=1)
'''
EXPECTED = {
    "3 -> 4", "True -> False", "< -> <=", "< -> >=", "4 -> 5", "and -> or", "not -> ", "* -> /", "2.5 -> 5.0", "+ -> -",
    "x < 4 and not keep -> (not (x < 4 and not keep))", "start=1 -> ", "1 -> 2",
}  # fmt: skip


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    path = ROOT / "tests" / "mutation" / "generate.py"
    spec = importlib.util.spec_from_file_location("mutation_generate", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutation_generate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_kind_of_fault_is_found_and_messages_are_left_alone(generate):
    found = generate.Edits("numerics/none.py", TEXT).found
    assert {f"{edit.old.strip()} -> {edit.new}" for edit in found} == EXPECTED
    assert {edit.line for edit in found} == {2, 4, 6}


def test_a_draw_is_fixed_by_its_seed_and_can_be_compiled(generate):
    drawn = generate.drawn(30, 5)
    assert drawn == generate.drawn(30, 5)
    assert drawn != generate.drawn(30, 6)
    assert len(set(drawn)) == 30
    assert all(generate.compiles(edit) for edit in drawn)


def test_every_source_file_has_tests(generate):
    files = {edit.file for edit in generate.every_edit(generate.FOLDERS)}
    assert len(files) > 40
    assert all((ROOT / test).exists() for file in files for test in generate.tests_of(file))


def test_a_fault_in_a_default_is_told_from_one_in_a_function(generate, tmp_path, monkeypatch):
    path = tmp_path / "src" / "gyrograd" / "numerics" / "none.py"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    edits = generate.Edits("numerics/none.py", TEXT).found
    inside = {edit.line for edit in edits if generate.changed_function(edit) is not None}
    assert inside == {4, 6}
