"""The report card: a pure function of card and pictures, valid, offline, safe against hostile names."""

from __future__ import annotations

import base64
import copy
import io
import json
import pickle
import re
import xml.etree.ElementTree as ET

import cards
import matplotlib
import matplotlib.figure
import numpy as np
import pages
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gyrograd.errors import UserError
from gyrograd.numerics.wording import bracket, eps_text, interval_text, number
from gyrograd.reporting import Figure, Section, Table, map_grid, page, read_card, write_report
from gyrograd.reporting.card import contents, html_report
from gyrograd.reporting.charts import chart, eps_charts, labels_of, plane_chart, setting_text
from gyrograd.reporting.markdown import escape
from gyrograd.reporting.palette import DARK, LIGHT, series
from gyrograd.reporting.pictures import attack_pictures, difference, shared_scale, signed_colours
from gyrograd.reporting.schema import check_card
from gyrograd.reporting.table import rows
from gyrograd.reporting.wording import counted_images, duration, notes_of, signed_text

HOSTILE = "<script>alert(1)</script>\"' onload=x $\\frac{|`*_[a](http://evil) 猫\n# &lt;"


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    folder = cards.write_audit(tmp_path_factory.mktemp("audit"))
    write_report(read_card(folder), folder)
    return folder


@pytest.fixture(scope="module")
def html(audit):
    return (audit / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def small():
    """A card of two methods and nothing that takes long to draw."""
    card = cards.card()
    card["methods"] = card["methods"][:2]
    return card | {"curves": None, "plane": None}


def decoded(address: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))


def test_the_page_is_valid_and_fetches_nothing(html):
    assert pages.read(html).complaints == []


def test_the_page_says_what_the_card_says_in_order(html):
    text = " ".join(pages.read(html).text.split())
    card = cards.card()
    wanted = [card["title"], *card["verdict"]["sentences"], "cat, 0.910", "Under noise"]
    wanted += [
        "photos/17.png (cat): Gradient",
        "cat, 0.880",
        "How similar the map stays",
        "Insertion (higher is better)",
        "Pareto line",
    ]
    wanted += ["wang2020 Theorem 1", "Zero derivative", card["rerun"]["command"], card["model"]["sha256"]]
    places = [text.index(piece) for piece in wanted]
    assert places == sorted(places)


def test_every_value_of_the_table_stands_there_with_its_interval(html):
    text = " ".join(pages.read(html).text.split())
    for method in cards.card()["methods"]:
        for stat in method["columns"].values():
            assert f"{stat['value']:.3f}[{stat['low']:.3f}, {stat['high']:.3f}]" in text


def test_every_column_says_how_many_images_it_is_of(tmp_path, small):
    card = copy.deepcopy(small)
    for method, n in zip(card["methods"], (12, 16), strict=True):
        method["columns"]["top_k_kept"]["n"] = 12
        method["columns"]["attack_cosine"]["n"] = n
    text = " ".join(pages.read(write_report(card, tmp_path).read_text()).text.split())
    assert "Top pixels kept↑ higher is better12 images" in text
    assert "Steady under attack↑ higher is better12 to 16 images" in text
    assert "Insertion↑ higher is better100 images" in text


def test_the_same_card_gives_the_same_bytes(audit, tmp_path, small):
    small = check_card(small)
    (tmp_path / "pictures.npz").write_bytes((audit / "pictures.npz").read_bytes())
    first = write_report(small, tmp_path).read_bytes()
    assert write_report(json.loads(json.dumps(small)), tmp_path).read_bytes() == first


def test_figures_are_files_too(audit):
    names = {path.name for path in (audit / "figures").iterdir()}
    charts = {f"{name}.{end}" for name in ("eps", "insertion", "deletion", "plane") for end in ("png", "svg")}
    assert names == charts | {"attacks.png"}
    for name in names:
        if name.endswith(".svg"):
            assert ET.parse(audit / "figures" / name).getroot().tag.endswith("svg")
        else:
            Image.open(audit / "figures" / name).verify()


def test_charts_follow_the_page_from_light_to_dark(audit, html):
    drawing = html[html.index("<svg") : html.index("</svg>")]
    assert "var(--s0)" in drawing
    assert not re.search(r"#[0-9a-f]{6}(?![0-9a-f])", drawing)
    assert (audit / "figures" / "eps.svg").read_text().count("prefers-color-scheme: dark") == 1
    assert set(LIGHT) == set(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT)


