"""Smoothing: the smoothed model against loops and closed forms, the kernels against their distributions."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from nets import batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.smoothing import Gaussian, Laplace, Uniform

KERNELS = [Gaussian(0.2), Uniform(0.3), Laplace(0.15)]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
DISTRIBUTIONS = [scipy.stats.norm(0, 0.2), scipy.stats.uniform(-0.3, 0.6), scipy.stats.laplace(0, 0.15)]


@every_kernel
def test_the_smoothed_model_is_the_mean_over_its_draws(kernel):
    x, _ = batch()
    model = net("residual")
    noise = kernel.sample((6, 3, 12, 12), seed=3, dtype=torch.float64)
    expected = torch.stack([torch.stack([model((image + z)[None])[0] for z in noise]).mean(0) for image in x])
    for max_batch in (512, 7, 3, 1):
        calm = gg.smoothed(model, kernel, draws=6, seed=3, max_batch=max_batch)
        torch.testing.assert_close(calm(x), expected, rtol=1e-9, atol=1e-12)


@every_kernel
def test_the_gradient_of_the_smoothed_model_is_the_mean_gradient(kernel):
    x, target = batch()
    model = net("residual")
    noise = kernel.sample((6, 3, 12, 12), seed=0, dtype=torch.float64)
    explain = gg.attribution("gradient")
    expected = torch.stack([explain(model, x + z, target) for z in noise]).mean(0)
    calm = gg.smoothed(model, kernel, draws=6, seed=0, max_batch=4)
    torch.testing.assert_close(explain(calm, x, target), expected, rtol=1e-9, atol=1e-12)


def test_smoothgrad_and_unigrad_are_gradients_of_smoothed_models():
    x, target = batch()
    model = net("lenet")
    pairs = [
        (gg.attribution("sg", sigma=0.2, draws=5, seed=1), Gaussian(0.2)),
        (gg.attribution("ug", eps=0.2, draws=5, seed=1), Uniform(0.2)),
    ]
    for explain, kernel in pairs:
        calm = gg.smoothed(model, kernel, draws=5, seed=1)
        torch.testing.assert_close(explain(model, x, target), gg.attribution("gradient")(calm, x, target))


def test_smoothgrad_of_a_probability_is_the_mean_gradient_of_the_probability():
    x, target = batch()
    model = net("lenet")
    noise = Gaussian(0.2).sample((5, 3, 12, 12), seed=1, dtype=torch.float64)
    explain = gg.attribution("gradient", quantity="probability")
    expected = torch.stack([explain(model, x + z, target) for z in noise]).mean(0)
    smooth = gg.attribution("sg", sigma=0.2, draws=5, seed=1, quantity="probability")
    torch.testing.assert_close(smooth(model, x, target), expected, rtol=1e-9, atol=1e-12)


def test_smoothgrad_of_a_one_layer_relu_net_has_its_closed_form():
    """f(x) = v . relu(Wx + b): the expected slope is sum_i v_i w_i Phi((w_i x + b_i) / (sigma |w_i|))."""
    torch.manual_seed(0)
    d, units, sigma, draws = 6, 9, 0.3, 40_000
    model = nn.Sequential(nn.Linear(d, units), nn.ReLU(), nn.Linear(units, 2)).double()
    x, target = torch.rand(4, d, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    weight, bias, out = model[0].weight, model[0].bias, model[2].weight
    reach = (x @ weight.T + bias) / (sigma * weight.norm(dim=1))
    open_share = torch.from_numpy(scipy.stats.norm.cdf(reach.detach().numpy()))
    expected = (out[target] * open_share) @ weight
    maps = gg.attribution("sg", sigma=sigma, draws=draws, max_batch=10**6)(model, x, target)
    error = (maps - expected).abs()
    # A slope is off by at most the sum of |v_i w_i|, half of it on either side, shrunk by the draws.
    spread = (out[target].abs() @ weight.abs()) / 2 / math.sqrt(draws)
    assert (error <= 5 * spread).all()
    rough = gg.attribution("sg", sigma=sigma, draws=40)(model, x, target)
    assert error.max() < (rough - expected).abs().max() / 5


def test_unigrad_of_a_kink_has_its_closed_form():
    """relu in one dimension: the mean slope over [x - eps, x + eps] is the share of it above zero."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0 if parameter.dim() == 1 else 1)
    x = torch.tensor([[-0.4], [-0.1], [0.0], [0.2], [0.5]], dtype=torch.float64)
    maps = gg.attribution("ug", eps=0.3, draws=40_000, max_batch=10**6)(
        model, x, torch.zeros(5, dtype=torch.long)
    )
    torch.testing.assert_close(maps, ((x + 0.3) / 0.6).clamp(0, 1), rtol=0, atol=0.01)


