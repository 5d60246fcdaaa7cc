"""From numbers to a verdict: worst cases, grades, the choice on the plane, bounds, and the sentences about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_audits import SMALL, small_images, small_net
from torch import nn

import gyrograd as gg
from gyrograd.audit.card import summary
from gyrograd.audit.engine import _image_alone_note
from gyrograd.audit.methods import Method
from gyrograd.audit.pictures import most_damaging, pictured_attacks
from gyrograd.audit.plane import choice, plane, point_in_words
from gyrograd.audit.presets import PRESETS, Preset
from gyrograd.audit.sanity_checks import REMEDIES, _reword_saturation, _row, challenges, suspects
from gyrograd.audit.table import card_columns, eps_curves, stat, steady_radius, worst
from gyrograd.audit.theorems import bound_row, constants, promises
from gyrograd.audit.verdict import grade_of, sentences
from gyrograd.errors import UserError
from gyrograd.measurement import Table, mean_over, streams
from gyrograd.measurement.table import Source
from gyrograd.metrics import sanity_checks
from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.numerics.wording import interval_text
from gyrograd.records import Record
from gyrograd.theory import Point

GRADIENT = Method("gradient", "Gradient", gg.attribution("gradient"))


def measured(value: float, spread: float = 0.02, n: int = 20) -> dict[str, Any]:
    return {"value": value, "low": value - spread, "high": value + spread, "n": n}


def columns(attack: float, noise: float, spread: float = 0.02) -> dict[str, Any]:
    kept = {"top_k_kept": measured(attack, spread), "noise_kept": measured(noise, spread)}
    return {**kept, "prediction_kept": measured(1.0, 0.0)}


def point(method: str, setting: float | None, robust: list[float], faithful: list[float]) -> Point:
    ends = (bootstrap_interval(robust), bootstrap_interval(faithful))
    return Point(method, setting, tuple(robust), tuple(faithful), *ends)


# Worst cases


numbers = st.one_of(st.none(), st.floats(-1, 1))


@given(rows=st.lists(st.tuples(numbers, numbers, numbers, st.booleans()), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_the_worst_is_the_lowest_of_attacks_and_of_noise_that_kept_the_prediction(rows: list[Any]) -> None:
    first, second, noise = ({i: row[k] for i, row in enumerate(rows)} for k in range(3))
    kept: dict[int, float | None] = {i: float(row[3]) for i, row in enumerate(rows)}
    found = worst([first, second], noise, kept)
    for i, (a, b, n, same) in enumerate(rows):
        attacks = [v for v in (a, b) if v is not None]
        counted = attacks + ([n] if attacks and same and n is not None else [])
        assert found[i] == (min(counted) if counted else None)


def test_a_mean_over_columns_is_missing_where_one_is() -> None:
    assert mean_over([{0: 1.0, 1: None}, {0: 3.0, 1: 5.0}]) == {0: 2.0, 1: None}


def test_a_number_without_examples_is_null_and_of_one_has_no_interval() -> None:
    assert stat({}) is None
    assert stat(None) is None
    assert stat({3: None}) is None
    assert stat({3: 0.25}) == {"value": 0.25, "low": None, "high": None, "n": 1}
    interval = bootstrap_interval([0.0, 1.0, 0.5])
    expected = {"value": 0.5, "low": interval.low, "high": interval.high, "n": 3}
    assert stat({0: 0.0, 1: 1.0, 2: None, 3: 0.5}) == expected


def attacked(
    method: str, attack: str, eps: list[float], cosines: list[list[float | None]], kept: float
) -> Source:
    examples = list(range(len(cosines[0])))
    values: dict[str, Any] = {f"cosine[{i}]": row for i, row in enumerate(cosines)}
    values |= {f"kept[{i}]": row for i, row in enumerate(cosines)}
    values |= {f"prediction_kept[{i}]": [kept] * len(examples) for i in range(len(cosines))}
    return Source(method, attack, tuple(eps), Record(f"{method} under {attack}", {}, examples, values))


def test_curves_over_eps_hold_the_worst_within_each_radius() -> None:
    eps = [4 / 255, 8 / 255]
    sources = [
        attacked("gradient", "top_k", eps, [[0.9, 0.45], [0.6, 0.5]], 1.0),
        attacked("gradient", "noise", eps, [[0.7, 0.95], [0.9, 0.9]], 1.0),
        attacked("lrp", "top_k", eps[1:], [[0.6, 0.5]], 1.0),
        attacked("lrp", "noise", eps, [[0.7, 0.95], [0.9, 0.9]], 1.0),
    ]
    lines = eps_curves(Table(sources), ["gradient", "lrp"], replace(SMALL, attacks=("top_k",)))["lines"]
    assert [(line["method"], line["label"]) for line in lines] == [
        ("gradient", "attack"),
        ("gradient", "noise"),
    ]
    assert lines[0]["x"] == pytest.approx([4, 8])
    assert [y["value"] for y in lines[0]["y"]] == pytest.approx([0.575, 0.525])
    assert [y["value"] for y in lines[1]["y"]] == pytest.approx([0.825, 0.9])


def test_the_most_damaging_attacks_kept_the_prediction_and_name_each_image_once() -> None:
    eps = [8 / 255]
    sources = [
        attacked("gradient", "top_k", eps, [[0.5, 0.3, None, 0.9]], 1.0),
        attacked("gradient", "pgd", eps, [[0.1, 0.1, 0.1, 0.1]], 0.0),
        attacked("gradient", "untargeted_map", eps, [[0.4, 0.6, None, 0.8]], 1.0),
    ]
    preset = replace(SMALL, attacks=("top_k", "pgd", "untargeted_map"), eps=8 / 255, pictures=2)
    found = most_damaging(Table(sources), [GRADIENT], preset)
    assert [(d.example, d.attack, d.cosine) for d in found] == [(1, "top_k", 0.3), (0, "untargeted_map", 0.4)]


@pytest.mark.parametrize(
    ("aims", "expected"),
    [
        (("auto", "auto on cosine", "auto on insertion"), ["auto", "top_k"]),
        (("auto on cosine", "auto on insertion"), ["auto on cosine", "auto on insertion", "top_k"]),
    ],
)
def test_pictures_are_of_the_search_for_top_pixels_unless_the_audit_lacks_it(
    aims: tuple[str, ...], expected: list[str]
) -> None:
    assert pictured_attacks(replace(SMALL, attacks=("auto", "top_k"), aims=aims)) == expected


# Grades


@pytest.mark.parametrize(
    ("attack", "noise", "grade"),
    [
        (0.53, 0.9, "steady"),
        (0.51, 0.9, "shaky"),
        (0.40, 0.9, "shaky"),
        (0.24, 0.9, "shaky"),
        (0.22, 0.9, "unsafe"),
        (0.40, 0.47, "unsafe"),
        (0.40, 0.49, "shaky"),
    ],
)
def test_the_grade_follows_the_ends_of_the_intervals(attack: float, noise: float, grade: str) -> None:
    assert grade_of(columns(attack, noise)) == grade


@given(a=st.floats(0, 1), b=st.floats(0, 1), noise=st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_more_pixels_kept_never_lower_the_grade(a: float, b: float, noise: float) -> None:
    order = ["unsafe", "shaky", "steady"]
    low, high = sorted((a, b))
    assert order.index(grade_of(columns(low, noise)) or "") <= order.index(
        grade_of(columns(high, noise)) or ""
    )


def test_a_suspect_is_never_steady_and_no_better_than_before() -> None:
    assert grade_of(columns(0.9, 0.9), suspect=True) == "shaky"
    assert grade_of(columns(0.1, 0.2), suspect=True) == "unsafe"


def test_without_an_attack_there_is_no_grade() -> None:
    assert grade_of({"top_k_kept": None, "noise_kept": measured(0.9)}) is None
    told = sentences(GRADIENT, {"top_k_kept": None, "noise_kept": measured(0.9)}, None, SMALL)
    assert "nothing is said of it under attack" in told[0]
    assert "90 % [88, 92]" in told[1]


# The choice on the plane


STEADY = [0.9, 0.91, 0.92, 0.9]
SHAKY = [0.6, 0.62, 0.61, 0.6]


def test_the_steadiest_of_the_equally_faithful_is_chosen_with_gain_and_price() -> None:
    placed = [
        point("gradient", None, SHAKY, [0.50, 0.60, 0.40, 0.50]),
        point("smoothgrad", 0.1, STEADY, [0.49, 0.61, 0.40, 0.50]),
        point("smoothgrad", 0.5, [0.99] * 4, [0.30, 0.40, 0.20, 0.30]),
    ]
    chosen = choice(placed, GRADIENT, set(), {"smoothgrad": 8})
    assert chosen is not None
    assert point_in_words(chosen.point) == "SmoothGrad with sigma 0.1"
    assert chosen.gain.value == pytest.approx(0.3, abs=0.01)
    assert chosen.price.value == pytest.approx(0.0, abs=1e-9)
    assert "not measurably below that of Gradient, the highest" in chosen.why
    told = sentences(GRADIENT, columns(0.1, 0.3), chosen, SMALL, kept=measured(0.4))[2]
    assert told.startswith(
        "Use SmoothGrad with sigma 0.1 instead of Gradient: similarity under noise +0.300 ["
    )
    assert told.endswith("], 8 passes per map; an attacker leaves 40 % [38, 42] of its top pixels in place.")


def test_the_verdict_claims_nothing_of_the_time_of_a_map_since_one_pass_of_lrp_is_several_gradients() -> None:
    placed = [point("gradient", None, SHAKY, [0.5] * 4), point("lrp", None, STEADY, [0.5] * 4)]
    held = {("gradient", None): measured(2.0), ("lrp", None): measured(4.0)}
    for found in (choice(placed, GRADIENT, set(), {"lrp": 1}, held), choice(placed, GRADIENT, set())):
        told = " ".join(sentences(GRADIENT, columns(0.3, 0.6), found, SMALL))
        assert "LRP" in told
        assert "insertion +0.000 [+0.000, +0.000]." in told


def test_what_costs_faithfulness_is_not_chosen() -> None:
    placed = [
        point("gradient", None, SHAKY, [0.50, 0.60, 0.40, 0.50]),
        point("smoothgrad", 0.1, STEADY, [0.40, 0.50, 0.30, 0.40]),
    ]
    chosen = choice(placed, GRADIENT, set())
    assert chosen is not None
    assert chosen.point is placed[0]
    assert sentences(GRADIENT, columns(0.1, 0.3), chosen, SMALL)[2].startswith("Stay with Gradient")


def test_what_is_measurably_less_faithful_than_the_first_is_not_chosen_though_the_peak_is_too_noisy_to_tell() -> (
    None
):
    placed = [
        point("gradient", None, SHAKY, [0.50, 0.60, 0.40, 0.50]),
        point("smoothgrad", 0.1, STEADY, [0.48, 0.58, 0.38, 0.48]),
        point("lime", None, [0.1, 0.2, 0.1, 0.2], [0.30, 0.90, 0.20, 0.64]),
    ]
    chosen = choice(placed, GRADIENT, set())
    assert chosen is not None
    assert chosen.point.method == "gradient"
    assert chosen.stay


def test_a_suspect_is_not_chosen_and_a_best_width_at_the_edge_is_said() -> None:
    placed = [
        point("gradient", None, SHAKY, [0.4] * 4),
        point("edges", None, [1.0] * 4, [0.6] * 4),
        point("unigrad", 8 / 255, SHAKY, [0.41] * 4),
        point("unigrad", 32 / 255, STEADY, [0.5] * 4),
    ]
    chosen = choice(placed, GRADIENT, {"edges"})
    assert chosen is not None
    assert point_in_words(chosen.point) == "UniGrad with eps 32/255"
    assert "at the edge of the sweep" in chosen.why
    everything = choice(placed, GRADIENT, set())
    assert everything is not None
    assert everything.point.method == "edges"
    assert choice(placed, GRADIENT, {"edges", "gradient", "unigrad"}) is None


def test_the_plane_marks_what_nothing_beats() -> None:
    placed = [
        point("gradient", None, SHAKY, [0.4] * 4),
        point("smoothgrad", 0.1, STEADY, [0.5] * 4),
        point("smoothgrad", 0.5, [0.95] * 4, [0.3] * 4),
    ]
    drawn = plane(placed, choice(placed, GRADIENT, set()), SMALL)
    assert [p["pareto"] for p in drawn["points"]] == [False, True, True]
    assert drawn["recommended"]["method"] == "smoothgrad"
    assert drawn["recommended"]["setting"] == 0.1
    assert [p["setting_name"] for p in drawn["points"]] == [None, "sigma", "sigma"]
    assert [p["label"] for p in drawn["points"]] == ["Gradient", "SmoothGrad", "SmoothGrad"]
    assert [point_in_words(p) for p in placed] == [
        "Gradient",
        "SmoothGrad with sigma 0.1",
        "SmoothGrad with sigma 0.5",
    ]


def test_suspects_are_the_methods_whose_calm_is_hollow() -> None:
    flags = [
        {"where": "lrp", "name": "ignores_model"},
        {"where": "gradient", "name": "too_few_draws"},
        {"where": "lime", "name": "constant_map"},
    ]
    assert suspects(flags) == {"lrp", "lime"}


# Words


def test_numbers_are_shown_with_their_interval() -> None:
    assert interval_text(measured(0.256, 0.02), ".3f") == "0.256 [0.236, 0.276]"
    assert interval_text(measured(0.256, 0.02), ".0f", scale=100, unit=" %") == "26 % [24, 28]"
    assert interval_text({"value": 0.5, "low": None, "high": None, "n": 1}) == "0.500"
    assert interval_text(bootstrap_interval([0.5]), ".1f", unit="/255") == "0.5/255"
    assert interval_text(None, unknown="unknown") == "unknown"


def test_the_second_sentence_holds_noise_attack_and_prediction() -> None:
    found = columns(0.13, 0.26)
    told = sentences(GRADIENT, found, None, Preset(methods=("gradient",)))
    assert told[0].startswith(
        "Do not rely on single explanations of this model: most of the top pixels of the Gradient map"
    )
    assert "random noise of 8/255 leaves 26 % [24, 28] in place" in told[1]
    assert (
        "the same budget 13 % [11, 15], while the predicted class stays on 100 % of the 20 images attacked"
        in told[1]
    )
    assert len(told) == 3


def test_the_summary_fits_a_terminal_and_names_what_is_missing() -> None:
    method = {
        "name": "lrp",
        "label": "LRP",
        "recommended": True,
        "columns": {"rps": measured(0.8), "insertion": None},
    }
    card = {
        "title": "net on photos",
        "model": {"description": "net, 10 parameters"},
        "data": {"images": 3, "labelled": False},
        "accuracy": None,
        "complete": False,
        "verdict": {"grade": None, "sentences": ["One.", "Two.", "Three."]},
        "methods": [method],
        "settings": {"left_out": {"lime": "one segment"}, "notes": ["untrained"]},
        "flags": [{"where": "lrp", "name": "constant_map", "what_to_do": "Look at the maps."}],
    }
    text = summary(card)
    for part in (
        "Interrupted",
        "Verdict: not judged",
        "* LRP",
        "0.800 ±.020",
        "left out: lime",
        "note: untrained",
    ):
        assert part in text
    assert "lrp: constant map. Look at the maps." in text
    images = next(line.split() for line in text.splitlines() if line.startswith("  images"))
    assert images == ["images", str(measured(0.8)["n"]), "-"]
    assert max(map(len, text.splitlines())) <= 120


# Bounds


def test_the_row_of_a_bound_is_the_example_nearest_to_it() -> None:
    row = bound_row("slope", "paper", "estimated", [2.0, 1.0, 4.0], [1.0, 0.9, 1.0])
    assert (row["bound"], row["measured"], row["holds"]) == (1.0, 0.9, True)
    assert row["note"].startswith("holds on 3 of 3 images")
    broken = bound_row("slope", "paper", "estimated", [2.0, 0.0], [1.0, 0.5])
    assert (broken["bound"], broken["measured"], broken["holds"]) == (0.0, 0.5, False)


def test_constants_are_those_of_the_theory_functions() -> None:
    x, y = small_images(2)
    net = small_net()
    found = constants(net, x, y, streams(0, torch.tensor([0, 1])), 0.1, 3, 128)
    slope = torch.autograd.functional.jacobian(lambda p: net(p).gather(1, y[:, None]).sum(), x)
    assert set(found) == {
        "slope", "largest", "smoothgrad_slope", "smoothed_slope", "curvature", "gradient_change",
    }  # fmt: skip
    assert bool((found["slope"] > 0.2 * slope.flatten(1).norm(dim=1)).all())
    torch.testing.assert_close(found["curvature"], gg.theory.top_loss_curvature(net, x))
    assert bool((found["smoothed_slope"] <= 1 / (0.1 * (2 * torch.pi) ** 0.5)).all())


def test_a_bound_whose_constant_is_missing_is_left_out() -> None:
    names = ("slope", "largest", "smoothgrad_slope", "smoothed_slope", "gradient_change")
    values: dict[str, Any] = {name: [1.0, 2.0] for name in names} | {"curvature": [None, None]}
    rows = promises({name: dict(enumerate(column)) for name, column in values.items()}, sigma=0.1)
    assert len(rows) == 3
    assert all("wang2020 Theorem 3" not in row["reference"] for row in rows)
    assert rows[0]["bound"] == pytest.approx((2 / torch.pi) ** 0.5 * 1.0 / 0.1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"eps": 0.0}, "eps is 0.0"),
        ({"noise_eps": 16.0}, "noise_eps is 16.0"),
        ({"draws": 0}, "draws is 0"),
        ({"points": 1}, "points 1"),
        ({"top_fraction": 1.0}, "top_fraction is 1.0"),
        ({"methods": ()}, "needs methods"),
    ],
)
def test_a_preset_that_measures_nothing_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        replace(SMALL, **change)


# How far a map holds


def test_the_steady_radius_is_where_the_square_root_of_the_mean_reaches_that_of_a_half() -> None:
    radii = [2 / 255, 4 / 255, 8 / 255]
    kept = [{0: 0.9, 1: 0.9}, {0: 0.8, 1: 0.6}, {0: 0.4, 1: 0.2}]
    found = steady_radius(kept, radii)

    def between(near: float, far: float) -> float:
        return 4 + 4 * (near**0.5 - 0.5**0.5) / (near**0.5 - far**0.5)

    # 0.7 at 4 and 0.3 at 8; the interval's ends are those of one image alone.
    assert found == {
        "value": pytest.approx(between(0.7, 0.3)),
        "low": pytest.approx(between(0.6, 0.2)),
        "high": pytest.approx(between(0.8, 0.4)),
        "n": 2,
    }
    nothing_left = steady_radius([{0: 0.0}], [4 / 255])["value"]  # from all at radius 0
    assert nothing_left == pytest.approx(4 * (1 - 0.5**0.5))


@given(st.floats(0.5, 8))
def test_few_radii_give_a_better_steady_radius_than_a_straight_line_would(half: float) -> None:
    """For shares that halve every `half` 255ths, which is then the steady radius."""
    radii = [2, 4, 8]
    means = [0.5 ** (radius / half) for radius in radii]
    found = steady_radius([{0: mean} for mean in means], [radius / 255 for radius in radii])["value"]
    line = float(np.interp(-0.5, [-1.0, *(-mean for mean in means)], [0, *radii])) if means[-1] < 0.5 else 8.0
    if abs(line - half) > 0.05:  # else half is next to a radius that was measured, where both are right
        assert abs(found - half) < abs(line - half)


def test_a_map_that_holds_at_the_largest_radius_has_that_one_and_a_missing_image_is_left_out() -> None:
    radii = [4 / 255, 8 / 255]
    assert steady_radius([{0: 1.0, 1: 0.9}, {0: 0.7, 1: 0.6}], radii)["value"] == pytest.approx(8.0)
    one = steady_radius([{0: 0.5, 1: None}, {0: 0.1, 1: 0.0}], radii)
    assert one == {"value": pytest.approx(4.0), "low": None, "high": None, "n": 1}
    assert steady_radius([{0: None}, {0: 0.4}], radii) is None
    with pytest.raises(UserError, match="rising"):
        steady_radius([{0: 1.0}, {0: 0.5}], [8 / 255, 4 / 255])


def test_the_method_that_holds_furthest_is_chosen_unless_it_is_less_faithful_or_suspect() -> None:
    faithful = [0.5, 0.52, 0.48, 0.5]
    placed = [
        point("gradient", None, [0.9] * 4, faithful),
        point("lrp", None, [0.5] * 4, [f + 0.01 for f in faithful]),
        point("guided_backprop", None, [0.6] * 4, [f - 0.2 for f in faithful]),
        point("lime", None, [0.6] * 4, faithful),
    ]
    radii = {("gradient", None): measured(2.0), ("lrp", None): measured(6.9)}
    radii |= {("guided_backprop", None): measured(9.0), ("lime", None): measured(8.0)}
    found = choice(placed, GRADIENT, {"lime"}, None, radii)
    assert found is not None
    assert (found.point.method, found.held, found.stay) == ("lrp", measured(6.9), False)
    lrp = Method("lrp", "LRP", gg.attribution("lrp"))
    told = sentences(lrp, columns(0.3, 0.8), found, SMALL, against=GRADIENT)
    assert told[0].startswith("Use LRP: half of its top pixels stay up to 6.9/255")
    assert "against Gradient, insertion +0.010" in told[0]
    assert "LRP map" in told[1]


def test_at_a_single_radius_the_map_that_keeps_most_is_chosen_and_its_share_is_told() -> None:
    placed = [point(name, None, [0.9] * 4, [0.5] * 4) for name in ("gradient", "lrp")]
    kept = {("gradient", None): measured(0.1), ("lrp", None): measured(0.4)}
    found = choice(placed, GRADIENT, set(), None, kept, by_radius=False)
    assert found is not None
    assert found.point.method == "lrp"
    lrp = Method("lrp", "LRP", gg.attribution("lrp"))
    told = sentences(
        lrp, columns(0.4, 0.8), found, SMALL, against=GRADIENT, before={"top_k_kept": measured(0.1)}
    )
    assert told[0].startswith("Use LRP: 40 %")
    unsafe = sentences(lrp, columns(0.1, 0.3), found, SMALL, against=GRADIENT)
    assert unsafe[0].startswith("The best here is LRP: 40 %")
    assert "of its top pixels stay under an attack of 8/255 (Gradient: 10 %" in told[0]
    assert "radius" not in " ".join(told)
    assert "steady_radius" not in {column["key"] for column in card_columns(PRESETS["glance"])}
    assert "steady_radius" in {column["key"] for column in card_columns(PRESETS["quick"])}


def test_the_documentation_has_the_steps_draws_and_images_of_every_preset() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/audit.md").read_text(encoding="utf-8")
    table = {row[0]: row[1:] for line in page.splitlines() if len(row := line.strip("| ").split(" | ")) == 5}
    assert list(PRESETS) == ["glance", "quick", "standard", "thorough"]
    for place, preset in enumerate(PRESETS.values()):
        attacked = table["attack steps at each radius, images attacked"][place]
        assert attacked.replace("up to ", "") == f"{preset.steps}, {preset.attacked_images}"
        if preset.mean_steps is not None:
            words = table["maps of several passes"][place].split()
            assert int(words[0]) == preset.mean_steps
            assert int(words[words.index("of") - 1]) == preset.search_rows
        assert table["draws of noise"][place] == str(preset.draws)


def test_how_faithful_a_method_is_rests_on_every_image_and_not_on_those_of_the_plane() -> None:
    placed = [point(name, None, [0.9] * 4, [0.5] * 4) for name in ("gradient", "lrp")]
    held = {("gradient", None): measured(2.0), ("lrp", None): measured(6.0)}
    start, worse = dict.fromkeys(range(20), 0.5), dict.fromkeys(range(20), 0.3)
    everywhere = {("gradient", None): start, ("lrp", None): worse}
    found = choice(placed, GRADIENT, set(), None, held)
    assert found is not None
    assert found.point.method == "lrp"
    found = choice(placed, GRADIENT, set(), None, held, everywhere)
    assert found is not None
    assert found.point.method == "gradient"


def test_a_map_is_not_called_steady_after_a_search_too_short_to_be_challenged() -> None:
    steady = columns(0.9, 0.95)
    assert grade_of(steady) == "steady"
    assert grade_of(steady, brief=True) == "shaky"
    brief = replace(SMALL, attacks=("auto",), steps=2)
    assert brief.is_brief
    assert not replace(brief, steps=4).is_brief
    assert "too short to call it steady" in sentences(GRADIENT, steady, None, brief)[0]


def test_radii_that_reach_the_last_one_measured_are_said_to_be_the_largest_tried() -> None:
    placed = [point("gradient", None, [0.9] * 4, [0.5] * 4)]
    found = choice(placed, GRADIENT, set(), None, {("gradient", None): measured(8.0)})
    told = sentences(GRADIENT, columns(0.7, 0.9), found, SMALL)
    assert "(the largest tried)" in told[0]
    assert "nothing measured holds further" in told[0]


def test_methods_whose_insertion_is_no_better_than_the_image_alone_are_named() -> None:
    def note(images: int, *means: float) -> str | None:
        alone = [0.5 + 0.01 * i for i in range(images)]
        own = {
            name: [mean + 0.01 * (i % 2) for i in range(images)]
            for name, mean in zip("ab", means, strict=True)
        }
        records = {"model": {"without_model": alone}} | {n: {"insertion[0]": row} for n, row in own.items()}
        table = Table(
            Source(name, "clean", (), Record(name, {}, list(range(images)), values))
            for name, values in records.items()
        )
        return _image_alone_note(table, [Method(name, name.upper(), GRADIENT.attribution) for name in own])

    told = note(20, 0.7, 0.55)
    assert told is not None
    assert "reaches 0.595 [0.5" in told
    assert told.endswith("Not measurably above it: B.")
    assert str(note(20, 0.1, 0.5)).endswith(": A, B.")
    assert note(20, 0.7, 0.8) is None
    assert note(9, 0.1, 0.1) is None  # too few images for an interval


def test_a_challenger_that_often_beats_the_attack_is_a_flag_and_masks_the_map() -> None:
    preset = replace(SMALL, attacks=("auto",))
    names = ("more steps", "another start", "softer model", "transfer", "noise", "squares")
    counted = [*(f"beaten_by_{name}" for name in names), "misled"]
    values: dict[str, Any] = {f"{name}[{at}]": [0.0] * 10 for name in counted for at in (0, 1)}
    values["beaten_by_transfer[1]"] = [1.0] * 2 + [0.0] * 7 + [None]
    values["beaten_by_more steps[1]"] = [1.0] + [0.0] * 9

    def table() -> Table:
        record = Record("gradient under auto", {}, list(range(10)), values)
        return Table([Source("gradient", "auto", (4 / 255, 8 / 255), record)])

    flags = challenges(table(), [GRADIENT], preset)
    assert [(flag["name"], flag["where"]) for flag in flags] == [("beaten_by_transfer", "gradient")]
    assert flags[0]["measured"] == pytest.approx(2 / 9)
    assert suspects(flags) == {"gradient"}
    assert challenges(Table([]), [GRADIENT], SMALL) == []
    values |= {"beaten_by_transfer[1]": [0.0] * 10, "misled[0]": [1.0] * 3 + [0.0] * 7}
    flags = challenges(table(), [GRADIENT], preset)
    assert [flag["name"] for flag in flags] == ["search_misled"]
    assert suspects(flags) == {"gradient"}


def test_remedies_name_the_audits_own_options_and_apply_to_what_it_explains() -> None:
    preset = replace(SMALL, steps=9)
    flag = sanity_checks.too_few_draws(torch.tensor([[0.0, 1.0], [1.0, 0.1], [0.5, 0.4]]))
    assert flag is not None
    told = _row("gradient", flag.name, flag, flag.measured, preset)["what_to_do"]
    assert told == flag.what_to_do  # a flag without a remedy of the audit's own keeps its check's
    longer = _row("lrp", "beaten_by_more_steps", flag, 0.5, preset)["what_to_do"]
    assert longer == "Search longer: --steps 36 (now 9)."
    sure = sanity_checks.saturation_flag(
        nn.Identity(), torch.tensor([[100.0, 0.0]] * 4), torch.tensor([0] * 4)
    )
    assert sure is not None
    of_logits = _reword_saturation(sure, [GRADIENT])
    assert of_logits is not None
    assert "maps are of the logit" in of_logits.explanation
    assert "quantity" not in REMEDIES["saturated"]
    probability = Method("p", "p", gg.attribution("gradient", quantity="probability"))
    assert _reword_saturation(sure, [GRADIENT, probability]) is sure
