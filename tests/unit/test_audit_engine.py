"""The audit on a small net: every number on the card against the call it stands for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_audits import CLASSES, SMALL, small_images, small_net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.audit import Card, audit, engine
from gyrograd.audit.methods import Method
from gyrograd.audit.pictures import Damage, damages
from gyrograd.audit.plane import choice
from gyrograd.audit.presets import PRESETS, Preset, preset_of
from gyrograd.audit.sanity_checks import suspects
from gyrograd.data.dataset import Dataset
from gyrograd.errors import UserError
from gyrograd.measurement import Table, streams
from gyrograd.measurement.cells import _completed as completed
from gyrograd.metrics import TopKIntersection
from gyrograd.models.opening import UNTRAINED
from gyrograd.numerics import random
from gyrograd.numerics.statistics import share_interval
from gyrograd.progress import Pace
from gyrograd.reporting.comparison import compare_audits
from gyrograd.reporting.schema import check_card
from gyrograd.types import Attribution

FEW = replace(SMALL, methods=("gradient",), attacks=("top_k",), sweep={})
TOP = 10
"""A tenth of 10 x 10 pixels."""


@pytest.fixture(scope="module")
def card() -> Card:
    x, y = small_images()
    return audit(small_net(), x, y, preset=SMALL)


def keys(positions: list[int], seed: int = 0) -> Tensor:
    return random.keys(seed, max(positions) + 1)[positions]


def column(card: Card, cell: str, name: str) -> Tensor:
    return torch.tensor(card.records[cell].values[name], dtype=torch.float64)


def method(card: Card, name: str) -> dict[str, Any]:
    return next(m for m in card.document["methods"] if m["name"] == name)


def test_the_card_is_one_a_report_can_show(card: Card) -> None:
    assert check_card(card.document)["kind"] == "audit"
    assert [m["name"] for m in card.document["methods"]] == ["gradient", "smoothgrad"]
    keys = {c["key"] for c in card.document["columns"]}
    assert all(set(m["columns"]) == keys for m in card.document["methods"])


def test_similarity_under_noise_is_the_metrics_own(card: Card) -> None:
    x, y = small_images()
    metric = gg.metric("rps", eps=SMALL.noise_eps, draws=3)
    for name, attribution in {
        "gradient": gg.attribution("gradient"),
        "smoothgrad": gg.attribution("smoothgrad", draws=4),
    }.items():
        expected = metric(small_net(), attribution, x, y, seed=0)
        found = torch.stack([column(card, name, f"rps[{i}]") for i in range(3)]).mean(0)
        torch.testing.assert_close(found, expected)
        assert method(card, name)["columns"]["rps"]["value"] == pytest.approx(float(expected.mean()))


def test_insertion_and_deletion_are_the_metrics_own(card: Card) -> None:
    x, y = small_images()
    for game in ("insertion", "deletion"):
        metric = gg.metric(game, ratios=(0.0, 0.5, 1.0))
        curve = metric.curve(small_net(), gg.attribution("gradient"), x, y)
        found = torch.stack([column(card, "gradient", f"{game}[{i}]") for i in range(3)], 1)
        torch.testing.assert_close(found, curve)
        line = next(e for e in card.document["curves"][game]["lines"] if e["method"] == "gradient")
        assert line["y"] == pytest.approx(curve.mean(0).tolist())


def test_the_card_says_what_insertion_the_image_alone_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map that ranks pixels as the image alone does is never above it."""
    x, y = small_images(3)
    game = gg.metric("insertion", ratios=(0.0, 0.5, 1.0))

    def distance(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return x - game.empty_image(model, x)

    monkeypatch.setattr("gyrograd.audit.engine.MIN_IMAGES_FOR_CI", 2)
    preset = replace(SMALL, sweep={}, attacked_images=1, attacks=("random",))
    found = audit(small_net(), x, y, preset=preset, methods={"distance": distance})
    alone = game.without_model(small_net(), x, y)
    torch.testing.assert_close(column(found, "model", "without_model"), alone)
    notes = [note for note in found.document["settings"]["notes"] if note.startswith("Insertion rewards")]
    assert len(notes) == 1
    assert f"reaches {alone.mean():.3f}" in notes[0]
    assert notes[0].endswith("Not measurably above it: distance.")


@pytest.mark.parametrize("attack", SMALL.attacks)
@pytest.mark.parametrize("at", [0, 1])
def test_a_response_to_an_attack_is_that_of_the_attack_itself(card: Card, attack: str, at: int) -> None:
    x, y = (t[:4] for t in small_images())
    eps = (4 / 255, 8 / 255)[at]
    gradient = gg.attribution("gradient")
    hit = gg.attack(attack, eps=eps, steps=2)(small_net(), gradient, x, y, seed=0)
    cell = f"gradient under {attack}"
    kept = TopKIntersection(k=TOP)(hit.map_clean, hit.map)
    torch.testing.assert_close(column(card, cell, f"kept[{at}]"), kept)
    alike = gg.metric("similarity_to_clean")(small_net(), gradient, x, y, perturbed=hit.x)
    torch.testing.assert_close(column(card, cell, f"cosine[{at}]"), alike)
    game = gg.metric("adversarial_insertion", ratios=(0.0, 0.5, 1.0))
    order = game(small_net(), gradient, x, y, perturbed=hit.x)
    if eps == SMALL.eps:
        torch.testing.assert_close(column(card, cell, f"adversarial_insertion[{at}]"), order)
    else:
        assert set(card.records[cell].values[f"adversarial_insertion[{at}]"]) == {None}


def test_noise_has_the_attackers_budget_and_images(card: Card) -> None:
    x, y = (t[:4] for t in small_images())
    hit = gg.attack("random", eps=8 / 255)(small_net(), gg.attribution("gradient"), x, y, seed=0)
    kept = TopKIntersection(k=TOP)(hit.map_clean, hit.map)
    torch.testing.assert_close(column(card, "gradient under noise", "kept[1]"), kept)
    found = method(card, "gradient")["columns"]["noise_kept"]
    assert found["value"] == pytest.approx(float(kept.mean()))
    assert found["n"] == 4


def test_a_map_of_many_passes_is_searched_through_fewer_and_judged_whole(card: Card) -> None:
    x, y = (t[:4] for t in small_images())
    whole, few = (gg.attribution("smoothgrad", draws=n) for n in (4, 2))
    attack = gg.attack("top_k", steps=2, transfer_from=few)
    hit = attack(small_net(), whole, x, y, seed=0)
    kept = TopKIntersection(k=TOP)(hit.map_clean, hit.map)
    torch.testing.assert_close(column(card, "smoothgrad under top_k", "kept[0]"), kept)
    assert "attacked through 2 draws in place of 4" in method(card, "smoothgrad")["notes"][0]


def test_the_column_is_the_worst_of_all_attacks(card: Card) -> None:
    rows = [
        column(card, f"gradient under {attack}", f"kept[{i}]") for attack in SMALL.attacks for i in (0, 1)
    ]
    noise = column(card, "gradient under noise", "kept[1]")
    same = column(card, "gradient under noise", "prediction_kept[1]")
    lowest = torch.stack(rows).amin(0)
    lowest = torch.where(same == 1, torch.minimum(lowest, noise), lowest)
    assert method(card, "gradient")["columns"]["top_k_kept"]["value"] == pytest.approx(float(lowest.mean()))


def test_accuracy_is_over_the_labels(card: Card) -> None:
    x, y = small_images()
    right = (small_net()(x).argmax(1) == y).double()
    assert card.document["accuracy"] == share_interval(right).plain()


def test_every_swept_width_is_a_point_on_the_plane(card: Card) -> None:
    points = card.document["plane"]["points"]
    assert [(p["method"], p["setting"]) for p in points] == [
        ("gradient", None), ("smoothgrad", 0.1), ("smoothgrad", 0.05), ("smoothgrad", 0.2),
    ]  # fmt: skip
    assert {p["faithfulness"]["n"] for p in points} == {5}
    x, y = (t[:5] for t in small_images())
    calm = gg.attribution("smoothgrad", sigma=0.2, draws=2)
    insertion = gg.metric("insertion", ratios=(0.0, 0.5, 1.0))(small_net(), calm, x, y)
    assert points[3]["faithfulness"]["value"] == pytest.approx(float(insertion.mean()))


def test_a_method_whose_width_is_swept_is_one_point(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = small_images(4)
    monkeypatch.setattr("gyrograd.audit.engine.suspects", lambda flags: set())
    card = audit(small_net(), x, preset=SMALL, methods=["smoothgrad"], sweep={"smoothgrad": (0.1, 0.2)})
    points = card.document["plane"]["points"]
    assert [(p["method"], p["setting"]) for p in points] == [("smoothgrad", 0.1), ("smoothgrad", 0.2)]
    assert card.document["plane"]["recommended"] is not None


def test_the_page_of_an_unfinished_glance_shows_the_first_attacked_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    monkeypatch.setattr("gyrograd.measurement.cells.Watch.is_due", lambda self: True)
    monkeypatch.setattr("gyrograd.audit.growing.records.write_text", lambda path, text: pages.append(text))
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)
    x, y = small_images(3)
    audit(small_net(), x, y, preset="glance", names=["a.png", "b<.png", "c.png"], out=tmp_path)
    growing = [page for page in pages if "being measured" in page]
    assert "<img" not in growing[0]
    first = next(i for i, page in enumerate(growing) if "<img" in page)
    assert first < len(growing) / 2
    for page in growing[first:]:
        assert "The first image attacked: a.png</h2>" in page or "b&lt;.png</h2>" in page
    assert growing[first].count('src="data:image/png;base64,') == 2  # the gradient's map, before and after
    assert growing[-1].count('src="data:image/png;base64,') == 4
    assert 'alt="LRP, under attack"' in growing[-1]


@pytest.mark.parametrize("draws", [1, 2])
def test_a_preset_does_not_accuse_itself_of_too_few_draws(draws: int) -> None:
    # The interval over images contains the noise of the draws, of which every image has its own.
    x, y = small_images()
    card = audit(small_net(), x, y, preset=SMALL, methods=["gradient"], sweep={}, draws=draws)
    assert "too_few_draws" not in {flag["name"] for flag in card.document["flags"]}
    found = card.document["methods"][0]["columns"]["rps"]
    assert found["low"] < found["value"] < found["high"]


def test_methods_on_the_plane_are_compared_with_the_sweeps_draws(card: Card) -> None:
    x, y = (t[:5] for t in small_images())
    rps = gg.metric("rps", eps=SMALL.noise_eps, draws=2)(
        small_net(), gg.attribution("gradient"), x, y, seed=0
    )
    assert card.document["plane"]["points"][0]["robustness"]["value"] == pytest.approx(float(rps.mean()))


def test_pictures_are_the_attacks_that_left_fewest_top_pixels_with_their_images(card: Card) -> None:
    rows = card.document["worst"]
    assert len(rows) == 2
    assert len({row["example"] for row in rows}) == 2
    x, _ = small_images()
    for row in rows:
        image = card.pictures["image"][row["row"]]
        np.testing.assert_allclose(image, x[row["example"]].permute(1, 2, 0).numpy(), atol=1e-6)
        assert np.abs(card.pictures["attacked"][row["row"]] - image).max() <= 8 / 255 + 1e-6
        assert row["kept"] == pytest.approx(_fewest_kept(card, row["example"], SMALL.methods), abs=1e-6)
        before, after = (card.pictures[key][row["row"]] for key in ("map_clean", "map_attacked"))
        cosine = (before * after).sum() / np.sqrt((before**2).sum() * (after**2).sum())
        assert row["cosine"] == pytest.approx(float(cosine), abs=1e-5)
        assert (np.abs(card.pictures["signed_clean"][row["row"]]) <= before + 1e-5).all()


def test_beside_each_attack_stands_the_recommended_method_on_the_same_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_the_other(table: Table, methods: Sequence[Method], preset: Preset) -> list[Damage]:
        """Attacks on the method that is not recommended, whichever that is."""
        return sorted(d for m in methods if m.name != recommended for d in damages(table, m, preset))[:1]

    x, y = small_images(2)
    preset, recommended = replace(SMALL, sweep={}, attacks=("top_k",)), "smoothgrad"
    monkeypatch.setattr("gyrograd.audit.engine.most_damaging", of_the_other)
    monkeypatch.setattr("gyrograd.audit.engine.choice", _choosing(recommended))
    card = audit(small_net(), x, y, preset=preset)
    (row,) = card.document["worst"]
    assert row["method"] == "gradient"
    kept = card.table.of(method=recommended, condition="top_k", eps=SMALL.eps, metric="kept")
    assert row["best"]["method"] == recommended
    assert row["best"]["kept"] == pytest.approx(kept[row["example"]], abs=1e-6)
    image, attacked = card.pictures["image"][0], card.pictures["best_attacked"][0]
    assert 0 < np.abs(attacked - image).max() <= 8 / 255 + 1e-6
    assert np.abs(attacked - card.pictures["attacked"][0]).max() > 0


def _choosing(name: str) -> Any:
    """`choice`, which recommends this method whatever was measured."""

    def chosen(placed: Sequence[Any], *rest: Any, **more: Any) -> Any:
        point = next(point for point in placed if point.method == name)
        return replace(choice(placed, *rest, **more), point=point, held=None)

    return chosen


def _fewest_kept(card: Card, example: int, methods: Sequence[str]) -> float:
    values = []
    for name in methods:
        for attack in SMALL.attacks:
            kept = card.table.of(method=name, condition=attack, eps=SMALL.eps, metric="kept")
            same = card.table.of(method=name, condition=attack, eps=SMALL.eps, metric="prediction_kept")
            values += [kept[example]] if same[example] == 1 else []
    return min(v for v in values if v is not None)


def test_bounds_stand_next_to_what_was_measured(card: Card) -> None:
    rows = card.document["bounds"]
    assert {row["reference"].split(",")[0] for row in rows} == {
        "tan2023 Theorem C.7", "wang2020 Theorem 2", "tan2023 Theorem 4.3", "wang2020 Theorem 3 with Proposition 3",
    }  # fmt: skip
    assert all(row["holds"] == (row["measured"] <= row["bound"]) for row in rows)
    exact = next(row for row in rows if row["reference"] == "tan2023 Theorem 4.3")
    assert exact["bound"] == pytest.approx(1 / (0.1 * (2 * np.pi) ** 0.5))


def test_the_size_of_a_shard_does_not_show(card: Card) -> None:
    x, y = small_images()
    other = audit(small_net(), x, y, preset=replace(SMALL, shard=2))
    assert other.records.keys() == card.records.keys()
    for name, record in card.records.items():
        again = other.records[name]
        assert again.examples == record.examples
        for key, values in record.values.items():
            assert again.values[key] == pytest.approx(values, abs=1e-9), (name, key)


def test_numbers_belong_to_the_image_and_not_to_its_row() -> None:
    x, y = small_images()
    order = [5, 2, 6, 0]
    few = replace(FEW, attacked_images=4)
    part = audit(small_net(), x[order], y[order], preset=few, index=order)
    record = part.records["gradient"]
    assert record.examples == sorted(order)
    expected = gg.metric("rps", eps=SMALL.noise_eps, draws=3).per_draw(
        small_net(), gg.attribution("gradient"), x[sorted(order)], y[sorted(order)], seed=keys(sorted(order))
    )
    torch.testing.assert_close(column(part, "gradient", "rps[0]"), expected[:, 0])
    assert set(part.records["gradient under top_k"].examples) == set(order)


def test_without_labels_the_prediction_is_explained_and_said_so() -> None:
    x, _ = small_images()
    net = small_net()
    card = audit(net, x, preset=FEW)
    assert card.document["data"]["labelled"] is False
    assert card.document["accuracy"] is None
    assert card.document["settings"]["explained"] == "prediction"
    assert "explained for the class the model predicts" in card.summary()
    assert column(card, "model", "correct").tolist() == [1.0] * len(x)


def test_a_data_set_brings_labels_classes_and_name() -> None:
    x, y = small_images(4)
    data = Dataset((x.float() * 255).byte(), y, ("ape", "bee", "cat"), "zoo photos")
    card = audit(small_net().float(), data, preset=SMALL, methods=["gradient"], sweep={})
    assert card.document["title"] == "Sequential on zoo photos"
    assert card.document["data"]["classes"] == ["ape", "bee", "cat"]
    assert {row["before"]["label"] for row in card.document["worst"]} <= {"ape", "bee", "cat"}
    assert card.document["accuracy"] is not None
    bare = replace_classes(data)
    assert (
        audit(small_net().float(), bare, preset=SMALL, methods=["gradient"], sweep={}).document["accuracy"]
        is None
    )


def replace_classes(data: Dataset) -> Dataset:
    return replace(data, labels=data.labels * 0, classes=("unlabelled",))


def test_a_map_without_derivative_is_never_called_steady() -> None:
    """The gradient of a linear model is one and the same map: no attack can follow it, and that is no merit."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(300, CLASSES)).double().eval()
    x, y = small_images()
    card = audit(linear, x, y * 0, preset=SMALL, methods=["gradient"], sweep={})
    assert method(card, "gradient")["columns"]["top_k_kept"] is None
    assert card.grade is None
    assert "nothing is said of it under attack" in card.document["verdict"]["sentences"][0]
    assert {"zero_derivative", "same_map_everywhere"} <= {flag["name"] for flag in card.document["flags"]}
    assert "Nothing is recommended" in card.document["verdict"]["sentences"][2]


def test_a_kinked_net_is_searched_through_its_twin() -> None:
    x, y = small_images()
    card = audit(small_net(activation=nn.ReLU), x, y, preset=SMALL, methods=["gradient"], sweep={})
    assert method(card, "gradient")["columns"]["top_k_kept"]["n"] == 4
    moved = column(card, "gradient under untargeted_map", "cosine[1]")
    assert bool((moved < 1).all())


def kept_under_top_k(card: Card, name: str, explain: Attribution, **settings: Any) -> tuple[Tensor, Tensor]:
    """The share kept in the card, and that of an attack with these settings."""
    x, y = small_images(4)
    hit = gg.attack("top_k", steps=2, **settings)(small_net(), explain, x, y, seed=0)
    return column(card, f"{name} under top_k", "kept[0]"), TopKIntersection(k=TOP)(hit.map_clean, hit.map)


def test_a_black_box_is_attacked_by_transfer() -> None:
    def lime(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        return gg.attribution("lime", segments="grid", grid=3, draws=12)(model, x, target)

    methods = {"gradient": gg.attribution("gradient"), "lime": lime}
    card = audit(small_net(), *small_images(4), preset=SMALL, methods=methods, sweep={})
    assert "attacked by transfer from gradient" in method(card, "lime")["notes"][0]
    assert ("attacked_by_transfer", "lime") in {
        (flag["name"], flag["where"]) for flag in card.document["flags"]
    }
    assert "lime" in suspects(
        card.document["flags"]
    )  # what stays by transfer is an upper bound: never recommended
    own = gg.attribution(lime)
    torch.testing.assert_close(*kept_under_top_k(card, "lime", own, transfer_from="gradient"))


def test_a_map_of_forward_passes_is_attacked_through_all_of_them() -> None:
    """LIME of a few of its draws would be another map."""
    few = {"lime": {"segments": "grid", "grid": 3, "draws": 12}}
    preset = replace(SMALL, search_rows=2)
    methods = ["gradient", "lime"]
    card = audit(small_net(), *small_images(4), preset=preset, methods=methods, method_settings=few, sweep={})
    assert method(card, "lime")["notes"] == ["attacked through all of its 12 passes"]
    torch.testing.assert_close(*kept_under_top_k(card, "lime", gg.attribution("lime", **few["lime"])))


class EdgesOf:
    """A map that shows the image whatever the model is."""

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return x * x


def test_a_map_that_ignores_the_model_is_flagged_and_not_recommended() -> None:
    x, _ = small_images()
    mine = {"edges": EdgesOf(), "gradient": gg.attribution("gradient")}
    card = audit(small_net(), x, preset=SMALL, methods=mine, sweep={})
    flags = {(flag["where"], flag["name"]) for flag in card.document["flags"]}
    assert ("edges", "ignores_model") in flags
    assert card.document["plane"]["recommended"]["method"] == "gradient"
    assert not method(card, "edges")["recommended"]
    assert method(card, "edges")["columns"]["top_k_kept"]["low"] > 0.5
    assert card.grade == method(card, "edges")["grade"] == "shaky"
    assert "its flags say that it may not mean anything" in card.document["verdict"]["sentences"][0]


def test_a_method_that_was_only_swept_is_not_recommended_in_place_of_a_flagged_one() -> None:
    x, _ = small_images(3)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(x[0].numel(), CLASSES)).double().eval()
    preset = replace(FEW, sweep={"unigrad": (8 / 255,)}, bound_images=0)
    document = audit(linear, x, [0, 0, 0], preset=preset).document
    assert ("gradient", "same_map_everywhere") in {
        (flag["where"], flag["name"]) for flag in document["flags"]
    }
    assert [point["method"] for point in document["plane"]["points"]] == ["gradient", "unigrad"]
    assert document["plane"]["recommended"] is None
    assert document["verdict"]["sentences"][-1].startswith("Nothing is recommended")


def test_further_metrics_become_columns() -> None:
    x, y = small_images(4)
    names = ["rank_correlation", "center_dislocation", "max_sensitivity", "insertion"]
    card = audit(small_net(), x, y, preset=SMALL, methods=["gradient"], metrics=names, sweep={})
    gradient = gg.attribution("gradient")
    columns = method(card, "gradient")["columns"]
    keys = [c["key"] for c in card.document["columns"]]
    assert keys.count("insertion") == 1
    assert {"rank_correlation", "center_dislocation", "max_sensitivity"} <= set(keys)
    expected = gg.metric("max_sensitivity")(small_net(), gradient, x, y, seed=0)
    assert columns["max_sensitivity"]["value"] == pytest.approx(float(expected.mean()))
    rows = []
    for attack, eps in product(SMALL.attacks, SMALL.radii):
        hit = gg.attack(attack, steps=2, eps=eps)(small_net(), gradient, x, y, seed=0)
        rows.append(gg.metric("center_dislocation")(small_net(), gradient, x, y, perturbed=hit.x))
    assert columns["center_dislocation"]["value"] == pytest.approx(float(torch.stack(rows).amax(0).mean()))


def test_one_image_gives_no_interval_and_no_confident_grade() -> None:
    x, y = small_images(1)
    card = audit(small_net(), x, y, preset=FEW)
    check_card(card.document)
    assert method(card, "gradient")["columns"]["rps"]["low"] is None
    assert card.grade == "shaky"
    assert "one image is not enough to say more" in card.document["verdict"]["sentences"][0]


def test_a_method_of_the_preset_that_cannot_explain_the_model_is_left_out_and_said_so() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.core = small_net()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = torch.erfinv(self.core(x).tanh() * 0.5)
            return out

    x, y = small_images(4)
    preset = replace(SMALL, methods=("gradient", "lrp"), sweep={})
    card = audit(Odd().double().eval(), x, y, preset=preset)
    assert [m["name"] for m in card.document["methods"]] == ["gradient"]
    assert "lrp" in card.document["settings"]["left_out"]
    assert "left out: lrp" in card.summary()
    with pytest.raises(UserError):
        audit(Odd().double().eval(), x, y, preset=preset, methods=["lrp"])


def test_a_folder_holds_everything_and_a_second_audit_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = small_images(4)
    first = audit(small_net(), x, y, preset=SMALL, out=tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"card.json", "pictures.npz", "records", "report.html", "report.md", "figures"} <= names
    before = {p: p.read_bytes() for p in (tmp_path / "records").rglob("*.json")}

    def refuse(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("gyrograd.measurement.cells.Cell.record", refuse)
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)
    second = audit(small_net(), x, y, preset=SMALL, out=tmp_path)
    assert second.records == first.records
    assert {k: v for k, v in second.document.items() if k != "rerun"} == {
        k: v for k, v in first.document.items() if k != "rerun"
    }
    assert before == {p: p.read_bytes() for p in (tmp_path / "records").rglob("*.json")}
    for change in ({"index": [0, 1, 3, 2]}, {"fresh": True}):
        with pytest.raises(AssertionError, match="measured again"):
            audit(small_net(), x, y, preset=SMALL, out=tmp_path, **change)


@pytest.fixture
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the page takes longer than the small audit, and most tests do not look at it."""
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)


