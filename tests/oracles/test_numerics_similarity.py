"""Similarities against scipy and literal loops, in float64; special maps; first and second derivatives."""

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.similarity import (
    cosine,
    cosine_distance,
    kendall,
    l2_distance,
    pearson,
    spearman,
    ssim,
    top_k_mass,
    top_k_overlap,
)

ALL = {
    "cosine": cosine,
    "cosine_distance": cosine_distance,
    "pearson": pearson,
    "spearman": spearman,
    "kendall": kendall,
    "ssim": ssim,
    "l2_distance": l2_distance,
    "top_k_overlap": lambda a, b: top_k_overlap(a, b, 3),
    "top_k_mass": lambda a, b: top_k_mass(a, b, 3),
}
SMOOTH = ["cosine", "cosine_distance", "pearson", "ssim", "l2_distance"]


def pair(b: int = 3, shape: tuple[int, ...] = (2, 5, 6)) -> tuple[Tensor, Tensor]:
    keys = random.keys(0, b)
    first, noise = (random.normal(keys, shape, stream=s, dtype=torch.float64) for s in (0, 1))
    return first, 0.7 * first + noise


ORACLES = {
    "cosine": lambda a, b: 1 - scipy.spatial.distance.cosine(a, b),
    "cosine_distance": lambda a, b: scipy.spatial.distance.cosine(a, b) / 2,
    "pearson": lambda a, b: scipy.stats.pearsonr(a, b).statistic,
    "spearman": lambda a, b: scipy.stats.spearmanr(a, b).statistic,
    "kendall": lambda a, b: scipy.stats.kendalltau(a, b).statistic,
    "l2_distance": scipy.spatial.distance.euclidean,
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("rounded", [False, True])
def test_value_is_that_of_scipy(name: str, rounded: bool):
    a, b = ((map.round() if rounded else map) for map in pair())
    fast = ALL[name](a, b)
    for i in range(len(a)):
        assert fast[i].item() == pytest.approx(ORACLES[name](a[i].flatten(), b[i].flatten()), rel=1e-10)


@given(
    rows=st.integers(2, 40).flatmap(
        lambda d: st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=d, max_size=d)
    )
)
@pytest.mark.parametrize("name", ["spearman", "kendall"])
def test_rank_correlations_of_many_ties_are_those_of_scipy(name: str, rows: list[tuple[int, int]]):
    a, b = np.array(rows, dtype=float).T
    value = ALL[name](torch.from_numpy(a)[None], torch.from_numpy(b)[None]).item()
    constants = int(np.ptp(a) == 0) + int(np.ptp(b) == 0)
    expected = [ORACLES[name], lambda *_: 0.0, lambda *_: 1.0][constants](a, b)
    assert value == pytest.approx(expected, abs=1e-12)


def test_kendall_of_a_long_map_is_that_of_scipy():
    a, b = pair(2, (3000,))
    expected = [scipy.stats.kendalltau(x, y).statistic for x, y in zip(a, b, strict=True)]
    assert kendall(a, b).tolist() == pytest.approx(expected, rel=1e-10)


def ssim_in_loops(a: np.ndarray, b: np.ndarray, span: float) -> float:
    """Every window at every pixel, as the definition says; outside the image there are zeros."""
    c1, c2 = (0.01 * span) ** 2, (0.03 * span) ** 2
    weights = [math.exp(-(o**2) / (2 * 1.5**2)) for o in range(-3, 4)]
    values = []
    for row, column in np.ndindex(a.shape):
        sums = np.zeros(5)
        for i, j in np.ndindex(7, 7):
            y, x = row + i - 3, column + j - 3
            if 0 <= y < a.shape[0] and 0 <= x < a.shape[1]:
                p, q = a[y, x], b[y, x]
                sums += weights[i] * weights[j] / sum(weights) ** 2 * np.array([p, q, p * p, q * q, p * q])
        mean_a, mean_b, square_a, square_b, product = sums
        top = (2 * mean_a * mean_b + c1) * (2 * (product - mean_a * mean_b) + c2)
        bottom = (mean_a**2 + mean_b**2 + c1) * (square_a - mean_a**2 + square_b - mean_b**2 + c2)
        values.append(top / bottom)
    return float(np.mean(values))


def test_ssim_is_that_of_the_loops():
    a, b = (map.abs() for map in pair(2, (9, 8)))
    fast = ssim(a, b)
    for i in range(2):
        slow = ssim_in_loops(a[i].numpy(), b[i].numpy(), (b[i].max() - b[i].min()).item())
        assert fast[i].item() == pytest.approx(slow, rel=1e-10)


def test_ssim_takes_a_range_for_all_or_for_each_and_averages_channels():
    a, b = pair(2, (3, 7, 8))
    spans = torch.tensor([2.5, 0.5], dtype=torch.float64)
    for given_range, used in ((spans, [2.5, 0.5]), (2.0, [2.0, 2.0])):
        fast = ssim(a, b, data_range=given_range)
        for i in range(2):
            slow = np.mean([ssim_in_loops(a[i, c].numpy(), b[i, c].numpy(), used[i]) for c in range(3)])
            assert fast[i].item() == pytest.approx(slow, rel=1e-10)