def test_a_chart_is_drawn_once_per_file_with_room_for_its_labels_in_any_users_settings(monkeypatch):
    draw, seen = matplotlib.figure.Figure.draw, []

    def watched(figure, renderer):
        seen.append(figure.get_tightbbox(renderer))
        draw(figure, renderer)

    monkeypatch.setattr(matplotlib.figure.Figure, "draw", watched)
    found = []
    for settings in ({}, {"figure.autolayout": True}, {"figure.constrained_layout.use": True}):
        with matplotlib.rc_context(settings):
            found.append(chart("one", "", [lambda axis: axis.set_ylabel("three\nlines\nof text")]))
    assert len(seen) == 3 * 2  # the SVG and the PNG
    assert all(box.x0 >= 0 and box.y0 >= 0 for box in seen)
    assert found[0] == found[1] == found[2]


def test_forty_methods_differ_in_colour_or_marker():
    assert len({series(index)[:2] for index in range(40)}) == 40


def test_the_markdown_has_the_table_and_figures_that_exist(audit):
    text = (audit / "report.md").read_text(encoding="utf-8")
    for path in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (audit / path).exists()
    assert text.count("](figures/") == 5
    head = next(line for line in text.splitlines() if line.startswith("| method | Steady under noise"))
    row = next(line for line in text.splitlines() if line.startswith("| SmoothGrad (recommended)"))
    assert head.count("|") == row.count("|") == len(cards.COLUMNS) + 2


def test_a_flag_names_its_method_as_the_table_does(audit):
    assert (
        "(Gradient, measured 0.300)" in pages.read((audit / "report.html").read_text(encoding="utf-8")).text
    )
    assert "(Gradient, measured 0.300)" in (audit / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("pareto", "expected"), [(1, 0), (2, 1)])
def test_the_dashed_line_is_explained_only_if_it_is_drawn(tmp_path, pareto, expected):
    card = cards.card()
    for place, point in enumerate(card["plane"]["points"]):
        point["pareto"] = place < pareto
    page = html_report(contents(check_card(card), tmp_path))
    assert page.count("Pareto line") == expected
    assert pages.read(page).text.count("dashed line") == expected


