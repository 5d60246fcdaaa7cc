"""Two audits compared, and many on a leaderboard: pairs where there are pairs, nothing ranked that cannot be."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import cards
import numpy as np
import pages
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.errors import UserError
from gyrograd.numerics.statistics import bootstrap_interval, paired_difference
from gyrograd.reporting import (
    boards,
    compare_audits,
    comparison_page,
    find_audits,
    leaderboard_page,
    write_values,
)
from gyrograd.reporting.comparison import independent_difference, table_rows, verdict_of
from gyrograd.reporting.leaderboard import document, report_link, terminal_rows
from gyrograd.reporting.values import read_values, values_behind


def written(folder: Path, card: dict) -> Path:
    """A card alone, without values."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "card.json").write_text(json.dumps(card), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    a = cards.write_audit(folder / "a")
    return a, cards.write_audit(folder / "b", gain=0.2, source="cifar10/lenet-l2-cosine")


@pytest.fixture(scope="module")
def found(two):
    return compare_audits(*two)


def change(comparison, method, key):
    return next(c for c in comparison.changes if (c.method, c.column["key"]) == (method, key))


def test_pairs_give_the_paired_difference(found):
    before, after = cards.example_values(), cards.example_values(gain=0.2)
    for each in found.changes:
        key = each.column["key"]
        wanted = paired_difference(after[each.method][key], before[each.method][key])
        assert each.paired
        assert (each.change["value"], each.change["low"], each.change["high"]) == (
            wanted.value,
            wanted.low,
            wanted.high,
        )
        assert each.change["n"] == 100


def test_a_map_that_holds_still_for_a_reason_of_its_own_is_not_silently_better(two, tmp_path):
    card = json.loads((two[1] / "card.json").read_text())
    row = {"explanation": "", "raised_if": "", "what_to_do": "", "measured": 1.0}
    names = ("ignores_model", "same_map_everywhere", "saturated")
    card["flags"] = [{"name": name, "where": "gradient", **row} for name in names]
    comparison = compare_audits(two[0], written(tmp_path / "b", card))
    told = f"Flagged for {NAMES[1]}: gradient (ignores model, same map everywhere). "
    assert any(note.startswith(told) for note in comparison.notes)


NAMES = ("cifar10/lenet-ce", "cifar10/lenet-l2-cosine")


def test_the_sentence_names_the_models_and_how_far_each_holds_with_its_recommended_method(found):
    one, two = (cards.card(gain=gain)["methods"][3]["columns"]["top_k_kept"] for gain in (0.0, 0.2))
    shares = [f"{s['value'] * 100:.0f} % [{s['low'] * 100:.0f}, {s['high'] * 100:.0f}]" for s in (one, two)]
    assert found.names == NAMES
    assert found.sentence.startswith(
        f"{NAMES[1]} holds further: SmoothGrad on {NAMES[1]} keeps {shares[1]} of its top pixels under attack; "
        f"SmoothGrad on {NAMES[0]} keeps {shares[0]} of its top pixels under attack; accuracy +0.000 [-"
    )
    assert found.notes == ()


def test_the_steady_radius_of_the_pair_comes_before_any_other_number(tmp_path):
    """Each model with the method its own audit recommends, whatever the means over methods say."""
    places = []
    for name, radius, leader in (("plain", 2.7, "gradient"), ("steady", 8.0, "smoothgrad")):
        card = cards.card(source=name)
        radii = {"key": "steady_radius", "label": "Steady radius", "detail": "auto", "group": "attack"}
        card["columns"].append(radii | {"direction": "higher", "range": None})
        for method in card["methods"]:
            method["recommended"] = method["name"] == leader
            own = radius if method["recommended"] else 20.0 - radius
            method["columns"]["steady_radius"] = {"value": own, "low": own - 0.5, "high": own + 0.5, "n": 16}
        places.append(written(tmp_path / name, card))
    sentence = compare_audits(*places).sentence
    assert sentence.startswith(
        "steady holds further: SmoothGrad on steady keeps half of its top pixels up to 8.0/255 [7.5, 8.5] (the largest "
        "tried) under attack; Gradient on plain keeps half of its top pixels up to 2.7/255 [2.2, 3.2] under attack; "
        "accuracy"
    )
    assert compare_audits(*places[::-1]).sentence.startswith(
        "plain holds less far: Gradient on plain keeps half"
    )


