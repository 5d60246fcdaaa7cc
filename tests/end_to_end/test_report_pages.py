"""report, compare and leaderboard as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys

import cards
import pages
import pytest

from gyrograd import cli
from gyrograd.cli.compare import compare
from gyrograd.cli.leaderboard import leaderboard
from gyrograd.cli.report import report

VERBS = {"report": report, "compare": compare, "leaderboard": leaderboard}


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audits")
    cards.write_audit(folder / "a")
    cards.write_audit(folder / "b", gain=0.2, source="cifar10/lenet-l2-cosine")
    return folder


@pytest.fixture
def gyrograd(monkeypatch, capsys):
    """Run words; gives the exit code, what was printed and what was complained."""
    monkeypatch.setattr(cli, "verbs", lambda: VERBS)
    monkeypatch.setenv("COLUMNS", "220")

    def run(*words):
        code = cli.main([str(word) for word in words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_report_is_made_again_from_its_card(tmp_path, gyrograd):
    folder = cards.write_audit(tmp_path / "a")
    short = cards.card() | {"curves": None}
    (folder / "card.json").write_text(json.dumps(short), encoding="utf-8")
    code, out, _ = gyrograd("report", folder)
    path = folder / "report.html"
    assert (code, out.strip()) == (0, str(path))
    whole = path.read_bytes()
    path.unlink()
    code, out, _ = gyrograd("report", folder / "card.json")
    assert (code, out.strip()) == (0, str(path))
    assert path.read_bytes() == whole


def test_compare_prints_the_sentence_the_table_and_the_page(house, tmp_path, gyrograd):
    page = tmp_path / "deep" / "compare.html"
    code, out, _ = gyrograd("compare", house / "a", house / "b", "--out", page)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("cifar10/lenet-l2-cosine holds further: SmoothGrad on")
    assert "Improved:" in lines
    assert "Got worse:" not in lines
    assert lines[-1] == str(page)
    assert sum("better, paired" in line for line in lines) == 18
    assert pages.read(page.read_text(encoding="utf-8")).complaints == []


def test_compare_for_machines_is_one_document(house, tmp_path, gyrograd):
    page = tmp_path / "c.html"
    code, out, _ = gyrograd("compare", house / "a" / "card.json", house / "b", "--out", page, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["page"] == str(page)
    assert len(found["changes"]) == 42
    assert all(row["paired"] for row in found["changes"])


def test_the_report_an_audit_ends_with_stands_for_its_folder(tmp_path, gyrograd):
    for name in ("a", "b"):
        cards.write_audit(tmp_path / name)
    words = (
        "compare",
        tmp_path / "a" / "report.html",
        tmp_path / "b" / "report.md",
        "--out",
        tmp_path / "c.html",
    )
    assert all(not path.exists() for path in words[1:3])
    assert gyrograd(*words)[0] == 2  # it is not there: no audit is
    for path in words[1:3]:
        path.write_text("a page")
    assert gyrograd(*words)[0] == 0
    assert gyrograd("report", tmp_path / "a" / "report.html")[1].strip() == str(
        tmp_path / "a" / "report.html"
    )


def test_the_leaderboard_lies_in_its_folder(house, gyrograd):
    code, out, _ = gyrograd("leaderboard", house)
    page = house / "leaderboard.html"
    assert code == 0
    assert out.splitlines()[-1] == str(page)
    assert pages.read(page.read_text(encoding="utf-8")).complaints == []
    code, out, _ = gyrograd("leaderboard", house, "--json")
    assert [row["model"] for row in json.loads(out)["boards"][0]["rows"] if row["recommended"]] == [
        "cifar10/lenet-l2-cosine",
        "cifar10/lenet-ce",
    ]


def test_a_narrow_terminal_gets_whole_words_and_is_told_of_the_rest(house, gyrograd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    _, out, _ = gyrograd("leaderboard", house)
    assert all(len(line) <= 70 for line in out.splitlines()[:-1])
    assert out.count("cifar10/lenet-l2-cosine") == 6  # one row per method
    assert "Also on the page: " in out
    told = out[out.index("Also on the page") :]
    assert "Deletion" in told
    assert "Steady under attack" not in told
    assert "Unreliable, as the page explains: " in out
    monkeypatch.setenv("COLUMNS", "220")
    wide = gyrograd("leaderboard", house)[1]
    assert "Also on the page" not in wide
    assert "Unreliable, as" not in wide  # a column says so


def test_compare_tells_in_short_what_only_one_audit_has_or_measured_otherwise(
    tmp_path, gyrograd, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    a, b = cards.card(), cards.card()
    b["methods"] = [method for method in b["methods"] if method["name"] != "smoothgrad"]
    b["methods"][0]["columns"]["insertion"] = None
    b["columns"] = [c | ({"detail": "otherwise"} if c["key"] == "deletion" else {}) for c in b["columns"]]
    for name, card in (("a", a), ("b", b)):
        cards.write_audit(tmp_path / name)
        (tmp_path / name / "card.json").write_text(json.dumps(card), encoding="utf-8")
    _, out, _ = gyrograd("compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c.html")
    first = a["methods"][0]["label"]
    assert f"Only in cifar10/lenet-ce (a): SmoothGrad, Insertion of {first}." in " ".join(out.split())
    rows = [line for line in out.splitlines() if line.rstrip().endswith("measured differently")]
    assert len(rows) == len(b["methods"])
    assert out.count("Deletion: measured differently: ") == 1
    assert not any(line.startswith("SmoothGrad") for line in out.splitlines())


def test_a_card_that_cannot_be_read_is_left_out_aloud(tmp_path, gyrograd):
    cards.write_audit(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "card.json").write_text("{")
    code, _, err = gyrograd("leaderboard", tmp_path)
    assert code == 0
    assert err.startswith("gyrograd: left out: ")
    assert "bad" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("report", "{}/none"), "There is no card.json at"),
        (("report", "{}/a/pictures.npz"), "no valid JSON"),
        (("compare", "{}/a", "{}/none"), "compare models with --data DATA"),
        (("compare", "{}/a"), "needs b: write `gyrograd compare A B`"),
        (("compare", "{}/a", "{}/a", "--out", "{}/a/card.json/x.html"), "is a file where a folder is needed"),
        (("compare", "{}/a", "{}/a", "--out", "{}/a"), "is a folder where a file is written"),
        (("leaderboard", "{}", "--out", "{}/a/card.json"), "is a file where a folder is needed"),
        (("leaderboard", "{}/none"), "There is no folder"),
        (("leaderboard", "{}/a/records"), "gyrograd audit MODEL DATA"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(words, sentence, house, gyrograd):
    code, out, err = gyrograd(*(word.format(house) for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_damaged_values_are_one_sentence(tmp_path, house, gyrograd):
    a = cards.write_audit(tmp_path / "a")
    (a / "records" / "table" / "gradient.json").write_text("{")
    code, _, err = gyrograd("compare", a, house / "b", "--out", tmp_path / "c.html")
    assert code == 2
    assert "gradient.json is not a record" in err
    assert not (tmp_path / "c.html").exists()


def test_reports_need_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; "
        "import gyrograd.reporting, gyrograd.cli.report, gyrograd.cli.compare, gyrograd.cli.leaderboard; "
        "from gyrograd.reporting.page import render_template; "
        "print(len(render_template('page', title='t', lead=(), sections=(), footer=(), badges=(), beside=None)) > 100)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.stdout, result.stderr) == ("True\n", "")


def test_two_models_are_audited_and_compared_in_one_go(tmp_path, capsys, monkeypatch):
    from gyrograd.cli import audit as verb

    asked = []

    def stand_in(model, data, *, preset, opening, out):
        asked.append((model, data, preset, opening.images))
        print("the audit's own words")
        write_card(out, model)

    def write_card(folder, model):
        made = cards.card()
        made["model"]["source"] = model
        folder.mkdir(parents=True)
        (folder / "card.json").write_text(json.dumps(made))

    monkeypatch.setattr(verb, "audit", stand_in)
    page = tmp_path / "compare.html"
    words = [
        "compare",
        "cifar10/lenet-ce",
        "lenet",
        "--data",
        "shapes",
        "--images",
        "4",
        "--out",
        str(page),
        "--json",
    ]
    assert cli.main(words) == 0
    said = capsys.readouterr()
    assert asked == [("cifar10/lenet-ce", "shapes", "quick", 4), ("lenet", "shapes", "quick", 4)]
    assert "the audit's own words" in said.err
    assert json.loads(said.out)["page"] == str(page)
    assert page.is_file()
