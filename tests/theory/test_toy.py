"""tan2023 Section 5.2: gradient (1, 0), and a SmoothGrad that tends to (1/2, 1/2)."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_nets import first_class, numbers
from scipy import integrate
from scipy.stats import norm

from gyrograd.attributions import Gradient, smoothgrad
from gyrograd.errors import UserError
from gyrograd.theory.toy import TwoVariableToy, _by_intervals, _by_waves, toy_gradient, toy_smoothgrad

PLACE = torch.tensor([[1.0, -1.5]], dtype=torch.float64)
"""The x of the paper's Figure 2, [D, -1.5 D]."""


def literal(x1: float, x2: float, delta: float) -> float:
    """Equation 2, case by case."""
    step = math.floor((x1 - x2) / delta)
    if step % 2 == 0:
        return x1 - step // 2 * delta
    return x2 + (step + 1) // 2 * delta


@given(x1=st.floats(-9, 9), x2=st.floats(-9, 9), delta=st.floats(0.1, 3))
def test_the_toy_is_equation_2(x1, x2, delta):
    x = torch.tensor([[x1, x2]], dtype=torch.float64)
    assert TwoVariableToy(delta)(x).item() == pytest.approx(literal(x1, x2, delta), abs=1e-9)


@pytest.mark.parametrize("edge", range(-5, 6))
def test_the_toy_is_continuous_at_every_edge(edge):
    x = torch.tensor([[edge + 1e-9, 0.0], [edge - 1e-9, 0.0]], dtype=torch.float64)
    above, below = TwoVariableToy()(x)
    assert above.item() == pytest.approx(below.item(), abs=1e-8)


def test_the_gradient_is_1_0_at_the_papers_point():
    maps = Gradient()(TwoVariableToy(), PLACE, first_class(PLACE))
    assert maps.tolist() == [[1.0, 0.0]]
    assert toy_gradient(PLACE).tolist() == [[1.0, 0.0]]


def test_the_gradient_is_equation_3_everywhere():
    x = 4 * numbers(0, 200, 2)
    assert torch.equal(Gradient()(TwoVariableToy(0.7), x, first_class(x)), toy_gradient(x, 0.7))
    assert 0 < float(toy_gradient(x, 0.7)[:, 0].mean()) < 1


def test_a_full_step_of_x2_raises_f_though_its_gradient_is_zero():
    moved = PLACE + torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert TwoVariableToy()(moved).item() > TwoVariableToy()(PLACE).item()


@given(x1=st.floats(-3, 3), x2=st.floats(-3, 3), sigma=st.floats(0.02, 2), delta=st.floats(0.3, 2))
def test_smoothgrad_is_the_chance_of_an_even_step(x1, x2, sigma, delta):
    x = torch.tensor([[x1, x2]], dtype=torch.float64)
    spread = math.sqrt(2) * sigma
    chance = sum(
        norm.cdf((2 * n + 1) * delta, x1 - x2, spread) - norm.cdf(2 * n * delta, x1 - x2, spread)
        for n in range(-40, 41)
    )
    found = toy_smoothgrad(x, sigma, delta)
    assert found[0, 0].item() == pytest.approx(chance, abs=1e-9)
    assert found.sum().item() == pytest.approx(1)


@given(place=st.floats(0, 2), width=st.floats(0.35, 0.9))
def test_both_series_agree_about_where_they_change_over(place, width):
    at = torch.tensor([place], dtype=torch.float64)
    assert _by_waves(at, width).item() == pytest.approx(_by_intervals(at, width).item(), abs=1e-12)


def test_smoothgrad_goes_from_the_gradient_to_one_half_each():
    curve = [toy_smoothgrad(PLACE, sigma)[0] for sigma in (1e-4, 0.2, 0.4, 0.8, 5.0)]
    assert curve[0].tolist() == pytest.approx([1, 0])
    assert all(a[0] > b[0] for a, b in itertools.pairwise(curve[:4]))
    assert curve[-1].tolist() == pytest.approx([0.5, 0.5], abs=1e-12)


def test_smoothgrad_of_the_toy_by_draws_is_the_formula():
    drawn = smoothgrad(sigma=0.3, draws=20_000)(TwoVariableToy(), PLACE, first_class(PLACE))
    exact = toy_smoothgrad(PLACE, 0.3)
    assert 0.6 < exact[0, 0] < 0.99
    assert (drawn - exact).abs().max() < 4 * 0.5 / math.sqrt(20_000)


def test_smoothgrad_is_the_gradient_of_the_smoothed_toy():
    """Both axes by a double integral of f itself, then a difference."""
    sigma, step = 0.3, 1e-3

    def smoothed(x1: float) -> float:
        # f = x2 plus a function of x1 - x2, so one integral along the difference is enough.
        kinks = [edge - x1 - 1.5 for edge in range(-2, 8)]
        height = lambda t: (literal(x1 + t, -1.5, 1.0) + 1.5) * norm.pdf(t, 0, math.sqrt(2) * sigma)  # noqa: E731
        return integrate.quad(height, -4, 4, points=kinks, limit=400)[0]

    slope = (smoothed(1 + step) - smoothed(1 - step)) / (2 * step)
    assert toy_smoothgrad(PLACE, sigma)[0, 0].item() == pytest.approx(slope, abs=1e-4)


def test_mistakes_get_a_sentence():
    with pytest.raises(UserError, match="use toy_gradient"):
        toy_smoothgrad(PLACE, 0.0)
    with pytest.raises(UserError, match="steps above 0"):
        TwoVariableToy(0.0)
