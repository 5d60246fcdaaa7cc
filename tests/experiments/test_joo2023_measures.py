"""joo2023's measurements against the metrics they stand for, and its nets against its text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import gyrograd as gg
from gyrograd import training
from gyrograd.attacks import TargetedMap
from gyrograd.attributions import Gradient
from gyrograd.errors import UserError
from gyrograd.experiments.claims import Order, read_claims
from gyrograd.experiments.cost import Cost, LiveBytes, side_by_side
from gyrograd.experiments.engine import HOME, ExperimentContext, MeasuredNets
from gyrograd.experiments.joo2023 import table2
from gyrograd.experiments.joo2023.measures import (
    ATTRIBUTIONS,
    SHARES,
    NormalizedInputXGradient,
    attacked,
    game_columns,
    similarities,
)
from gyrograd.experiments.joo2023.variants import (
    FAST,
    IMAGENETS,
    NORMALIZED,
    RECIPES,
    SETTINGS,
    every_way,
    net_of,
    paper_setting,
    row_name,
    selected_weights,
    terms_of,
)
from gyrograd.experiments.nets import checked_changes, objective_of, train_settings
from gyrograd.experiments.scales import read_scale
from gyrograd.metrics import RandomPerturbationSimilarity, adversarial_insertion, insertion
from gyrograd.registry import available
from gyrograd.training import recipe
from gyrograd.training.settings import recipe_tree

SIZES = {
    "data": {"name": "shapes", "n": 50},
    "side": 8,
    "model": {"name": "lenet", "image_size": 8, "normalize": [[0.4, 0.5, 0.3], [0.2, 0.3, 0.25]]},
    "train": 8,
    "epochs": 200,
}


@pytest.fixture(scope="module")
def scene():
    settings = {"activation": "softplus", "beta": 3, "normalize": SIZES["model"]["normalize"], "init": "he"}
    model = gg.model("lenet", image_size=8, seed=0, **settings).eval()
    generator = torch.Generator().manual_seed(0)
    return model, torch.rand(3, 3, 8, 8, generator=generator), torch.tensor([1, 4, 7])


@pytest.mark.parametrize("kind", ["cosine", "pearson", "ssim"])
def test_rps_in_one_pass_is_the_metric_of_each_similarity(scene, kind):
    model, x, y = scene
    ours = similarities(model, Gradient(), x, y, eps=16 / 255, draws=5, seed=3)[kind]
    metric = RandomPerturbationSimilarity(eps=16 / 255, draws=5, similarity=kind)
    assert torch.allclose(ours, metric(model, Gradient(), x, y, seed=3), atol=1e-6)
    assert ours.max() < 0.9999


def test_xgrad_is_the_gradient_at_the_normalised_input_times_it(scene):
    """As the released code has it, whose nets are fed normalised images."""
    model, x, y = scene
    mean, std = (torch.tensor(part).view(3, 1, 1) for part in SIZES["model"]["normalize"])
    seen = ((x - mean) / std).requires_grad_()
    score = model.core(seen)[torch.arange(3), y].sum()
    (gradient,) = torch.autograd.grad(score, seen)
    assert torch.allclose(NormalizedInputXGradient()(model, x, y), gradient * seen, atol=1e-6)
    bare = model.core
    assert torch.allclose(NormalizedInputXGradient()(bare, x, y), x * Gradient()(bare, x, y), atol=1e-6)


def test_xgrad_can_be_differentiated_again(scene):
    model, x, y = scene
    model, x = model.double(), x.double()[:1].requires_grad_()

    def total(at):
        return NormalizedInputXGradient()(model, at, y[:1], create_graph=True).square().sum()

    (slope,) = torch.autograd.grad(total(x), x)
    direction = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    step = 1e-6 * direction
    difference = (total(x + step) - total(x - step)).detach() / 2e-6
    assert torch.allclose((slope * direction).sum(), difference, rtol=1e-5)
    model.float()


def test_insertion_has_the_21_shares_of_the_text_and_the_20_of_the_code(scene):
    model, x, y = scene
    map = Gradient()(model, x, y)
    columns = game_columns("grad ins", model, map, x, y)
    for name, ratios in (("grad ins", "paper"), ("grad ins, 20 shares", "reference")):
        metric = insertion(ratios=ratios)(model, Gradient(), x, y)
        assert torch.allclose(columns[name], 100 * metric, atol=1e-4)
    points = [columns[f"grad ins @{share:g}"] for share in SHARES]
    assert torch.allclose(torch.stack(points).mean(0), columns["grad ins"], atol=1e-4)


def test_the_attack_is_that_of_the_released_code(scene):
    model, x, y = scene
    hit = attacked(model, "grad", x, y, eps=4, steps=3, seed=0)
    oracle = TargetedMap(eps=4 / 255, steps=3, protocol="reference")(model, Gradient(), x, y)
    assert torch.equal(hit.x, oracle.x)
    metric = adversarial_insertion(ratios="paper")(model, Gradient(), x, y, perturbed=hit.x)
    assert torch.allclose(game_columns("a", model, hit.map, x, y)["a"], 100 * metric, atol=1e-4)


def test_lrp_has_the_released_codes_rules():
    assert ATTRIBUTIONS["lrp"].bias == "keep"
    assert ATTRIBUTIONS["lrp"].batchnorm == "pass"


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_selected_weights_are_among_all_weights_and_survive_a_small_grid(setting):
    rows = [row_name(*way) for way in every_way(setting)]
    assert len(set(rows)) == len(rows)
    for grid in (None, 1, 2, 3):
        some = [row_name(*way) for way in every_way(setting, grid)]
        assert {row_name(*way) for way in selected_weights(setting).items()} <= set(some)
    assert len(every_way(setting, 1)) == len(selected_weights(setting))


def test_the_appendix_has_80_rows():
    assert [len(every_way(setting)) for setting in SETTINGS[:3]] == [36, 23, 21]


def test_weights_go_where_they_belong():
    assert terms_of("ce", ()) == {}
    assert terms_of("hessian", (1e-3,)) == {"hessian": {"weight": 1e-3}}
    assert terms_of("l2_cosine", (0.1, 1.0)) == {"l2_cosine": {"l2": 0.1, "cosine": 1.0}}
    assert terms_of("l2", (0.3,))["l2_cosine"]["cosine"] == 0
    assert terms_of("cosine", (10.0,))["l2_cosine"]["l2"] == 0
    assert terms_of("iga", (1.0, 0.4))["iga"]["eps"] == pytest.approx(0.4 / 255)


def settings_of_recipe(setting, way):
    return recipe(f"{RECIPES[setting]}-{way.replace('_', '-')}", device="cpu")


@pytest.mark.parametrize("setting", RECIPES)
def test_a_net_of_table_1_is_trained_as_its_recipe_says(setting):
    """`gyrograd train --recipe joo2023-...` and `gyrograd reproduce` train the same net, and from one file."""
    for way, weights in selected_weights(setting).items():
        told = settings_of_recipe(setting, way)
        net = net_of({**SIZES, "epochs": told.epochs}, setting, way, weights, 0)
        ours = train_settings(net)
        elsewhere = ("model", "model_settings", "data", "data_settings", "test", "terms")
        assert ours == replace(told, **{key: getattr(ours, key) for key in elsewhere}), (setting, way)
        model = {key: value for key, value in told.model_settings.items() if key != "normalize"}
        assert model.items() <= net.model.items()
        teacher = torch.nn.Identity() if way == "atex" else None
        if teacher is not None:
            told = replace(told, terms={"atex": {**told.terms["atex"], "teacher": teacher}})
        assert same_sum(objective_of(net, teacher), training.objective_of(told)), (setting, way)


def same_sum(one, other):
    """Whether two objectives weigh the same terms: l2 alone is l2_cosine without cosine, whatever its name."""
    return [weighed(term) for term in one.terms.values()] == [weighed(t) for t in other.terms.values()]


def weighed(term):
    r = term.regularizer
    return replace(r, l2=term.weight * r.l2, cosine=term.weight * r.cosine) if hasattr(r, "l2") else term


def test_the_released_code_moves_running_statistics_and_halves_imagenets_hessian_batch():
    """Read in the released code, and not in the paper."""
    for setting in RECIPES:
        for way in ("hessian", "l2", "l2_cosine"):
            net = net_of(SIZES, setting, way, selected_weights(setting)[way], 0)
            (term,) = net.terms.values()
            assert term["settings"]["batchnorm"] == "train"
            half = (setting, way) in {(imagenet, "hessian") for imagenet in IMAGENETS}
            assert train_settings(net).batch_size == (64 if half else 128)


def test_the_statistics_of_extra_passes_can_be_those_of_earlier_pages():
    """The published ResNet18 page has Hessian with the batch's statistics alone: --train batchnorm=batch."""
    changed = {**SIZES, "training": checked_changes({"batchnorm": "batch"})}
    net = net_of(changed, "cifar10-resnet18", "hessian", (1e-5,), 0)
    assert objective_of(net).terms["hessian"].regularizer.batchnorm == "batch"
    assert "batchnorm" not in net.recipe
    assert net_of(changed, "cifar10-resnet18", "ce", (), 0).terms == {}
    with pytest.raises(UserError, match="batchnorm 'runing'"):
        checked_changes({"batchnorm": "runing"})


