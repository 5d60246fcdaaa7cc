"""Intervals and areas against scipy, numpy and a simulation of their coverage; no torch needed."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.errors import UserError
from gyrograd.numerics import statistics
from gyrograd.numerics.statistics import (
    Interval,
    area_over_eps,
    bootstrap_interval,
    mean,
    paired_difference,
    share_interval,
)

NUMBERS = np.random.default_rng(0).gamma(2.0, size=80)


def median(values):
    return np.median(values, axis=-1)


@pytest.mark.parametrize("statistic", [mean, median])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_interval_is_that_of_scipy(statistic, level: float):
    mine = bootstrap_interval(NUMBERS, level=level, resamples=20000, statistic=statistic)
    theirs = scipy.stats.bootstrap(
        (NUMBERS,),
        lambda v, axis: statistic(np.moveaxis(v, axis, -1)),
        confidence_level=level,
        n_resamples=20000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert (mine.low, mine.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)
    assert mine.value == pytest.approx(statistic(NUMBERS))
    assert mine.n == 80


def test_interval_is_that_of_the_loops():
    generator = np.random.default_rng(3)
    means = []
    for _ in range(300):
        rows = [NUMBERS[generator.integers(80)] for _ in range(80)]
        means.append(sum(rows) / 80)
    mine = bootstrap_interval(NUMBERS, resamples=300, seed=3)
    assert mine.low == pytest.approx(np.quantile(means, 0.025), abs=0.08)
    assert mine.high == pytest.approx(np.quantile(means, 0.975), abs=0.08)


def test_intervals_hold_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(5)
    hits = 0
    for trial in range(400):
        interval = bootstrap_interval(generator.normal(2.0, 3.0, 40), resamples=300, seed=trial, level=0.9)
        hits += interval.low <= 2.0 <= interval.high
    assert 0.84 <= hits / 400 <= 0.94


def test_a_seed_gives_the_same_interval_and_another_seed_another():
    assert bootstrap_interval(NUMBERS, seed=1) == bootstrap_interval(NUMBERS, seed=1)
    assert bootstrap_interval(NUMBERS, seed=1) != bootstrap_interval(NUMBERS, seed=2)


def test_parts_do_not_change_the_interval(monkeypatch: pytest.MonkeyPatch):
    whole = bootstrap_interval(NUMBERS, resamples=101)
    monkeypatch.setattr(statistics, "_RESAMPLE_NUMBERS", 80 * 10)
    assert bootstrap_interval(NUMBERS, resamples=101) == whole


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_value_lies_in_its_interval_and_a_constant_has_no_width(values: list[float]):
    interval = bootstrap_interval(values, resamples=50)
    constant = bootstrap_interval([values[0]] * 5, resamples=50)
    assert interval.low <= interval.high
    assert interval.value == pytest.approx(float(np.mean(values)))
    assert constant.high - constant.low <= abs(values[0]) * 1e-12


def test_missing_values_are_left_out_and_counted():
    with_gaps = [1.0, None, 3.0, float("nan"), 5.0]
    interval = bootstrap_interval(with_gaps)
    assert (interval.n, interval.missing, interval.value) == (3, 2, 3.0)
    full = bootstrap_interval([1.0, 3.0, 5.0])
    assert (interval.low, interval.high) == (full.low, full.high)
    assert full.missing == 0


def test_one_value_says_nothing_of_its_spread():
    interval = bootstrap_interval([4.0])
    assert interval == Interval(-np.inf, 4.0, np.inf, 1)
    assert not interval.excludes_zero


def test_paired_difference_is_the_interval_of_the_differences():
    other = NUMBERS + np.random.default_rng(1).normal(0.2, 0.1, 80)
    interval = paired_difference(other, NUMBERS, resamples=500, seed=4)
    assert interval == bootstrap_interval(other - NUMBERS, resamples=500, seed=4)
    assert interval.excludes_zero
    assert interval.low > 0
    # Unpaired, the spread between examples would hide it.
    assert not paired_difference(np.roll(other, 1), NUMBERS).excludes_zero


def test_a_pair_with_a_gap_is_left_out():
    interval = paired_difference([1.0, None, 3.0, 4.0], [0.0, 1.0, float("nan"), 1.0])
    assert (interval.n, interval.missing, interval.value) == (2, 2, 2.0)


@pytest.mark.parametrize(
    ("low", "high", "answer"), [(0.1, 2.0, True), (-2.0, -0.1, True), (-1.0, 1.0, False), (0.0, 1.0, False)]
)
def test_excluding_zero_means_all_on_one_side(low: float, high: float, answer: bool):
    assert Interval(low, (low + high) / 2, high, 9).excludes_zero is answer


def test_unit_spacing_gives_three_at_most_over_four_eps():
    assert area_over_eps([1.0, 1.0, 1.0, 1.0]) == 3
    assert area_over_eps([1.0, 1.0, 1.0, 1.0], [2, 4, 8, 16], spacing="log2") == pytest.approx(3)
    assert area_over_eps([1.0, 1.0, 1.0, 1.0], [2, 4, 8, 16]) == pytest.approx(14)


def test_areas_are_those_of_scipy():
    curves = np.random.default_rng(2).random((5, 3, 4))
    eps = np.array([0.5, 2.0, 3.0, 9.0])
    np.testing.assert_allclose(area_over_eps(curves), scipy.integrate.trapezoid(curves, axis=-1))
    np.testing.assert_allclose(area_over_eps(curves, eps), scipy.integrate.trapezoid(curves, eps, axis=-1))
    np.testing.assert_allclose(
        area_over_eps(curves, eps, spacing="log2"), scipy.integrate.trapezoid(curves, np.log2(eps), axis=-1)
    )


def test_a_curve_with_a_gap_has_no_area_and_is_counted_as_missing():
    areas = area_over_eps([[1.0, 2.0, 3.0], [1.0, None, 3.0], [0.0, 0.0, 0.0]])
    assert np.isnan(areas).tolist() == [False, True, False]
    assert bootstrap_interval(areas).missing == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bootstrap_interval([]), "no value among 0"),
        (lambda: bootstrap_interval([None, float("nan")]), "no value among 2"),
        (lambda: bootstrap_interval([1.0, float("inf")]), "infinite values"),
        (lambda: bootstrap_interval([[1.0]]), "one number for each example"),
        (lambda: bootstrap_interval([1.0], level=95.0), "level is 95"),
        (lambda: bootstrap_interval([1.0], resamples=0), "resamples is 0"),
        (lambda: bootstrap_interval([1.0, 2.0], statistic=np.mean), "reduce the last axis"),
        (lambda: paired_difference([1.0], [1.0, 2.0]), "1 and 2 values"),
        (lambda: area_over_eps([1.0]), "at least two points"),
        (lambda: area_over_eps([1.0, 2.0], [1.0]), "1 eps for 2 points"),
        (lambda: area_over_eps([1.0, 2.0], [2.0, 1.0]), "must rise"),
        (lambda: area_over_eps([1.0, 2.0], [0.0, 1.0], spacing="log2"), "above 0"),
    ],
)
def test_mistakes_get_a_sentence(call, words: str):
    with pytest.raises(UserError, match=words):
        call()


def test_statistics_need_no_torch():
    code = "import sys; sys.modules['torch'] = None; import gyrograd.numerics.statistics"
    subprocess.run([sys.executable, "-c", code], check=True)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_interval_of_a_share_is_wilsons(right: list[bool], level: float) -> None:
    found = share_interval([float(each) for each in right], level=level)
    expected = scipy.stats.binomtest(sum(right), len(right)).proportion_ci(level, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.value == pytest.approx(sum(right) / len(right))
    assert found.high - found.low > 0
