"""The checks of signatures that run beside every other test refuse what they are there for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation, BeartypeDoorHintViolation
from jaxtyping import Float
from shape_checks import checked
from torch import Tensor

from gyrograd.numerics.similarity import cosine
from gyrograd.registry import lookup


def test_shapes_that_differ_between_arguments_are_refused():
    with pytest.raises(BeartypeCallHintViolation, match="cosine"):
        cosine(torch.rand(2, 3, 4, 4), torch.rand(3, 3, 4, 4))


def test_a_wrong_type_is_refused_where_no_shape_is_named():
    with pytest.raises(BeartypeCallHintViolation, match="lookup"):
        lookup("attribution", 3)


@checked
def halves(x: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    return x[:, ::2]


def test_a_result_of_another_shape_than_the_argument_is_refused():
    with pytest.raises(BeartypeCallHintViolation, match="halves"):
        halves(torch.rand(2, 4))


def test_a_function_inside_a_function_is_checked_in_every_argument_and_its_result():
    @checked
    def inner(x: Float[Tensor, "b n"], *more: Float[Tensor, "b n"], n: int = 2) -> Float[Tensor, "n b"]:
        return x if n == 3 else x.T

    a, b = torch.rand(2, 4), torch.rand(3, 4)
    inner(a, a, n=2)
    for wrong in (lambda: inner(a, b), lambda: inner(a, n="2"), lambda: inner(a, n=3), lambda: inner("a")):
        with pytest.raises(BeartypeDoorHintViolation, match="inner"):
            wrong()


@checked
def rows_of(x: Float[Tensor, "b n"], y: Float[Tensor, "b n"]) -> Iterator[Tensor]:
    yield from x + y


@checked
def sum_of_rows(x: Float[Tensor, "b n"]) -> Float[Tensor, " n"]:
    return sum(rows_of(x[1:], x[1:]))


def test_a_generator_has_sizes_of_its_own():
    sum_of_rows(torch.rand(3, 4))
    with pytest.raises(BeartypeDoorHintViolation, match="rows_of"):
        rows_of(torch.rand(3, 4), torch.rand(2, 4))


class Early:
    @checked
    def same(self, other: Later) -> Later:
        return other


def test_a_class_that_is_named_before_it_stands_is_checked_later():
    assert Early().same(later := Later(1)) is later
    with pytest.raises(BeartypeDoorHintViolation, match="same"):
        Early().same(1)


@checked
@dataclass
class Later:
    n: int


def test_a_data_class_is_checked_when_it_is_made():
    with pytest.raises(BeartypeCallHintViolation, match="Later"):
        Later("1")
