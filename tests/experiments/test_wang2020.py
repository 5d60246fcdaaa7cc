"""wang2020's tables and figures: each runs at smoke, and what they are made of is what the paper says."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gyrograd as gg
from gyrograd.attacks import AttackResult, TopK
from gyrograd.attributions import InputXGradient
from gyrograd.errors import UserError
from gyrograd.experiments import wang2020  # noqa: F401 - registers the experiments
from gyrograd.experiments.claims import Order, Value, judge_claims, read_claims
from gyrograd.experiments.engine import HOME, ExperimentContext
from gyrograd.experiments.nets import Net, PretrainedNet, net_key, objective_of, train_or_load, train_settings
from gyrograd.experiments.results import Estimate, Quantity, Results, estimates, of_prefix, read_results
from gyrograd.experiments.scales import SCALES, read_scale
from gyrograd.experiments.trained_nets import TrainedNet, given_or
from gyrograd.experiments.wang2020 import measures, pictures, sweeps, variants
from gyrograd.experiments.wang2020.maps import NAMES, NOISE, QUANTITY, TimesInput, maps_of
from gyrograd.metrics.response import TopKIntersection
from gyrograd.models import build
from gyrograd.records import Record
from gyrograd.registry import available
from gyrograd.smoothing import Gaussian, Uniform

FOLDER = HOME / "wang2020"
TABLES = ("table2", "table3", "table4", "table5", "table6")
FIGURES = ("figure6", "figure7", "figure8", "figure9", "figure10")
WHAT = [f"wang2020-{name}" for name in (*TABLES, *FIGURES)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ExperimentContext:
    return ExperimentContext(
        read_scale(FOLDER / "scales.toml", "smoke"), tmp_path_factory.mktemp("smoke"), (0,)
    )


def test_every_item_of_the_paper_is_there() -> None:
    found = [name for name, entry in available("experiment").items() if entry.paper == "wang2020"]
    assert sorted(found) == sorted(WHAT)


@pytest.mark.parametrize("name", WHAT)
def test_what_the_paper_claims_is_what_is_measured(name: str, smoke_runs: Path) -> None:
    """A claim on a row or column that no run can have would stay 'not measured' for ever."""
    results = read_results(smoke_runs / "smoke" / name)
    for claim in read_claims(FOLDER / "claims.toml", name).claims:
        for q in (claim.quantity,) if isinstance(claim, Value) else (claim.lower, claim.higher):
            swept = (
                q.row.removeprefix("bytes ").startswith("beta") and float(q.row.split()[-1]) in variants.BETAS
            )
            elsewhere = q.setting not in results.measured_in and q.setting in variants.SETTINGS
            assert q in results.estimates or swept or elsewhere, q


@pytest.mark.parametrize("name", WHAT)
def test_the_papers_own_numbers_would_confirm_every_claim_that_can_be_compared(name: str) -> None:
    """The orders agree with the printed tables, and what is not comparable says why."""
    claims = read_claims(FOLDER / "claims.toml", name)
    printed = {
        q: Estimate(v.reported - 1e-4, v.reported, v.reported + 1e-4, 9) for q, v in claims.reported().items()
    }
    for verdict in judge_claims(claims, Results(name, "paper", {}, printed), "values"):
        alone = isinstance(verdict.claim, Order) and len(verdict.ours) < 2
        assert verdict.verdict in (("not comparable",) if alone else ("confirmed", "not comparable")), verdict


def test_unigrads_top_pixels_on_cifar_are_named_an_artefact_and_measured_beside() -> None:
    claims = read_claims(FOLDER / "claims.toml", "wang2020-table2")
    whys = [e.why for e in claims.known_errors if e.covers(Quantity("cifar10", "natural ug", "top_k k-in"))]
    assert whys
    assert "k = 1000" in whys[0]
    mistaken = Quantity("cifar10", "natural ug", "top_k k-in of k=1000")
    assert claims.reported()[mistaken].reported == 2.94
    assert not any(error.covers(mistaken) for error in claims.known_errors)
    assert not any(e.covers(Quantity("cifar10", "natural sm", "top_k k-in")) for e in claims.known_errors)


def test_the_mistaken_k_gives_the_published_number_by_chance_alone() -> None:
    before, after = (torch.rand(40, 1, 32, 32, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    mistaken = measures.metrics_of("cifar10", "ug", 1024)["k-in of k=1000"]
    assert 3 * mistaken(before, after).mean().item() == pytest.approx(2.93, abs=0.01)
    assert "k-in of k=1000" not in measures.metrics_of("flowers", "ug", 4096)
    assert "k-in of k=1000" not in measures.metrics_of("cifar10", "sg", 1024)


@pytest.mark.parametrize(
    ("setting", "side", "k"), [("cifar10", 32, 20), ("flowers", 64, 80), ("imagenet", 224, 1000)]
)
def test_k_is_table_2s(setting: str, side: int, k: int) -> None:
    measure = measures.metrics_of(setting, "sm", side**2)["k-in"]
    assert isinstance(measure, TopKIntersection)
    assert measure.k == k


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_area_is_of_steps_one_wide_and_linear(rows: list[list[float]]) -> None:
    curve = torch.tensor(rows, dtype=torch.float64)
    slow = [sum((row[i] + row[i + 1]) / 2 for i in range(3)) for row in rows]
    assert measures.area(curve).tolist() == pytest.approx(slow)
    assert measures.area(curve).mean().item() == pytest.approx(
        measures.area(curve.mean(0, keepdim=True)).item()
    )


def test_an_attack_that_stands_still_has_no_value_and_others_have() -> None:
    model = build("lenet", num_classes=4, image_size=8, seed=0).eval()
    x, y = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    hit = TopK(steps=1, protocol="paper")(model, InputXGradient(), x, y)
    assert isinstance(hit, AttackResult)
    columns = measures._areas("top_k", (2, 4), {"k-in": TopKIntersection(3)}, [hit, hit])
    assert torch.isfinite(columns["top_k k-in"]).all()
    stuck = replace(hit, stuck=torch.tensor([True, False]))
    columns = measures._areas("top_k", (2, 4), {"k-in": TopKIntersection(3)}, [hit, stuck])
    assert torch.isfinite(columns["top_k k-in"]).tolist() == [False, True]
    assert torch.isfinite(columns["top_k k-in @2"]).all()


class Small(nn.Module):
    """A net small enough to differentiate by hand: tanh of one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 4 * 4, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x.flatten(1)))