def test_recipes_are_those_of_the_paper_at_200_epochs():
    lenet = train_settings(net_of(SIZES, "cifar10-lenet", "l2", (0.1,), 0))
    assert (lenet.optimizer, lenet.lr, lenet.weight_decay) == ("adam", 1e-3, 4e-5)
    assert (lenet.schedule, lenet.milestones, lenet.clip, lenet.batch_size) == (
        "multi_step",
        (100, 150),
        0.5,
        128,
    )
    assert (lenet.crop, lenet.flip) == (4, True)
    resnet = train_settings(net_of(SIZES, "cifar10-resnet18", "ce", (), 0))
    assert (resnet.optimizer, resnet.weight_decay, resnet.milestones) == ("adamw", 1e-2, (100, 150))
    ninety = train_settings(net_of({**SIZES, "epochs": 90}, "imagenet100-resnet18", "ce", (), 0))
    assert (ninety.milestones, ninety.zoom, ninety.crop) == ((40, 60, 80), 0.08, 0)
    iga = net_of(SIZES, "cifar10-lenet", "iga", (1.0, 1.0), 0)
    settings = train_settings(iga)
    assert (settings.optimizer, settings.lr, settings.weight_decay) == ("sgd", 0.1, 2e-4)
    assert (settings.milestones, iga.model["beta"]) == ((50, 80, 150), 50)


