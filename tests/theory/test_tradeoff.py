"""Curves of robustness and faithfulness, what is recommended, and the toy on which the answer is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from known_nets import first_class, numbers

from gyrograd.attributions import Gradient, InputXGradient, smoothgrad
from gyrograd.errors import UserError
from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.theory import compare, interior_optimum, pareto, recommend, sweep
from gyrograd.theory import estimates as m
from gyrograd.theory.toy import TwoVariableToy, toy_smoothgrad
from gyrograd.theory.tradeoff import Point

X = torch.tensor([[1.0, -1.5]], dtype=torch.float64) + 0.05 * numbers(0, 12, 2)


def lipschitz(attribution):
    of = lambda x: attribution(TwoVariableToy(), x, first_class(x))  # noqa: E731
    return m.steepest(of, X, m.points_near(X, 0.5, 10)).ratio


def faithfulness(attribution):
    """tan2023 Definition 3.4 with a step of 0.7 in each variable: enough to leave the toy's level."""
    model = TwoVariableToy()
    p = torch.stack([(model(X + move) - model(X))[:, 0] / 0.7 for move in 0.7 * torch.eye(2).double()], 1)
    return 1 / (attribution(model, X, first_class(X)) - p).norm(dim=1)


def exact(sigma):
    """SmoothGrad of the toy without draws, as an attribution."""
    return lambda model, x, target, *, create_graph=False: toy_smoothgrad(x, sigma)


def point(method, setting, robustness, faithful):
    values = [tuple(float(v) for v in row) for row in (robustness, faithful)]
    means = [bootstrap_interval(row, resamples=200) for row in values]
    return Point(method, setting, *values, *means)


def flat(method, setting, robustness, faithful):
    return point(method, setting, [robustness] * 3, [faithful] * 3)


def test_a_sweep_measures_each_method_at_each_setting():
    settings = [0.05, 0.3, 1.0]
    points = sweep(
        {"exact": exact, "drawn": lambda sigma: smoothgrad(sigma=sigma, draws=50)},
        settings,
        robustness=lipschitz,
        faithfulness=faithfulness,
        resamples=200,
    )
    assert [(p.method, p.setting) for p in points] == list(itertools.product(["exact", "drawn"], settings))
    for p in points[:3]:
        assert p.robustness == tuple(lipschitz(exact(p.setting)).tolist())
        assert p.faithfulness == tuple(faithfulness(exact(p.setting)).tolist())
        assert p.faithfulness_mean.value == pytest.approx(np.mean(p.faithfulness))
        assert p.robustness_mean.low <= p.robustness_mean.value <= p.robustness_mean.high


def test_the_toy_has_a_best_sigma_in_between_and_more_noise_is_more_robust():
    settings = [0.02, 0.2, 0.4, 0.6, 2.0]
    points = sweep({"exact": exact}, settings, robustness=lipschitz, faithfulness=faithfulness, resamples=200)
    robust = [p.robustness_mean.value for p in points]
    assert robust == sorted(robust, reverse=True)
    advice = recommend(points, resamples=200)
    assert advice.best["exact"].setting in (0.2, 0.4, 0.6)
    assert advice.at_edge == ()


def test_the_best_setting_is_the_most_faithful_and_near_ones_are_named():
    noise = numbers(3, 40).numpy()
    points = [
        point("sg", 0.1, [3.0] * 40, 1 + noise),
        point("sg", 0.2, [2.0] * 40, 5 + noise),
        point("sg", 0.3, [1.0] * 40, 5 + noise - 0.01 * np.sign(np.arange(40) - 15)),
        point("sg", 0.4, [0.5] * 40, 2 + noise),
    ]
    advice = recommend(points, resamples=500)
    assert advice.best["sg"].setting == 0.2
    assert advice.ties["sg"] == (0.3,)
    assert advice.at_edge == ()


@pytest.mark.parametrize("faithful", [(3, 2, 1), (1, 2, 3)])
def test_a_best_setting_at_the_edge_is_flagged(faithful):
    points = [flat("sg", s, 1.0, f) for s, f in zip((0.1, 0.2, 0.3), faithful, strict=True)]
    assert recommend(points, resamples=50).at_edge == ("sg",)


