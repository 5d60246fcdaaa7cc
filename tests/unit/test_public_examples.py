"""Every public name has an example in its docstring, and every example runs as it is written."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import gyrograd as gg

KINDS = tuple(kind for kind in gg.kinds() if kind != "experiment")
"""Experiments run for minutes and are built by one function; `gyrograd reproduce` is their example."""

NAMES: dict[str, Callable[..., Any]] = {name: getattr(gg, name) for name in gg.__all__}
NAMES |= {
    f"{kind} {entry.name}": entry.factory
    for kind in KINDS
    for entry in gg.available(kind).values()
    if entry.package == "gyrograd"
}


def example_of(name: str, documented: Callable[..., Any]) -> doctest.DocTest:
    # gyrograd.audit is a folder that can be called; its example is that of the function in it.
    text = inspect.getdoc(getattr(documented, name) if inspect.ismodule(documented) else documented) or ""
    return doctest.DocTestParser().get_doctest(text, {}, name, None, None)


def test_every_public_name_has_an_example() -> None:
    assert len(NAMES) >= 90
    assert [name for name, documented in NAMES.items() if not example_of(name, documented).examples] == []


def test_an_example_shows_something_beyond_its_imports() -> None:
    for name, documented in NAMES.items():
        calls = [
            example for example in example_of(name, documented).examples if "import" not in example.source
        ]
        assert calls, name
        assert not any("+SKIP" in example.source for example in calls), name


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs_as_it_is_written(name: str) -> None:
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    runner.run(example_of(name, NAMES[name]), out=told.append)
    assert runner.failures == 0, "".join(told)