def test_what_improved_and_what_got_worse_is_told_with_the_methods(tmp_path):
    """Insertion rises on average and deletion is worse for every method: no mean hides either."""
    one, two = cards.card(source="plain"), cards.card(source="hard")
    shifts = {"insertion": [0.3, 0.3, 0.3, 0.3, 0.3, -0.2], "deletion": [0.2] * 6, "top_k_kept": [0.1] * 6}
    for key, by in shifts.items():
        for method, other, shift in zip(one["methods"], two["methods"], by, strict=True):
            method["columns"][key] = cards.stat(0.5, 0.01)
            other["columns"][key] = cards.stat(0.5 + shift, 0.01)
    found = compare_audits(written(tmp_path / "a", one), written(tmp_path / "b", two))
    improved, worse, mixed = found.findings.values()
    assert [finding.column["key"] for finding in improved] == ["top_k_kept"]
    assert [finding.column["key"] for finding in worse] == ["deletion"]
    assert worse[0].sentence.startswith("Deletion: worse for 6 of 6 methods (Gradient +0.200 [")
    assert [finding.column["key"] for finding in mixed] == ["insertion"]
    assert "better for 5 of 6 methods (Gradient +0.300 [" in mixed[0].sentence
    assert "; worse for 1 of 6 methods (LIME -0.200 [" in mixed[0].sentence
    page = pages.read(comparison_page(found))
    assert page.complaints == []
    for finding in (*improved, *worse, *mixed):
        assert finding.sentence in page.text
    assert json.loads(json.dumps(found.document()))["findings"]["Got worse"] == [worse[0].sentence]


def test_the_other_way_round_it_holds_less_far(two, found):
    turned = compare_audits(two[1], two[0])
    assert turned.sentence.startswith(f"{NAMES[0]} holds less far: SmoothGrad on {NAMES[0]}")
    for one, other in zip(found.changes, turned.changes, strict=True):
        assert one.change["value"] == pytest.approx(-other.change["value"])
        assert {one.verdict, other.verdict} in ({"better", "worse"}, {"no clear change"})


def test_models_named_alike_are_told_apart_by_their_folders(tmp_path):
    a, b = (written(tmp_path / name, cards.card()) for name in ("plain", "again"))
    assert compare_audits(a, b).names == ("cifar10/lenet-ce (plain)", "cifar10/lenet-ce (again)")
    assert len(set(compare_audits(a, a).names)) == 2


def test_an_audit_against_itself_has_no_clear_change(two):
    same = compare_audits(two[0], two[0])
    assert {each.verdict for each in same.changes} == {"no clear change"}
    assert same.sentence.startswith(
        "Neither holds clearly further: SmoothGrad on cifar10/lenet-ce (a), first keeps"
    )
    assert not any(same.findings.values())
    assert same.absent == "Nothing improved and nothing got worse for certain."
    assert any("same weights" in note for note in same.notes)


def test_examples_only_one_audit_has_are_left_out(tmp_path, two):
    b = tmp_path / "b"
    values = cards.example_values(gain=0.2)
    card = cards.card(gain=0.2)
    half = {name: {key: column[50:] for key, column in row.items()} for name, row in values.items()}
    for method in card["methods"]:
        for key, column in half[method["name"]].items():
            method["columns"][key] = cards.measured(column)
    written(b, card)
    for name, row in half.items():
        write_values(
            b, name, {key: dict(zip(range(50, 100), column, strict=True)) for key, column in row.items()}
        )
    each = change(compare_audits(two[0], b), "gradient", "attack_cosine")
    before = cards.example_values()["gradient"]["attack_cosine"][50:]
    assert each.change["n"] == 50
    assert each.change["value"] == pytest.approx(np.mean(half["gradient"]["attack_cosine"]) - np.mean(before))