def test_atex_learns_from_the_ce_net_of_its_seed():
    net = net_of(SIZES, "cifar10-lenet", "atex", (3.0, 2.0), 5)
    assert net.teacher == net_of(SIZES, "cifar10-lenet", "ce", (), 5)
    teacher = gg.model("lenet", image_size=8, seed=5)
    objective = objective_of(net, teacher)
    assert objective.clean_weight == 0
    term = objective.terms["atex"].regularizer
    assert (term.weight, term.eps) == (3.0, 2.0)


def test_every_row_of_the_claims_is_a_row_that_exists():
    for name, entry in available("experiment").items():
        if entry.paper != "joo2023" or name == "joo2023-figure1":
            continue
        for claim in read_claims(HOME / "joo2023" / "claims.toml", name).claims:
            for q in (claim.lower, claim.higher) if isinstance(claim, Order) else (claim.quantity,):
                rows = {
                    *selected_weights(q.setting),
                    *(row_name(*way) for way in every_way(q.setting)),
                    "cosine 100",
                }
                assert q.row in rows, (name, q)


def test_live_bytes_counts_each_storage_once_and_lets_go_of_the_dead():
    a = torch.zeros(250)
    with LiveBytes() as live:
        b = a + 1
        c = b.view(10, 25)
        del b
        assert (live.now, live.peak) == (1000, 1000)
        d = c * 2
        del c
        assert (live.now, live.peak) == (1000, 2000)
        del d
    assert (live.now, live.peak) == (0, 2000)


