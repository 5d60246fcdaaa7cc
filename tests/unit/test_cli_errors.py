"""Whatever goes wrong in a verb is one sentence: the user's mistake, the user's own code, or a defect of gyrograd."""

from __future__ import annotations

import pytest

from gyrograd import cli
from gyrograd.errors import UserError, printable

NET = """
import torch
from torch import nn

class MyError(Exception):
    pass

class Net(nn.Module):
    def __init__(self, raised, late=False):
        super().__init__()
        self.core, self.raised, self.calls, self.late = nn.Linear(3 * 8 * 8, 4), raised, 0, late

    def forward(self, x):
        self.calls += 1
        if not self.late or self.calls > 2:
            raise self.raised
        return self.core(x.flatten(1))

def key(): return Net(KeyError("weights"))
def zero(): return Net(ZeroDivisionError("division by zero"))
def memory(): return Net(MemoryError())
def own(): return Net(MyError("of my own"))
def late(): return Net(MyError("of my own"), late=True)
def file(): return Net(FileNotFoundError(2, "No such file", "lookup.csv"), late=True)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("factory", "said"),
    [("key", "KeyError: 'weights'"), ("zero", "ZeroDivisionError"), ("memory", "MemoryError"),
     ("own", "MyError: of my own"), ("late", "MyError: of my own"), ("file", "FileNotFoundError")],
)  # fmt: skip
def test_an_error_of_the_users_model_names_its_file_and_line(factory, said, home, capsys):
    words = ["explain", f"net.py:{factory}", "shapes", "--images", "2", "--size", "8", "--out", "o"]
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    line = NET.splitlines().index("            raise self.raised") + 1
    assert said in err
    assert f"net.py, line {line}, in forward" in err
    assert len(err.strip().splitlines()) == 1


def failing(error: Exception):
    def show(kind: str | None = None) -> None:
        """List nothing."""
        raise error

    return show


def test_an_unexpected_error_is_a_sentence_that_says_it_is_a_defect(monkeypatch, capsys):
    def broken() -> None:
        """Fails as gyrograd itself would."""
        import json

        json.loads("{")

    monkeypatch.setattr(cli, "verbs", lambda: {"list": broken})
    monkeypatch.setattr(cli, "foreign_code", lambda error: None)  # this test is no part of gyrograd
    assert cli.main(["list"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("gyrograd: This is a defect of gyrograd, not of yours: JSONDecodeError: ")
    assert "--debug" in err
    assert len(err.strip().splitlines()) == 1
    assert cli.main(["list", "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err
    assert cli.main(["list"]) == 70
    assert "Traceback" not in capsys.readouterr().err


def test_the_environment_asks_for_frames_too(monkeypatch, capsys):
    monkeypatch.setenv("GYROGRAD_DEBUG", "1")
    assert cli.main(["list", "no-such-kind"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate")]
)
def test_memory_that_ran_out_is_a_sentence(error, monkeypatch, capsys):
    monkeypatch.setattr(cli, "verbs", lambda: {"list": failing(error)})
    monkeypatch.setattr(cli, "foreign_code", lambda error: None)
    assert cli.main(["list"]) == 2
    assert "Memory ran out" in capsys.readouterr().err


def test_control_characters_do_not_reach_the_terminal(capsys, monkeypatch):
    assert printable("a\x1b[2J\x07\r\u202eb\udcff") == r"a\x1b[2J\x07\r\u202eb\udcff"
    assert printable("Grüße, 名前.png") == "Grüße, 名前.png"
    monkeypatch.setattr(cli, "verbs", lambda: {"list": failing(UserError("no \x1b]0;title\x07 here"))})
    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == "gyrograd: no \\x1b]0;title\\x07 here\n"
