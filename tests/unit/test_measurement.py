"""A plan goes in, a typed table comes out: every method in every condition, by every metric that applies."""

from __future__ import annotations

import doctest
import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_audits import small_images, small_net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.measurement import (
    CLEAN,
    Cell,
    Interrupted,
    Look,
    Metric,
    Plan,
    Sample,
    Table,
    attacked,
    measure,
    noise,
    registered,
    run,
    streams,
)
from gyrograd.measurement.table import Source
from gyrograd.numerics import wording
from gyrograd.records import Record

EPS = (4 / 255, 8 / 255)
GRADIENT = gg.attribution("gradient")


def test_the_examples_run() -> None:
    for module in (run, wording):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0


def plan(**changes: object) -> Plan:
    settings: dict[str, object] = {
        "methods": {"gradient": GRADIENT, "calm": gg.attribution("smoothgrad", draws=2)},
        "conditions": (CLEAN, noise(EPS), attacked("top_k", EPS[1:], steps=2, images=2)),
        "metrics": (registered("rps", draws=2), registered("top_k_intersection")),
    }
    return Plan(**(settings | changes))  # type: ignore[arg-type]


def sample(n: int = 4) -> Sample:
    x, y = small_images(n)
    return Sample(x, y, tuple(range(10, 10 + n)))


@pytest.fixture(scope="module")
def table() -> Table:
    return measure(small_net(), sample(), plan())


def test_a_table_holds_what_the_metric_gives_by_itself(table: Table) -> None:
    x, y = small_images(4)
    found = table.of(method="gradient", metric="random_perturbation_similarity")
    alone = gg.metric("rps", draws=2)(small_net(), GRADIENT, x, y, seed=streams(0, torch.arange(10, 14)))
    assert list(found) == [10, 11, 12, 13]
    assert list(found.values()) == pytest.approx(alone.tolist(), abs=1e-9)


def test_attacked_images_are_those_of_the_attack_by_itself(table: Table) -> None:
    x, y = small_images(2)
    found = table.of(method="gradient", condition="top_k", eps=8 / 255, metric="top_k_intersection")
    attack = gg.attack("top_k", eps=8 / 255, steps=2)
    hit = attack(small_net(), GRADIENT, x, y, seed=streams(0, torch.arange(10, 12)))
    expected = gg.metric("top_k_intersection")(small_net(), GRADIENT, x, y, perturbed=hit.x)
    assert list(found) == [10, 11]  # the condition keeps to the first two images
    assert list(found.values()) == pytest.approx(expected.tolist(), abs=1e-9)


def chained() -> Plan:
    """`auto` at two radii, and then on two other columns at the second."""
    then = (
        attacked("auto", EPS[1:], name="auto on cosine", column="cosine", steps=2),
        attacked("auto", EPS[1:], name="auto on ranks", column="rank_correlation", steps=2),
    )
    value = Metric("value", lambda at: at.attack.value, "attacked")
    condition = replace(attacked("auto", EPS, steps=2), then=then)
    return Plan({"gradient": GRADIENT}, (condition,), (value,))


def test_a_later_attack_starts_from_the_images_of_the_one_before_at_its_radius() -> None:
    x, y = small_images(2)
    given, seeds = (small_net(), GRADIENT, x, y), streams(0, torch.arange(10, 12))
    hits = gg.attack("auto", eps=EPS, steps=2)(*given, seed=seeds)
    expected = {("auto", hit.eps): hit for hit in hits}
    begin = hits[1]
    for name, column in (("auto on cosine", "cosine"), ("auto on ranks", "rank_correlation")):
        attack = gg.attack("auto", eps=EPS[1:], steps=2, column=column)
        (expected[name, EPS[1]],) = attack.every_radius(*given, seed=seeds, begin=begin)
        begin = expected[name, EPS[1]]
    table = measure(small_net(), sample(2), chained())
    for (name, eps), hit in expected.items():
        found = table.of(method="gradient", condition=name, eps=eps, metric="value")
        assert list(found.values()) == pytest.approx(hit.value.tolist(), abs=1e-9)
    assert table.radii(method="gradient", condition="auto on ranks") == EPS[1:]
    assert {name: sorted(record.values) for name, record in table.records.items()} == {
        "gradient under auto": ["stuck[0]", "stuck[1]", "value[0]", "value[1]"],
        "gradient under auto on cosine": ["stuck[0]", "value[0]"],
        "gradient under auto on ranks": ["stuck[0]", "value[0]"],
    }


def test_attacks_that_follow_one_another_are_one_cell_and_survive_an_interruption(tmp_path: Path) -> None:
    def measured(**how: object) -> dict[str, bytes]:
        measure(small_net(), sample(4), chained(), tmp_path, shard=2, **how)  # type: ignore[arg-type]
        return {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob("*.json")}

    whole = measured()
    assert len(whole) == 2
    (tmp_path / next(iter(whole))).unlink()
    assert measured() == whole
    assert measured(fresh=True, workers=2) == whole