def test_values_of_an_older_audit_are_not_taken(tmp_path, two):
    b = cards.write_audit(tmp_path / "b", gain=0.2)
    card = cards.card(gain=0.2)
    card["methods"][0]["columns"]["rps"]["value"] += 0.01
    written(b, card)
    comparison = compare_audits(two[0], b)
    assert not change(comparison, "gradient", "rps").paired
    assert change(comparison, "gradient", "insertion").paired


def test_a_missing_value_leaves_its_pair_out(tmp_path):
    folder = tmp_path / "a"
    write_values(folder, "m/1", {"rps": {0: 0.5, 1: None, 2: 0.7}, "kept": {2: 1.0}})
    measured = read_values(folder)
    assert measured["m/1", "rps"] == {0: 0.5, 1: None, 2: 0.7}
    assert measured["m/1", "kept"] == {0: None, 1: None, 2: 1.0}
    assert values_behind(measured, "m/1", "rps", {"value": 0.6}) is not None
    assert values_behind(measured, "m/1", "rps", {"value": 0.4}) is None
    assert values_behind(measured, "m/1", "rps", {"value": None}) is None
    assert values_behind(measured, "other", "rps", {"value": 0.6}) is None


def test_a_change_over_few_images_is_said_to_be_one(two, found, monkeypatch):
    """Two images that both gained have an interval above zero once in four times by chance."""
    assert not any("too narrow" in note for note in found.notes)
    monkeypatch.setattr("gyrograd.reporting.comparison.MIN_IMAGES_FOR_CI", 1000)
    (note,) = (note for note in compare_audits(*two).notes if "too narrow" in note)
    assert note.startswith("Fewer than 1000 images, over which intervals are too narrow to go by: ")


def test_audits_of_two_versions_are_said_to_be(tmp_path):
    places = []
    for version in ("0.1.0", "0.2.0"):
        card = cards.card()
        card["rerun"]["versions"]["gyrograd"] = version
        places.append(written(tmp_path / version, card))
    (note,) = (note for note in compare_audits(*places).notes if "from the version" in note)
    assert "measured by gyrograd 0.1.0" in note
    assert not any("from the version" in note for note in compare_audits(places[0], places[0]).notes)


def test_methods_whose_names_look_alike_keep_their_own_values(tmp_path):
    for name in ("a b", "a/b", "a-b"):
        write_values(tmp_path, name, {"rps": {0: float(len(name))}})
    assert {method for method, _ in read_values(tmp_path)} == {"a b", "a/b", "a-b"}


def test_without_values_the_means_are_independent(tmp_path):
    a, b = written(tmp_path / "a", cards.card()), written(tmp_path / "b", cards.card(seed=5, gain=0.2))
    each = change(compare_audits(a, b), "gradient", "attack_cosine")
    assert not each.paired
    one, two = each.a, each.b
    down = math.sqrt((two["value"] - two["low"]) ** 2 + (one["high"] - one["value"]) ** 2)
    up = math.sqrt((two["high"] - two["value"]) ** 2 + (one["value"] - one["low"]) ** 2)
    value = two["value"] - one["value"]
    assert each.change["value"] == pytest.approx(value)
    assert (each.change["low"], each.change["high"]) == pytest.approx((value - down, value + up))
    # Wider than pairs by far: the images' own spread does not cancel.
    assert each.change["high"] - each.change["low"] > 0.05


def test_the_independent_interval_covers_as_a_bootstrap_of_both_does():
    generator = np.random.default_rng(0)
    x, y = generator.gamma(2.0, size=400), 1 + generator.normal(size=300)
    stats = [{"value": i.value, "low": i.low, "high": i.high} for i in map(bootstrap_interval, (x, y))]
    found = independent_difference(*stats)
    draws = [generator.choice(y, 300).mean() - generator.choice(x, 400).mean() for _ in range(4000)]
    assert (found["low"], found["high"]) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.02)