def hostile(value):
    """Every text in the card, and every name of a column or method, turned against the page."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    return value


def test_hostile_names_stay_text(tmp_path):
    card = cards.card()
    kept = {key: card[key] for key in ("kind", "schema", "pictures")}
    wild = hostile(card) | kept
    wild["verdict"]["grade"] = "shaky"
    for column, plain in zip(wild["columns"], card["columns"], strict=True):
        column.update(group=plain["group"], direction=plain["direction"], key=plain["key"])
    wild["methods"] = wild["methods"][:2]
    for name in ("eps", "insertion", "deletion"):
        wild["curves"][name]["lines"] = wild["curves"][name]["lines"][:2]
    np.savez(tmp_path / "pictures.npz", **cards.pictures())
    page = write_report(wild, tmp_path).read_text(encoding="utf-8")
    found = pages.read(page)
    assert found.complaints == []
    assert [tag for tag, _ in found.tags].count("script") == 1
    assert "alert(1)" in found.text
    for path in (tmp_path / "figures").glob("*.svg"):
        assert not [node for node in ET.parse(path).iter() if node.tag.endswith("script")]
    # In Markdown, only the two blocks of code may hold such text as it is.
    prose = re.sub(r"(?ms)^(`{3,})\n.*?^\1$", "", (tmp_path / "report.md").read_text(encoding="utf-8"))
    assert not re.search(r"(?<!\\)<script", prose)
    assert not re.search(r"(?<!\\)\[a(?<!\\)\]\(http", prose)


@given(st.text())
def test_escaped_text_is_one_line_without_markup(text):
    assert "\n" not in escape(text)
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`*\[|]", escape(text))


def test_a_card_of_the_least_a_card_must_have(tmp_path):
    card = cards.card()
    least = {key: card[key] for key in ("schema", "kind", "title", "verdict")}
    least |= {"model": {"source": "a"}, "data": {"source": "b", "images": 1}, "columns": [], "methods": []}
    text = " ".join(pages.read(write_report(least, tmp_path).read_text()).text.split())
    assert "No method was measured." in text
    assert (
        "Not measured in this audit: growing eps, insertion and deletion, robustness against faithfulness, bounds."
        in text
    )
    for heading in ("Growing eps", "Bounds next to"):  # neither an empty section nor a link to one
        assert heading not in text
    assert "None of the checks was raised." in text
    assert "not finished" not in text
    assert not (tmp_path / "figures").exists()
    assert "None" not in (tmp_path / "report.md").read_text().replace("None of the checks", "")


def test_what_was_not_measured_is_a_dash_and_never_best(tmp_path, small):
    small = copy.deepcopy(small)
    columns = small["methods"][0]["columns"]
    columns["rps"], columns["insertion"] = None, {"value": None, "low": None, "high": None, "n": 0}
    columns["deletion"] = {"value": 0.01, "low": None, "high": None, "n": 1}
    del columns["top_k_kept"]
    cells = {cell.key: cell for cell in rows(check_card(small))[0].cells}
    for key in ("rps", "insertion", "top_k_kept"):
        assert (cells[key].value, cells[key].mark, cells[key].bar) == ("–", "", None)
    assert (cells["deletion"].value, cells["deletion"].interval, cells["deletion"].mark) == (
        "0.010",
        "",
        "best",
    )
    assert pages.read(write_report(small, tmp_path).read_text()).complaints == []


def test_points_that_were_not_measured_are_left_out_of_the_charts():
    card = cards.card()
    card["methods"] = card["methods"][:1]
    lines = [line for line in card["curves"]["eps"]["lines"] if line["method"] == "gradient"]
    lines[0]["y"] = [None] * 4
    lines[1]["y"][0] = {"value": 0.5, "low": None, "high": None, "n": 1}
    card["curves"] = {"eps": card["curves"]["eps"] | {"lines": lines}, "insertion": None}
    panels, sheet = eps_charts(check_card(card))
    assert len(panels) == 1
    assert sheet.rows[0][2:] == ("–",) * 4
    assert sheet.rows[1][2] == "0.500"


def test_a_verdict_without_a_grade_says_so(tmp_path, small):
    page = write_report(small | {"verdict": {"grade": None, "sentences": ["Nothing can be said."]}}, tmp_path)
    assert "– not judged" in pages.read(page.read_text()).text
    assert "**not judged**" in (tmp_path / "report.md").read_text()


def test_an_interrupted_audit_says_so_at_the_top(tmp_path, small):
    page = write_report(small | {"complete": False}, tmp_path).read_text()
    assert "This audit is not finished: 100 images so far" in " ".join(pages.read(page).text.split())
    assert page.index("This audit is not finished:") < page.index('class="verdict"')
    assert "not finished" in (tmp_path / "report.md").read_text()


def test_notes_and_methods_left_out_stand_with_the_verdict(tmp_path, small):
    """An untrained model, or two images, must not be read as anything else on any page."""
    told = {"notes": ["The model has no trained weights."], "left_out": {"lrp": "It has no <rule>."}}
    small["settings"] |= told
    cards.write_audit(tmp_path)
    write_report(check_card(small), tmp_path)
    page = pages.read((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.complaints == []
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for words in ("The model has no trained weights.", "Left out: lrp. It has no <rule>."):
        assert page.text.index(words) < page.text.index("Methods")
    assert text.index("- The model has no trained weights.") < text.index("## Methods")


@pytest.mark.parametrize("settings", [{}, {"notes": None}, {"notes": "x", "left_out": []}, None])
def test_a_card_without_notes_has_none(settings):
    assert notes_of({"settings": settings}) == []


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 images"), (1, "1 image"), (2, "2 images"), (1200, "1,200 images")]
)
def test_images_are_counted_in_words(count, said):
    assert counted_images(count) == said


def test_missing_pictures_are_said_to_be_missing(tmp_path, small):
    assert "pictures.npz is missing" in write_report(small, tmp_path).read_text()
    (tmp_path / "pictures.npz").write_bytes(b"PK\x03\x04 cut off")
    assert "pictures.npz is damaged" in write_report(small, tmp_path).read_text()
    arrays = cards.pictures()
    np.savez(tmp_path / "pictures.npz", image=arrays["image"])
    assert "lacks attacked, map_clean, map_attacked" in write_report(small, tmp_path).read_text()
    np.savez(tmp_path / "pictures.npz", **arrays | {"map_clean": arrays["map_clean"][:, :5]})
    assert "do not fit one another" in write_report(small, tmp_path).read_text()
    np.savez(tmp_path / "pictures.npz", **{key: value[:1] for key, value in arrays.items()})
    assert "hold fewer rows" in write_report(small, tmp_path).read_text()


def test_a_pickle_among_the_pictures_is_not_run(tmp_path, small):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    np.savez(tmp_path / "pictures.npz", **cards.pictures() | {"image": np.array([Trap()], dtype=object)})
    with pytest.raises(UserError, match="holds Python objects, which could run code"):
        write_report(small, tmp_path)
    (tmp_path / "pictures.npz").write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(UserError, match="holds Python objects, which could run code"):
        write_report(small, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_an_attack_that_makes_a_map_larger_does_not_leave_the_map_before_black():
    arrays = cards.pictures(rows=1, side=64)
    alone = attack_pictures(arrays, 0).views
    arrays["map_attacked"] = arrays["map_attacked"] * 1000
    beside = attack_pictures(arrays, 0).views
    assert beside["map"][0] == alone["map"][0]
    assert decoded(beside["map"][0]).max() > 200


def test_the_largest_change_allowed_is_black_or_white_and_none_is_grey():
    image = np.full((2, 2, 3), 0.5)
    attacked = image.copy()
    attacked[0] += 8 / 255
    attacked[1, 0] -= 4 / 255
    assert difference(image, attacked, 8 / 255)[:, :, 0] == pytest.approx(np.array([[1, 1], [0.25, 0.5]]))
    assert difference(image, attacked) == pytest.approx(difference(image, attacked, 8 / 255))
    assert difference(image, image) == pytest.approx(0.5)


def test_maps_with_a_sign_are_red_for_and_blue_against_as_strong_on_both_sides():
    red, white, blue = signed_colours(np.array([[2.0, 0.0, -2.0]]))[0]
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert white.min() > 0.9
    assert red.mean() == pytest.approx(blue.mean(), abs=0.2)


def test_only_maps_that_have_a_sign_offer_the_view_with_it():
    arrays = cards.pictures(rows=1, side=64)
    assert set(attack_pictures(arrays, 0).views) == {"overlay", "map"}
    signs = {"signed_clean": -arrays["map_clean"], "signed_attacked": arrays["map_attacked"]}
    assert set(attack_pictures(arrays | signs, 0).views) == {"overlay", "map", "sign"}
    positive = {"signed_clean": arrays["map_clean"], "signed_attacked": arrays["map_attacked"]}
    assert set(attack_pictures(arrays | positive, 0).views) == {"overlay", "map"}


def test_pictures_and_a_switch_stand_beside_the_verdict_before_any_table(html, audit):
    text = " ".join(pages.read(html).text.split())
    places = [text.index(piece) for piece in ("The worst attack found", "over the image", "counts most")]
    assert places == sorted(places)
    assert places[-1] < text.index("Steady under noise")
    shown = [found for tag, found in pages.read(html).tags if tag == "input" and found["name"] == "view"]
    assert [found["id"] for found in shown] == ["view-overlay", "view-map"]
    assert "31 % of its top pixels stay" in text


def test_the_recommended_method_stands_below_the_worst_attack(tmp_path, small):
    arrays = cards.pictures()
    best = {f"best_{key}": arrays[key] for key in ("attacked", "map_clean", "map_attacked")}
    np.savez(tmp_path / "pictures.npz", **arrays | best)
    card = copy.deepcopy(small)
    card["worst"][0]["best"] = {"method": "smoothgrad", "cosine": 0.9, "kept": 0.72}
    text = " ".join(pages.read(write_report(card, tmp_path).read_text()).text.split())
    assert "smoothgrad (recommended)" not in text  # the table of this card has two methods, and not that one
    card["methods"].append(cards.card()["methods"][3])
    text = " ".join(pages.read(write_report(card, tmp_path).read_text()).text.split())
    assert "SmoothGrad (recommended)" in text
    assert re.search(
        r"72 % of its top pixels stay under an attack of its own; \d+ % on average over \d+ images", text
    )


def test_the_best_method_of_an_unsafe_card_is_not_called_recommended(tmp_path):
    arrays = cards.pictures()
    best = {f"best_{key}": arrays[key] for key in ("attacked", "map_clean", "map_attacked")}
    np.savez(tmp_path / "pictures.npz", **arrays | best)
    card = cards.card()
    card["worst"][0]["best"] = {"method": "smoothgrad", "cosine": 0.9, "kept": 0.12}
    for grade, word, other in (("unsafe", "best here", "recommended"), ("shaky", "recommended", "best here")):
        card["methods"][3]["grade"] = grade
        page = pages.read(write_report(card, tmp_path).read_text()).text
        text = " ".join(page.split()) + (tmp_path / "report.md").read_text(encoding="utf-8")
        assert f"SmoothGrad ({word})" in text  # the pictures' label
        assert f"| SmoothGrad ({word}) |" in text  # the table
        assert f"{word.capitalize()}: SmoothGrad" in text  # the chart
        assert other not in text.lower()
    assert "at most 8/255 per pixel, drawn 16 times as strong" in text


def test_maps_of_zeros_have_a_scale():
    assert shared_scale(np.zeros((2, 2)), np.zeros((2, 2))) == 1.0
    spike = np.zeros((50, 50))
    spike[0, 0] = 3.0
    assert shared_scale(spike, np.zeros((50, 50))) == 3.0


def test_the_best_of_each_column_is_marked_by_its_direction():
    table = {row.name: {cell.key: cell.mark for cell in row.cells} for row in rows(check_card(cards.card()))}
    for key, *_, direction in cards.COLUMNS:
        values = {m["name"]: m["columns"][key]["value"] for m in cards.card()["methods"]}
        best = (max if direction == "higher" else min)(values, key=values.__getitem__)
        assert [name for name, marks in table.items() if marks[key] == "best"] == [best]


def test_level_means_that_the_intervals_meet():
    card = cards.card()
    for method, (low, high) in zip(card["methods"], [(0.8, 1.0), (0.5, 0.8), (0.5, 0.79)], strict=False):
        method["columns"]["rps"] = {"value": (low + high) / 2, "low": low, "high": high, "n": 9}
    card["methods"] = card["methods"][:3]
    marks = [row.cells[0].mark for row in rows(check_card(card))]
    assert marks == ["best", "level", ""]


def test_bars_stand_within_the_range():
    card = cards.card()
    card["columns"][0]["range"] = [-1, 1]
    card["methods"][0]["columns"]["rps"] = {"value": 0.0, "low": -3.0, "high": 0.5, "n": 9}
    bar = rows(check_card(card))[0].cells[0].bar
    assert (bar.low, bar.value, bar.high) == (0.0, 50.0, 75.0)


WRONG = {
    "schema 0": (lambda c: c.update(schema=0), "names no schema"),
    "schema -5": (lambda c: c.update(schema=-5), "names no schema"),
    "schema true": (lambda c: c.update(schema=True), "names no schema"),
    "pictures elsewhere": (
        lambda c: c.update(pictures="../other/pictures.npz"),
        "not a file next to the card",
    ),
    "pictures of the machine": (lambda c: c.update(pictures="/etc/passwd"), "not a file next to the card"),
    "a row below 0": (lambda c: c["worst"][0].update(row=-1), "names a row or an image below 0"),
    "an infinite number": (
        lambda c: c["accuracy"].update(value=float("inf")),
        "too large to be a measurement",
    ),
    "a value beyond its range": (
        lambda c: c["methods"][0]["columns"]["rps"].update(value=1e300),
        "too large to be a measurement",
    ),
    "a value just beyond its range": (
        lambda c: c["methods"][0]["columns"]["rps"].update(value=1.1),
        "'rps' of gradient lies outside its range of 0 to 1",
    ),
    "no schema": (lambda c: c.pop("schema"), "names no schema"),
    "newer": (lambda c: c.update(schema=2), "pip install -U gyrograd"),
    "other kind": (lambda c: c.update(kind="run"), "'kind' is 'run'"),
    "no title": (lambda c: c.pop("title"), "'title' is missing"),
    "grade": (lambda c: c["verdict"].update(grade="fine"), "'verdict.grade' is 'fine'"),
    "text for number": (
        lambda c: c["methods"][2]["columns"]["rps"].update(value="high"),
        "'methods[2].columns.rps.value' is text",
    ),
    "truth for number": (lambda c: c["accuracy"].update(value=True), "'accuracy.value' is true or false"),
    "list for object": (lambda c: c.update(model=[]), "'model' is a list where an object belongs"),
    "object for list": (lambda c: c.update(flags={}), "'flags' is an object where a list belongs"),
    "uneven": (lambda c: c["curves"]["eps"]["lines"][0]["x"].pop(), "curves.eps"),
    "range": (lambda c: c["columns"][0].update(range=[1, 0]), "not two rising numbers"),
    "twice": (lambda c: c["methods"].append(c["methods"][0]), "names a method twice"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_a_malformed_card_is_one_sentence_and_nothing_is_written(case, tmp_path):
    damage, sentence = WRONG[case]
    card = cards.card()
    damage(card)
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        write_report(card, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def places(value, at=()):
    """Every place in the card."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*at, key))