@pytest.mark.usefixtures("_no_page")
def test_another_model_or_other_images_are_measured_anew(tmp_path: Path) -> None:
    x, y = small_images(3)
    one = audit(small_net(), x, y, preset=FEW, out=tmp_path)
    other = audit(small_net(1), x, y, preset=FEW, out=tmp_path)
    assert one.records["gradient"].values != other.records["gradient"].values
    assert one.document["model"]["sha256"] != other.document["model"]["sha256"]
    brighter = audit(small_net(), x * 0.9, y, preset=FEW, out=tmp_path)
    assert one.document["data"]["sha256"] != brighter.document["data"]["sha256"]


def test_a_model_without_trained_weights_is_not_judged() -> None:
    x, y = small_images(3)
    net = small_net()
    assert audit(net, x, y, preset=FEW).grade is not None
    net.__dict__["note"] = UNTRAINED
    card = audit(net, x, y, preset=FEW)
    assert card.grade is None
    assert card.document["verdict"]["sentences"][0].startswith("Not judged: the model has no trained weights")
    assert all(row["grade"] is None and not row["recommended"] for row in card.document["methods"])


class Ending(nn.Module):
    """The small net with something behind its logits."""

    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.net, self.end = small_net(), end

    def forward(self, x: Tensor) -> Any:
        return self.end(self.net(x))


