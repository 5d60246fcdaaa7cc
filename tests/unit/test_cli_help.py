"""What a newcomer reads first: the overview, the help of a verb, tables in a narrow terminal."""

from __future__ import annotations

import re

import pytest

from gyrograd import cli
from gyrograd.cli.options import options
from gyrograd.cli.terminal import print_table


def verbs_with_methods() -> list[str]:
    return [name for name, verb in cli.verbs().items() if callable(verb) and "methods" in options(verb)]


def help_of(verb: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    return capsys.readouterr().out


def test_every_verb_that_takes_methods_calls_them_so(capsys):
    assert verbs_with_methods() == ["audit", "explain", "attack", "submit"]
    for name, verb in cli.verbs().items():
        assert isinstance(verb, dict) or "method" not in options(verb), name
    for name in verbs_with_methods():
        shown = help_of(name, capsys)
        assert "--methods METHODS" in shown
        assert not re.search(r"--method\b", shown)


@pytest.mark.parametrize("option", ["--method", "--methods"])
@pytest.mark.parametrize("verb", verbs_with_methods())
def test_method_and_methods_are_one_option(verb, option, tmp_path, capsys):
    (tmp_path / "own.yaml").write_text(f"{option.strip('-')}: gradeint\n")
    for words in ([option, "gradeint"], [f"{option}=gradeint"], ["--config", str(tmp_path / "own.yaml")]):
        assert cli.main([verb, "lenet", "shapes", "--out", str(tmp_path / "out"), *words]) == 2
        assert (
            capsys.readouterr().err
            == "gyrograd: There is no attribution 'gradeint': did you mean 'gradient'?\n"
        )


def test_the_help_gives_defaults_and_no_types(capsys):
    for name in ("audit", "explain", "train", "reproduce"):
        shown = help_of(name, capsys)
        assert "type:" not in shown
        assert "null" not in shown
    audit = help_of("audit", capsys)
    assert "usage: gyrograd audit MODEL DATA ... [--OPTION ...]\n" in audit
    assert "(default: quick)" in " ".join(audit.split())
    assert "the choice of images. (default: 0)" in " ".join(audit.split())
    assert audit.index("--preset") < audit.index("--fresh")
    assert "Exit code 1: nothing was gained" in " ".join(help_of("harden", capsys).split())


@pytest.mark.parametrize("words", [["--help"], ["data"]])
def test_the_overview_has_a_line_for_each_verb_in_eighty_columns(words, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    known = cli.verbs()["data"] if words == ["data"] else cli.verbs()
    for name, verb in known.items():
        about = ", ".join(verb) if isinstance(verb, dict) else verb.__doc__.partition("\n")[0]
        assert any(line.split() == [name, *about.split()] for line in lines), name


def test_short_columns_stay_whole_in_a_narrow_terminal(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("gyrograd.cli.terminal.Console.is_terminal", True)
    print_table(("part", "state", "detail"), [("extra tensorboard", "ok", "many words " * 10)])
    assert "extra tensorboard" in capsys.readouterr().out


def test_trained_models_are_listed_without_broken_names(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("gyrograd.cli.terminal.Console.is_terminal", True)
    assert cli.main(["list", "model"]) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 80
    assert "cifar10/lenet-l2-cosine," in " ".join(lines).split()