def test_steps_side_by_side_take_turns():
    order = []
    costs = side_by_side({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert [len(rounds) for rounds in costs.values()] == [2, 2]
    # A step to warm up; then in each round one for the time and one for the memory.
    assert "".join(order) == "ab" + "aabb" * 2


def test_costs_of_some_rows_are_over_those_of_cross_entropy_all_the_same(tmp_path, monkeypatch):
    seconds = {"ce": 2.0, "hessian": 8.0, "l2_cosine": 6.0}
    monkeypatch.setattr(table2, "_step", lambda run, trained_net: trained_net.way)
    monkeypatch.setattr(
        table2,
        "side_by_side",
        lambda ways, rounds, device: {w: [Cost(seconds[w], 1.0)] * rounds for w in ways},
    )
    scale = read_scale(HOME / "joo2023" / "scales.toml", "smoke")
    run = ExperimentContext(scale, tmp_path, (0,), settings=("cifar10-lenet",), rows=("hessian", "l2_cosine"))
    found = table2.timed(MeasuredNets(run)).records
    assert {row: set(record.values["time"]) for _, row, _, record in found} == {
        "hessian": {4.0},
        "l2_cosine": {3.0},
    }


def test_a_step_that_keeps_a_graph_costs_more_memory():
    x = torch.ones(1000, requires_grad=True)

    def light():
        with torch.no_grad():
            (x * 2).sum()

    def heavy():
        y = x * 2
        for _ in range(5):
            y = y.sin()
        torch.autograd.grad(y.sum(), x)

    costs = side_by_side({"light": light, "heavy": heavy}, rounds=1)
    assert costs["heavy"][0].memory > 3 * costs["light"][0].memory
    assert costs["light"][0].memory == 4000 + 4


@pytest.mark.parametrize("setting", FAST)
def test_a_fast_variant_is_the_papers_setting_trained_more_cheaply(setting):
    base = paper_setting(setting)
    fast = recipe_tree(f"{RECIPES[base]}-l2-cosine-fast")
    changes = {key: fast[key] for key in ("fast", "precision", "regularized_fraction", "regularize_every")}
    for row, weights in selected_weights(base).items():
        mine, paper = (net_of(SIZES, name, row, weights, 0) for name in (setting, base))
        assert dict(mine.recipe) == {**paper.recipe, **changes}
        assert (mine.terms, mine.model) == (paper.terms, paper.model)
        objective = objective_of(mine, torch.nn.Identity() if row == "atex" else None)
        assert (objective.regularized_fraction, objective.regularize_every) == (
            changes["regularized_fraction"],
            changes["regularize_every"],
        )
        assert objective.fast
    assert every_way(setting) == every_way(base)


def test_the_normalized_variant_changes_nothing_but_the_radius_of_iga():
    base = paper_setting(NORMALIZED)
    assert set(selected_weights(NORMALIZED)) == {"ce", "iga"}
    for row, weights in selected_weights(NORMALIZED).items():
        mine, paper = (net_of(SIZES, name, row, weights, 0) for name in (NORMALIZED, base))
        assert (dict(mine.recipe), mine.model) == (dict(paper.recipe), paper.model)
        if row == "ce":
            assert mine.terms == paper.terms
        else:
            wide, narrow = (net.terms["iga"]["settings"].pop("eps") for net in (paper, mine))
            assert narrow == pytest.approx(wide / 4)
            assert mine.terms == paper.terms


@pytest.mark.parametrize("setting", FAST)
def test_what_the_paper_says_of_a_setting_holds_for_its_fast_variant(setting):
    claims = read_claims(HOME / "joo2023" / "claims.toml", "joo2023-table1").claims
    of_paper, of_fast = (
        [c for c in claims if _setting(c) == name] for name in (paper_setting(setting), setting)
    )
    assert len(of_paper) == len(of_fast) > 50


def _setting(claim):
    return claim.lower.setting if isinstance(claim, Order) else claim.quantity.setting
