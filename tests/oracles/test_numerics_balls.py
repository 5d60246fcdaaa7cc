"""Balls and the box against float64 loops; the exact promises under hypothesis."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.balls import L2, Linf, ball, into_box

NORMS = ["linf", "l2"]
DTYPES = [torch.float32, torch.float64]


def size(norm: str, delta: list[float]) -> float:
    return max(abs(v) for v in delta) if norm == "linf" else math.fsum(v * v for v in delta) ** 0.5


def nearest_in_loops(norm: str, delta: list[float], eps: float) -> list[float]:
    if norm == "linf":
        return [min(max(v, -eps), eps) for v in delta]
    length = size("l2", delta)
    return [v * eps / length for v in delta] if length > eps else list(delta)


@st.composite
def batches(draw, dtypes=DTYPES, low: float = -3.0, high: float = 3.0, pair: bool = False):
    shape = (draw(st.integers(1, 3)), *draw(st.sampled_from([(5,), (2, 3), (1, 2, 2)])))
    dtype = draw(st.sampled_from(dtypes))
    spread = draw(st.sampled_from([1.0, 1e-3, 1e-8]))
    numbers = np.random.default_rng(draw(st.integers(0, 10**6))).uniform(low, high, (2, *shape))
    first, second = torch.from_numpy(numbers).to(dtype)
    return (first, second) if pair else first * spread


radii = st.sampled_from([0.0, 1e-9, 8 / 255, 0.3, 1.0, 5.0])


@given(delta=batches(), eps=radii, norm=st.sampled_from(NORMS))
def test_projection_is_that_of_the_loops(delta: Tensor, eps: float, norm: str):
    fast = ball(norm, eps).project(delta)
    slow = torch.tensor([nearest_in_loops(norm, row.flatten().tolist(), eps) for row in delta.double()])
    torch.testing.assert_close(fast.double().flatten(1), slow.double(), rtol=1e-5, atol=1e-12)


@given(delta=batches(), eps=radii, norm=st.sampled_from(NORMS))
def test_projection_stays_inside_and_a_second_changes_nothing(delta: Tensor, eps: float, norm: str):
    chosen = ball(norm, eps)
    once = chosen.project(delta)
    assert (chosen.norm(once) <= torch.tensor(eps, dtype=delta.dtype)).all()
    assert torch.equal(chosen.project(once), once)


@given(pair=batches(pair=True), eps=radii, norm=st.sampled_from(NORMS))
def test_projection_brings_no_two_points_apart(pair: tuple[Tensor, Tensor], eps: float, norm: str):
    first, second = (ball(norm, eps).project(delta) for delta in pair)
    before, after = ((a - b).double().flatten(1).norm(dim=1) for a, b in (pair, (first, second)))
    assert (after <= before * (1 + 1e-5)).all()


@given(delta=batches(), eps=radii, norm=st.sampled_from(NORMS))
def test_rescaling_keeps_the_direction_and_stays_inside(delta: Tensor, eps: float, norm: str):
    chosen = ball(norm, eps)
    scaled = chosen.rescale(delta)
    assert (chosen.norm(scaled) <= torch.tensor(eps, dtype=delta.dtype)).all()
    for row, result in zip(delta.double().flatten(1), scaled.double().flatten(1), strict=True):
        factor = min(1.0, eps / size(norm, row.tolist()))
        torch.testing.assert_close(result, row * factor, rtol=1e-5, atol=1e-14)


@given(delta=batches(), norm=st.sampled_from(NORMS))
def test_norm_is_that_of_the_loops(delta: Tensor, norm: str):
    slow = torch.tensor([size(norm, row.flatten().tolist()) for row in delta.double()]).double()
    torch.testing.assert_close(ball(norm, 1.0).norm(delta).double(), slow, rtol=3e-6, atol=0)


def test_l2_norm_of_tiny_entries_does_not_vanish():
    tiny = torch.full((1, 4), 1e-30)
    torch.testing.assert_close(L2(1.0).norm(tiny), torch.tensor([2e-30]), rtol=1e-6, atol=0)
    torch.testing.assert_close(L2(1.0).steepest(tiny), torch.full((1, 4), 0.5))


@given(pair=batches(pair=True), norm=st.sampled_from(NORMS))
def test_no_step_of_norm_one_rises_more_than_the_steepest(pair: tuple[Tensor, Tensor], norm: str):
    grad, other = pair
    chosen = ball(norm, 1.0)
    best = chosen.steepest(grad)
    torch.testing.assert_close(chosen.norm(best), torch.ones(len(grad), dtype=grad.dtype))
    rival = other / chosen.norm(other).view(-1, *[1] * (other.dim() - 1))
    rise, rival_rise = ((grad * step).flatten(1).sum(1) for step in (best, rival))
    assert (rise >= rival_rise - 1e-5).all()


@pytest.mark.parametrize("norm", NORMS)
def test_zero_gradient_gives_a_zero_step(norm: str):
    grad = torch.stack([torch.zeros(3), torch.tensor([0.0, 2.0, 0.0])])
    assert ball(norm, 1.0).steepest(grad).tolist() == [[0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize("norm", NORMS)
def test_each_example_has_its_own_radius(norm: str):
    delta = torch.full((3, 2, 2), 5.0)
    chosen = ball(norm, torch.tensor([0.0, 0.5, 100.0], dtype=torch.float64))
    for result in (chosen.project(delta), chosen.rescale(delta)):
        torch.testing.assert_close(
            chosen.norm(result), torch.tensor([0.0, 0.5, 10.0 if norm == "l2" else 5.0])
        )
    draws = chosen.sample(delta, random.keys(0, 3))
    assert (chosen.norm(draws) <= torch.tensor([0.0, 0.5, 100.0])).all()
    assert chosen.norm(draws)[2] > 1


def test_linf_samples_are_uniform():
    draws = Linf(0.25).sample(torch.zeros(40, 3, 10, 10), random.keys(0, 40))
    assert draws.abs().max() <= 0.25
    assert scipy.stats.kstest(draws.flatten().numpy(), scipy.stats.uniform(-0.25, 0.5).cdf).pvalue > 0.01


def test_l2_samples_are_uniform_in_the_volume():
    chosen = L2(0.5)
    draws = chosen.sample(torch.zeros(4000, 3), random.keys(0, 4000))
    assert (chosen.norm(draws) <= 0.5).all()
    share = (chosen.norm(draws) / 0.5).double().numpy() ** 3
    assert scipy.stats.kstest(share, "uniform").pvalue > 0.01
    # By Archimedes, one coordinate of a point on the sphere is uniform.
    height = (draws[:, 0] / chosen.norm(draws)).numpy()
    assert scipy.stats.kstest(height, scipy.stats.uniform(-1, 2).cdf).pvalue > 0.01
    assert scipy.stats.kstest(share[height > 0.5], "uniform").pvalue > 0.01
    assert scipy.stats.kstest(share[np.abs(height) < 0.2], "uniform").pvalue > 0.01


def test_the_radius_of_a_sample_is_not_made_of_the_bits_of_its_direction():
    draws = L2(1.0).sample(torch.zeros(4000, 2), random.keys(0, 4000))
    first = random.normal(random.keys(0, 4000), (2,)).norm(dim=1)
    assert abs(scipy.stats.spearmanr(draws.norm(dim=1), first).statistic) < 0.06


@pytest.mark.parametrize("norm", NORMS)
def test_samples_follow_keys_and_stream_at_any_batch_size(norm: str):
    chosen, x, keys = ball(norm, 0.1), torch.zeros(4, 2, 3), random.keys(0, 4)
    draws = chosen.sample(x, keys)
    parts = [chosen.sample(x[:1], keys[:1]), chosen.sample(x[1:], keys[1:])]
    # A norm may be added up in another order.
    torch.testing.assert_close(torch.cat(parts), draws, rtol=0, atol=1e-7)
    assert not torch.equal(chosen.sample(x, keys, stream=1), draws)


@given(
    pair=batches(low=0.0, high=1.0, pair=True),
    stretch=st.sampled_from([0.01, 1.0, 3.0]),
    box=st.sampled_from([(0.0, 1.0), (0.1, 0.7), (-2.1179, 2.6400)]),
)
def test_the_box_holds_exactly_and_no_entry_gets_longer(
    pair: tuple[Tensor, Tensor], stretch: float, box: tuple[float, float]
):
    low, high = (torch.tensor(edge, dtype=pair[0].dtype) for edge in box)
    x = (low + (high - low) * pair[0]).clamp(low, high)
    delta = (2 * pair[1] - 1) * stretch
    cut = into_box(x, delta, *box)
    assert (x + cut >= low).all()
    assert (x + cut <= high).all()
    assert (cut.abs() <= delta.abs()).all()
    expected = torch.clamp(x.double() + delta.double(), *box) - x.double()
    torch.testing.assert_close(
        cut.double(), expected, rtol=0, atol=3e-7 if x.dtype == torch.float32 else 1e-13
    )


def test_rounding_at_the_edge_of_a_crooked_box_is_mended():
    low, high = torch.tensor([-2.1179]), torch.tensor([2.64])
    x = (low + (high - low) * random.uniform(random.keys(0, 50), (200,))).clamp(low, high)
    naive = (x + 10).clamp(low, high) - x
    assert (x + naive > high).any()  # the mistake this is about does happen
    for step in (10.0, -10.0):
        moved = x + into_box(x, torch.full_like(x, step), -2.1179, 2.64)
        assert (moved <= high).all()
        assert (moved >= low).all()
        torch.testing.assert_close(moved, (high if step > 0 else low).expand_as(moved), rtol=0, atol=3e-6)


def test_inside_sees_both_the_ball_and_the_box():
    x = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.95, 0.5], [0.05, 0.5]])
    delta = torch.tensor([[0.1, -0.1], [0.2, 0.0], [0.1, 0.0], [-0.1, 0.0]])
    assert Linf(0.1).inside(x, delta).tolist() == [True, False, False, False]
    assert Linf(0.1).inside(x, delta, tol=0.11).tolist() == [True] * 4
    assert L2(0.1).inside(x, delta).tolist() == [False, False, False, False]
    assert L2(0.15).inside(x, delta).tolist() == [True, False, False, False]
    edges = torch.tensor([[0.0, 1.0]])
    assert Linf(0.1).inside(edges, torch.zeros_like(edges), tol=0.0).tolist() == [True]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ball("l_inf", 0.1), "There is no norm 'l_inf': did you mean 'linf'?"),
        (lambda: Linf(-0.1), "eps is -0.1; give a finite radius of at least 0"),
        (lambda: L2(float("nan")), "finite radius"),
        (lambda: L2(torch.tensor([0.1, float("inf")])), "finite radius"),
        (lambda: Linf(torch.tensor([0.1, 0.2])).project(torch.ones(3, 2)), "2 radii for 3 examples"),
    ],
)
def test_mistakes_get_a_sentence(call, words: str):
    with pytest.raises(UserError) as caught:
        call()
    assert words in str(caught.value)


def test_equal_balls_are_equal_values():
    assert Linf(8 / 255) == ball("linf", 8 / 255)
    assert Linf(0.1) != L2(0.1)
    assert repr(L2(0.5)) == "L2(eps=0.5)"
