"""A sample of the fuzzed files of tests/fuzz/readers.py, and those that were once read wrong."""

from __future__ import annotations

import os
from collections import Counter

import cards
import pytest
from fuzz import readers

from gyrograd.reporting import read_card

SAMPLE = 100


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return readers.sound_files(tmp_path_factory.mktemp("sound"))


def test_every_sound_file_is_opened(files, tmp_path):
    for kind in readers.KINDS:
        suffix, content = files[kind][0]
        name = readers.KINDS[kind].name
        path = tmp_path / kind / (f"file{suffix}" if name == "file." else name)
        path.parent.mkdir()
        path.write_bytes(content)
        if kind == "card":  # drawn in other tests, which takes a while
            assert read_card(path)["title"] == cards.card()["title"]
        else:
            assert readers.opened(kind, path) == ("opened", "")


def test_damaged_files_open_or_are_refused_in_one_sentence(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ends = Counter()
    for number in range(SAMPLE):
        kind, change, name, content = readers.one(files, seed=0, number=number)
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(content)
        result, words = readers.opened(kind, path)
        assert result != "wrong", f"file {number} ({kind}, {change}): {words}"
        assert result == "opened" or "\n" not in words.strip(), words
        ends[result] += 1
    # Most changes are found, and some do no harm: a fuzzer that only ever sees one of the two tests nothing.
    assert ends["refused"] > SAMPLE / 3
    assert ends["opened"] > SAMPLE / 20


def test_a_process_that_dies_or_hangs_is_a_finding_and_another_goes_on(monkeypatch, tmp_path):
    def work(files, seed, home, pipe):
        for number in iter(pipe.recv, None):
            while number == 2:
                pass
            if number == 3:
                os._exit(1)
            pipe.send(("image", "cut", "opened", "", 0.0))

    monkeypatch.setattr(readers, "work", work)
    monkeypatch.setattr(readers, "SECONDS", 0.2)
    monkeypatch.setattr(readers, "one", lambda *_: ("image", "cut", "name", b""))
    workers = [readers.Worker({}, 0, tmp_path) for _ in range(2)]
    found = {number: (answer[2], answer[3]) for number, answer in readers.answers(workers, range(6))}
    opened = dict.fromkeys((0, 1, 4, 5), ("opened", ""))
    assert found == opened | {2: ("wrong", "more than 0.2 seconds"), 3: ("wrong", "the process died")}
    for worker in workers:
        worker.process.kill()
        worker.process.join()