def test_methods_without_a_setting_are_compared():
    points = compare(
        {"gradient": Gradient(), "gi": InputXGradient()},
        robustness=lipschitz,
        faithfulness=faithfulness,
        resamples=200,
    )
    advice = recommend(points, resamples=200)
    assert set(advice.best) == {"gradient", "gi"}
    assert advice.at_edge == ()
    assert advice.ties == {"gradient": (), "gi": ()}
    assert all(p.setting is None for p in points)


@given(places=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_the_pareto_set_is_what_nothing_beats_in_both(places):
    points = [flat(str(i), None, float(r), float(f)) for i, (r, f) in enumerate(places)]
    kept = {p.method for p in pareto(points, robust="higher is better")}
    for i, (r, f) in enumerate(places):
        beaten = any(a >= r and c >= f and (a, c) != (r, f) for a, c in places)
        assert (str(i) in kept) != beaten
    order = [p.robustness_mean.value for p in pareto(points, robust="higher is better")]
    assert order == sorted(order, reverse=True)


def test_the_direction_of_robustness_matters():
    points = [flat("calm", None, 1.0, 1.0), flat("wild", None, 9.0, 1.0)]
    assert [p.method for p in pareto(points)] == ["calm"]
    assert [p.method for p in pareto(points, robust="higher is better")] == ["wild"]
    assert [p.method for p in recommend(points, robust="higher is better", resamples=50).pareto] == ["wild"]


# tan2023 Theorem 5.2


@given(seed=st.integers(0, 10_000), share=st.floats(0.05, 3), tilt=st.floats(-2, 2))
def test_where_the_theorem_promises_a_shrinking_map_has_its_best_inside(seed, share, tilt):
    """Maps that only shrink, to zero: what smoothing does in the limit (Lemma C.3)."""
    gradient = numbers(seed, 1, 3)
    side = torch.linalg.cross(gradient, numbers(seed + 1, 1, 3))
    p = share * gradient + tilt * gradient.norm() * side / side.norm()
    maps = torch.linspace(1, 0.1, 5, dtype=torch.float64)[:, None, None] * gradient
    promise = interior_optimum(maps, p)
    # Of all s * gradient, the one nearest to p has s = share.
    if promise.kept.item():
        assert 0 < share < 1
    if tilt == 0 and share != 1:
        assert promise.kept.item() == (share < 1)
    assert promise.alpha.item() == pytest.approx(torch.cosine_similarity(gradient, p).item(), abs=1e-9)
    assert promise.ratio.item() == pytest.approx((p.norm() / gradient.norm()).item())


def test_the_promise_is_kept_for_short_contributions_and_withheld_for_long_ones():
    gradient = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    maps = torch.linspace(1, 0.01, 50, dtype=torch.float64)[:, None, None] * gradient
    kept = [interior_optimum(maps, share * gradient).kept.item() for share in (0.2, 0.6, 0.99, 1.01, 3.0)]
    assert kept == [True, True, True, False, False]
    assert not interior_optimum(maps, -0.5 * gradient).kept.item()
    # Far from the gradient's direction the zero map is no worse than the gradient: that alone is enough.
    slanted = 0.55 * torch.tensor([[0.3, 0.91**0.5]], dtype=torch.float64)
    assert 2 * 0.55 - 1 - (0.3 * 0.55) ** 2 > 0
    assert interior_optimum(maps, slanted).kept.item()
    assert not interior_optimum(maps, 0 * gradient).kept.item()


# Mistakes


def test_mistakes_get_a_sentence():
    one = {"robustness": lipschitz, "faithfulness": faithfulness}
    with pytest.raises(UserError, match="must rise"):
        sweep({"exact": exact}, [0.2, 0.1], **one)
    with pytest.raises(UserError, match="give at least one of each"):
        sweep({}, [0.2], **one)
    with pytest.raises(UserError, match="no method to compare; give at least one"):
        compare({}, **one)
    with pytest.raises(UserError, match="run sweep or compare"):
        recommend([])
    with pytest.raises(UserError, match="measure the same examples"):
        compare({"g": Gradient()}, robustness=lipschitz, faithfulness=lambda a: faithfulness(a)[:3])