CARD = cards.card(n=3)
EVERYWHERE = [at for at in places(CARD) if at]


@given(st.sampled_from(EVERYWHERE), st.sampled_from([None, True, 3, 0.5, "x", [], {}, [None], {"a": 1}]))
def test_any_damage_is_a_sentence_or_harmless(at, value):
    card = copy.deepcopy(CARD)
    inner = card
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    try:
        whole = check_card(card)
    except UserError:
        return
    assert check_card(whole) == whole
    rows(whole)


def test_files_that_are_no_card(tmp_path):
    with pytest.raises(UserError, match="There is no card.json at"):
        read_card(tmp_path)
    (tmp_path / "card.json").write_text("{")
    with pytest.raises(UserError, match="no valid JSON"):
        read_card(tmp_path)
    (tmp_path / "card.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no valid JSON"):
        read_card(tmp_path)
    (tmp_path / "card.json").write_text(json.dumps(CARD | {"accuracy": {"value": float("nan")}}))
    assert read_card(tmp_path)["accuracy"]["value"] is None


def test_numbers_read_as_people_write_them():
    assert [number(v) for v in (None, 0.0, 0.12345, -0.5, 12.4, 123456.0, 0.00012)] == [
        "–", "0.000", "0.123", "-0.500", "12.400", "1.23e+05", "0.00012",
    ]  # fmt: skip
    assert [eps_text(v) for v in (None, 8 / 255, 0.0314, 0.05, 0.5 / 255)] == [
        "–",
        "8/255",
        "8.01/255",
        "12.8/255",
        "0.5/255",
    ]
    assert [duration(v) for v in (None, 93.1, 720, 12600)] == ["–", "93 s", "12 min", "3.5 h"]
    stat = {"value": 0.31, "low": 0.27, "high": 0.35, "n": 9}
    assert interval_text(stat) == "0.310 [0.270, 0.350]"
    assert signed_text(stat) == "+0.310 [+0.270, +0.350]"
    assert signed_text({"value": -0.1, "low": None, "high": None}) == "-0.100"
    assert bracket(None) == bracket({"value": 1.0, "low": None, "high": None}) == ""


