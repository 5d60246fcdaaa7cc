"""The shell's completion, tried in a shell; settings from a file."""

from __future__ import annotations

import subprocess

import pytest

from gyrograd import cli


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["au"], "audit"),
        (["audit", "--pre"], "--preset"),
        (["data", "f"], "fetch"),
        (["data", "show", "--sp"], "--split"),
        (["train", "--rec"], "--recipe"),
        (["explain", "--unl"], "--unlabelled"),
        (["list", "ker"], "kernel"),
        (["list", "--k"], ""),
        (["reproduce", "wang2020-figure6"], "wang2020-figure6"),
        (["data", "check", "sh"], "shapes"),
    ],
)
def test_bash_completes_verbs_and_options(typed, offered, capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = " ".join(f"'{word}'" for word in ("gyrograd", *typed))
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _gyrograd; echo "${{COMPREPLY[0]}}"'
    said = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == offered


def test_an_unknown_shell_names_the_known_ones(capsys):
    assert cli.main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'" in capsys.readouterr().err
    assert cli.main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("autoload -U +X bashcompinit")


def test_settings_come_from_a_file_and_an_unknown_one_is_named(tmp_path, capsys):
    (tmp_path / "good.yaml").write_text("kind: kernel\n")
    (tmp_path / "bad.yaml").write_text("kin: kernel\n")
    assert cli.main(["list", "--config", str(tmp_path / "good.yaml")]) == 0
    assert "gaussian" in capsys.readouterr().out
    assert cli.main(["list", "--config", str(tmp_path / "bad.yaml")]) == 2
    assert (
        "The file of --config has 'kin', which 'gyrograd list' does not take: did you mean 'kind'?"
        in capsys.readouterr().err
    )
