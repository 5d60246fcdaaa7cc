"""Certificates on the card: opt-in, beside the attacked numbers, in units that can be compared."""

from __future__ import annotations

from dataclasses import replace

import pages
import pytest

import gyrograd as gg
from gyrograd.audit import PRESETS, audit
from gyrograd.audit.certificates import STATES, certified_methods
from gyrograd.audit.methods import Method
from gyrograd.errors import UserError
from gyrograd.reporting import boards, find_audits
from gyrograd.reporting.card import contents, html_report
from gyrograd.reporting.schema import check_card

TINY = replace(
    PRESETS["quick"], methods=("gradient", "smoothgrad", "lime"), steps=1,
    method_settings={"smoothgrad": {"draws": 2}, "lime": {"segments": "grid", "grid": 4, "draws": 8}},
    attacked_images=1, curve=(4 / 255,), points=3, draws=2, sweep={}, bound_images=1, bound_draws=1, flag_images=2,
    pictures=1, certified_images=1, certified_draws=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    data = gg.dataset("shapes", split="test", n=2)
    out = tmp_path_factory.mktemp("audit")
    return audit(gg.load("cifar10/lenet-steady"), data, preset=TINY, out=out), out


def test_the_card_has_certified_numbers_beside_attacked_ones(certified):
    card, _ = certified
    found = card.document["certificates"]
    assert [row["method"] for row in found["rows"]] == [
        "gradient",
        "lime",
    ]  # SmoothGrad would take every draw twice
    assert found["images"] == 1
    # In 255ths per value, so that the radius can be held against the attack's eps: 255 * 0.1 / sqrt(3 * 32 * 32).
    assert found["radius_per_value"] == pytest.approx(0.46, abs=0.005)
    gradient, smooth, _ = card.document["methods"]
    assert gradient["columns"]["certified_pixels"] == found["rows"][0]["pixels"]
    assert "certified_pixels" not in smooth["columns"]
    assert card.table.of(method="gradient, certified", metric="draws").keys() == {0}


def test_a_method_with_segments_is_certified_by_its_soft_stability(certified):
    card, _ = certified
    gradient, lime = card.document["certificates"]["rows"]
    assert gradient["stability"] is None
    assert lime["pixels"] is None
    assert lime["draws"]["value"] == TINY.certified_draws
    data = gg.dataset("shapes", split="test", n=2)
    model, explain = gg.load("cifar10/lenet-steady"), gg.attribution("lime", segments="grid", grid=4, draws=8)
    again = gg.metric("soft_stability", draws=32)(model, explain, data.pixels()[:1], data.labels[:1], seed=0)
    # Sixteen of the 32 additions of its own cells agree; of the 8 x 8 cells other maps are given, 26.
    assert lime["stability"]["value"] == pytest.approx(again.item())
    assert card.document["methods"][2]["columns"]["soft_stability"] == lime["stability"]


def test_the_picture_tells_certified_refuted_and_undecided_pixels(certified):
    (picture,) = certified[0].document["certificates"]["pictures"]
    assert [len(row) for row in picture["rows"]] == [32] * 32
    states = "".join(picture["rows"])
    assert set(states) <= set(STATES)
    share = (states.count("+") + states.count("-")) / len(states)
    assert share == pytest.approx(certified[0].document["methods"][0]["columns"]["certified_pixels"]["value"])


def test_the_page_and_the_leaderboard_show_what_is_certified(certified):
    _, out = certified
    page = pages.read((out / "report.html").read_text())
    assert page.complaints == []
    assert "What is certain" in page.text
    assert "0.46/255 per value" in page.text
    assert "shown the top 25 % of the segments" in page.text
    board = boards(find_audits(out)[0])[0]
    assert {"certified_pixels", "soft_stability"} <= {column["key"] for column in board.ordered}


def test_without_being_asked_nothing_is_certified(certified, tmp_path):
    card = certified[0].document | {"certificates": None}
    assert "What is certain" not in html_report(contents(check_card(card), tmp_path))
    assert PRESETS["quick"].certified_images == 0
    method = Method("gradient", "Gradient", gg.attribution("gradient"))
    assert certified_methods([method], replace(TINY, certified_images=0)) == []
    assert certified_methods([method], PRESETS["thorough"]) == [method]


def test_a_card_whose_picture_is_no_grid_is_refused(certified):
    card = dict(certified[0].document)
    for rows in ([], [""], ["++", "+"], ["+?"]):
        picture = card["certificates"]["pictures"][0] | {"rows": rows}
        with pytest.raises(UserError, match="not a grid of the characters"):
            check_card(card | {"certificates": card["certificates"] | {"pictures": [picture]}})


def test_a_negative_number_of_images_is_one_sentence():
    with pytest.raises(UserError, match="certified_images is -1"):
        replace(TINY, certified_images=-1)
