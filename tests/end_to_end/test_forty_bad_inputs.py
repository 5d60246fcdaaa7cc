"""Whatever is wrong with a model or with images: one sentence, exit code 2, nothing written, no code of a file run."""

from __future__ import annotations

import json
import pickle

import bad_files
import pytest

from gyrograd import cli
from gyrograd.cli import attack, explain

VERBS = {"explain": [], "attack": ["--steps", "1"]}


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return bad_files.kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(autouse=True)
def _wired(monkeypatch, tmp_path):
    verbs = {**cli.verbs(), "explain": explain.explain, "attack": attack.attack}
    monkeypatch.setattr(cli, "verbs", lambda: verbs)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def files(folder):
    """Sizes by name, without the byte code that Python itself keeps beside a file it has read."""
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): path.stat().st_size for path in found}


def test_there_are_more_than_forty():
    assert len(bad_files.BAD) >= 40
    assert len(bad_files.COMMON) >= 40


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", bad_files.BAD)
def test_bad_input_is_one_sentence_and_nothing_is_written(case, verb, kit, tmp_path, capsys):
    make, sentence = bad_files.BAD[case]
    words = make(kit, tmp_path)
    before = files(tmp_path)
    code = cli.main([verb, *words, *VERBS[verb], "--out", str(tmp_path / "here" / "out")])
    said = capsys.readouterr()
    assert code == 2, said
    assert sentence in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert files(tmp_path) == before


def test_the_code_in_the_pickles_would_run_if_it_were_unpickled(tmp_path):
    pickle.loads(bad_files.evil(tmp_path))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", bad_files.GOOD)
def test_odd_but_good_input_is_taken(case, verb, kit, tmp_path, capsys):
    make, note = bad_files.GOOD[case]
    words = make(kit, tmp_path)
    code = cli.main([verb, *words, *VERBS[verb], "--images", "2", "--out", "out", "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    document = json.loads(said.out)
    assert any(note in one for one in document["notes"]) if note else document["notes"] == []
    assert (tmp_path / "here" / "out" / "overview.png").is_file()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_where_the_folder_should_be_is_refused_before_any_work(
    verb, place, kit, tmp_path, capsys, monkeypatch
):
    (tmp_path / "file").write_text("keep me")
    code = cli.main([verb, kit.model, kit.data, "--out", str(tmp_path / place)])
    assert code == 2
    assert "is a file where a folder is needed" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "keep me"
