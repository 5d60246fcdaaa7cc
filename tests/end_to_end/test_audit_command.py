"""gyrograd audit: from two words to a report, taken up again, interrupted, and refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bad_files
import pytest
from small_audits import SMALL

from gyrograd import cli
from gyrograd.audit.presets import PRESETS
from gyrograd.cli.audit import audit
from gyrograd.measurement import Cell
from gyrograd.reporting.schema import read_card

FEW = replace(SMALL, methods=("gradient",), attacks=("top_k",), sweep={}, attacked_images=2, shard=2)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> bad_files.Kit:
    return bad_files.kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The verb in place, a preset that takes seconds, and a folder of its own."""
    verbs: dict[str, Any] = {**cli.verbs(), "audit": audit}
    monkeypatch.setattr(cli, "verbs", lambda: verbs)
    monkeypatch.setitem(PRESETS, "few", FEW)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the page takes longer than everything else here."""
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)


def run(*words: str) -> int:
    return cli.main(["audit", *words, "--preset", "few"])


def test_an_audit_prints_the_verdict_and_ends_with_the_report(
    kit: bad_files.Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(kit.model, kit.data, "--out", "report") == 0
    said = capsys.readouterr().out
    folder = tmp_path / "here" / "report"
    assert said.splitlines()[-1] == "report/report.html"
    assert "Verdict: " in said
    card = read_card(folder)
    for sentence in card["verdict"]["sentences"]:
        assert sentence in said
    assert {"card.json", "pictures.npz", "records", "report.html", "report.md", "figures"} <= {
        path.name for path in folder.iterdir()
    }
    assert card["rerun"]["command"] == f"gyrograd audit {kit.model} {kit.data} --preset few --out report"
    assert card["model"]["source"] == kit.model


@pytest.mark.usefixtures("_no_page")
def test_json_is_the_card_and_nothing_else(kit: bad_files.Kit, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(kit.model, kit.data, "--out", "report", "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(Path("report/card.json").read_text())


@pytest.mark.usefixtures("_no_page")
def test_methods_attacks_metrics_and_eps_are_named_by_the_user(kit: bad_files.Kit) -> None:
    words = [
        "--methods",
        "smoothgrad(sigma=0.3, draws=2),grad",
        "--attacks",
        "untargeted_map",
        "--steps",
        "1",
    ]
    assert run(kit.model, kit.data, *words, "--metrics", "cor,lle", "--eps", "4/255", "--images", "3") == 0
    (folder,) = Path("out/audit").iterdir()
    card = read_card(folder)
    assert [m["name"] for m in card["methods"]] == ["smoothgrad", "gradient"]
    assert card["methods"][0]["settings"] == {"draws": 2, "sigma": 0.3}
    assert card["settings"]["attacks"] == ["untargeted_map"]
    assert card["settings"]["steps"] == 1
    assert card["settings"]["eps"] == pytest.approx(4 / 255)
    assert card["data"]["images"] == 3
    assert {"rank_correlation", "local_lipschitz"} <= set(card["methods"][0]["columns"])
    assert "--eps 4/255" in card["rerun"]["command"]


@pytest.mark.usefixtures("_no_page")
@pytest.mark.parametrize(
    ("radii", "attacked", "steady"),
    [("8/255", [], False), ("2/255,0.03", [2, 7.65, 8], True)],  # the curve of one radius would be a point
)
def test_maps_are_attacked_at_the_radii_that_are_given_and_at_eps(
    kit: bad_files.Kit, capsys: pytest.CaptureFixture[str], radii: str, attacked: list[float], steady: bool
) -> None:
    words = ["--attacks", "auto", "--steps", "1", "--radii", radii, "--out", "report"]
    assert run(kit.model, kit.data, *words) == 0
    capsys.readouterr()
    card = read_card(Path("report"))
    lines = [line["x"] for line in card["curves"]["eps"]["lines"] if line["label"] != "noise"]
    assert lines == ([pytest.approx(attacked)] if attacked else [])
    assert ("steady_radius" in card["methods"][0]["columns"]) == steady
    assert f"--radii {radii}" in card["rerun"]["command"]


def test_images_without_labels_are_explained_for_the_prediction(
    kit: bad_files.Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(kit.model, kit.data, "--unlabelled", "--images", "2", "--out", "report") == 0
    assert "without labels" in capsys.readouterr().out
    assert read_card("report")["data"]["labelled"] is False


@pytest.mark.usefixtures("_no_page")
def test_an_interruption_keeps_what_is_done_and_the_same_command_goes_on(
    kit: bad_files.Kit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, asked = Cell.record, []

    def third_time(cell: Cell, positions: list[int]) -> Any:
        asked.append(cell.name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return measure(cell, positions)

    monkeypatch.setattr(Cell, "record", third_time)
    assert run(kit.model, kit.data, "--out", "report") == 130
    said = capsys.readouterr().err
    assert "what was measured is kept in report, the same command continues from there" in said
    first = asked.copy()
    assert run(kit.model, kit.data, "--out", "report") == 0
    whole = len([p for p in Path("report/records").rglob("*.json") if p.parent.name != "table"])
    assert len(asked) - len(first) == whole - 2
    asked.clear()
    asked += ["", "", ""]
    assert run(kit.model, kit.data, "--out", "report") == 0
    assert len(asked) == 3
    assert run(kit.model, kit.data, "--out", "report", "--fresh") == 0
    assert len(asked) == 3 + whole


@pytest.mark.parametrize("case", sorted(bad_files.COMMON))
def test_bad_input_is_one_sentence_and_nothing_is_written(
    case: str, kit: bad_files.Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, sentence = bad_files.BAD[case]
    words = make(kit, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(*words, "--out", str(tmp_path / "here" / "out")) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    # Python itself keeps byte code beside a file it has read.
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in path.parts] == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "gradeint"], "did you mean 'gradient'"),
        (["--methods", "smoothgrad(sigmma=1)"], "did you mean 'sigma'"),
        (["--methods", "gradient,gradient"], "names a method twice"),
        (["--attacks", "topk"], "did you mean 'top_k'"),
        (["--metrics", "insrtion"], "did you mean 'insertion'"),
        (["--eps", "8"], "write 8/255 if you mean grey levels"),
        (["--eps", "much"], "write it as 8/255 or 0.03"),
        (["--radii", "2/255,much"], "write it as 8/255 or 0.03"),
        (["--radii", "8"], "write 8/255 if you mean grey levels"),
        (["--steps", "0"], "steps is 0"),
        (["--preset", "quik"], "did you mean 'quick'"),
    ],
)
def test_a_wrong_option_is_one_sentence_and_nothing_is_written(
    words: list[str], sentence: str, kit: bad_files.Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = [] if "--preset" in words else ["--preset", "few"]
    assert cli.main(["audit", kit.model, kit.data, "--out", "report", *preset, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert list((tmp_path / "here").iterdir()) == []


def test_a_file_where_the_folder_should_be_is_refused_before_any_work(
    kit: bad_files.Kit, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("keep me")
    assert run(kit.model, kit.data, "--out", "taken") == 2
    assert "is a file where a folder is needed" in capsys.readouterr().err
    assert Path("taken").read_text() == "keep me"


@pytest.mark.usefixtures("_no_page")
def test_several_files_are_audited_together_and_their_command_is_told(
    kit: bad_files.Kit, tmp_path: Path
) -> None:
    files = sorted(str(path) for path in Path(kit.data).rglob("*.png"))[:2]
    assert run(kit.model, *files) == 0
    (folder,) = (tmp_path / "here" / "out" / "audit").iterdir()
    card = read_card(folder)
    assert card["data"]["images"] == 2
    assert all(file in card["rerun"]["command"] for file in files)


@pytest.mark.usefixtures("_no_page")
def test_a_terminal_gets_lines_that_fit_it_and_a_pipe_whole_sentences(
    kit: bad_files.Kit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert run(kit.model, kit.data, "--out", "report") == 0
    piped = capsys.readouterr().out
    assert max(len(line) for line in piped.splitlines()) > 60
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(kit.model, kit.data, "--out", "report") == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 60
