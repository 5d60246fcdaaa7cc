"""The names `gyrograd list` reads from the source are those the registry has once everything is imported."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import gyrograd as gg
from gyrograd import cli, registry
from gyrograd.cli.names import Listed, catalogue, listing_of
from gyrograd.cli.terminal import print_table
from gyrograd.errors import UserError


def registered(kind: str) -> list[Listed]:
    return [listing_of(entry) for entry in gg.available(kind).values()]


@pytest.mark.parametrize("kind", gg.kinds())
def test_the_source_says_what_the_registry_says(kind):
    assert list(catalogue(kind).values()) == registered(kind)
    assert list(catalogue(kind)) == list(gg.available(kind))


def test_a_row_of_the_list_has_everything_that_is_known_of_a_name(capsys):
    assert cli.main(["list", "attribution", "--json"]) == 0
    rows = {row.pop("name"): row for row in json.loads(capsys.readouterr().out)["attribution"]}
    entry = gg.available("attribution")["smoothgrad"]
    assert rows["smoothgrad"] == {
        "aliases": list(entry.aliases),
        "summary": entry.summary,
        "paper": entry.paper,
        "equation": entry.equation,
        "differentiable": entry.differentiable,
        "label": "SmoothGrad",
        "group": "",
        "package": "gyrograd",
    }


def test_without_a_kind_all_kinds_are_listed_in_the_registrys_order(capsys):
    assert cli.main(["list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(gg.kinds())


SOURCE = '''"""Registers by `@register("kernel", "in a docstring", paper="own")`."""
@register("kernel", "b", paper="own", aliases=("c", "d"), differentiable=True, label="Bee", group="noise")
@dataclass(frozen=True)
class B:
    """First line.

    Second.
    """
@register("kernel", "a", paper="p", equation="Eq. 1")
def a() -> None: ...
@register("metric", "of another kind", paper="own")
def m() -> None:
    """M."""
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch):
    """A package of its own as the home of kernels."""
    (tmp_path / "kernels_of_a_test" / "deep").mkdir(parents=True)
    (tmp_path / "kernels_of_a_test" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.HOMES, "kernel", "kernels_of_a_test")
    return tmp_path / "kernels_of_a_test"


def test_decorators_are_read_at_any_depth_and_nothing_is_run(package):
    (package / "deep" / "kernels.py").write_text(SOURCE + "raise SystemExit\n")
    assert list(catalogue("kernel").values()) == [
        Listed("a", (), "", "p", "Eq. 1", False, "A", ""),
        Listed("b", ("c", "d"), "First line.", "own", "", True, "Bee", "noise"),
    ]
    assert "kernels_of_a_test" not in sys.modules


def test_a_package_without_source_is_an_error_and_no_empty_list(package):
    with pytest.raises(UserError, match="no source files to list names from; install gyrograd unpacked"):
        catalogue("kernel")


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(UserError, match="no kind 'kernle': did you mean 'kernel'"):
        catalogue("kernle")


def test_a_table_that_does_not_fit_wraps_at_spaces(monkeypatch, capsys):
    point = "l2_cosine.l2=0.01 l2_cosine.cosine=0.5"
    row = (point, "1", "0.134 [0.104, 0.164]", "0.868 [0.861, 0.874]", "+0.000 [-0.008, +0.008]", "chosen")
    heads = ("point", "seeds", "accuracy", "Grad RPS", "RPS - CE", "")
    print_table(heads, [row])
    assert len(capsys.readouterr().out.splitlines()) == 2  # a file or a program gets a row as one line
    monkeypatch.setenv("COLUMNS", "72")
    monkeypatch.setattr("gyrograd.cli.terminal.Console.is_terminal", True)
    print_table(heads, [row])
    said = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert max(map(len, said.splitlines())) <= 72
    assert all(word in said.split() for cell in row for word in cell.split())
