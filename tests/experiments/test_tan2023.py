"""tan2023's table and figures: each runs at smoke, and what they are made of is what the paper says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from captum.attr._core.lime import get_exp_kernel_similarity_function
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.attributions import Lime, predict
from gyrograd.attributions.segments import segment
from gyrograd.experiments import tan2023  # noqa: F401 - registers the experiments
from gyrograd.experiments.claims import Order, Value, judge_claims, read_claims
from gyrograd.experiments.engine import HOME, ExperimentContext, MeasuredNets, RowRecord
from gyrograd.experiments.nets import net_key, train_settings
from gyrograd.experiments.results import Estimate, Quantity, Results, read_results
from gyrograd.experiments.results import estimates as estimates_of
from gyrograd.experiments.scales import SCALES, read_scale
from gyrograd.experiments.tan2023 import drawings, figure2, measures, variants
from gyrograd.experiments.tan2023.explainers import (
    NAMES,
    SIGMAS,
    draws_for,
    explainers,
    segmented,
    sigmas_of,
    smooth,
)
from gyrograd.metrics import Faithfulness, LocalLipschitz
from gyrograd.records import Record
from gyrograd.registry import available
from gyrograd.theory.toy import toy_smoothgrad

FOLDER = HOME / "tan2023"
WHAT = [f"tan2023-{name}" for name in ("table1", "segments", *(f"figure{n}" for n in range(1, 7)))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ExperimentContext:
    return ExperimentContext(
        read_scale(FOLDER / "scales.toml", "smoke"), tmp_path_factory.mktemp("smoke"), (0,)
    )


def test_every_item_of_the_paper_is_there() -> None:
    found = [name for name, entry in available("experiment").items() if entry.paper == "tan2023"]
    assert sorted(found) == sorted(WHAT)


@pytest.mark.parametrize("name", WHAT)
def test_what_the_paper_claims_is_what_is_measured(name: str, smoke_runs: Path) -> None:
    """A claim on a row or column that no run can have would stay 'not measured' for ever."""
    results = read_results(smoke_runs / "smoke" / name)
    for claim in read_claims(FOLDER / "claims.toml", name).claims:
        for q in (claim.quantity,) if isinstance(claim, Value) else (claim.lower, claim.higher):
            swept = q.row.startswith("sigma") and float(q.row.split()[1]) in SIGMAS
            # Nets of the zoo have no small version; what is measured of them is what is measured of their backbone.
            q = replace(q, setting=variants.ZOO.get(q.setting, q.setting))
            assert q in results.estimates or swept, q


@pytest.mark.parametrize("name", WHAT)
def test_the_papers_own_numbers_would_confirm_every_claim_that_can_be_compared(name: str) -> None:
    claims = read_claims(FOLDER / "claims.toml", name)
    printed = {
        q: Estimate(v.reported - 1e-4, v.reported, v.reported + 1e-4, 9) for q, v in claims.reported().items()
    }
    for verdict in judge_claims(claims, Results(name, "paper", {}, printed), "values"):
        alone = isinstance(verdict.claim, Order) and len(verdict.ours) < 2
        assert verdict.verdict == ("not comparable" if alone else "confirmed"), verdict


def test_table_1_is_all_there() -> None:
    reported = read_claims(FOLDER / "claims.toml", "tan2023-table1").reported()
    assert len(reported) == 5 * 12 + 12
    assert reported[Quantity("resnet18", "robust grad", "lipschitz")].reported == 0.724
    assert reported[Quantity("swin", "natural shap", "lipschitz")].reported == 0.240
    assert reported[Quantity("backbones", "natural lime", "rank correlation")].reported == 0.1


@pytest.mark.parametrize(
    ("sigma", "draws"),
    [(0.003, 10), (0.0099, 10), (0.01, 10), (0.03, 30), (0.06, 60), (0.29, 290), (0.3, 300)],
)
def test_smoothgrad_draws_as_appendix_b3_says(sigma: float, draws: int) -> None:
    assert draws_for(sigma) == draws
    assert smooth(sigma).draws == draws


def test_explainers_have_the_papers_settings() -> None:
    six = explainers({})
    assert list(six) == list(NAMES)
    assert (six["ig"].steps, six["ig"].baseline) == (10, "zero")
    assert (six["sg"].kernel.sigma, six["sg"].draws) == (0.03, 30)
    assert (six["lime"].draws, six["lime"].ridge, six["lime"].segments) == (100, 1.0, "quickshift")
    assert (six["lime"].kernel_size, six["lime"].max_dist, six["lime"].ratio) == (1.0, 200.0, 0.1)
    assert six["shap"].draws == 100
    assert {explain.quantity for explain in six.values()} == {"probability"}


def subject_of(
    run: ExperimentContext, way: str = "natural"
) -> tuple[object, torch.Tensor, torch.Tensor, measures.TrainedNet]:
    trained_net = next(s for s in variants.nets_by_row()(run) if (s.setting, s.way) == ("resnet18", way))
    here = run.test_images("resnet18").rows(torch.arange(3))
    run.train_missing([trained_net.net])
    return run.net(trained_net.net), here.pixels(), here.labels, trained_net


def test_the_constant_is_the_metrics_at_the_prediction(run: ExperimentContext) -> None:
    model, x, y, trained_net = subject_of(run)
    keys = torch.tensor([3, 4, 5])
    (part,) = measures.of_explainer(measures.lipschitz, "gi")(trained_net)
    found = part.columns(model, x, y, keys)["lipschitz"]
    explain = explainers(trained_net.sizes)["gi"]
    torch.testing.assert_close(
        found, LocalLipschitz(0.03, 2)(model, explain, x, predict(model, x), seed=keys)
    )
    other_labels = part.columns(model, x, (y + 1) % 10, keys)["lipschitz"]
    assert torch.equal(found, other_labels)
    alone = part.columns(model, x[1:2], y[1:2], keys[1:2])["lipschitz"]
    torch.testing.assert_close(alone[0], found[1])


@pytest.mark.parametrize(("column", "similarity"), measures.SIMILARITIES.items())
def test_agreements_are_the_faithfulness_metric(run: ExperimentContext, column: str, similarity: str) -> None:
    model, x, _, trained_net = subject_of(run)
    for name in ("grad", "sg", "shap"):
        explain = explainers(trained_net.sizes)[name]
        metric = Faithfulness(similarity, grid=10, quantity="probability")
        expected = metric(model, explain, x, predict(model, x))
        torch.testing.assert_close(measures.agreements(model, explain, x)[column], expected)


def nets_found(table: np.ndarray) -> tuple[list[RowRecord], dict[str, list[tuple[str, str]]]]:
    """Records of a `2 nets images` table: row 0 the nets' own constants, row 1 their gradients'."""
    nets = [f"net{i}" for i in range(table.shape[1])]
    found: list[RowRecord] = []
    for what, rows in zip(("model", "grad"), table, strict=True):
        for net, values in zip(nets, rows, strict=True):
            record = Record("r", {}, list(range(len(values))), {"lipschitz": [float(v) for v in values]})
            found.append((net, f"natural {what}", 0, record))
    return found, {"natural": [(net, "natural") for net in nets]}


@given(st.integers(0, 1000), st.integers(3, 6), st.integers(2, 25))
def test_rank_correlations_are_scipys_of_the_parts_means(seed: int, nets: int, images: int) -> None:
    table = np.random.default_rng(seed).random((2, nets, images))
    ((setting, row, _, record),) = measures.rank_correlations(*_found(table))
    assert (setting, row) == ("all", "natural grad")
    parts = np.array_split(np.arange(images), min(10, images))
    expected = [
        scipy.stats.spearmanr(table[0][:, p].mean(1), table[1][:, p].mean(1)).statistic for p in parts
    ]
    assert record.values["rank correlation"] == pytest.approx(expected, abs=1e-6)


def _found(table: np.ndarray) -> tuple[list[RowRecord], str, dict[str, list[tuple[str, str]]]]:
    found, nets = nets_found(table)
    return found, "all", nets


def test_two_nets_have_no_rank_correlation_and_a_missing_image_is_left_out() -> None:
    assert measures.rank_correlations(*_found(np.random.default_rng(0).random((2, 2, 5)))) == ()
    table = np.tile(np.arange(1.0, 4.0)[None, :, None], (2, 1, 20))
    table[1, 0, 1] = np.nan
    found, nets = nets_found(table)
    holed = [
        (
            s,
            row,
            seed,
            Record(
                r.name,
                r.settings,
                r.examples,
                {"lipschitz": [None if v != v else v for v in r.values["lipschitz"]]},
            ),
        )
        for s, row, seed, r in found
    ]
    ((*_, record),) = measures.rank_correlations(holed, "all", nets)
    assert record.values["rank correlation"] == pytest.approx([1.0] * 10)


def test_the_table_correlates_backbones_and_needs_all_of_a_line(
    smoke_runs: Path, run: ExperimentContext
) -> None:
    results = read_results(smoke_runs / "smoke" / "tan2023-table1")
    assert results.rows("backbones") == [f"{way} {name}" for way in variants.WAYS for name in NAMES]
    assert all(-1 <= e.value <= 1 for q, e in results.estimates.items() if q.setting == "backbones")
    assert {s.setting for s in variants.nets_by_row()(replace(run, settings=("swin", "resnet18")))} == {
        "swin",
        "resnet18",
    }


def test_a_correlation_over_some_backbones_is_not_compared_with_that_over_all(
    run: ExperimentContext,
) -> None:
    names = [f"natural {name}" for name in (measures.MODEL, *NAMES)]
    nets = [net for net in variants.nets_by_row(("natural",))(run) if net.setting in variants.BACKBONES]
    found = tuple(
        (net.setting, name, 0, Record(name, {}, [0, 1], {"lipschitz": [float(place), float(place) + 1]}))
        for place, net in enumerate(nets)
        for name in names
    )
    for measured, row in ((nets, "natural grad"), (nets[:3], "natural (3 backbones) grad")):
        made = measures.ranked_by_backbone(MeasuredNets(run, measured, found)).records
        assert next(one[1] for one in made if one[0] == "backbones") == row


SIZES = {"data": {"name": "shapes"}, "model": {"name": "lenet"}, "epochs": 6}


def test_nets_are_the_recipes_with_milestones_as_shares() -> None:
    robust = variants.way_net(SIZES, "vgg16", "robust", 1)
    assert robust.terms["adversarial"]["settings"] == {"eps": 8 / 255, "steps": 7, "step_size": 2 / 255}
    assert robust.recipe["milestones"] == (0.25, 0.5, 0.75)
    assert variants.way_net(SIZES, "resnet18", "natural", 1).recipe["milestones"] == (1 / 3, 2 / 3)
    assert train_settings(variants.way_net(SIZES, "resnet18", "natural", 1)).milestones == (2, 4)
    swin = train_settings(variants.way_net(SIZES, "swin", "natural", 1))
    assert (swin.optimizer, swin.schedule, swin.milestones) == ("adam", "cosine", ())


@pytest.mark.parametrize("backbone", variants.BY_LEVEL)
def test_the_ends_of_figure_3_are_the_nets_of_table_1(backbone: str) -> None:
    for level, way in ((0.0, "natural"), (8.0, "robust")):
        end, net = variants.level_net(SIZES, backbone, level, 0), variants.way_net(SIZES, backbone, way, 0)
        assert net_key(end) == net_key(net)
        assert end.label == net.label
    assert variants.level_net(SIZES, backbone, 4.0, 0).terms["adversarial"]["settings"]["eps"] == 4 / 255
    assert len(variants.LEVELS) == 10


def test_the_toy_by_drawing_is_the_exact_one() -> None:
    x = torch.tensor([figure2.POINT_OF_FIGURE], dtype=torch.float64)
    drawn = figure2.sampled(x, 0.5, 4000, 0)
    torch.testing.assert_close(drawn, toy_smoothgrad(x, 0.5), atol=0.05, rtol=0)


def test_figure_2_goes_from_the_gradient_to_one_half_each(smoke_runs: Path) -> None:
    results = read_results(smoke_runs / "smoke" / "tan2023-figure2")
    verdicts = judge_claims(read_claims(FOLDER / "claims.toml", "tan2023-figure2"), results, "values")
    assert [verdict.verdict for verdict in verdicts] == ["confirmed"] * 4


def test_lime_and_shap_stand_with_three_kinds_of_features(run: ExperimentContext) -> None:
    model, x, y, trained_net = subject_of(run)
    keys = torch.tensor([3, 4, 5])
    parts = {part.what: part for part in measures.by_segments(trained_net)}
    kinds = [f"{name} {how}" for name in ("lime", "shap") for how in ("anew", "held", "pixels")]
    kinds += ["lime captum kernel", "lime l2 kernel"]
    assert list(parts) == [f"{kind} {what}" for kind in kinds for what in ("lipschitz", "faithfulness")]
    found = {kind: parts[f"{kind} lipschitz"].columns(model, x, y, keys)["lipschitz"] for kind in kinds}
    for name in ("lime", "shap"):
        explain = explainers(trained_net.sizes)[name]
        target = predict(model, x)
        anew = LocalLipschitz(0.03, 2)(model, explain, x, target, seed=keys)
        torch.testing.assert_close(found[f"{name} anew"], anew)
        # What is held is the clean image's own segmentation, of every neighbour.
        own = replace(explain, segments=segment(x[1:2], "quickshift")[0])
        held = LocalLipschitz(0.03, 2)(model, own, x[1:2], target[1:2], seed=keys[1:2])
        torch.testing.assert_close(found[f"{name} held"][1:2], held)
        assert not torch.allclose(found[f"{name} held"], anew)
        assert not torch.allclose(found[f"{name} pixels"], anew)
    for other in ("lime captum kernel", "lime l2 kernel"):
        assert not torch.allclose(found[other], found["lime held"])
    assert parts["lime held lipschitz"].settings != parts["lime anew lipschitz"].settings


def test_the_captum_kernel_weighs_coalitions_as_captum_does() -> None:
    theirs = get_exp_kernel_similarity_function("cosine")
    lime, _ = segmented({})["lime captum kernel"]
    assert isinstance(lime, Lime)
    coalitions = torch.tensor([[True, False, True, True], [False, True, False, False], [True] * 4])
    weights = lime._kernel(coalitions, torch.ones(4, dtype=torch.float64))
    expected = [theirs(torch.ones(4), row.float(), None) for row in coalitions]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=0)


def test_a_few_images_do_not_decide_what_is_more_faithful(run: ExperimentContext) -> None:
    """Noise helps 99 of 100 images by a tenth; the hundredth has a map that happened to come near, without noise."""
    base = np.random.default_rng(0).uniform(0.4, 0.6, 100)
    less = base / 1.1
    less[7] = 86.0
    columns = {"sigma 0.03": base, "sigma 0.003": less}
    found = tuple(
        ("lenet", row, 0, Record(row, {}, list(range(100)), {"faithfulness": values.tolist()}))
        for row, values in columns.items()
    )
    judged_on = measures.beside("sigma 0.03")(MeasuredNets(run, [], found)).records
    results = Results("tan2023-figure5", "small", {}, estimates_of(judged_on))
    means = [results.estimates[Quantity("lenet", row, "faithfulness")].value for row in columns]
    assert means[1] > 2 * means[0]
    ratios = [results.estimates[Quantity("lenet", row, measures.RATIO)].value for row in columns]
    assert ratios == pytest.approx([1.0, 1 / 1.1])
    verdicts = judge_claims(read_claims(FOLDER / "claims.toml", "tan2023-figure5"), results, "orders")
    said = {v.claim.text: v.verdict for v in verdicts if v.ours}
    assert said["hardly any noise is less faithful than some"] == "confirmed"


def results_with(column: str, values: dict[float, float]) -> Results:
    points = {
        Quantity("vgg16", f"sigma {s:g}", column): Estimate(v - 0.1, v, v + 0.1, 5) for s, v in values.items()
    }
    return Results("tan2023-figure5", "small", {}, points)


def test_lines_over_noise_are_relative_to_their_largest() -> None:
    results = results_with("faithfulness", {0.003: 1.0, 0.03: 4.0, 0.3: 2.0})
    (line,) = drawings.over_sigma(results, "faithfulness", relative=True)
    assert line.x == (0.003, 0.03, 0.3)
    assert [y.value for y in line.y] == [0.25, 1.0, 0.5]
    assert line.y[1].high == pytest.approx(4.1 / 4)
    (plain,) = drawings.over_sigma(results, "faithfulness")
    assert [y.value for y in plain.y] == [1.0, 4.0, 2.0]


@pytest.mark.parametrize(("values", "where"), [((1.0, 4.0, 2.0), "inside"), ((5.0, 4.0, 2.0), "at the edge")])
def test_the_best_noise_is_named_and_so_is_an_edge(values: tuple[float, ...], where: str) -> None:
    estimates: dict[Quantity, Estimate] = {}
    for column in measures.SIMILARITIES:
        estimates |= results_with(column, dict(zip((0.003, 0.03, 0.3), values, strict=True))).estimates
    rows = drawings.best_noise(Results("tan2023-figure5", "small", {}, estimates)).rows
    assert {row[-1] for row in rows} == {where}
    assert {row[2] for row in rows} == {"0.03" if where == "inside" else "0.003"}


def test_the_trade_off_orders_explainers_and_names_those_beaten_by_none() -> None:
    numbers = {"grad": (4.0, 1.0), "sg": (2.0, 3.0), "lime": (1.0, 2.0)}
    estimates = {
        Quantity("vgg16", f"natural {name}", column): Estimate(value, value, value, 5)
        for name, pair in numbers.items()
        for column, value in zip(("lipschitz", "faithfulness"), pair, strict=True)
    }
    results = Results("tan2023-figure6", "small", {}, estimates)
    (line,) = drawings.trade_off_lines(results, "faithfulness")
    assert line.x == (0.25, 0.5, 1.0)
    assert [y.value for y in line.y] == [2.0, 3.0, 1.0]
    assert drawings.unbeaten(results).rows[0] == ("vgg16", "faithfulness", "lime, sg")


def test_figures_are_drawn_of_what_has_a_value() -> None:
    """A column may be missing: it was not selected, or no image has a value."""
    results = results_with("pearson", {0.1: 0.5})
    assert [row[:3] for row in drawings.best_noise(results).rows] == [("vgg16", "pearson", "0.1")]
    assert [line.x for line in drawings.trade_off_lines(results, "faithfulness")] == [()]


def test_figures_without_numbers_draw_nothing() -> None:
    for name in WHAT[2:]:
        assert available("experiment")[name].factory().sections(Results(name, "smoke")) == ()


def test_scales_hold_sizes_of_the_papers_settings() -> None:
    for name in SCALES:
        scale = read_scale(FOLDER / "scales.toml", name)
        assert (
            {"toy", "backbones", "resnet18"}
            <= set(scale.settings)
            <= {"toy", "backbones", *variants.SETTINGS}
        )
    paper = read_scale(FOLDER / "scales.toml", "paper").settings
    assert {b: paper[b]["epochs"] for b in variants.BACKBONES} == {
        "swin": 400,
        "vgg16": 200,
        "resnet18": 150,
        "resnet50": 200,
        "googlenet": 200,
    }
    assert all(
        (paper[b]["images"], paper[b]["draws"], paper[b]["samples"]) == (1000, 50, 100)
        for b in variants.BACKBONES
    )
    assert 0.03 in sigmas_of({"levels": 2})


def test_no_line_joins_different_explainers(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    estimates = {
        Quantity("vgg16", f"natural {name}", column): Estimate(0.1, 0.2 + 0.1 * place, 0.9, 5)
        for place, name in enumerate(NAMES)
        for column in ("lipschitz", *measures.SIMILARITIES)
    }
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **how: (drawn.append(self), save(self, *args, **how))
    )
    drawings.trade_off(Results("tan2023-figure6", "small", {}, estimates))
    lines = [line for axis in drawn[0].axes for line in axis.lines]
    assert len([line for line in lines if line.get_marker() not in ("", "None", "_")]) == 3 * len(NAMES)
    assert all(line.get_linestyle() == "None" for line in lines)
    names = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert names == ["vgg16", *NAMES]