def test_a_module_that_returns_probabilities_is_audited_by_their_logarithms() -> None:
    """As on the command line: softmax of probabilities would flatten them."""
    x, y = small_images(3)
    card = audit(Ending(lambda z: z.softmax(1)), x, y, preset=FEW)
    plain = audit(small_net(), x, y, preset=FEW)
    assert card.document["model"]["description"].startswith("Ending, ")
    torch.testing.assert_close(*(column(one, "gradient", "insertion[2]") for one in (card, plain)))
    assert any("The model returns probabilities" in note for note in card.document["settings"]["notes"])
    with pytest.raises(UserError, match="one number per example"):
        audit(Ending(lambda z: z[:, :1]), x, y * 0, preset=FEW)


def test_an_audit_without_gradients_says_why() -> None:
    x, y = small_images(2)
    with torch.inference_mode(), pytest.raises(UserError, match=r"inside torch.inference_mode\(\)"):
        audit(small_net(), x, y, preset=FEW)
    flat = Ending(lambda z: z.detach())
    with pytest.raises(UserError, match="No method of the preset explains this model .gradient: "):
        audit(flat, x, y, preset=FEW)


def test_what_the_numbers_cannot_tell_is_a_note() -> None:
    """Wrong labels, and images that were divided by 255 twice, change no formula and every number."""

    def notes(x: Tensor, y: Tensor) -> str:
        return " ".join(audit(small_net(), x, y, preset=FEW).document["settings"]["notes"])

    x, _ = small_images(4)
    right = gg.predict(small_net(), x)
    assert "guessing" not in notes(x, right)
    assert "Accuracy is not measurably above guessing (1 of 3 classes)" in notes(x, (right + 1) % CLASSES)
    assert "divided by 255 twice" not in notes(x, right)
    assert "No pixel is above 0.0039" in notes(x / 255, right)