@pytest.mark.parametrize("name", ["sg", "ug"])
def test_smoothed_maps_are_the_mean_gradient_of_the_probability_times_the_input(name: str) -> None:
    torch.manual_seed(0)
    model, x, target = Small(), torch.rand(2, 3, 4, 4, dtype=torch.float64), torch.tensor([0, 2])
    kernel = Gaussian(NOISE["sg"]) if name == "sg" else Uniform(NOISE["ug"])
    mean = torch.zeros_like(x)
    for noise in kernel.sample((5, 3, 4, 4), 0, torch.float64):
        near = (x + noise).requires_grad_()
        model(near).softmax(1).gather(1, target[:, None]).sum().backward()
        mean += near.grad / 5
    found = maps_of("cifar10", {"draws": 5})[name](model, x, target)
    torch.testing.assert_close(found, x * mean)


def test_maps_have_the_papers_settings() -> None:
    maps = maps_of("cifar10", {})
    assert list(maps) == list(NAMES)
    assert maps["sm"].quantity == "logit"
    assert (maps["ig"].steps, maps["ig"].rule, maps["ig"].quantity) == (50, "right", QUANTITY)
    assert (maps["sg"].explain.kernel.sigma, maps["sg"].draws) == (0.1, 50)
    assert maps["ug"].explain.kernel.eps == 4 / 255
    assert maps_of("imagenet", {})["ug"].explain.kernel.eps == 0.2
    assert maps_of("imagenet-lite", {})["sg"].explain.kernel.sigma == 0.2