def test_the_plane_names_settings_in_their_unit_and_methods_the_table_lacks():
    card = cards.card()
    card["methods"] = [method for method in card["methods"] if method["name"] != "smoothgrad"]
    point = card["plane"]["points"][2]
    assert (setting_text(point), setting_text({"setting": 8 / 255, "setting_name": "eps"})) == (
        "0.1",
        "8/255",
    )
    assert setting_text({"setting": None}) == ""
    assert (
        labels_of(check_card(card))["smoothgrad"] == "Smoothgrad"
    )  # a card written before points had labels
    for point in card["plane"]["points"]:
        point["label"] = f"{point['method']} in words"
    assert labels_of(check_card(card))["smoothgrad"] == "smoothgrad in words"
    card["plane"]["points"] = [*card["plane"]["points"][:4], point | {"method": "lime", "robustness": None}]
    chart = plane_chart(check_card(card))
    assert chart.alt == "Robustness and faithfulness of 4 settings. Recommended: smoothgrad in words 0.1."
    assert [row[4] for row in chart.rows] == ["", "", "recommended", "Pareto"]
    card["plane"]["recommended"] = None
    assert plane_chart(check_card(card)).alt.endswith("No setting is recommended.")


def test_a_page_of_sections_is_valid_and_its_text_stays_text():
    picture = map_grid({"image": np.zeros((1, 4, 4, 3))}, {"map": np.ones((1, 4, 4))}, ["cat"])
    table = Table(("", HOSTILE), ((HOSTILE, "1"),))
    sections = (Section(HOSTILE, (HOSTILE,), table, (Figure(picture, HOSTILE),)), Section("empty"))
    found = pages.read(page(HOSTILE, (HOSTILE,), sections, (HOSTILE,)))
    assert found.complaints == []
    assert "script" not in [tag for tag, _ in found.tags]
    assert found.text.count("alert(1)") == 9  # title twice, lead, heading, text, two cells, caption, footer


def test_rows_below_a_heading_are_indented():
    table = Table(("", "before"), (("Gradient", ""), ("  top kept", "1")))
    found = pages.read(page("title", (), (Section("numbers", (), table),), ()))
    assert [kinds.get("class") for tag, kinds in found.tags if tag == "td"] == [None, None, "below", None]
