"""A disk that is full, at every verb that writes: one sentence, exit code 2, and nothing lost of what was there."""

from __future__ import annotations

import resource
import sys
from contextlib import contextmanager

import pytest
from fuzz import command_lines

from gyrograd import cli

ROOM = 64
"""Bytes a file may have: no result fits."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return command_lines.made_kit(tmp_path_factory.mktemp("disk") / "kit")


@contextmanager
def full_disk():
    """No file may grow beyond ROOM bytes; as on a full disk, a write fails half-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python would leave the first ROOM bytes of each module that is imported here for the first time in __pycache__,
    # and every later import of it would fail.
    compiles, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = compiles


VERBS = ["explain", "attack", "audit", "train", "sweep", "reproduce", "data show"]


def words_of(verb: str, kit) -> list[str]:
    opened = [kit / "net.safetensors", kit / "one.png", "--size", "32", "--out", "out"]
    return {
        "explain": ["explain", *opened],
        "attack": ["attack", *opened, "--steps", "1"],
        "audit": ["audit", *opened, "--methods", "gradient", "--attacks", "top_k", "--steps", "1"],
        "train": ["train", "--config", kit / "train.yaml", "--out", "out"],
        "sweep": ["sweep", kit / "sweep.yaml", "--images", "1", "--out", "out"],
        "reproduce": ["reproduce", "joo2023-table1", "--rows", "ce", "--out", "out"],
        "data show": ["data", "show", "folder", "--path", kit / "photos", "--out", "out/sheet.png"],
    }[verb]


def test_every_verb_that_writes_is_here():
    """compare, leaderboard and report write as `data show` does, submit as `audit`; demo and harden as `train`."""
    known = {*VERBS, "compare", "leaderboard", "report", "submit", "demo", "harden", "data fetch"}
    reading = {"explore", "bench", "list", "doctor", "completion", "data check", "verify"}
    verbs = {name for name, verb in cli.verbs().items() if not isinstance(verb, dict)}
    assert verbs | {f"data {name}" for name in cli.verbs()["data"]} == known | reading


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_is_one_sentence_and_what_was_there_stays(verb, kit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    for name in ("sheet.png", "overview.png", "notes.txt"):
        (tmp_path / "out" / name).write_bytes(b"of an earlier run")
    with full_disk():
        code = cli.main(words_of(verb, kit))
    err = capsys.readouterr().err
    assert code == 2, err
    assert err.strip().splitlines()[-1].startswith("gyrograd: ")
    assert "Traceback" not in err
    for name in ("sheet.png", "overview.png", "notes.txt"):
        assert (tmp_path / "out" / name).read_bytes() == b"of an earlier run"
    hidden = [path for path in tmp_path.rglob(".*") if path.is_file()]
    assert hidden == []
