"""The leaderboard's site: pairs ranked by one rule, and a page that sorts, filters and compares in a real browser."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import cards
import numpy as np
import pages
import pytest
from playwright.sync_api import sync_playwright

from gyrograd.cli import main
from gyrograd.models.opening import UNTRAINED
from gyrograd.reporting import boards, find_audits
from gyrograd.reporting.leaderboard import _span, site

RADIUS = {
    "key": "steady_radius", "label": "Steady radius", "detail": "largest eps", "group": "attack",
    "direction": "higher", "range": None,
}  # fmt: skip
NETS = {
    "net-plain": (0.95, 1.0),
    "net-between": (0.90, 3.0),
    "net-worse": (0.85, 2.0),
    "net-steady": (0.80, 6.0),
}
"""Accuracy and steady radius of the gradient; the second method is steadier by one."""


def written(folder: Path, name: str, **changes) -> None:
    accuracy, radius = NETS[name]
    card = copy.deepcopy(cards.card(source=name))
    card["columns"].append(RADIUS)
    card["accuracy"] = cards.stat(accuracy, 0.01)
    card["methods"] = card["methods"][:2]
    for more, method in enumerate(card["methods"]):
        method["columns"]["steady_radius"] = cards.stat(radius + more, 0.2)
        method["passes"], method["recommended"] = 1 + 9 * more, more == 1
    line = {
        "method": "gradient",
        "label": "attack",
        "x": [2.0, 4.0, 8.0],
        "y": [cards.stat(v) for v in (0.9, 0.6, 0.2)],
    }
    card["curves"]["eps"]["lines"] = [line]
    card["flags"] = []
    card |= changes
    folder.mkdir(parents=True)
    (folder / "card.json").write_text(json.dumps(card))
    (folder / "report.html").write_text("<!doctype html><title>report</title>")


def flag(method: str) -> dict:
    return {
        "name": "ignores_model", "where": method, "raised_if": "r", "explanation": "It is a map of the image.",
        "what_to_do": "w", "measured": 1.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    home = tmp_path_factory.mktemp("audits")
    for name in NETS:
        written(home / name, name, flags=[flag("gradient")] if name == "net-steady" else [])
    claims = {
        "name": "Net, plain",
        "paper": "A paper",
        "reported": {"accuracy": 0.97, "gradient.insertion": 0.5},
    }
    (home / "net-plain" / "submission.json").write_text(json.dumps(claims))
    return home


def test_pairs_are_ranked_by_their_steady_radius_with_accuracy_beside_it(house):
    board = boards(find_audits(house)[0])[0]
    assert board.ranked_by["key"] == "steady_radius"
    radii = [place.stats["steady_radius"]["value"] for place in board.places()]
    assert radii == sorted(radii, reverse=True)
    assert len(radii) == 2 * len(
        NETS
    )  # every method of every model, not one that differs from model to model
    assert [column["key"] for column in board.ordered][:6] == [
        "steady_radius", "accuracy", "kept_4", "kept_8", "rps", "insertion",
    ]  # fmt: skip
    first = next(p for p in board.places() if p.method == "gradient")
    assert (first.stats["kept_4"]["value"], first.stats["kept_8"]["value"]) == (0.6, 0.2)


def test_level_pairs_go_by_the_worse_end_of_their_intervals_before_accuracy(tmp_path):
    """Two maps that hold at the largest radius tried: the surer one is first, not that of the more accurate net."""
    for name, low in (("net-plain", 6.0), ("net-steady", 7.0)):
        written(tmp_path / name, name)
        path = tmp_path / name / "card.json"
        card = json.loads(path.read_text())
        for method in card["methods"]:
            method["columns"]["steady_radius"] = {"value": 8.0, "low": low, "high": 8.0, "n": 16}
        path.write_text(json.dumps(card))
    places = boards(find_audits(tmp_path)[0])[0].places()
    assert [place.audit.name for place in places] == 2 * ["net-steady"] + 2 * ["net-plain"]


def test_a_model_without_trained_weights_is_not_ranked(tmp_path):
    written(tmp_path / "a", "net-plain")
    written(tmp_path / "b", "net-steady", settings={"notes": [UNTRAINED]})
    audits, troubles = find_audits(tmp_path)
    assert [audit.name for audit in audits] == ["net-plain"]
    assert "no trained weights" in troubles[0]


@pytest.mark.parametrize(
    "values", [[0.1, 0.9], [0.8], [1.08, 8.0], [0.4123, 0.4124], [-3.0, 250.0], [0.2, 9.9]]
)
def test_the_ends_and_the_middle_of_an_axis_are_round_numbers_around_the_values(values):
    low, high = _span(values)
    assert low < min(values) <= max(values) < high
    assert low >= 0 or min(values) < 0
    assert all(len(f"{end:.4g}") <= 6 for end in (low, high, (low + high) / 2))


def test_a_self_check_makes_a_pair_unreliable_and_keeps_it_off_the_frontier(house):
    board = boards(find_audits(house)[0])[0]
    doubtful = {(place.audit.name, place.method) for place in board.places() if place.doubts}
    assert doubtful == {("net-steady", "gradient")}
    frontier = {(p.place.audit.name, p.place.method) for p in board.plane().points if p.frontier}
    assert frontier == {
        ("Net, plain", "input_x_gradient"), ("net-between", "input_x_gradient"), ("net-steady", "input_x_gradient"),
    }  # fmt: skip


def test_an_unreliable_pair_beats_nobody(tmp_path):
    """The steadiest pair of all is in doubt: it is not on the frontier, and those below it are."""
    written(tmp_path / "a", "net-steady", flags=[flag("input_x_gradient")])
    written(tmp_path / "b", "net-between")
    board = boards(find_audits(tmp_path)[0])[0]
    frontier = {(p.place.audit.name, p.place.method) for p in board.plane().points if p.frontier}
    assert frontier == {("net-steady", "gradient"), ("net-between", "input_x_gradient")}


def test_what_a_paper_reports_stands_beside_what_was_measured(house):
    board = boards(find_audits(house)[0])[0]
    plain = {p.method: p for p in board.places() if p.audit.name == "Net, plain"}
    assert plain["gradient"].reported("accuracy") == 0.97
    assert plain["gradient"].reported("insertion") == 0.5
    assert plain["input_x_gradient"].reported("insertion") is None


def test_a_broken_submission_file_takes_nothing_but_its_own_words(house, tmp_path):
    written(tmp_path / "a", "net-plain")
    for text in ("{", "[]", '{"name": 3, "reported": {"accuracy": "much"}}'):
        (tmp_path / "a" / "submission.json").write_text(text)
        place = boards(find_audits(tmp_path)[0])[0].places()[0]
        assert (place.audit.name, place.reported("accuracy")) == ("net-plain", None)


def test_the_site_has_a_page_per_model_and_nothing_from_elsewhere(house, capsys):
    out = house / "site"
    assert main(["leaderboard", str(house), "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "index.html")
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {f"models/{name}/{file}" for name in NETS for file in ("audit.json", "report.html")} <= found
    for path in out.rglob("index.html"):
        page = pages.read(path.read_text())
        assert page.complaints == []
        linked = [found["href"] for tag, found in page.tags if tag == "a"]
        assert all((path.parent / way).exists() for way in linked)
        assert "n = 100" in page.text
    # A site below the audits adds no audit to the next one.
    assert len(find_audits(house)[0]) == len(NETS)


def crowd(home: Path, direction: str = "higher") -> None:
    """Twenty nets with nine methods. The steadier a net, the less accurate; some pairs are level, some in doubt."""
    draw = np.random.default_rng(0).normal(size=(20, 10))
    for net in range(20):
        card = copy.deepcopy(cards.card(source=f"cifar10/resnet20-net-{net:02d}"))
        card["columns"] = [RADIUS | {"direction": direction}]
        card["accuracy"] = cards.stat(0.93 - 0.012 * net + 0.006 * draw[net, 9])
        card["flags"], first = [], card["methods"][0]
        card["methods"] = []
        for number in range(9):
            shape = min(number, 7)  # the last two methods are level, and often the best
            radius = min(8.0, 1 + 0.3 * net + 0.35 * shape + 0.5 * draw[net, shape])
            radius = radius if direction == "higher" else 9 - radius
            stat = cards.stat(radius, n=5 if draw[net, shape] > 1.5 else 100)
            names = {"name": f"method_{number}", "label": f"Method {number}"}
            card["methods"].append(first | names | {"columns": {"steady_radius": stat}})
        (home / str(net)).mkdir(parents=True)
        (home / str(net) / "card.json").write_text(json.dumps(card))


def test_twenty_nets_differ_in_colour_or_marker_and_neighbours_in_both(tmp_path):
    crowd(tmp_path)
    plane = boards(find_audits(tmp_path)[0])[0].plane()
    looks = list(plane.models.values())
    assert len(looks) == len(set(looks)) == 20
    assert all(one[0] != two[0] and one[1] != two[1] for one, two in itertools.pairwise(looks))
    left = [next(p.x for p in plane.points if p.place.audit.name == name) for name in plane.models]
    assert left == sorted(left)


OVERLAPS = """() => {
  const box = (one, part) => {
    const {left, right, top, bottom} = one.getBoundingClientRect(), middle = (top + bottom) / 2;
    return {left, right, top: middle - part * (bottom - top) / 2, bottom: middle + part * (bottom - top) / 2};
  };
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  // A capital fills 0.73 of its size, and the line's box is 1.16 of it.
  const letters = [...document.querySelectorAll("svg .letter text")].map((one) => box(one, 0.65));
  const marks = [...document.querySelectorAll("g.point > .mark")].map((one) => box(one, 1));
  return letters.flatMap((a, i) => [...marks, ...letters.slice(i + 1)].filter((b) => meet(a, b))).length;
}"""


@pytest.mark.parametrize("direction", ["higher", "lower"])
def test_every_pair_of_the_frontier_has_a_letter_on_no_point_and_no_other_letter(tmp_path, direction):
    crowd(tmp_path, direction)
    plane = boards(find_audits(tmp_path)[0])[0].plane()
    assert {letter.point.row for letter in plane.letters} == {p.row for p in plane.points if p.frontier}
    assert len(plane.letters) > 6
    assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        for width in (1280, 900, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.locator("g.point > .mark:visible").count() == 180
            assert page.evaluate(OVERLAPS) == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        keys = page.locator(".key li[data-row]").all_inner_texts()
        assert [key[0] for key in keys] == page.locator("svg .letter").all_text_contents()
        # A pair that is filtered away takes its letter and its line of the key with it.
        page.select_option("#method", "=method_8")
        rows = page.locator("tbody tr:visible").evaluate_all("all => all.map(row => row.dataset.row)")
        kept = {str(letter.point.row) for letter in plane.letters} & set(rows)
        assert page.locator(".key li[data-row]:visible").count() == len(kept) < len(keys)
        assert page.locator("svg .letter:visible").count() == len(kept)
        browser.close()


def test_two_models_of_one_name_have_pages_of_their_own(tmp_path):
    for folder in "ab":
        written(tmp_path / folder, "net-plain")
    texts, _ = site(boards(find_audits(tmp_path)[0]), [])
    assert {"models/net-plain/index.html", "models/net-plain-2/index.html", "index.html"} == set(texts)


def test_the_page_sorts_filters_and_compares_in_a_browser(house, tmp_path):
    assert main(["leaderboard", str(house), "--out", str(tmp_path)]) == 0
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        asked, wrong = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto((tmp_path / "index.html").as_uri())

        def models():
            return page.locator("tbody tr:visible .model").all_inner_texts()

        ranked = models()
        assert ranked[:2] == ["net-steady"] * 2
        page.get_by_role("button", name="Accuracy").click()
        assert models()[:2] == ["Net, plain"] * 2
        page.get_by_role("button", name="Accuracy").click()
        assert models()[:2] == ["net-steady"] * 2
        assert page.locator("tbody tr:visible .rank").all_inner_texts() == [str(i) for i in range(1, 9)]

        page.select_option("#method", "=gradient")
        assert len(models()) == 4
        assert page.locator("g.point > .mark:visible").count() == 4
        page.check("#reliable")
        assert "net-steady" not in models()
        page.fill("#model", "plain")
        assert models() == ["Net, plain"]
        page.fill("#model", "")
        page.uncheck("#reliable")
        page.select_option("#method", "")
        page.select_option("#sort", "steady_radius")
        assert models() == ranked

        assert not page.locator(".two").is_visible()
        boxes = page.locator(".pick input")
        boxes.nth(0).check()
        boxes.nth(2).check()
        told = page.locator(".two").inner_text()
        assert "net-steady, Input x gradient" in told
        assert "-3.000, worse" in told
        boxes.nth(4).check()  # a third takes the place of the first
        assert page.locator(".pick input:checked").count() == 2

        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            # Nothing is cut off: every number's right edge is on the screen.
            edges = page.locator("tbody tr:visible td:visible").evaluate_all(
                "all => all.map(td => td.getBoundingClientRect().right)"
            )
            assert max(edges) <= width
        page.locator("tbody tr:visible .model a").first.click()
        assert page.locator("h1").inner_text() == "net-steady"
        assert wrong == []
        assert all(url.startswith("file:") for url in asked)
        browser.close()
