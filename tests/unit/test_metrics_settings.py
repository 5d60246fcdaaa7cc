"""Settings that make no sense are refused in one sentence; inputs that are no images work where they can."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from nets import batch, net

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.metrics.passes import parts
from gyrograd.models import Normalized

WRONG = {
    ("rps", "eps", 0.0): "above 0 in pixel units",
    ("rps", "eps", float("nan")): "give a finite number",
    ("rps", "draws", 0): "at least 1",
    ("rps", "similarity", "cosin"): "did you mean 'cosine'",
    ("rps", "reduce", "abs_sun"): "did you mean 'abs_sum'",
    ("rps", "normalize", "maxx"): "did you mean 'max'",
    ("local_lipschitz", "sigma", -1.0): "above 0 in pixel units",
    ("local_lipschitz", "draws", 0): "at least 1",
    ("max_sensitivity", "eps", 0.0): "above 0 in pixel units",
    ("model_lipschitz", "quantity", "logits"): "did you mean 'logit'",
    ("model_smoothness", "quantity", "logits"): "did you mean 'logit'",
    ("model_smoothness", "sigma", 0.0): "above 0 in pixel units",
    ("k_in", "variant", "cod"): "did you mean 'code'",
    ("cdl", "variant", "suplement"): "did you mean 'supplement'",
    ("cosd", "reduce", "non"): "did you mean 'none'",
    ("insertion", "ratios", "papers"): "did you mean 'paper'",
    ("insertion", "ratios", (0.0, 1.5)): "from 0 to 1",
    ("insertion", "ratios", ()): "from 0 to 1",
    ("insertion", "substrate", "blurr"): "did you mean 'blur'",
    ("deletion", "ties", "exac"): "did you mean 'exact'",
    ("faithfulness", "similarity", "persona"): "did you mean",
    ("faithfulness", "segments", "gird"): "did you mean 'grid'",
    ("faithfulness", "contribution", "slop"): "did you mean 'slope'",
    ("infidelity", "perturbation", "gausian"): "did you mean 'gaussian'",
    ("infidelity", "patch", 0): "at least 1",
}


@pytest.mark.parametrize(("case", "words"), WRONG.items(), ids=lambda v: str(v))
def test_a_wrong_setting_is_refused(case, words):
    name, key, value = case
    with pytest.raises(UserError, match=words) as caught:
        gg.metric(name, **{key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "size"),
    [("rps", "eps"), ("max_sensitivity", "eps"), ("local_lipschitz", "sigma"), ("model_lipschitz", "sigma")],
)
def test_noise_in_grey_levels_is_refused_for_images_alone(name, size):
    x, target = batch(2)
    with pytest.raises(UserError, match=f"pixels lie in .0, 1.; write {size}=8 / 255"):
        gg.metric(name, draws=1, **{size: 8.0})(net("lenet"), gg.attribution("gradient"), x, target)
    table = torch.nn.Linear(3, 2)
    gg.metric(name, draws=1, **{size: 8.0})(table, gg.attribution("gradient"), torch.rand(2, 3), [0, 1])


def test_a_square_that_does_not_fit_is_refused():
    x, target = batch(2)
    with pytest.raises(UserError, match="does not fit"):
        gg.metric("infidelity", perturbation="square", patch=13)(
            net("lenet"), gg.attribution("gradient"), x, target
        )


def test_a_grid_that_does_not_fit_is_refused():
    x, target = batch(2)
    with pytest.raises(UserError, match="does not fit"):
        gg.metric("faithfulness", grid=13)(net("lenet"), gg.attribution("gradient"), x, target)


def test_a_target_map_of_another_shape_is_refused():
    x, target = batch(2)
    metric = gg.metric("similarity_to_target")
    with pytest.raises(UserError, match=r"give \(12, 12\) or \(2, 12, 12\)"):
        metric(net("lenet"), gg.attribution("gradient"), x, target, perturbed=x, target_map=torch.ones(3, 3))


def test_clean_insertion_refuses_perturbed_inputs():
    x, target = batch(2)
    with pytest.raises(UserError, match="use adversarial_insertion"):
        gg.metric("insertion")(net("lenet"), gg.attribution("gradient"), x, target, perturbed=x)


def test_one_eps_makes_no_area():
    x, target = batch(2)
    with pytest.raises(UserError, match="at least two"):
        gg.metric("cosd").over_eps(net("lenet"), gg.attribution("gradient"), x, target, {0.1: x})


@pytest.mark.parametrize(
    "name", ["rps", "local_lipschitz", "max_sensitivity", "model_lipschitz", "infidelity"]
)
def test_inputs_that_are_no_images_are_measured_too(name):
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Softplus(), torch.nn.Linear(8, 3)).double()
    x, target = torch.rand(4, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    values = gg.metric(name, draws=5)(model, gg.attribution("gradient"), x, target)
    assert values.shape == (4,)
    assert (values.abs() > 0).all()


def test_more_draws_never_lower_a_maximum():
    x, target = batch(3)
    model, explain = net("lenet"), gg.attribution("gradient")
    few = gg.metric("local_lipschitz", draws=3).per_draw(model, explain, x, target)
    many = gg.metric("local_lipschitz", draws=7).per_draw(model, explain, x, target)
    torch.testing.assert_close(many[:, :3], few)
    assert (many.amax(1) >= few.amax(1)).all()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20))
def test_parts_cover_every_pair_once_within_the_budget(b, variants, max_batch):
    seen = torch.zeros(b, variants)
    for examples, these in parts(b, variants, max_batch):
        seen[examples, these] += 1
        assert seen[examples, these].numel() <= max_batch
    assert (seen == 1).all()


def test_a_budget_of_no_rows_is_refused():
    x, target = batch(2)
    with pytest.raises(UserError, match="max_batch is 0; give the number of images .* at least 1"):
        gg.metric("rps", max_batch=0)(net("lenet"), gg.attribution("gradient"), x, target)


def test_the_value_of_a_random_order_lies_between_those_of_good_and_bad_orders():
    x, _ = batch(8)
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 144, 2)).double()
    with torch.no_grad():
        linear[1].weight[0] = torch.linspace(0, 0.2, 3 * 144)
        linear[1].weight[1] = 0
    game = gg.metric("insertion", reduce="none")
    zero = torch.zeros(8, dtype=torch.int64)
    map = gg.attribution("xgrad")(linear, x, zero)
    best, worst = (game.curve_of_map(linear, sign * map, x, zero).mean(1) for sign in (1, -1))
    chance = game.chance(linear, x, zero, seed=1)
    assert (worst < chance).all()
    assert (chance < best).all()


def test_the_order_without_a_model_puts_in_first_what_is_furthest_from_the_substrate():
    """The class's probability rises with the one pixel that is far from the substrate, in either direction."""
    x = torch.full((2, 3, 4, 4), 0.4, dtype=torch.float64)
    x[0, :, 2, 1], x[1, :, 0, 3] = 1.0, 0.0
    core = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2)).double()
    model = Normalized(core, (0.4,) * 3, (1.0,) * 3).double()
    zero = torch.zeros(2, dtype=torch.int64)
    game = gg.metric("insertion", ratios=(0.0, 1 / 16, 1.0))
    there = x != 0.4
    best = game.curve_of_map(model, there.double(), x, zero)
    torch.testing.assert_close(game.without_model(model, x, zero), best.mean(1))
    torch.testing.assert_close(best[:, 1], best[:, 2])
    assert (best[:, 1] != best[:, 0]).all()


def test_the_random_order_of_pixels_follows_the_seed():
    x, target = batch(3)
    first, again, other = (
        gg.metric("insertion").chance(net("lenet"), x, target, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert (first != other).all()


def test_a_draw_that_clipping_put_back_on_x_counts_zero():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2), torch.nn.Softplus()).double()
    x, target = torch.zeros(4, 1, 1, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    metric = gg.metric("local_lipschitz", draws=8, clip=True)
    ratios = metric.per_draw(model, gg.attribution("gradient"), x, target)
    assert torch.isfinite(ratios).all()
    assert (ratios == 0).any()
    assert (ratios > 0).any()
