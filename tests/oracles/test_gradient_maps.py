"""Values of the gradient-type maps: against Captum where it is right, and against the formulas in loops."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.ndimage
import torch
from nets import NETS, batch, net

import gyrograd as gg
from gyrograd.attributions.baselines import baseline_of
from gyrograd.attributions.path import path_points
from gyrograd.errors import UserError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import captum.attr as captum

structures = pytest.mark.parametrize("structure", sorted(NETS))


def slope(model, x, target):
    """The gradient of one image's logit, on its own."""
    leaf = x[None].clone().requires_grad_()
    model(leaf)[0, target].backward()
    return leaf.grad[0]


@structures
def test_gradient_and_input_x_gradient_equal_captum(structure):
    x, target = batch()
    model = net(structure)
    saliency = captum.Saliency(model).attribute(x.clone().requires_grad_(), target=target, abs=False)
    torch.testing.assert_close(gg.attribution("gradient")(model, x, target), saliency, rtol=1e-9, atol=1e-12)
    product = captum.InputXGradient(model).attribute(x.clone().requires_grad_(), target=target)
    torch.testing.assert_close(
        gg.attribution("xgrad")(model, x, target), product.detach(), rtol=1e-9, atol=1e-12
    )


@structures
@pytest.mark.parametrize(
    ("rule", "theirs"), [("left", "riemann_left"), ("right", "riemann_right"), ("midpoint", "riemann_middle")]
)
@pytest.mark.parametrize("baseline", ["zero", 0.25])
def test_integrated_gradients_equal_captum(structure, rule, theirs, baseline):
    x, target = batch()
    model = net(structure)
    start = 0.0 if baseline == "zero" else baseline
    expected = captum.IntegratedGradients(model).attribute(
        x, baselines=start, target=target, n_steps=7, method=theirs
    )
    maps = gg.attribution("ig", steps=7, rule=rule, baseline=baseline)(model, x, target)
    # Captum holds the positions on the path in float32.
    torch.testing.assert_close(maps, expected.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("baseline", ["zero", "mean", "blur", (0.2, 0.4, 0.6)])
def test_the_trapezoid_equals_numpys_along_the_path(baseline):
    x, target = batch()
    model = net("residual")
    start = baseline_of(x, baseline)
    for i in range(len(x)):
        points = [
            slope(model, start[i] + a * (x[i] - start[i]), target[i]).numpy() for a in np.linspace(0, 1, 9)
        ]
        mean = torch.from_numpy(np.trapezoid(np.stack(points), dx=1 / 8, axis=0))
        expected = (x[i] - start[i]) * mean
        maps = gg.attribution("ig", steps=8, baseline=baseline)(model, x, target)
        torch.testing.assert_close(maps[i], expected, rtol=1e-9, atol=1e-12)


def test_integrated_gradients_are_complete_and_the_factor_can_be_left_out():
    x, target = batch()
    model = net("residual")
    explain = gg.attribution("ig", steps=300)
    rise = (model(x) - model(torch.zeros_like(x))).gather(1, target[:, None])[:, 0]
    maps = explain(model, x, target)
    torch.testing.assert_close(maps.flatten(1).sum(1), rise.detach(), rtol=2e-3, atol=2e-3)
    bare = gg.attribution("ig", steps=300, times_input=False)(model, x, target)
    torch.testing.assert_close(bare * x, maps)


@pytest.mark.parametrize("rule", ["left", "right", "midpoint", "trapezoid"])
@pytest.mark.parametrize("steps", [1, 2, 50])
def test_path_weights_sum_to_one_and_integrate_a_line_or_miss_by_half_a_step(rule, steps):
    positions, weights = path_points(rule, steps)
    assert sum(weights) == pytest.approx(1)
    bias = {"left": -0.5, "right": 0.5, "midpoint": 0.0, "trapezoid": 0.0}[rule] / steps
    assert np.dot(positions, weights) == pytest.approx(0.5 + bias)


def test_the_blurred_baseline_is_a_gaussian_filter():
    x, _ = batch(2, side=32)
    expected = scipy.ndimage.gaussian_filter(x.numpy(), (0, 0, 4, 4), mode="nearest", truncate=2.0)
    torch.testing.assert_close(baseline_of(x, "blur"), torch.from_numpy(expected), rtol=1e-9, atol=1e-12)


def test_baselines_hold_the_colour_they_name():
    x, _ = batch()
    assert baseline_of(x, "zero").abs().max() == 0
    assert (baseline_of(x, (0.1, 0.2, 0.3))[:, 1] == 0.2).all()
    torch.testing.assert_close(baseline_of(x, "mean")[1, 2, 3, 4], x[1, 2].mean())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"baseline": "black"}, "no baseline 'black'"),
        ({"baseline": (0.1, 0.2)}, "2 values for 3 channels"),
        ({"rule": "trapez"}, "did you mean 'trapezoid'"),
        ({"steps": 0}, "at least one step"),
        ({"max_batch": 0}, "max_batch is 0; give .* at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        gg.attribution("ig", **settings)(net("mlp"), *batch())


@pytest.mark.parametrize("quantity", ["logit", "probability", "log_probability", "loss"])
def test_each_quantity_is_the_one_it_says(quantity):
    x, target = batch()
    model = net("lenet")
    leaf = x.clone().requires_grad_()
    rows = torch.arange(len(x))
    value = {
        "logit": lambda z: z,
        "probability": lambda z: torch.exp(z) / torch.exp(z).sum(1, keepdim=True),
        "log_probability": lambda z: z - torch.logsumexp(z, 1, keepdim=True),
        "loss": lambda z: torch.logsumexp(z, 1, keepdim=True) - z,
    }[quantity](model(leaf))[rows, target]
    (expected,) = torch.autograd.grad(value.sum(), leaf)
    torch.testing.assert_close(gg.attribution("gradient", quantity=quantity)(model, x, target), expected)


def test_out_of_memory_halves_the_part_until_it_fits(monkeypatch):
    x, target = batch(8)
    model, seen = net("lenet"), []
    forward = model.forward

    def small_card(rows):
        seen.append(len(rows))
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(rows)

    expected = gg.attribution("gradient")(model, x, target)
    monkeypatch.setattr(model, "forward", small_card)
    torch.testing.assert_close(gg.attribution("gradient")(model, x, target), expected, rtol=1e-9, atol=1e-12)
    assert seen == [8, 4, 2, 2, 2, 2]


def test_the_predicted_class_is_that_of_evaluation_and_can_be_explained():
    x, _ = batch()
    model = net("residual")
    expected = model(x).argmax(1)
    assert torch.equal(gg.predict(model.train(), x), expected)
    assert model.training
    maps = gg.attribution("gradient")(model, x, gg.predict(model, x))
    assert torch.equal(maps, gg.attribution("gradient")(model, x, expected))


def test_a_baseline_given_for_each_example_is_cut_with_the_batch():
    x, target = batch(5)
    model, start = net("lenet"), 1 - x
    whole = gg.attribution("ig", steps=6, baseline=start)(model, x, target)
    parts = gg.attribution("ig", steps=6, baseline=start, max_batch=7)(model, x, target)
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-12)
    alone = gg.attribution("ig", steps=6, baseline=start[2:3])(model, x[2:3], target[2:3])
    torch.testing.assert_close(alone[0], whole[2], rtol=1e-9, atol=1e-12)
    assert gg.attribution("ig", baseline=start) == gg.attribution("ig", baseline=start.clone())
    assert gg.attribution("ig", baseline=start) != gg.attribution("ig", baseline=x)