@pytest.mark.parametrize("k", [1, 7, 60])
def test_top_k_measures_are_those_of_the_loops(k: int):
    a, b = pair()
    overlap, mass = top_k_overlap(a, b, k), top_k_mass(a, b, k)
    for i in range(len(a)):
        before, after = a[i].flatten().abs().tolist(), b[i].flatten().abs().tolist()
        old, new = (sorted(range(60), key=lambda j, m=m: -m[j])[:k] for m in (before, after))
        assert overlap[i].item() == pytest.approx(len(set(old) & set(new)) / k)
        assert mass[i].item() == pytest.approx(sum(after[j] for j in old) / sum(after))


LIKE_ITSELF = {"cosine_distance": 0.0, "l2_distance": 0.0}


@pytest.mark.parametrize("name", [name for name in ALL if name != "top_k_mass"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_map_is_exactly_like_itself(name: str, dtype: torch.dtype):
    a = pair()[0].to(dtype)
    torch.testing.assert_close(ALL[name](a, a), torch.full((3,), LIKE_ITSELF.get(name, 1.0), dtype=dtype))


@given(
    seed=st.integers(0, 10**6), tilt=st.sampled_from([0.0, 1e-8, 1e-4, 1e-2]), sign=st.sampled_from([-1, 1])
)
def test_cosine_and_pearson_never_leave_their_range(seed: int, tilt: float, sign: int):
    a, noise = (random.normal(random.keys(seed, 20), (50,), stream=s) for s in (0, 1))
    for value in (cosine(a, sign * a + tilt * noise), pearson(a, sign * a + tilt * noise)):
        assert (value.abs() <= 1).all()
    distance = cosine_distance(a, sign * a + tilt * noise)
    assert ((distance >= 0) & (distance <= 1)).all()


def test_cosine_distance_of_near_maps_keeps_its_digits():
    a, noise = pair()
    near = (a + 1e-5 * noise).float()
    a = a.float()
    exact = cosine_distance(a.double(), near.double()).float()
    torch.testing.assert_close(cosine_distance(a, near), exact, rtol=3e-2, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_value_does_not_depend_on_the_batch(name: str):
    a, b = pair()
    alone = torch.cat([ALL[name](a[i : i + 1], b[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(ALL[name](a, b), alone, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in ALL if name != "l2_distance"])
def test_common_scale_does_not_matter_even_if_squares_leave_the_range(name: str):
    a, b = (map.float() for map in pair())
    torch.testing.assert_close(ALL[name](a * 1e-28, b * 1e-28), ALL[name](a, b), rtol=1e-4, atol=1e-6)


# What (zero, zero), (zero, map) and (map, zero) give.
WITH_ZERO = {
    "cosine": (1, 0, 0),
    "cosine_distance": (0, 0.5, 0.5),
    "pearson": (1, 0, 0),
    "spearman": (1, 0, 0),
    "kendall": (1, 0, 0),
    "l2_distance": (0, None, None),
    "ssim": (1, None, None),
    "top_k_overlap": (1, None, None),
    "top_k_mass": (0, None, 0),
}


@pytest.mark.parametrize("name", ALL)
def test_zero_maps_have_their_stated_value(name: str):
    a, _ = pair(1)
    zero = torch.zeros_like(a)
    for (first, second), stated in zip(((zero, zero), (zero, a), (a, zero)), WITH_ZERO[name], strict=True):
        value = ALL[name](first, second)
        assert value.isfinite().all()
        assert stated is None or value.item() == stated


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_maps_correlate_with_each_other_only(name: str, dtype: torch.dtype):
    a = pair(1)[0].to(dtype)
    flat, other = torch.full_like(a, 0.1), torch.full_like(a, -0.3)
    assert ALL[name](flat, other).item() == 1
    assert ALL[name](flat, a).item() == 0
    assert ALL[name](a, flat).item() == 0


@pytest.mark.parametrize("name", SMOOTH)
def test_first_and_second_derivatives_are_exact(name: str):
    a, b = (map.requires_grad_() for map in pair(2, (3, 4)))
    assert torch.autograd.gradcheck(ALL[name], (a, b))
    assert torch.autograd.gradgradcheck(ALL[name], (a, b))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("case", ["zero and zero", "zero and map", "map and itself", "constant"])
def test_derivatives_are_finite_where_the_value_is_special(name: str, case: str):
    map = pair(2, (3, 4))[0]
    zero = torch.zeros_like(map)
    first, second = {
        "zero and zero": (zero, zero),
        "zero and map": (zero, map),
        "map and itself": (map, map),
        "constant": (zero + 0.1, map),
    }[case]
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    slopes = torch.autograd.grad(ALL[name](a, b).sum(), (a, b), create_graph=True)
    assert all(slope.isfinite().all() for slope in slopes)
    seconds = torch.autograd.grad(sum(s.square().sum() for s in slopes), (a, b), allow_unused=True)
    assert all(second is None or second.isfinite().all() for second in seconds)


@pytest.mark.parametrize("name", [name for name in ALL if not name.startswith("top_k")])
def test_a_nan_is_not_hidden(name: str):
    a, b = pair()
    a[1, 0, 0, 0] = math.nan
    assert ALL[name](a, b).isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("name", ALL)
def test_maps_of_two_shapes_are_refused(name: str):
    with pytest.raises(UserError, match="compare maps of one shape"):
        ALL[name](torch.ones(2, 1, 4, 4), torch.ones(2, 3, 4, 4))


def test_ssim_of_vectors_is_refused():
    with pytest.raises(UserError, match="b h w or b c h w"):
        ssim(torch.ones(2, 4), torch.ones(2, 4))