def test_copies_among_the_images_are_counted_in_a_note() -> None:
    x, _ = small_images(4)
    assert not any("copies" in note for note in engine._warnings(x, FEW))
    notes = engine._warnings(torch.cat([x, x[1:2], x[1:3]]), FEW)
    assert any(note.startswith("3 of 7 images are copies of others") for note in notes)


def test_images_and_classes_have_their_names() -> None:
    x, y = small_images(2)
    names = [f"class of {i}" for i in range(CLASSES)]
    card = audit(small_net(), x, y, preset=FEW, names=["a.png", "b.png"], classes=names)
    for row in card.document["worst"]:
        assert row["name"] == ("a.png", "b.png")[row["example"]]
        assert row["before"]["label"] in names
    net = small_net()
    net.__dict__["class_names"] = names
    assert audit(net, x, y, preset=FEW).document["worst"][0]["before"]["label"] in names
    with pytest.raises(UserError, match="1 names for 2 images"):
        audit(small_net(), x, y, preset=FEW, names=["a.png"])


@pytest.mark.usefixtures("_no_page")
def test_an_interruption_leaves_a_card_of_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gyrograd.measurement import Cell
    from gyrograd.reporting.schema import read_card

    x, y = small_images(7)
    measure = Cell.record

    def until_the_second_shard(cell: Cell, positions: list[int]) -> Any:
        if positions[0] >= 6:
            raise KeyboardInterrupt
        return measure(cell, positions)

    monkeypatch.setattr(Cell, "record", until_the_second_shard)
    with pytest.raises(KeyboardInterrupt):
        audit(small_net(), x, y, preset=FEW, out=tmp_path)
    unfinished = read_card(tmp_path)
    assert unfinished["complete"] is False
    assert unfinished["data"]["images"] == 6
    monkeypatch.setattr(Cell, "record", measure)
    whole = audit(small_net(), x, y, preset=FEW, out=tmp_path)
    assert read_card(tmp_path)["complete"] is True
    assert whole.records == audit(small_net(), x, y, preset=FEW).records