def test_an_eps_is_found_however_it_was_computed(table: Table) -> None:
    for eps in (8 / 255, 0.031372549, 1 / 31.875):
        assert table.has(method="calm", condition="noise", eps=eps, metric="top_k_intersection")
    assert not table.has(method="calm", condition="noise", eps=7 / 255, metric="top_k_intersection")
    assert table.radii(method="calm", condition="noise") == EPS


def test_what_was_not_measured_is_one_sentence_that_names_what_was(table: Table) -> None:
    with pytest.raises(
        UserError, match=r"no deletion of gradient under clean.*random_perturbation_similarity"
    ):
        table.of(method="gradient", metric="deletion")
    with pytest.raises(UserError, match=r"eps 0.1; ask for one of: .*top_k_intersection at eps 0.0313"):
        table.of(method="gradient", condition="top_k", eps=0.1, metric="top_k_intersection")


def test_every_number_is_a_row(table: Table) -> None:
    kept = [row for row in table if row.key.metric == "top_k_intersection" and row.key.method == "calm"]
    assert {(row.key.condition, row.key.eps and round(row.key.eps * 255), row.example) for row in kept} == {
        *(("noise", eps, example) for eps in (4, 8) for example in (10, 11, 12, 13)),
        ("top_k", 8, 10),
        ("top_k", 8, 11),
    }


def test_a_curve_has_a_column_for_each_point_in_order() -> None:
    values: dict[str, list[float | None]] = {f"rps[{i}]": [float(i)] for i in range(12)}
    values |= {f"insertion[1][{i}]": [-float(i)] for i in range(11)}
    record = Record("a", {}, [3], values)
    clean = Table(
        [Source("a", "clean", (), Record("a", {}, [3], {k: v for k, v in values.items() if "rps" in k}))]
    )
    assert [column[3] for column in clean.curve(method="a", metric="rps")] == [float(i) for i in range(12)]
    del record.values["rps[0]"]
    under = {k: v for k, v in values.items() if "insertion" in k}
    attacked_table = Table([Source("a", "top_k", EPS, Record("a", {}, [3], under))])
    found = attacked_table.curve(method="a", condition="top_k", eps=EPS[1], metric="insertion")
    assert [column[3] for column in found] == [-float(i) for i in range(11)]


def test_nothing_is_said_of_images_whose_search_stood_still() -> None:
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(300, 3)).double()  # its map never moves
    found = measure(linear, sample(2), plan(methods={"gradient": GRADIENT}))
    place = {"method": "gradient", "condition": "top_k", "eps": 8 / 255}
    assert set(found.of(metric="stuck", **place).values()) == {1.0}
    assert set(found.of(metric="top_k_intersection", **place).values()) == {None}


def test_a_metric_may_give_several_columns_and_the_model_alone_may_be_measured() -> None:
    def values(at: Look) -> dict[str, Tensor]:
        logits = at.model(at.x).detach()
        return {"right": logits.argmax(1) == at.target, "logits": logits}

    found = measure(small_net(), sample(2), Plan({"model": None}, (CLEAN,), (Metric("model", values),)))
    assert set(found.of(method="model", metric="right").values()) <= {0.0, 1.0}
    assert len(found.curve(method="model", metric="logits")) == 3


def test_the_map_of_clean_images_is_made_once_for_all_metrics() -> None:
    calls = []

    def counting(model: torch.nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        calls.append(len(x))
        return GRADIENT(model, x, target, create_graph=create_graph)

    metrics = (Metric("a", lambda at: at.map.sum((1, 2, 3))), registered("insertion"))
    measure(small_net(), sample(3), Plan({"own": counting}, (CLEAN,), metrics))
    assert calls == [3]


def test_a_metric_that_explains_another_model_class_or_image_gets_a_map_of_its_own() -> None:
    x, y = small_images(3)
    net, other = small_net(), small_net().requires_grad_(False)
    with torch.no_grad():
        next(other.parameters()).mul_(-2)
    asked = {
        "model": (other, x, y),
        "class": (net, x, (y + 1) % 3),
        "image": (net, x.mT, y),
        "same": (net, x, y),
    }

    def differences(at: Look) -> dict[str, Tensor]:
        found = {
            "model": at.attribution(other, at.x, at.target),
            "class": at.attribution(at.model, at.x, (at.target + 1) % 3),
            "image": at.attribution(
                at.model, at.x.mT, at.target
            ),  # as many numbers, from the same address on
            "same": at.attribution(at.model, at.x, at.target.clone()),
        }
        return {name: (map - GRADIENT(*asked[name])).flatten(1).norm(dim=1) for name, map in found.items()}

    table = measure(
        net, Sample(x, y, (0, 1, 2)), Plan({"own": GRADIENT}, (CLEAN,), (Metric("d", differences),))
    )
    for name in asked:
        assert max(table.of(method="own", metric=name).values()) < 1e-5  # type: ignore[type-var]


def test_a_killed_run_goes_on_and_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}

    net, whole = small_net(), tmp_path / "whole"
    measure(net, sample(), plan(), whole, shard=2)
    record = Cell.record

    def until_the_second_shard(cell: Cell, positions: list[int]) -> Record:
        if positions[0] >= 12 and cell.name == "calm":
            raise KeyboardInterrupt
        return record(cell, positions)

    monkeypatch.setattr(Cell, "record", until_the_second_shard)
    with pytest.raises(Interrupted) as stopped:
        measure(net, sample(), plan(), tmp_path / "killed", shard=2)
    assert stopped.value.table is not None
    assert list(stopped.value.table.of(method="calm", metric="random_perturbation_similarity")) == [10, 11]
    monkeypatch.setattr(Cell, "record", record)
    measure(net, sample(), plan(), tmp_path / "killed", shard=2)
    assert contents(tmp_path / "killed") == contents(whole)


