"""A sample of `make fuzz-cli`, and what it found: every line ends with a sentence or a result."""

from __future__ import annotations

import random
import socket

import pytest
from fuzz import command_lines

from gyrograd.explorer import server

COSTLY = ("audit", "harden", "bench", "sweep", "doctor", "explore")
"""More than a moment each; the whole fuzz has them."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return command_lines.made_kit(tmp_path_factory.mktemp("fuzz") / "kit")


@pytest.fixture
def run(kit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path / "out" / "data"))
    monkeypatch.setattr(socket, "getaddrinfo", command_lines.alone)
    monkeypatch.setattr(server, "serve", lambda *_, **__: None)

    def ended(words: list[str]) -> command_lines.Ended:
        before = command_lines.listing(kit.home, tmp_path)
        found = command_lines.outcome(words)
        asked = command_lines.places_asked_for(words, tmp_path)
        new = command_lines.listing(kit.home, tmp_path) - before
        escaped = sorted(path for path in new if not any(str(path).startswith(str(one)) for one in asked))
        return command_lines.Ended(words, found["code"], found["seconds"], found["said"], escaped)

    return ended


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_command_line_ends_with_a_sentence_or_a_result(seed, kit, run):
    rng = random.Random(seed)
    words = command_lines.command_line(rng, kit)
    while words[0] in COSTLY or "shapes" in words:
        words = command_lines.command_line(rng, kit)
    ended = run(words)
    assert ended.fault is None, ended


def test_a_pipe_nobody_writes_to_is_not_waited_for(kit, run):
    for words in (["report", kit / "card", "--config", kit / "fifo.png"], ["sweep", kit / "fifo.png"]):
        ended = run(words)
        assert ended.fault is None
        assert "is a pipe; give a file." in ended.said


def test_a_file_of_settings_that_is_no_text_is_one_sentence(kit, run):
    for name in ("broken.png", "deep.yaml"):
        (kit.home / "deep.yaml").write_text("[" * 20_000)
        ended = run(["report", kit / "card", "--config", kit / name])
        assert ended.fault is None, ended
        assert ended.code == 2


def test_the_fuzz_itself_sees_a_fault():
    ended = command_lines.Ended(["list"], 0, 0.0, "fine", [])
    assert ended.fault is None
    for code, said, escaped in (
        (70, "gyrograd: a defect", []),
        (0, "Traceback (most recent call last)", []),
        (2, "no sentence", []),
        (0, "\x1b[2J", []),
        (0, "", ["elsewhere"]),
    ):
        assert command_lines.Ended(["list"], code, 0.0, said, escaped).fault
