"""Maps: literal reductions and scales, ties, zero maps, gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.maps import (
    NORMALIZATIONS,
    REDUCTIONS,
    frame_target,
    mass_center,
    normalize,
    reduce,
    top_k_mask,
)


def maps(b: int = 2, c: int = 3, h: int = 4, w: int = 5) -> Tensor:
    return random.normal(random.keys(0, b), (c, h, w), dtype=torch.float64)


LITERAL_REDUCTIONS = {
    "abs_sum": lambda v: sum(abs(a) for a in v),
    "sum": sum,
    "sum_abs": lambda v: abs(sum(v)),
    "max_abs": lambda v: max(abs(a) for a in v),
    "mean": lambda v: sum(v) / len(v),
    "l2": lambda v: sum(a * a for a in v) ** 0.5,
}
SCALES = {
    "max": lambda v, pixels: max(abs(a) for a in v),
    "sum": lambda v, pixels: sum(abs(a) for a in v),
    "area": lambda v, pixels: sum(abs(a) for a in v) / pixels,
    "l2": lambda v, pixels: sum(a * a for a in v) ** 0.5,
    "none": lambda v, pixels: 1.0,
}


def test_every_name_has_its_literal_twin():
    assert set(LITERAL_REDUCTIONS) == set(REDUCTIONS)
    assert set(SCALES) == set(NORMALIZATIONS)


@pytest.mark.parametrize("how", REDUCTIONS)
def test_reduction_is_that_of_the_loops(how: str):
    map = maps()
    fast = reduce(map, how)
    for i, row, column in np.ndindex(2, 4, 5):
        slow = LITERAL_REDUCTIONS[how](map[i, :, row, column].tolist())
        assert fast[i, row, column].item() == pytest.approx(slow, rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("how", NORMALIZATIONS)
@pytest.mark.parametrize("channels", [True, False])
def test_scale_is_that_of_the_loops(how: str, channels: bool):
    map = maps() if channels else maps()[:, 0]
    fast = normalize(map, how)
    for i in range(len(map)):
        slow = map[i] / SCALES[how](map[i].flatten().tolist(), 20)
        torch.testing.assert_close(fast[i], slow, rtol=1e-10, atol=0)


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_normal_maps_of_vectors_are_possible_where_no_area_is_needed(how: str):
    vectors = maps()[:, 0, 0]
    if how == "area":
        with pytest.raises(UserError, match="'area' needs maps with height and width"):
            normalize(vectors, how)
    else:
        assert normalize(vectors, how).shape == vectors.shape


@pytest.mark.parametrize(
    "function",
    [
        *(lambda m, how=how: reduce(m, how) for how in REDUCTIONS),
        *(lambda m, how=how: normalize(m, how) for how in NORMALIZATIONS),
        mass_center,
    ],
)
def test_gradients_are_exact_twice_and_finite_at_zero(function):
    map = maps(2, 2, 3, 3).requires_grad_()
    assert torch.autograd.gradcheck(function, map)
    assert torch.autograd.gradgradcheck(function, map)
    zero = torch.zeros_like(map, requires_grad=True)
    value = function(zero)
    (slope,) = torch.autograd.grad(value.square().sum() + value.sum(), zero, create_graph=True)
    assert value.isfinite().all()
    assert slope.isfinite().all()
    if slope.requires_grad:
        (second,) = torch.autograd.grad(slope.square().sum(), zero, allow_unused=True)
        assert second is None or second.isfinite().all()


@pytest.mark.parametrize("how", NORMALIZATIONS)
def test_a_zero_map_stays_zero_beside_another(how: str):
    map = maps()
    map[0] = 0
    result = normalize(map, how)
    assert result[0].eq(0).all()
    assert result[1].ne(0).any()


@pytest.mark.parametrize("how", ["max", "sum", "area", "l2"])
@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_scale_of_the_map_does_not_matter_even_if_its_squares_leave_the_range(how: str, factor: float):
    map = maps().float()
    torch.testing.assert_close(normalize(map * factor, how), normalize(map, how), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(mass_center(map * factor), mass_center(map), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(reduce(map * factor, "l2") / factor, reduce(map, "l2"), rtol=1e-5, atol=1e-6)


small_values = npst.arrays(np.float32, (2, 3, 4), elements=st.sampled_from([-1.0, 0.0, 0.5, 2.0]))


@given(values=small_values, k=st.integers(1, 12))
def test_top_k_takes_the_largest_and_among_equals_the_first(values: np.ndarray, k: int):
    mask = top_k_mask(torch.from_numpy(values), k)
    for row, chosen in zip(values.reshape(2, -1), mask.flatten(1), strict=True):
        order = sorted(range(12), key=lambda i: (-row[i], i))
        assert set(chosen.nonzero().flatten().tolist()) == set(order[:k])


def test_top_k_counts_what_is_not_a_number_as_the_largest():
    values = torch.tensor([[1.0, torch.nan, 3.0, 2.0], [4.0, 3.0, 2.0, 1.0]])
    expected = [[False, True, True, False], [True, True, False, False]]
    assert top_k_mask(values, 2).tolist() == expected


@pytest.mark.parametrize("k", [0, 21, -1])
def test_top_k_out_of_range_is_refused(k: int):
    with pytest.raises(UserError, match="give k from 1 to 20"):
        top_k_mask(maps()[:, 0], k)


def test_mass_center_is_that_of_the_loops():
    map = maps()
    fast = mass_center(map)
    for i in range(len(map)):
        total = row_sum = column_sum = 0.0
        for channel, row, column in np.ndindex(3, 4, 5):
            mass = abs(map[i, channel, row, column].item())
            total, row_sum, column_sum = total + mass, row_sum + mass * row, column_sum + mass * column
        assert fast[i].tolist() == pytest.approx([row_sum / total, column_sum / total], rel=1e-10)
    torch.testing.assert_close(mass_center(map[:, 1]), mass_center(map[:, 1:2]))


def test_mass_center_of_a_point_is_the_point_and_of_nothing_the_middle():
    map = torch.zeros(2, 4, 5)
    map[0, 3, 1] = -7.0
    assert mass_center(map).tolist() == [[3, 1], [1.5, 2]]


@pytest.mark.parametrize(("side", "width"), [(32, 5), (224, 35), (64, 10), (2, 1), (28, 4), (30, 5)])
def test_the_frame_is_five_of_thirty_two_wide(side: int, width: int):
    frame = frame_target(side, side)
    assert frame[:width].eq(1).all()
    assert frame[:, -width:].eq(1).all()
    assert frame.sum().item() == side**2 - (side - 2 * width) ** 2


def test_the_frame_of_an_oblong_goes_by_its_shorter_side():
    assert frame_target(4, 6, 1).tolist() == [[1] * 6, [1, 0, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1], [1] * 6]
    assert frame_target(32, 100)[16].sum() == 10


@pytest.mark.parametrize("width", [0, 17])
def test_a_frame_that_does_not_fit_is_refused(width: int):
    with pytest.raises(UserError, match="give a width from 1 to 16"):
        frame_target(32, 40, width)
    with pytest.raises(UserError, match="No frame fits 1 x 5 pixels"):
        frame_target(1, 5)


@pytest.mark.parametrize(("call", "near"), [(reduce, "abs_sum"), (normalize, "max")])
def test_unknown_names_are_answered_with_the_nearest(call, near: str):
    with pytest.raises(UserError, match=f"did you mean '{near}'"):
        call(maps(), near + "s")
