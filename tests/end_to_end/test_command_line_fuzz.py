"""A sample of `make fuzz-cli`, and what it found: every line ends with a sentence or a result."""

from __future__ import annotations

import queue
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
        escaped = command_lines.escaped(words, before, kit, tmp_path)
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


def test_a_word_that_would_bury_the_sentence_is_cut(run):
    ended = run(["train", "--model", "9" * 5000, "--out", "out/here"])
    assert ended.code == 2
    assert f"{'9' * 50}" in ended.said
    assert len(ended.said) < 1000


def test_a_device_without_an_end_is_not_read(run):
    for words in (["sweep", "/dev/zero", "--out", "out/here"], ["train", "--config=/dev/urandom"]):
        ended = run(words)
        assert ended.code == 2
        assert "never ends; give a file." in ended.said


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


def test_every_line_is_run_once_and_is_the_same_however_many_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(
        command_lines.Worker, "run", lambda self, words: {"code": 0, "seconds": 0.0, "said": ""}
    )

    def lines(workers: int) -> dict[int, list[str]]:
        numbers = queue.SimpleQueue()
        for number in range(20):
            numbers.put(number)
        homes = [tmp_path / str(workers) / str(n) for n in range(workers)]
        runs = [command_lines.run_lines(numbers, 3, home) for home in homes]
        found = {}
        while runs:
            for run, home in list(zip(runs, homes, strict=False)):
                number, ended = next(run, (None, None))
                if ended is None:
                    runs.remove(run)
                    homes.remove(home)
                else:
                    found[number] = [word.replace(str(home), "") for word in ended.words]
        return found

    alone = lines(1)
    assert sorted(alone) == list(range(20))
    assert lines(3) == alone


def test_a_file_that_is_overwritten_is_seen_too(tmp_path):
    kit, work = command_lines.made_kit(tmp_path / "kit"), tmp_path / "work"
    before = command_lines.listing(kit.home, work)
    (kit.home / "empty").write_bytes(b"more")
    assert command_lines.escaped(["list"], before, kit, work) == [kit / "empty"]
    assert command_lines.escaped(["audit", "--out", kit / "empty"], before, kit, work) == []
