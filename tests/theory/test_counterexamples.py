"""Where a paper's statement fails as printed. Each test names the statement and shows a function against it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from known_nets import Units, field, inside, numbers, smoothed_units
from scipy import integrate
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn

from gyrograd.attributions import Gradient, smoothgrad
from gyrograd.numerics.autograd import input_gradient
from gyrograd.smoothing import Gaussian, Uniform, smoothed
from gyrograd.theory import bounds as b
from gyrograd.theory import estimates as m
from gyrograd.theory import interior_optimum


class Wave(nn.Module):
    """sum_k c_k / w_k sin(w_k x): bounded, and smoothing it multiplies each c_k by exp(-w_k^2 sigma^2 / 2)."""

    def __init__(self, frequencies: list[float], slopes: list[float]) -> None:
        super().__init__()
        self.w = torch.tensor(frequencies, dtype=torch.float64)
        self.c = torch.tensor(slopes, dtype=torch.float64)

    def forward(self, x):
        return (torch.sin(x * self.w) * self.c / self.w).sum(1, keepdim=True)

    def smoothgrad(self, x: float, sigmas: np.ndarray) -> np.ndarray:
        shrunk = self.c * torch.exp(-(self.w**2) * torch.tensor(sigmas)[:, None] ** 2 / 2)
        return (shrunk * torch.cos(self.w * x)).sum(1).numpy()

    def contribution(self, x: float, reference: float) -> float:
        """p of tan2023 Definition 3.4."""
        at = torch.tensor([[x], [reference]], dtype=torch.float64)
        value, other = self(at)[:, 0].tolist()
        return (value - other) / (x - reference)


LINE = torch.zeros(1, 1, dtype=torch.float64)


def ends(half: float) -> torch.Tensor:
    return torch.tensor([[[-half]], [[half]]], dtype=torch.float64)


# tan2023 Proposition 4.2


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_tan_proposition_4_2_fails_for_values_of_both_signs(sigma):
    """|f| <= R, smoothed, is not R / (2 sigma) Lipschitz: R tanh(k x) with a large k has slope 0.80 R / sigma."""
    r, k = 1.5, 200 / sigma
    step = sigma / 5

    def steep(x: float) -> float:
        height = lambda t: r * np.tanh(k * (x + sigma * t)) * norm.pdf(t)  # noqa: E731
        return integrate.quad(height, -10, 10, points=[-x / sigma], limit=500)[0]

    slope = (steep(step) - steep(-step)) / (2 * step)
    printed = b.printed_smoothed_lipschitz(Gaussian(sigma), 1, largest=r)
    assert printed == pytest.approx(r / (2 * sigma))
    assert slope > 1.4 * printed
    assert slope <= b.smoothed_lipschitz(Gaussian(sigma), 1, spread=2 * r) * (1 + 1e-9)
    assert slope == pytest.approx(r * (2 * norm.cdf(step / sigma) - 1) / step, rel=1e-3)


def test_tan_proposition_4_2_in_closed_form():
    """The same with R (2 Phi(k x) - 1), whose smoothed slope at 0 is known exactly."""
    r, k, sigma = 1.5, 1e3, 0.5
    net = Units(*(torch.tensor(v, dtype=torch.float64) for v in ([[k]], [0.0], [r])), bounded=True)
    slope = input_gradient(field(smoothed_units(net, sigma)), LINE).item()
    assert slope == pytest.approx(math.sqrt(2 / math.pi) * r / sigma, rel=1e-4)
    assert slope > b.printed_smoothed_lipschitz(Gaussian(sigma), 1, largest=r)
    assert slope <= b.smoothed_lipschitz(Gaussian(sigma), 1, spread=2 * r) * (1 + 1e-9)


def test_tan_proposition_4_2_holds_for_a_probability():
    """For 0 <= f <= R the printed constant stands, a little above the best one."""
    assert b.smoothed_lipschitz(Gaussian(0.3), 5, spread=1.0) < b.printed_smoothed_lipschitz(
        Gaussian(0.3), 5, largest=1.0
    )


def test_tan_theorem_4_3s_uniform_constant_holds_for_values_of_both_signs():
    """The printed uniform constant is for twice the total variation, so it does not share the slip."""
    best = b.smoothed_lipschitz(Uniform(0.3), 5, spread=2.0)
    assert best == pytest.approx(b.printed_smoothed_lipschitz(Uniform(0.3), 5, largest=1.0))


def test_smoothing_bounds_are_of_the_expectation_and_few_draws_exceed_them():
    net = Wave([400.0], [400.0])
    calm = smoothed(net, Gaussian(0.5), draws=20)
    found = m.steepest(calm, LINE, m.points_near(LINE, 0.01, 40))
    assert found.ratio.item() > 5 * b.smoothed_lipschitz(Gaussian(0.5), 1, spread=2.0)
    maps = lambda x: smoothgrad(sigma=0.5, draws=20)(net, x, torch.zeros(len(x), dtype=torch.int64))  # noqa: E731
    rough = m.steepest(maps, LINE, m.points_near(LINE, 0.01, 40))
    assert rough.ratio.item() > 100 * b.smoothgrad_bound_from_largest(1.0, 0.5, form="paper")


# tan2023 Theorem 5.2


def test_tan_theorem_5_2_fails_where_the_contribution_is_longer_than_the_gradient():
    """sin(x) at 1.5 from reference 0: alpha = 1, nu = tau = 9.4, 2 tau - 1 - alpha^2 nu^2 < 0, and sigma = 0 is best.

    The proof needs a sigma where SmoothGrad is alpha nu times as long as the gradient; if that is more than
    once, none need exist.
    """
    wave, x = Wave([1.0], [1.0]), 1.5
    p = wave.contribution(x, 0.0)
    sigmas = np.linspace(0, 6, 400)
    maps = wave.smoothgrad(x, sigmas)
    t = p / maps[0]
    assert (maps * p > 0).all()
    assert 2 * t - 1 - t**2 < 0
    faithfulness = 1 / np.abs(maps - p)
    assert (np.diff(faithfulness) < 0).all()
    promise = interior_optimum(torch.tensor(maps[::20])[:, None, None], torch.tensor([[p]]))
    assert promise.ratio.item() == pytest.approx(t)
    assert not promise.kept.item()


def test_tan_theorem_5_2_holds_with_the_missing_condition():
    """A contribution shorter than the gradient: some sigma in between is best, as promised."""
    wave, x = Wave([1.0], [1.0]), 0.2
    p = wave.contribution(x, 2.0)
    sigmas = np.linspace(0, 6, 400)
    maps = wave.smoothgrad(x, sigmas)
    faithfulness = 1 / np.abs(maps - p)
    assert 0 < int(faithfulness.argmax()) < len(sigmas) - 1
    assert interior_optimum(torch.tensor(maps[::20])[:, None, None], torch.tensor([[p]])).kept.item()


def test_tan_theorem_5_2_does_not_make_faithfulness_rise_once_and_fall_once():
    """All conditions hold, the corrected one too, and faithfulness has three peaks."""
    wave = Wave([0.1, 1.0, math.sqrt(10)], [1.6, -1.3, 1.7])
    reference = brentq(lambda r: wave.contribution(0.0, r) - 1, 0.05, 1.0)
    p = wave.contribution(0.0, reference)
    sigmas = np.linspace(0, 20, 8000)
    maps = wave.smoothgrad(0.0, sigmas)
    assert (maps * p > 0).all()
    assert interior_optimum(torch.tensor(maps[::20])[:, None, None], torch.tensor([[p]])).kept.item()
    gap = np.abs(maps - p)
    peaks = (gap[1:-1] < gap[:-2]) & (gap[1:-1] < gap[2:])
    assert int(peaks.sum()) == 3


# wang2020


def test_wang_theorem_1_does_not_make_robustness_proportional_to_the_lipschitz_constant():
    """sin(kx) / k has L = 1 for every k, and its gradient changes about k times as fast as x."""
    for k in (10.0, 1000.0):
        wave = Wave([k], [1.0])
        slope = partial(input_gradient, field(wave))
        top = math.pi / (2 * k)
        found = m.steepest(slope, LINE + top, ends(1e-3 / k) + top)
        assert m.largest_slope(field(wave), m.points_near(LINE, 1.0, 100)).item() <= 1 + 1e-9
        assert found.ratio.item() > 0.99 * k
        assert found.ratio.item() <= b.saliency_bound(1.0, found.distance).item()


def test_wang_proposition_2_compares_bounds_and_not_robustness():
    """On a flat piece of a ReLU the gradient stands still and SmoothGrad does not, however large sigma."""
    bump = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        bump[0].weight.copy_(torch.tensor([[1.0], [1.0]]))
        bump[0].bias.copy_(torch.tensor([-1.0, -2.0]))
        bump[2].weight.copy_(torch.tensor([[1.0, -1.0]]))
        bump[2].bias.zero_()
    sigma = 1.01 * b.sigma_that_lowers_the_bound(0.5, 1.0, 1.0)
    target = torch.zeros(1, dtype=torch.int64)
    of = {
        "gradient": lambda x: Gradient()(bump, x, target),
        # The chance that x + noise lies in [1, 2], which is what SmoothGrad of this clipped ramp is.
        "smoothgrad": lambda x: torch.special.ndtr((2 - x) / sigma) - torch.special.ndtr((1 - x) / sigma),
    }
    drawn = smoothgrad(sigma=sigma, draws=20_000)(bump, LINE, target).item()
    assert drawn == pytest.approx(of["smoothgrad"](LINE).item(), abs=0.02)
    moved = {name: m.steepest(one, LINE, ends(0.4)).ratio.item() for name, one in of.items()}
    assert moved["gradient"] == 0
    assert moved["smoothgrad"] > 0.1


def test_wang_theorem_3_is_of_first_order():
    """x^3 has no curvature at 0 and a gradient that changes; the written-out remainder mends it."""
    cube = lambda x: x[:, 0] ** 3  # noqa: E731
    change = m.largest_change(lambda x: input_gradient(cube, x), LINE, ends(0.5)).item()
    assert change == pytest.approx(0.75)
    assert change > b.gradient_change_bound(0.5, 0.0)
    assert change <= b.gradient_change_bound(0.5, 0.0, hessian_lipschitz=6.0) * (1 + 1e-9)


# joo2023


def test_joo_equation_1_is_for_the_euclidean_ball():
    """ "||delta||_p <= eps" for any p: in the corner of the box the gradient of |x|^2 / 2 moves sqrt(d) eps."""
    d, eps = 9, 0.1
    x = inside(0, 1, d, 1.0)
    bowl = lambda z: z.square().sum(1) / 2  # noqa: E731
    corner = (x + eps * torch.sign(numbers(1, 1, d)))[None]
    change = m.largest_change(lambda z: input_gradient(bowl, z), x, corner).item()
    assert change == pytest.approx(math.sqrt(d) * eps)
    assert change > 2.9 * b.gradient_change_bound(eps, 1.0)
    assert change <= b.gradient_change_bound(math.sqrt(d) * eps, 1.0) * (1 + 1e-9)
