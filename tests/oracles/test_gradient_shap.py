"""Expected gradients beside a slow twin, one image and one draw at a time; and Captum where draws do not matter."""

from __future__ import annotations

import captum.attr as captum
import pytest
import torch
from nets import batch, net

import gyrograd as gg
from gyrograd.attributions.gradient_shap import BASELINE, CHOICE, NOISE, POSITION
from gyrograd.errors import UserError
from gyrograd.numerics import random


@pytest.mark.parametrize("sigma", [0.0, 0.1])
@pytest.mark.parametrize("baseline", ["noise", "images", "blur"])
def test_the_map_is_the_mean_over_draws_of_what_differs_times_the_gradient(baseline, sigma):
    model, (x, target), draws = net("residual"), batch(2), 6
    others = batch(4, seed=5)[0]
    given = others if baseline == "images" else baseline
    found = gg.attribution("gradient_shap", draws=draws, baseline=given, sigma=sigma, seed=3)(
        model, x, target
    )
    key = random.keys(3, 1)
    shape = (draws, 3, 12, 12)
    positions = random.uniform(key, (draws,), stream=POSITION, dtype=x.dtype)[0]
    chosen = random.integers(key, (draws,), 4, stream=CHOICE)[0]
    noise = random.normal(key, shape, stream=NOISE, dtype=x.dtype)[0] * sigma
    grey = random.uniform(key, shape, stream=BASELINE, dtype=x.dtype)[0]
    blurred = gg.attributions.baselines.baseline_of(x, "blur")
    for i, c in enumerate(target):
        expected = torch.zeros_like(x[i])
        for d in range(draws):
            start = {"noise": grey[d], "images": others[chosen[d]], "blur": blurred[i]}[baseline]
            end = x[i] + noise[d]
            point = (start + positions[d] * (end - start)).requires_grad_()
            (slope,) = torch.autograd.grad(model(point[None])[0, c], point)
            expected += (end - start) * slope / draws
        torch.testing.assert_close(found[i], expected)


def test_many_draws_sum_to_the_gain_over_the_mean_baseline():
    model, (x, target) = net("lenet"), batch(2)
    others = batch(5, seed=5)[0]
    with torch.no_grad():
        gain = (model(x) - model(others).mean(0)).gather(1, target[:, None])[:, 0]
        spread = model(others)[:, target].std(0)
    map = gg.attribution("gradient_shap", draws=1500, baseline=others)(model, x, target)
    # Five standard errors of the baselines' own values, twice that for the positions.
    assert ((map.sum((1, 2, 3)) - gain).abs() < 10 * spread / 1500**0.5).all()


def test_it_agrees_with_captum_on_a_net_whose_gradient_is_the_same_everywhere():
    model, (x, target) = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 5)).double(), batch(2)
    own = gg.attribution("gradient_shap", draws=4, baseline=0.25)(model, x, target)
    peer = captum.GradientShap(model).attribute(x, torch.full_like(x[:1], 0.25), 4, stdevs=0.0, target=target)
    torch.testing.assert_close(own, peer)


def test_settings_are_values_also_with_images_for_baselines():
    others = torch.rand(3, 3, 12, 12)
    one, same, other = (
        gg.attribution("gradient_shap", baseline=b) for b in (others, others.clone(), others + 1)
    )
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"draws": 0}, "at least one draw"),
        ({"sigma": -1.0}, "0 or more"),
        ({"baseline": "nois"}, "baseline"),
        ({"baseline": torch.rand(4, 3, 5, 5)}, "several examples of that shape"),
    ],
)
def test_settings_that_make_no_map_are_refused(settings, sentence):
    x, target = batch(1)
    with pytest.raises(UserError, match=sentence):
        gg.attribution("gradient_shap", **settings)(net("lenet"), x, target)