def test_a_card_saves_itself_and_its_page(tmp_path: Path, card: Card) -> None:
    page = card.to_html(tmp_path / "page.html").read_text()
    assert card.document["verdict"]["sentences"][1].split(",")[0] in page
    assert page.count('data-label="Insertion ↑, 7 images"') == 2  # a phone shows no header of the table
    assert "± is half of the 95 % interval" in card.summary()
    assert {path.name for path in tmp_path.iterdir()} == {"page.html"}


def test_the_model_is_left_as_it_was() -> None:
    x, y = small_images(3)
    net = small_net().train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    audit(net, x, y, preset=replace(SMALL, methods=("gradient",), sweep={}))
    assert all(module.training for module in net.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"preset": "quik"}, "did you mean 'quick'"),
        ({"methods": ["gradeint"]}, "did you mean 'gradient'"),
        ({"methods": []}, "No method"),
        ({"methods": ["gradient", "saliency"]}, "named twice"),
        ({"attacks": ["topk"]}, "did you mean 'top_k'"),
        ({"attacks": ["random"]}, "leave out 'random'"),
        ({"attacks": []}, "needs attacks"),
        ({"metrics": ["insrtion"]}, "did you mean 'insertion'"),
        ({"eps": 8.0}, "eps is 8.0"),
        ({"stepps": 4}, "did you mean 'steps'"),
        ({"steps": 0}, "steps is 0"),
        ({"index": [0, 0, 1]}, "2 different numbers for 3 images"),
        ({"labels": torch.tensor([0, 1, 7])}, "classes 0 to 7"),
        ({"images": torch.zeros(3, 3, 10, 10, dtype=torch.uint8)}, "x.float() / 255"),
        ({"classes": ["cat", "dog"]}, "2 names of classes and the model has 3; give one for each"),
        (
            {"images": torch.rand(3, 10, 10).double(), "preset": "glance"},
            "without a batch axis; give x[None]",
        ),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    x, y = small_images(3)
    usual = {"model": small_net(), "images": x, "labels": y, "preset": SMALL, "out": tmp_path / "out"}
    asked: dict[str, Any] = usual | change
    with pytest.raises(UserError) as wrong:
        audit(**asked)
    assert sentence in str(wrong.value)
    assert not (tmp_path / "out").exists()


