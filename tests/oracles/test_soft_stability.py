"""Soft stability against every addition, counted one by one, on nets whose answers are known."""

from __future__ import annotations

import doctest
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import gyrograd as gg
from gyrograd.metrics import SoftStability, soft_stability
from gyrograd.metrics.soft_stability import additions
from gyrograd.numerics import random

TARGET = torch.zeros(1, dtype=torch.int64)


class Vote(nn.Module):
    """Class 0 while the values it sees add up to more than nothing, class 1 below."""

    def forward(self, x):
        total = x.flatten(1).sum(1)
        return torch.stack([total, torch.zeros_like(total)], 1)


def by_size(model, x, target, *, create_graph=False):
    """The map is the input itself: the largest values are its top."""
    return x


def row(values):
    """One image of one row, each pixel a segment."""
    return torch.tensor(values, dtype=torch.float64).view(1, 1, 1, -1)


def counted(values, top, radius):
    """The stability rate of Vote: all additions of at most `radius` values, one by one, in Python."""
    order = sorted(range(len(values)), key=lambda i: -values[i])
    shown, hidden = order[:top], order[top:]
    before = sum(values[i] for i in shown) >= 0
    sets = [more for j in range(radius + 1) for more in itertools.combinations(hidden, j)]
    kept = [(sum(values[i] for i in (*shown, *more)) >= 0) == before for more in sets]
    return sum(kept) / len(kept)


VALUES = st.lists(st.integers(-40, 40), min_size=4, max_size=8, unique=True)


@settings(max_examples=20, deadline=None)
@given(values=VALUES, top=st.integers(1, 2), radius=st.integers(1, 4))
def test_the_bound_lies_below_the_rate_that_counting_gives_and_near_it(values, top, radius):
    values = [value + 0.25 for value in values]  # no sum is 0
    radius = min(radius, len(values) - top)
    metric = SoftStability(radius=radius, top=top / len(values), draws=2000, alpha=1e-6)
    found = metric.certificate(Vote(), by_size, row(values), TARGET)
    truth = counted(values, top, radius)
    assert found.low.item() <= truth
    # Five standard deviations of a share of 2,000 draws.
    assert abs(found.agreeing.item() / 2000 - truth) <= 5 * math.sqrt(0.25 / 2000)
    assert found.shown.item() == int(sum(sorted(values)[-top:]) < 0)


@pytest.mark.parametrize("radius", [1, 2, 3])
def test_every_addition_is_equally_likely(radius):
    shown = torch.tensor([False, True, False, False, True, False])
    drawn = additions(shown, radius, 20_000, random.keys(3, 1))
    assert drawn[:, shown].all()
    sets = [more for j in range(radius + 1) for more in itertools.combinations([0, 2, 3, 5], j)]
    seen = [tuple(i for i in (0, 2, 3, 5) if one[i]) for one in drawn.tolist()]
    counts = [seen.count(more) for more in sets]
    assert sum(counts) == len(drawn)
    assert stats.chisquare(counts).pvalue > 1e-4


@settings(max_examples=25, deadline=None)
@given(
    shown=st.lists(st.booleans(), min_size=1, max_size=30), most=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_an_addition_hides_nothing_and_adds_no_more_than_allowed(shown, most, seed):
    first = torch.tensor(shown)
    drawn = additions(first, most, 50, random.keys(seed, 1))
    assert drawn[:, first].all()
    assert ((drawn & ~first).sum(1) <= most).all()


def test_a_thousand_segments_leave_the_floating_range_alone():
    drawn = additions(torch.arange(2000) < 500, 1500, 20, random.keys(0, 1))
    # Of all sets of 1,500 segments nearly all have about half of them.
    assert ((drawn.sum(1) - 500 - 750).abs() < 120).all()


def test_a_prediction_that_nothing_changes_is_as_sure_as_the_draws_can_tell():
    found = SoftStability(radius=3, draws=500, alpha=0.01)(Vote(), by_size, row([9.0, 1, 2, 3, 4, 5]), TARGET)
    assert found.item() == pytest.approx(0.01 ** (1 / 500))


def test_lime_is_taken_with_its_own_segments():
    """Three stripes; the first alone is class 0, and each of the two others turns that."""
    stripes = torch.tensor([[0, 0, 1, 1, 2, 2]] * 6)
    x = torch.tensor([1.0, -2.0, -3.0], dtype=torch.float64)[stripes][None, None]
    lime = gg.attribution("lime", segments=stripes, draws=64, ridge=1e-6)
    metric = SoftStability(radius=1, top=0.3, draws=3000, alpha=1e-6, grid=3)
    found = metric.certificate(Vote(), lime, x, TARGET)
    # Nothing, the second or the third: the first of these three leaves class 0.
    assert found.agreeing.item() / 3000 == pytest.approx(1 / 3, abs=0.05)
    cells = metric.certificate(Vote(), by_size, x, TARGET)
    assert cells.agreeing.item() / 3000 != pytest.approx(1 / 3, abs=0.05)


def test_a_segment_scores_what_its_pixels_carry_whatever_its_size():
    """LIME gives 5, 3 and -4. Nothing turns the first; the second, three pixels, would be turned by the third."""
    x = torch.tensor([[[[5.0, 1.0, 1.0, 1.0, -4.0]]]], dtype=torch.float64)
    lime = gg.attribution("lime", segments=torch.tensor([[0, 1, 1, 1, 2]]), draws=64, ridge=1e-6)
    found = SoftStability(radius=1, top=0.3, draws=200).certificate(Vote(), lime, x, TARGET)
    assert found.agreeing.item() == 200


def test_the_slow_twin_counts_the_same():
    """Image by image and draw by draw, each masked image built pixel by pixel."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).double()
    x = torch.rand(3, 3, 4, 4, dtype=torch.float64)
    target = torch.tensor([0, 1, 2])
    metric = SoftStability(radius=3, top=0.3, draws=30, grid=2, baseline=0.5, max_batch=7)
    keys = random.keys(5, 3)
    found = metric.certificate(model, gg.attribution("input_x_gradient"), x, target, seed=keys)
    map = gg.attribution("input_x_gradient")(model, x, target)
    for i in range(3):
        cells = [(r // 2) * 2 + c // 2 for r in range(4) for c in range(4)]
        pixels = map[i].sum(0).flatten().tolist()
        scores = [sum(p for p, cell in zip(pixels, cells, strict=True) if cell == s) for s in range(4)]
        shown = torch.tensor([score == max(scores) for score in scores])
        agreeing, first = 0, None
        for kept in [shown, *additions(shown, 3, 30, keys[i : i + 1])]:
            image = x[i].clone()
            for place, cell in enumerate(cells):
                if not kept[cell]:
                    image[:, place // 4, place % 4] = 0.5
            predicted = int(model(image[None]).argmax())
            agreeing += first is not None and predicted == first
            first = predicted if first is None else first
        assert found.agreeing[i] == agreeing
        assert found.shown[i] == first


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"radius": 0}, "radius is 0"),
        ({"draws": 0}, "draws is 0"),
        ({"top": 1.0}, "top is 1.0; give the fraction of the segments"),
        ({"alpha": 1.0}, "alpha is 1.0"),
        ({"baseline": "grey"}, "grey"),
    ],
)
def test_settings_that_cannot_certify_are_told_in_a_sentence(changes, why):
    with pytest.raises(gg.UserError, match=why):
        gg.metric("soft_stability", **changes)


def test_examples_in_the_documentation_run():
    assert doctest.testmod(soft_stability).failed == 0
