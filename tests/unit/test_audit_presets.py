"""What a preset costs and says: how maps of many passes are attacked, which audits are rivals, narrow terminals."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
import torch
from small_audits import SMALL, small_images, small_net

import gyrograd as gg
from gyrograd.audit import Card, audit
from gyrograd.audit.methods import Method, methods_of
from gyrograd.audit.plans import map_cost, radii_of, steps_of
from gyrograd.audit.presets import PRESETS, Preset, preset_of
from gyrograd.audit.table import card_columns
from gyrograd.errors import UserError
from gyrograd.metrics import TopKIntersection

ONE = replace(SMALL, methods=("gradient",), attacks=("top_k",), sweep={}, steps=1)


def methods(preset: Preset) -> dict[str, Method]:
    x, y = small_images(1)
    found, _ = methods_of(None, preset, small_net(), x, y, max_batch=64)
    return {method.name: method for method in found}


def test_means_over_passes_are_searched_in_fewer_steps_through_as_many_passes_as_allowed() -> None:
    preset = replace(
        SMALL,
        methods=("gradient", "integrated_gradients", "smoothgrad"),
        method_settings={"integrated_gradients": {"steps": 9}, "smoothgrad": {"draws": 9}},
        steps=7, search_rows=6, mean_steps=4,
    )  # fmt: skip
    found = methods(preset)
    path, smooth = found["integrated_gradients"], found["smoothgrad"]
    assert path.search == gg.attribution("integrated_gradients", steps=6, max_batch=64)
    assert smooth.search == gg.attribution("smoothgrad", draws=6, max_batch=64)
    assert {name: steps_of(preset, method, "auto") for name, method in found.items()} == {
        "gradient": 7, "integrated_gradients": 4, "smoothgrad": 4,
    }  # fmt: skip
    assert "through 6 draws in place of 9" in smooth.notes[0]


def test_two_functions_of_one_name_are_refused_and_none_is_dropped() -> None:
    x, y = small_images(1)
    two = [lambda model, x, target: x, lambda model, x, target: -x]
    with pytest.raises(UserError, match="'<lambda>' is named twice"):
        methods_of(two, SMALL, small_net(), x, y, max_batch=64)


def test_a_map_with_no_more_draws_than_are_searched_is_attacked_itself() -> None:
    preset = replace(SMALL, method_settings={"smoothgrad": {"draws": 6}}, search_rows=6, mean_steps=3)
    smooth = methods(preset)["smoothgrad"]
    assert smooth.search is None
    assert smooth.notes == ()
    assert steps_of(preset, smooth, "auto") == 3
    assert steps_of(preset, smooth, "auto on cosine") == 3
    assert steps_of(preset, smooth, "auto on insertion") == 2


def test_a_mean_over_passes_takes_fewer_steps_where_it_starts_from_what_auto_found() -> None:
    standard = PRESETS["standard"]
    alone = replace(standard, aims=("auto on cosine", "auto on insertion"))
    settings = {"smoothgrad": {"draws": 6}, "integrated_gradients": {"steps": 16}}
    several = ("gradient", "smoothgrad", "integrated_gradients")
    found = methods(replace(SMALL, methods=several, method_settings=settings, search_rows=16))
    taken = {
        name: [
            [steps_of(each, method, f"auto on {column}") for column in ("cosine", "insertion")]
            for each in (alone, standard)
        ]
        for name, method in found.items()
    }
    assert taken == {
        "gradient": [[20, 10], [20, 10]],
        "smoothgrad": [[7, 3], [4, 3]],
        "integrated_gradients": [[7, 3], [7, 3]],  # most steps follow its coarser path
    }


def test_the_audit_attacks_with_those_steps() -> None:
    x, y = (t[:4] for t in small_images())
    preset = replace(
        SMALL, methods=("smoothgrad",), attacks=("top_k",), sweep={}, search_rows=3, mean_steps=5
    )
    card = audit(small_net(), x, y, preset=preset)
    whole, few = (gg.attribution("smoothgrad", draws=n) for n in (4, 3))
    found = card.records["smoothgrad under top_k"].values["kept[1]"]
    hit = gg.attack("top_k", eps=8 / 255, steps=5, transfer_from=few)(small_net(), whole, x, y, seed=0)
    expected = TopKIntersection(k=10)(hit.map_clean, hit.map)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected)


def test_whoever_says_how_many_steps_means_every_attack() -> None:
    assert preset_of("standard", steps=3).mean_steps is None
    assert preset_of("standard", steps=3, mean_steps=2).mean_steps == 2
    assert preset_of("standard").mean_steps == PRESETS["standard"].mean_steps


@pytest.mark.parametrize("name", ["search_rows", "mean_steps"])
def test_a_count_below_one_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is 0; give at least 1"):
        replace(SMALL, **{name: 0})


def test_audits_that_searched_longer_are_no_rivals() -> None:
    def attacked(preset: Preset) -> list[str]:
        return [c["detail"] for c in card_columns(preset) if c["key"] in ("attack_cosine", "top_k_kept")]

    quick = attacked(PRESETS["quick"])
    words = "12 steps (7, 10 at the smallest radius, for maps averaged over passes, at most 8 of them)"
    assert all(words in detail for detail in quick)
    for other in (
        preset_of("quick", steps=9),
        preset_of("quick", mean_steps=4),
        preset_of("quick", search_rows=5),
    ):
        assert not set(attacked(other)) & set(quick)


def rows(preset: Preset, images: int) -> float:
    """Estimated cost of the attacks."""
    total = 0.0
    for number, method in enumerate(methods(preset).values()):
        total += sum(
            len(radii_of(preset, name, number))
            * steps_of(preset, method, name)
            * map_cost(method.search or method.attribution)
            for name in preset.searches
        )
    return total * min(images, preset.attacked_images)


def test_standard_costs_some_fifteen_times_quick_and_thorough_some_ten_times_more() -> None:
    quick, standard, thorough = (rows(PRESETS[name], 100) for name in ("quick", "standard", "thorough"))
    assert 6 < standard / quick < 18
    assert 10 < thorough / standard < 30


@pytest.fixture(scope="module")
def card() -> Card:
    x, y = small_images()
    return audit(small_net(), x, y, preset=SMALL)


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_a_summary_fits_the_terminal_and_loses_no_word(card: Card, width: int) -> None:
    folded, whole = card.summary(width), card.summary()
    assert max(len(line) for line in folded.splitlines()) <= width
    words = {word for word in whole.split() if not set(word) <= set("*")}
    assert words <= set(folded.split())
    assert not any(line.lstrip().startswith("%") for line in folded.splitlines())


def test_without_a_width_every_sentence_is_one_line(card: Card) -> None:
    lines = [line.strip() for line in card.summary().splitlines()]
    assert set(card.document["verdict"]["sentences"]) <= set(lines)


@pytest.mark.parametrize(
    ("images", "attacked", "said"),
    [
        (1, 1, "1 image is few"),
        (9, 4, "9 images are few"),
        (10, 10, None),
        (10, 9, "9 attacked images are few"),
    ],
)
def test_few_images_are_said_to_be_few(images: int, attacked: int, said: str | None) -> None:
    x, y = small_images(images)
    card = audit(small_net(), x, y, preset=replace(ONE, attacked_images=attacked))
    notes = [note for note in card.document["settings"]["notes"] if "few" in note]
    assert [note.partition(":")[0] for note in notes] == ([] if said is None else [said])
    assert (said is None) or said in card.summary()
    assert "1 images" not in card.summary()


def test_the_card_says_how_long_the_attacks_searched_and_that_this_guarantees_nothing() -> None:
    x, y = (t[:2] for t in small_images())
    for preset, took in (
        (ONE, "took 1 step, and"),
        (
            replace(ONE, mean_steps=3, search_rows=5),
            "or 3 (4 at the smallest radius) for averaged maps such as SmoothGrad, through 5 of their passes, and",
        ),
    ):
        (told,) = [
            n
            for n in audit(small_net(), x, y, preset=preset).document["settings"]["notes"]
            if "guarantee" in n
        ]
        assert took in told


def test_python_and_the_command_line_audit_by_the_same_preset() -> None:
    from gyrograd.cli.audit import audit as command

    presets = [inspect.signature(function).parameters["preset"].default for function in (audit, command)]
    assert presets == ["quick", "quick"]