def test_memory_saved_by_recomputing_does_not_touch_a_training_model():
    """The second derivative recomputes a part after the caller restored training mode: BatchNorm must not notice."""
    x, target = batch()
    model = net("residual").train()
    before = copy.deepcopy(model.state_dict())
    calm = gg.smoothed(model, Gaussian(0.1), draws=4, max_batch=4)
    maps = gg.attribution("gradient")(calm, x.requires_grad_(), target, create_graph=True)
    (second,) = torch.autograd.grad(maps.square().sum(), x)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    whole = gg.smoothed(model.eval(), Gaussian(0.1), draws=4)
    maps = gg.attribution("gradient")(whole, x, target, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(maps.square().sum(), x)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kernel", "distribution"), list(zip(KERNELS, DISTRIBUTIONS, strict=True)))
def test_draws_follow_the_distribution(kernel, distribution):
    sample = kernel.sample((20_000,), seed=5, dtype=torch.float64).numpy()
    assert scipy.stats.kstest(sample, distribution.cdf).pvalue > 0.001
    assert np.isfinite(sample).all()


@every_kernel
def test_fewer_draws_are_a_prefix_of_more_and_seeds_differ(kernel):
    many = kernel.sample((10, 3, 4), seed=1)
    assert torch.equal(kernel.sample((4, 3, 4), seed=1), many[:4])
    assert not torch.allclose(kernel.sample((10, 3, 4), seed=2), many)


@pytest.mark.parametrize(("kernel", "distribution"), list(zip(KERNELS, DISTRIBUTIONS, strict=True)))
@pytest.mark.parametrize("shift", [0.01, 0.1, 0.5])
def test_total_variation_in_one_dimension_stays_under_its_slope_and_reaches_it(kernel, distribution, shift):
    grid = np.linspace(-4, 4, 400_001)
    gap = np.abs(distribution.pdf(grid) - distribution.pdf(grid - shift))
    variation = scipy.integrate.trapezoid(gap, grid) / 2
    assert variation <= kernel.tv_slope(1) * shift * (1 + 1e-4)
    if shift == 0.01:
        assert variation >= kernel.tv_slope(1) * shift * 0.95


@given(st.lists(st.floats(-0.2, 0.2), min_size=1, max_size=8))
def test_total_variation_in_many_dimensions_stays_under_its_slope(shift):
    s = np.asarray(shift)
    length, d = float(np.linalg.norm(s)), len(s)
    gaussian = 2 * scipy.stats.norm.cdf(length / (2 * 0.2)) - 1
    uniform = 1 - np.prod(np.clip(1 - np.abs(s) / 0.6, 0, None))
    laplace = 1 - np.prod(np.exp(-np.abs(s) / (2 * 0.15)))  # an upper bound: the overlap of products
    for kernel, variation in zip(KERNELS, (gaussian, uniform, laplace), strict=True):
        assert variation <= kernel.tv_slope(d) * length + 1e-12
        assert kernel.tv_slope(d) <= kernel.paper_slope(d)


@pytest.mark.parametrize("make", [Gaussian, Uniform, Laplace])
@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_kernel_without_width_is_refused(make, scale):
    with pytest.raises(UserError, match="above 0 in pixel units"):
        make(scale)


def test_a_smoothed_model_without_draws_is_refused():
    with pytest.raises(UserError, match="at least one draw"):
        gg.smoothed(net("mlp"), Gaussian(0.1), draws=0)
    with pytest.raises(UserError, match="at least one draw"):
        gg.attribution("sg", draws=0)
    with pytest.raises(UserError, match="max_batch is 0; give .* at least 1"):
        gg.smoothed(net("mlp"), Gaussian(0.1), max_batch=0)


def test_models_with_the_same_draws_draw_once_and_others_draw_their_own(monkeypatch):
    drawn = []

    def sample(self, shape, seed, dtype=torch.float32):
        drawn.append((self.sigma, shape[0], seed, dtype))
        return torch.full(shape, self.sigma * (1 + seed), dtype=dtype)

    monkeypatch.setattr(Gaussian, "sample", sample)
    x, target = batch()
    sigma = 0.0123  # of no other test: draws are kept for the process
    for changes in ({}, {}, {"seed": 1}, {"draws": 3}, {}):
        settings = {"sigma": sigma, "draws": 2, **changes}
        gg.attribution("smoothgrad", **settings)(net("lenet"), x, target)
    assert drawn == [(sigma, draws, seed, torch.float64) for draws, seed in ((2, 0), (2, 1), (3, 0), (2, 0))]