def test_the_map_times_the_input_can_be_differentiated_again() -> None:
    model, x = Small(), torch.rand(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    twice = TimesInput(InputXGradient())
    assert torch.autograd.gradcheck(
        lambda z: twice(model, z, torch.tensor([1]), create_graph=True), (x,), atol=1e-6
    )


def test_an_images_numbers_do_not_depend_on_its_batch(run: ExperimentContext) -> None:
    (trained_net,) = variants.nets_by_row(("cifar10",), ("natural",))(run)
    # In float32 a sign step may turn at a derivative of nearly zero, which batches of other sizes round otherwise.
    run.train_missing([trained_net.net])
    model, data = copy.deepcopy(run.net(trained_net.net)).double(), run.test_images("cifar10")
    here, keys = data.rows(torch.arange(3)), torch.tensor([5, 6, 7])
    x, y = here.pixels().double(), here.labels
    for attack in measures.ATTACKS:
        (part,) = measures.attacked(attack, "sm")(trained_net)
        whole = part.columns(model, x, y, keys)
        alone = part.columns(model, x[1:2], y[1:2], keys[1:2])
        for name, values in alone.items():
            torch.testing.assert_close(values[0], whole[name][1])


def test_a_prediction_is_explained_not_the_label(run: ExperimentContext) -> None:
    (trained_net,) = variants.nets_by_row(("cifar10",), ("natural",))(run)
    run.train_missing([trained_net.net])
    model, here = run.net(trained_net.net), run.test_images("cifar10").rows(torch.arange(2))
    (part,) = measures.attacked("top_k", "sm")(trained_net)
    by_label = [part.columns(model, here.pixels(), torch.full((2,), y), torch.tensor([1, 2])) for y in (0, 1)]
    assert all(torch.equal(by_label[0][key], by_label[1][key]) for key in by_label[0])


def test_a_transfer_record_is_cut_into_a_row_a_map(smoke_runs: Path) -> None:
    record = Record(
        "t", {}, [0], {"sm : mass_center cor": [0.5], "ig : mass_center cor": [0.7], "sm : x": [1.0]}
    )
    assert of_prefix(record, "sm : ").values == {"mass_center cor": [0.5], "x": [1.0]}
    results = read_results(smoke_runs / "smoke" / "wang2020-table6")
    assert results.rows("imagenet") == [f"natural {name}" for name in NAMES]


def test_tables_share_what_they_measured(smoke_runs: Path) -> None:
    two, three = (read_results(smoke_runs / "smoke" / f"wang2020-{name}") for name in ("table2", "table3"))
    same = [q for q in two.estimates if q in three.estimates]
    assert len(same) >= 32
    assert all(two.estimates[q] == three.estimates[q] for q in same)


@pytest.mark.parametrize("name", ["figure9", "figure10"])
def test_figures_of_maps_keep_the_pictures_they_show(name: str, smoke_runs: Path) -> None:
    assert read_results(smoke_runs / "smoke" / f"wang2020-{name}").pictures


def test_figures_without_numbers_draw_nothing() -> None:
    empty = Results("wang2020-figure8", "smoke")
    for name in FIGURES:
        assert available("experiment")[f"wang2020-{name}"].factory().sections(empty) == ()


SIZES = {"data": {"name": "shapes"}, "model": {"name": "resnet20"}, "epochs": 50}


def test_ways_are_the_recipes() -> None:
    natural, ssr, madry, ig = (
        variants.way_net(SIZES, way, 3) for way in ("natural", "ssr", "adversarial", "ig_norm")
    )
    assert natural.terms == {}
    assert ssr.terms == {"ssr": {"weight": 0.3, "settings": {}}}
    assert madry.terms["adversarial"]["settings"] == {"norm": "l2", "eps": 0.25}
    assert ig.terms["ig_norm"] == {
        "weight": 0.1,
        "settings": {"eps": 8 / 255, "steps": 7, "step_size": 2 / 255, "points": 5},
    }
    settings = train_settings(ssr)
    assert (settings.optimizer, settings.lr, settings.weight_decay) == ("adam", 1e-3, 2e-4)
    assert (settings.schedule, settings.batch_size, settings.epochs, settings.seed) == ("constant", 32, 50, 3)
    assert [train_settings(net).batch_size for net in (natural, ig)] == [35, 16]


@pytest.mark.parametrize(
    ("way", "clean"), [("natural", 1.0), ("ssr", 0.7), ("adversarial", 0.5), ("ig_norm", 1.0)]
)
def test_the_clean_loss_has_its_share(way: str, clean: float) -> None:
    """beta s lambda + (1 - beta) CE, and half of each for adversarial training."""
    assert objective_of(variants.way_net(SIZES, way, 0)).clean_weight == clean


def test_sweeps_change_one_thing() -> None:
    net = variants.ssr_net(SIZES, 0.7, 0)
    assert net.terms["ssr"]["weight"] == 0.7
    assert net.recipe["cross_entropy"] == pytest.approx(0.3)
    assert train_settings(net).epochs == 25
    assert variants.ball_net(SIZES, 2.0, 0).terms["adversarial"]["settings"] == {"norm": "l2", "eps": 2.0}
    assert variants.way_net(SIZES, "robust", 0).terms["adversarial"]["settings"]["norm"] == "linf"


def test_figure_6_has_eleven_nets_unless_its_scale_has_fewer(
    run: ExperimentContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert [trained_net.seed for trained_net in sweeps.repeated(run, "ssr")] == [0, 1]
    paper = ExperimentContext(read_scale(FOLDER / "scales.toml", "paper"), run.out, (0,))
    assert len({trained_net.net.seed for trained_net in sweeps.repeated(paper, "ssr")}) == 11


def test_rows_left_out_are_not_trained(run: ExperimentContext) -> None:
    some = replace(run, rows=("ssr", "beta 0.9"))
    assert [s.way for s in variants.nets_by_row(("cifar10",), tuple(variants.WAYS))(some)] == ["ssr"]
    assert [s.way for s in sweeps.over_betas(some)] == ["beta 0.9"]
    assert variants.nets_by_row(("cifar10",), ("ssr",))(replace(run, settings=("flowers",))) == []


def test_given_weights_take_the_place_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    core = build("lenet", num_classes=4, image_size=8, seed=9)
    torch.save(core.state_dict(), tmp_path / "core.pt")
    model = {"name": "lenet", "num_classes": 4, "image_size": 8, "weights": {"natural": "core.pt"}}
    sizes = {**SIZES, "model": model}
    found, other = variants.way_net(sizes, "natural", 0), variants.way_net(sizes, "ssr", 0)
    assert isinstance(found, PretrainedNet)
    assert isinstance(other, Net)
    assert "weights" not in other.model
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(train_or_load(found, tmp_path)(x), core.eval()(x))


def test_a_net_of_the_zoo_takes_the_place_of_training(tmp_path: Path) -> None:
    sizes = read_scale(FOLDER / "scales.toml", "paper").settings["cifar10-zoo"]
    found = variants.way_net(sizes, "robust", 0)
    assert isinstance(found, PretrainedNet)
    x = torch.rand(2, 3, 32, 32)
    expected = gg.load("cifar10/resnet20-steady")
    torch.testing.assert_close(train_or_load(found, tmp_path)(x), expected(x), rtol=0, atol=0)
    assert net_key(found) != net_key(variants.way_net(sizes, "natural", 0))


def test_a_smooth_net_of_the_zoo_is_searched_on_itself() -> None:
    """A sharper twin of it has other slopes, and the attack would find little: a false sign of robustness."""
    for setting, beta in {"cifar10-public": 20.0, "cifar10-released": 1.0, "cifar10-zoo": None}.items():
        sizes = read_scale(FOLDER / "scales.toml", "paper").settings[setting]
        trained_net = TrainedNet(setting, "natural", 0, variants.way_net(SIZES, "natural", 0), sizes)
        (part,) = measures.attacked("top_k", "sm")(trained_net)
        assert part.settings["twin_beta"] == beta


def test_weights_that_are_not_there_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    net = variants.way_net(SIZES, "natural", 0)
    assert isinstance(net, Net)
    sizes = {"model": {"name": "resnet20", "weights": {"natural": "gone.pt"}}}
    with pytest.raises(UserError, match=r"no weights at .*gone\.pt; put them there, or set GYROGRAD_DATA"):
        net_key(given_or(net, sizes, "natural"))


@given(st.floats(0.1, 10), st.integers(0, 99))
def test_roughness_is_free_of_scale(factor: float, seed: int) -> None:
    map = torch.rand(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(pictures.roughness(factor * map), pictures.roughness(map))


def test_roughness_of_known_maps() -> None:
    flat, board = torch.ones(1, 4, 4), (torch.arange(4)[:, None] + torch.arange(4)) % 2
    assert pictures.roughness(flat).item() == 0
    assert pictures.roughness(board[None].double()).item() == 2
    assert not torch.isfinite(pictures.roughness(torch.zeros(1, 4, 4))).any()


def test_an_image_the_net_is_sure_of_does_not_decide_how_bright_a_map_is() -> None:
    """Its saliency map is nearly zero, and any other map of it a million times as bright."""
    sure = torch.cat([torch.full((1, 1, 1, 1), 1e-9), torch.ones(19, 1, 1, 1)])
    sizes = {"natural sm": sure, "natural ug 2": torch.ones(1), "natural ug 64": torch.full((1,), 0.3)}
    maps = {
        row.removeprefix("natural "): lambda model, x, y, size=size: size.expand_as(x)
        for row, size in sizes.items()
    }
    trained_net = TrainedNet("cifar10", "natural", 0, variants.way_net(SIZES, "natural", 0), {})
    model, x = build("lenet", image_size=8).eval(), torch.rand(20, 3, 8, 8)
    found = [
        ("cifar10", part.row, 0, Record(part.what, {}, list(range(20)), columns))
        for part in pictures.looks_of(lambda setting, sizes: maps, beside="sm")(trained_net)
        for measured in (part.columns(model, x, torch.zeros(20, dtype=torch.int64), torch.arange(20)),)
        for columns in ({name: values.tolist() for name, values in measured.items()},)
    ]
    results = Results("wang2020-figure10", "small", {}, estimates(found))
    verdicts = judge_claims(read_claims(FOLDER / "claims.toml", "wang2020-figure10"), results, "orders")
    said = {v.claim.text: v.verdict for v in verdicts if v.ours}
    assert said["a large radius makes the map dark"] == "confirmed"


def test_scales_hold_sizes_of_the_papers_settings() -> None:
    for name in SCALES:
        scale = read_scale(FOLDER / "scales.toml", name)
        assert {"cifar10", "flowers", "imagenet"} <= set(scale.settings) <= set(variants.SETTINGS)
    paper = read_scale(FOLDER / "scales.toml", "paper").settings
    assert all((s["draws"], s["steps"]) == (50, 50) and "levels" not in s for s in paper.values())
    assert measures.EPS == (2, 4, 8, 16)