def test_records_of_other_settings_are_left_alone_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {
        "methods": {"gradient": GRADIENT},
        "conditions": (CLEAN,),
        "metrics": (registered("rps", draws=1),),
    }
    measure(small_net(), sample(2), plan(**few), tmp_path)
    assert capsys.readouterr().err == ""
    measure(small_net(1), sample(2), plan(**few), tmp_path)
    assert "measuring again" in capsys.readouterr().err


def test_the_same_images_under_other_numbers_are_measured_again(tmp_path: Path) -> None:
    few = plan(methods={"gradient": GRADIENT}, conditions=(CLEAN,), metrics=(registered("insertion"),))
    x, y = small_images(3)
    there, back = Sample(x, y, (0, 1, 2)), Sample(x, y, (2, 1, 0))
    measure(small_net(), there, few, tmp_path)
    again, alone = (measure(small_net(), back, few, folder) for folder in (tmp_path, None))
    assert again.of(method="gradient", metric="insertion") == alone.of(method="gradient", metric="insertion")


def test_the_settings_of_a_metric_tell_two_measurements_apart(tmp_path: Path) -> None:
    once, twice = (
        measure(
            small_net(),
            sample(2),
            plan(methods={"gradient": GRADIENT}, conditions=(CLEAN,), metrics=(registered("rps", draws=n),)),
            tmp_path,
        ).of(method="gradient", metric="random_perturbation_similarity")
        for n in (1, 2)
    )
    assert once != twice


def test_a_function_that_is_written_anew_is_measured_anew(tmp_path: Path) -> None:
    x, y = small_images(2)

    def value(factor: int) -> float | None:
        def method(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
            return x * factor

        own = Plan({"own": method}, (CLEAN,), (Metric("total", lambda at: at.map.sum((1, 2, 3))),))
        return measure(small_net(), Sample(x, y, (0, 1)), own, tmp_path).of(method="own", metric="total")[0]

    found = []
    for factor in range(8):
        # As when a cell of a notebook is run again: the new function may get the address of the one before.
        found.append(value(factor))
        gc.collect()
    assert found == pytest.approx([factor * float(x[0].sum()) for factor in range(8)], rel=1e-5)


def test_a_tensor_among_the_settings_tells_two_measurements_apart(tmp_path: Path) -> None:
    x, y = small_images(2)
    found = []
    for row in (0, 1):
        mark = torch.zeros_like(x[0])
        mark[:, row] = 1.0
        of_map = Metric("value", lambda at: at.map.abs().sum((1, 2, 3)))
        of_attack = Metric("value", lambda at: at.attack.value, "attacked")
        method = gg.attribution("integrated_gradients", steps=2, baseline=mark)
        condition = attacked("auto", (4 / 255,), column="mass_in_mask", mask=mark[0], steps=1)
        plans = [
            Plan({"ig": method}, (CLEAN,), (of_map,)),
            Plan({"ig": GRADIENT}, (condition,), (of_attack,)),
        ]
        for one, at in zip(plans, ({}, {"condition": "auto", "eps": 4 / 255}), strict=True):
            kept, alone = (
                measure(small_net(), Sample(x, y, (0, 1)), one, folder).of(method="ig", metric="value", **at)  # type: ignore[arg-type]
                for folder in (tmp_path, None)
            )
            assert kept == alone
            found.append(kept)
    assert found[0] != found[2]
    assert found[1] != found[3]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": {}}, "without methods measures nothing"),
        ({"metrics": ()}, "without metrics measures nothing"),
        ({"metrics": (registered("rps"),)}, "No metric of the plan looks at images under 'noise'"),
    ],
)
def test_a_plan_that_measures_nothing_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        plan(**change)
