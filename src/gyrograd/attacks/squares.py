"""A search without derivatives: try random squares and keep those that help (after Andriushchenko et al. 2020)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gyrograd.attacks.loop import Box, where_rows
from gyrograd.numerics.balls import Ball
from gyrograd.numerics.random import Keys, integers, signs
from gyrograd.types import Flags, Images, PerExample

Evaluation = tuple[PerExample, PerExample, Flags]
"""Stand-in, column and "label kept" of perturbed images."""

STREAM = 1 << 33
"""Random stream of the squares, distinct from those of starts and noise."""
LARGEST, SMALLEST = 0.5, 0.1
"""Side of the first and the last square, as a share of the image's side."""


def try_squares(
    x: Images,
    begin: Images,
    ball: Ball,
    box: Box,
    judge: Callable[[Tensor], Evaluation],
    keys: Keys,
    looks: int,
) -> tuple[Images, PerExample]:
    """The perturbation with the lowest column among those that keep the label, and its value.

    A square of pixels is set to one end of the ball per channel. It is kept if the stand-in falls, which also
    distinguishes points with an equal column, since that is a count. Squares shrink with each try.
    """
    delta = begin
    soft, value, kept = judge(x + delta)
    found, lowest = delta, torch.where(kept, value, math.inf)
    for number in range(looks):
        tried = box.cut(x, ball.project(delta + 2 * float(ball.eps) * _square(x, keys, number, looks)))
        soft_there, value_there, kept = judge(x + tried)
        found = where_rows(kept & (value_there < lowest), tried, found)
        lowest = torch.where(kept & (value_there < lowest), value_there, lowest)
        better = kept & (soft_there < soft)
        delta, soft = where_rows(better, tried, delta), torch.where(better, soft_there, soft)
    return found, lowest


def _square(x: Images, keys: Keys, number: int, looks: int) -> Images:
    """1 or -1 per channel inside a square at a random position, 0 outside."""
    _, c, h, w = x.shape
    share = LARGEST * (SMALLEST / LARGEST) ** (number / max(1, looks - 1))
    side = max(1, round(share * min(h, w)))
    stream = STREAM + 4 * number
    top = integers(keys, (1,), h - side + 1, stream=stream).view(-1, 1, 1, 1)
    left = integers(keys, (1,), w - side + 1, stream=stream + 1).view(-1, 1, 1, 1)
    rows = torch.arange(h, device=x.device).view(1, 1, h, 1)
    columns = torch.arange(w, device=x.device).view(1, 1, 1, w)
    inside = (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)
    ends = signs(keys, (c,), stream=stream + 2, dtype=x.dtype).view(-1, c, 1, 1)
    return torch.where(inside, ends, torch.zeros_like(ends))