def test_what_has_the_wrong_type_is_one_sentence() -> None:
    """In a process of its own, because the types of all calls are checked in this one."""
    code = """
import torch, gyrograd as gg
x = torch.rand(2, 3, 8, 8)
for model, settings in (("lenet", {}), (gg.model("lenet"), {"eps": "8/255"}), (gg.model("lenet"), {"steps": "many"})):
    try:
        gg.audit(model, x, **settings)
    except gg.UserError as error:
        print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    model, eps, steps = told.splitlines()
    assert model.startswith("The model is a str; give an nn.Module")
    assert eps == "eps is '8/255'; give a size in pixel units, such as 8 / 255."
    assert steps.startswith("A setting of an audit has a value of the wrong type")


def test_every_preset_can_be_built_and_names_only_what_exists() -> None:
    for preset in PRESETS.values():
        for kind, names in {"attribution": preset.methods, "attack": preset.attacks}.items():
            assert set(names) <= set(gg.available(kind))
        for name, settings in preset.method_settings.items():
            gg.attribution(name, **settings)
        assert preset.eps in preset.radii
        assert preset.ratios[0] == 0
        assert preset.ratios[-1] == 1
    assert preset_of("quick", eps=None) == PRESETS["quick"]


def test_a_swept_width_that_is_one_of_the_methods_is_measured_once() -> None:
    """The plane is the same as where the sweep measures that width by itself."""
    x, y = small_images()
    twice = {"smoothgrad": {"sigma": 0.2, "draws": 2}}
    preset = replace(SMALL, attacks=("top_k",), steps=1, method_settings=twice)
    card = audit(small_net(), x, y, preset=preset)
    assert "smoothgrad at sigma 0.05" in card.records
    assert "smoothgrad at sigma 0.2" not in card.records
    alone = audit(small_net(), x, y, preset=preset, methods=["gradient"])
    assert "smoothgrad at sigma 0.2" in alone.records
    found, expected = (
        {(p["method"], p["setting"]): p for p in c.document["plane"]["points"]} for c in (card, alone)
    )
    assert found.keys() == expected.keys() == {
        ("gradient", None), ("smoothgrad", 0.05), ("smoothgrad", 0.2),
    }  # fmt: skip
    for point, row in expected.items():
        for axis in ("robustness", "faithfulness"):
            assert found[point][axis]["value"] == pytest.approx(row[axis]["value"], abs=1e-9), (point, axis)


def test_noise_has_the_radii_its_method_is_attacked_at(card: Card) -> None:
    assert card.table.radii(method="gradient", condition="noise") == (4 / 255, 8 / 255)
    assert card.table.radii(method="smoothgrad", condition="noise") == (8 / 255,)
    x, y = (t[:4] for t in small_images())
    smooth = gg.attribution("smoothgrad", draws=4)
    hit = gg.attack("random", eps=8 / 255)(small_net(), smooth, x, y, seed=0)
    kept = TopKIntersection(k=TOP)(hit.map_clean, hit.map)
    torch.testing.assert_close(column(card, "smoothgrad under noise", "kept[0]"), kept)


def test_every_cell_has_a_guess_of_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """More radii, rows, steps and examples cost more; attacks are a kind of their own."""
    seen: dict[str, tuple[str, float]] = {}
    monkeypatch.setattr(
        "gyrograd.progress.Pace",
        lambda efforts, **how: seen.update(enumerate(efforts)) or Pace(efforts, **how),
    )
    x, y = small_images()
    cells: list[tuple[str, int]] = []
    monkeypatch.setattr(
        "gyrograd.measurement.cells._completed",
        lambda cell, part, *rest: cells.append((cell.name, len(part))) or completed(cell, part, *rest),
    )
    audit(small_net(), x, y, preset=SMALL)
    guessed = {name: (kind, size / n) for (name, n), (kind, size) in zip(cells, seen.values(), strict=True)}
    assert {name for name, (kind, _) in guessed.items() if kind == "attack"} == {
        f"{method} under {attack}" for method in SMALL.methods for attack in SMALL.attacks
    }
    cost = {name: size for name, (_, size) in guessed.items()}
    # gradient: two radii of one row; smoothgrad: one radius of two rows, judged with four
    assert cost["gradient under top_k"] == 2 * (12 * 1 * 2 + 3 + 3)
    assert cost["smoothgrad under top_k"] == 12 * 2 * 2 + 3 * 4 + 3
    assert cost["smoothgrad"] == 3 * 4 * 4 + 6
    assert cost["smoothgrad at sigma 0.05"] == 3 * 2 * 3 + 3
    assert min(cost.values()) > 0


def test_auto_gives_every_method_a_steady_radius_and_the_verdict_begins_with_the_pair_to_use() -> None:
    preset = replace(SMALL, attacks=("auto",), sweep={}, steps=3, eps=64 / 255, curve=(32 / 255,))
    x, _ = small_images()
    card = gg.audit(small_net(), x, preset=preset)
    radii = {each["name"]: each["columns"]["steady_radius"] for each in card.document["methods"]}
    assert set(radii) == {"gradient", "smoothgrad"}
    assert all(0 < found["value"] <= 64 and found["n"] == 4 for found in radii.values())
    used = next(each for each in card.document["methods"] if each["recommended"])
    first = card.document["verdict"]["sentences"][0]
    assert first.startswith(
        f"The best here is {used['label']}" if card.grade == "unsafe" else f"Use {used['label']}"
    )
    assert card.grade == used["grade"]
    assert "steady_radius" in [each["key"] for each in card.document["columns"]]
    said = any("Nothing was attacked below 32/255" in note for note in card.document["settings"]["notes"])
    assert said == any(found["value"] < 32 for found in radii.values())
    lines = card.document["curves"]["eps"]["lines"]
    assert [line["method"] for line in lines if line["label"] == "attack"] == [*radii]
    attack, model, seeds = (
        gg.attack("auto", eps=preset.radii, steps=3),
        small_net(),
        streams(0, torch.arange(4)),
    )
    hits = attack(model, gg.attribution("gradient"), x[:4], gg.predict(model, x[:4]), seed=seeds)
    torch.testing.assert_close(column(card, "gradient under auto", "kept[1]"), hits[1].value)
    aimed = gg.attack("auto", eps=(preset.eps,), steps=3, column="cosine", ratios=preset.ratios)
    (then,) = aimed.every_radius(
        model, gg.attribution("gradient"), x[:4], gg.predict(model, x[:4]), seed=seeds, begin=hits[1]
    )
    torch.testing.assert_close(column(card, "gradient under auto on cosine", "cosine[0]"), then.value)


def test_a_steady_radius_below_every_attack_is_called_an_estimate() -> None:
    preset = replace(SMALL, attacks=("auto",), eps=8 / 255, curve=(4 / 255,))
    columns = {"steady_radius": {"value": 4.0, "low": 3.0, "high": 5.0, "n": 4}}
    assert engine._extrapolated_note({"gradient": columns, "lrp": {"steady_radius": None}}, preset) is None
    columns["steady_radius"]["value"] = 3.9
    assert "Nothing was attacked below 4/255" in str(engine._extrapolated_note({"gradient": columns}, preset))


def test_a_row_of_an_attack_is_the_attack_on_that_image() -> None:
    x, y = small_images(3)
    attack = gg.attack("auto", eps=8 / 255, steps=4)
    hit = attack(small_net(), gg.attribution("gradient"), x, y, seed=0)
    one = hit.row(1)
    assert len(one) == 1
    assert torch.equal(one.x, hit.x[1:2])
    assert torch.equal(one.value, hit.value[1:2])
    assert {name: flags.tolist() for name, flags in one.beaten_by.items()} == {
        name: flags[1:2].tolist() for name, flags in hit.beaten_by.items()
    }


def test_accuracies_of_the_same_images_are_compared_image_by_image(tmp_path: Path) -> None:
    x, _ = small_images(6)
    half_right = (gg.predict(small_net(), x) + torch.tensor([0, 0, 0, 1, 1, 1])) % CLASSES
    preset = replace(SMALL, methods=("gradient",))
    card = audit(small_net(), x, half_right, preset=preset, sweep={}, out=tmp_path)
    assert card.document["accuracy"]["value"] == 0.5
    assert compare_audits(tmp_path, tmp_path).sentence.endswith("accuracy +0.000 [+0.000, +0.000].")


class OnePattern:
    """A map that is the same for every image."""

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        return torch.linspace(0, 1, x[0].numel(), dtype=x.dtype).view_as(x[0]) + 0 * x


def test_a_glance_at_four_photographs_tells_of_a_map_that_is_the_same_for_all() -> None:
    x, _ = small_images(4)
    card = audit(small_net(), x, preset="glance", methods={"pattern": OnePattern()}, sweep={})
    assert "same_map_everywhere" in {flag["name"] for flag in card.document["flags"]}
