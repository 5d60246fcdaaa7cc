"""The squares of the search without derivatives: where they lie, how large they are, and which of them are kept."""

from __future__ import annotations

import pytest
import torch

from gyrograd.attacks.loop import Box
from gyrograd.attacks.squares import _square, try_squares
from gyrograd.numerics.balls import ball
from gyrograd.numerics.random import keys

MANY, SIDE = 300, 20


def drawn(number: int, looks: int, height: int = SIDE, width: int = SIDE) -> torch.Tensor:
    return _square(torch.zeros(MANY, 3, height, width), keys(0, MANY), number, looks)


def places(squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First row and first column of each square."""
    inside = squares[:, 0] != 0
    return inside.any(2).int().argmax(1), inside.any(1).int().argmax(1)


@pytest.mark.parametrize(("number", "side"), [(0, 10), (1, 7), (2, 4), (3, 3), (4, 2)])
def test_sides_shrink_geometrically_from_half_of_the_image_to_a_tenth(number, side):
    inside = drawn(number, 5) != 0
    assert (inside.flatten(1).sum(1) == 3 * side**2).all()
    assert (inside.any(2).sum(2) == side).all()


def test_one_look_is_the_largest_and_small_images_get_a_pixel():
    assert ((drawn(0, 1) != 0).flatten(1).sum(1) == 3 * 10**2).all()
    assert ((drawn(1, 2) != 0).flatten(1).sum(1) == 3 * 2**2).all()
    assert ((drawn(4, 5, 4, 4) != 0).flatten(1).sum(1) == 3).all()


def test_every_place_of_the_image_is_reached_rows_and_columns_on_their_own():
    top, left = places(drawn(0, 5, height=13, width=15))  # 6 rows and columns
    assert set(top.tolist()) == set(range(13 - 6 + 1))
    assert set(left.tolist()) == set(range(15 - 6 + 1))
    assert len(set(zip(top.tolist(), left.tolist(), strict=True))) > 60


def test_channels_have_signs_of_their_own_that_do_not_hang_on_the_place():
    squares = drawn(0, 5)
    signs = squares.flatten(2).sum(2).sign()
    assert len({tuple(row) for row in signs.tolist()}) == 8
    assert ((squares == 0) | (squares.abs() == 1)).all()
    for place in places(squares):
        low = place < 5
        for half in (low, ~low):
            assert 0.3 < (signs[half, 0] > 0).double().mean() < 0.7


def test_looks_are_draws_of_their_own():
    tops = torch.stack([places(drawn(number, 50))[0] for number in range(3)])
    assert all(0 < (tops[a] == tops[b]).double().mean() < 0.5 for a, b in ((0, 1), (1, 2), (0, 2)))


def test_a_seed_has_the_squares_it_always_had_in_the_precision_of_the_images():
    squares = _square(torch.zeros(4, 3, SIDE, SIDE, dtype=torch.float64), keys(7, 4), 2, 5)
    top, left = places(squares)
    assert squares.dtype == torch.float64
    assert (top.tolist(), left.tolist()) == ([8, 10, 9, 1], [2, 13, 2, 14])
    assert squares.flatten(2).sum(2).sign().tolist() == [[1, -1, 1], [1, 1, -1], [-1, -1, 1], [-1, 1, 1]]


def test_the_next_square_begins_where_the_last_that_helped_ended():
    """Nothing helps the first image, and nothing keeps the label of the second: every try is one square away."""
    x, asked = torch.full((2, 1, SIDE, SIDE), 0.5), []

    def judge(z):
        asked.append(z)
        soft = torch.tensor([1.0, -float(len(asked))])
        return soft, soft, torch.tensor([True, False])

    try_squares(x, torch.zeros_like(x), ball("linf", 0.1), Box(), judge, keys(0, 2), 5)
    sizes = [(z != x).flatten(1).sum(1).tolist() for z in asked]
    assert sizes == [[0, 0], [100, 100], [49, 49], [16, 16], [9, 9], [4, 4]]


def test_a_square_reaches_the_other_end_of_the_ball_and_only_what_helps_stays():
    x, begin = torch.full((4, 1, 8, 8), 0.5), torch.full((4, 1, 8, 8), -0.1)
    asked = []

    def judge(z):
        asked.append(z)
        soft = -z.flatten(1).sum(1)
        return soft, soft, torch.tensor([True, True, True, False])

    found, lowest = try_squares(x, begin, ball("linf", 0.1), Box(), judge, keys(0, 4), 30)
    assert len(asked) == 31
    torch.testing.assert_close(found[:3].amax((1, 2, 3)), torch.full((3,), 0.1))
    torch.testing.assert_close(lowest[:3], -(x + found).flatten(1).sum(1)[:3])
    assert torch.equal(found[3], begin[3])
    assert lowest[3] == torch.inf
    # A square of the other sign would lower the sum: it was tried and not kept.
    assert (found[:3] >= begin[:3]).all()
    assert (found[:3].mean((1, 2, 3)) > -0.05).all()


def test_a_column_that_only_equals_the_lowest_does_not_replace_it():
    x = torch.full((2, 1, 8, 8), 0.5)
    soft = iter(range(100, 0, -1))

    def judge(z):
        return torch.full((2,), float(next(soft))), torch.ones(2), torch.ones(2, dtype=torch.bool)

    found, lowest = try_squares(x, torch.zeros_like(x), ball("linf", 0.1), Box(), judge, keys(0, 2), 5)
    assert torch.equal(found, torch.zeros_like(x))
    assert (lowest == 1).all()
