"""Lengths of map differences: right at every scale, whichever way they are taken."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyrograd.metrics.stability import _lengths


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(
        st.lists(st.floats(-10, 10, width=32, allow_subnormal=False), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    power=st.integers(-30, 30),
)
def test_equals_the_length_in_double_precision_at_every_scale(rows: list[list[float]], power: int) -> None:
    gap = torch.tensor(rows, dtype=torch.float32) * 10.0**power
    expected = gap.double().norm(dim=1)
    torch.testing.assert_close(_lengths(gap[:, None]).double()[:, 0], expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("value", [1e-30, 1e-20, 1.0, 1e25])
def test_a_row_of_another_scale_does_not_change_its_neighbours(value: float) -> None:
    gap = torch.full((2, 3, 4), 1.0)
    gap[1, 2] = value
    found = _lengths(gap)
    assert found[1, 2].item() == pytest.approx(2 * value, rel=1e-5)
    assert found.flatten()[:5].tolist() == [2.0] * 5


def test_no_gap_has_no_length_and_nan_stays_nan() -> None:
    gap = torch.tensor([[[0.0, 0.0], [math.nan, 1.0]]])
    assert _lengths(gap)[0, 0] == 0
    assert _lengths(gap)[0, 1].isnan()