ends = st.floats(-1, 1)


@given(ends, ends, st.sampled_from(["higher", "lower"]))
def test_a_verdict_needs_an_interval_without_zero(one, two, direction):
    low, high = sorted((one, two))
    verdict = verdict_of({"low": low, "high": high}, direction)
    if low <= 0 <= high:
        assert verdict == "no clear change"
    else:
        assert (verdict == "better") == ((low > 0) == (direction == "higher"))
    assert verdict_of({"low": None, "high": high}, direction) == "no clear change"


def test_lower_is_better_where_the_column_says_so(tmp_path):
    one, two = cards.card(), cards.card()
    for card, value in ((one, 0.4), (two, 0.1)):
        for method in card["methods"]:
            method["columns"]["deletion"] = cards.stat(value)
        card["columns"] = [c for c in card["columns"] if c["key"] == "deletion"]
        card["accuracy"] = None
    comparison = compare_audits(written(tmp_path / "a", one), written(tmp_path / "b", two))
    assert {each.verdict for each in comparison.changes} == {"better"}
    assert comparison.sentence.startswith(
        "Of 6 numbers that both audits have, cifar10/lenet-ce (b) is better in 6"
    )


def test_other_images_are_never_paired_and_are_said_to_be_other(tmp_path, two):
    card = cards.card(gain=0.2)
    card["data"] |= {"source": "shapes", "sha256": "c" * 64}
    b = cards.write_audit(tmp_path / "b", gain=0.2)
    comparison = compare_audits(two[0], written(b, card))
    assert not any(each.paired for each in comparison.changes)
    told = "(a) was measured on cifar10 (100 images, sha256 bbbbbbbb) and cifar10/lenet-ce (b) on shapes"
    assert told in comparison.notes[0]
    assert comparison.notes[0] in pages.read(comparison_page(comparison)).text


def test_what_cannot_be_compared_says_why(tmp_path, two):
    card = cards.card(gain=0.2)
    card["columns"][0]["detail"] = "cosine, noise 4/255"
    card["methods"] = card["methods"][1:]
    card["methods"][0]["settings"] = {"steps": 3}
    card["methods"][1]["columns"]["insertion"] = None
    card["complete"] = False
    comparison = compare_audits(two[0], written(tmp_path / "b", card))
    assert change(comparison, "lime", "rps").why.startswith("measured differently: cosine to the clean map")
    assert change(comparison, "gradient", "insertion").why == "only in cifar10/lenet-ce (a)"
    assert change(comparison, "integrated_gradients", "insertion").why == "only in cifar10/lenet-ce (a)"
    assert {e.verdict for e in comparison.changes if e.why} == {"not comparable"}
    assert not any(e.change for e in comparison.changes if e.why)
    assert not any(
        finding.column["key"] == "rps" for found in comparison.findings.values() for finding in found
    )
    assert "The audit of cifar10/lenet-ce (b) was interrupted." in comparison.notes
    assert any("input_x_gradient has other settings for" in note for note in comparison.notes)


def test_audits_with_nothing_in_common_say_so(tmp_path, two):
    card = cards.card() | {"methods": [], "columns": [], "accuracy": None}
    comparison = compare_audits(two[0], written(tmp_path / "b", card))
    assert "nothing can be compared" in comparison.sentence
    assert pages.read(comparison_page(comparison)).complaints == []


def test_the_page_begins_with_one_image_under_the_recommended_map_of_each_model(tmp_path):
    two = [cards.write_audit(tmp_path / name, source=f"cifar10/{name}") for name in ("plain", "steady")]
    for folder, share in zip(two, (0.05, 0.6), strict=True):
        card = json.loads((folder / "card.json").read_text())
        for facts in card["worst"]:
            facts["best"] = {"method": "smoothgrad", "cosine": 0.5, "kept": share}
        (folder / "card.json").write_text(json.dumps(card))
        arrays = cards.pictures()
        best = {f"best_{key}": arrays[key] for key in ("attacked", "map_clean", "map_attacked")}
        np.savez(folder / "pictures.npz", **arrays | best)
    found = compare_audits(*two)
    page = pages.read(comparison_page(found))
    assert page.complaints == []
    text = " ".join(page.text.split())
    assert text.index("The same image") < text.index("Every method at a glance")
    assert text.count("17.png") == 2
    for name, share in zip(found.names, ("5 %", "60 %"), strict=True):
        assert f"SmoothGrad on {name} attacked: {share} of its top pixels stay" in text


def test_audits_without_pictures_are_compared_all_the_same(tmp_path):
    one, two = cards.write_audit(tmp_path / "a"), cards.write_audit(tmp_path / "b", gain=0.1)
    (one / "pictures.npz").unlink()
    (two / "pictures.npz").unlink()
    found = compare_audits(one, two)
    assert found.pictures is None
    assert pages.read(comparison_page(found)).complaints == []


def test_the_comparison_page_is_valid_and_holds_every_number(found):
    page = pages.read(comparison_page(found))
    assert page.complaints == []
    for row in table_rows(found):
        assert row[4] in page.text
    assert found.sentence in page.text
    assert json.loads(json.dumps(found.document()))["changes"][0]["verdict"] == "better"


def test_hostile_names_stay_text_when_compared(tmp_path):
    card = cards.card()
    name = "<script>alert(1)</script>\"'$\\frac{"
    card["model"]["source"] = card["methods"][0]["label"] = card["columns"][0]["label"] = name
    a = written(tmp_path / "a", card)
    page = pages.read(comparison_page(compare_audits(a, written(tmp_path / "b", cards.card()))))
    assert page.complaints == []
    assert "script" not in [tag for tag, _ in page.tags]


def test_numbers_under_attack_are_not_compared_or_ranked_with_those_of_other_radii(tmp_path):
    """A search at eps starts where those at smaller radii ended: alone it finds less and a net looks steadier."""
    places = []
    for name, curve in (
        ("three", [2 / 255, 4 / 255]),
        ("wider", [4 / 255, 2 / 255, 16 / 255]),
        ("one", [8 / 255]),
    ):
        card = cards.card(gain=0.2 * (name == "one"), source=name)
        card["settings"]["curve"] = curve
        places.append(written(tmp_path / name, card))
    found = compare_audits(places[0], places[2])
    why = "measured differently: attacked at 2/255, 4/255, 8/255; at 8/255"
    attacked = {"attack_cosine", "top_k_kept", "prediction_kept", "adversarial_insertion"}
    assert {each.column["key"] for each in found.changes if each.why == why} == attacked
    assert {each.verdict for each in found.changes if each.why} == {"not comparable"}
    assert f"Top pixels kept: {why}." in found.notes
    assert not any(each.why for each in compare_audits(*places[:2]).changes)  # beyond eps nothing is compared
    tables = boards(find_audits(tmp_path)[0])
    assert [[audit.card["model"]["source"] for audit in board.audits] for board in tables] == [
        ["three", "wider"],
        ["one"],
    ]


@pytest.fixture
def house(tmp_path):
    """Three audits of the same images, one of others, one of the same measured differently, one broken."""
    for name, gain in (("ce", 0.0), ("cosine", 0.2), ("l2", 0.1)):
        written(tmp_path / name, cards.card(gain=gain, source=f"cifar10/lenet-{name}"))
    other = cards.card(gain=0.3, source="timm:resnet18")
    other["data"] |= {"source": "shapes", "sha256": "c" * 64}
    written(tmp_path / "deep" / "other", other)
    stricter = cards.card(gain=0.3, source="stricter")
    stricter["columns"][1]["detail"] = "cosine, targeted_map at eps 16/255"
    written(tmp_path / "stricter", stricter)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "card.json").write_text("{")
    return tmp_path


def test_only_audits_measured_alike_on_the_same_images_are_ranked_together(house):
    audits, troubles = find_audits(house)
    tables = boards(audits)
    members = [sorted(a.card["model"]["source"] for a in board.audits) for board in tables]
    assert members == [
        ["cifar10/lenet-ce", "cifar10/lenet-cosine", "cifar10/lenet-l2"],
        ["stricter"],
        ["timm:resnet18"],
    ]
    assert len(troubles) == 1
    assert "broken" in troubles[0]


def test_images_of_unknown_hash_stand_alone(tmp_path):
    for name in "ab":
        card = cards.card()
        card["data"]["sha256"] = None
        written(tmp_path / name, card)
    assert len(boards(find_audits(tmp_path)[0])) == 2


def test_the_table_is_sorted_without_a_script(house):
    board = boards(find_audits(house)[0])[0]
    values = [place.stats["attack_cosine"]["value"] for place in board.places()]
    assert values == sorted(values, reverse=True)
    assert len(values) == 18
    assert [row[:3] for row in terminal_rows(board)] == [
        (str(rank), place.audit.name, place.label) for rank, place in enumerate(board.places(), 1)
    ]
    audits, troubles = find_audits(house)
    page = leaderboard_page(boards(audits), troubles, house)
    order = re.findall(r'<td class="rank" data-label="Rank">(\d+)</td><td class="model">([^<]+)<', page)
    assert [int(rank) for rank, _ in order[:18]] == list(range(1, 19))
    assert [name for _, name in order[:18]] == [p.audit.card["model"]["source"] for p in board.places()]


def test_a_column_where_lower_is_better_ranks_upward_and_the_unknown_come_last(tmp_path):
    for name, value in (("a", 0.3), ("b", 0.1), ("c", None)):
        card = cards.card(source=name)
        card["columns"] = [c | {"group": "attack"} for c in card["columns"] if c["key"] == "deletion"]
        for method in card["methods"]:
            method["recommended"] = False
            method["columns"]["deletion"] = None if value is None else cards.stat(value)
        card["methods"][2]["columns"]["deletion"] = None if value is None else cards.stat(value - 0.05)
        written(tmp_path / name, card)
    board = boards(find_audits(tmp_path)[0])[0]
    assert [p.audit.card["model"]["source"] for p in board.places()][::6] == ["b", "a", "c"]
    leading = {p.audit.card["model"]["source"]: p.method for p in board.places() if p.lead}
    assert leading == {"a": "integrated_gradients", "b": "integrated_gradients", "c": "gradient"}


def test_the_leaderboard_page_is_valid_and_leads_to_the_reports(house):
    (house / "ce" / "report.html").write_text("report")
    odd = house / "l2" / "a:b #1"
    written(odd, cards.card(source="<script>alert(1)</script>"))
    (odd / "report.html").write_text("report")
    audits, troubles = find_audits(house)
    page = pages.read(leaderboard_page(boards(audits), troubles, house))
    assert page.complaints == []
    assert [tag for tag, _ in page.tags].count("script") == 1
    links = {found["href"] for tag, found in page.tags if tag == "a"}
    assert links == {"./ce/report.html", "./l2/a%3Ab%20%231/report.html"}
    assert "Left out: " in page.text
    audit = next(audit for audit in audits if audit.path.parent == house / "ce")
    assert report_link(audit, house / "pages") == "./../ce/report.html"


def test_the_document_of_a_leaderboard_is_plain(house):
    tables = json.loads(json.dumps(document(boards(find_audits(house)[0]))))
    assert [table["ranked_by"] for table in tables] == ["attack_cosine"] * 3
    assert tables[0]["rows"][0]["model"] == "cifar10/lenet-cosine"
    assert sum(row["recommended"] for row in tables[0]["rows"]) == 3


def test_a_folder_without_audits_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="There is no audit below"):
        find_audits(tmp_path)
    with pytest.raises(UserError, match="There is no folder"):
        find_audits(tmp_path / "none")
    (tmp_path / "card.json").write_text("[]")
    with pytest.raises(UserError, match="that can be read"):
        find_audits(tmp_path)
