"""The checks of signatures that run beside every other test refuse what they are there for."""

from __future__ import annotations

import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError
from shape_checks import names_shapes

from gyrograd.numerics.normalization import ExactNormalization
from gyrograd.numerics.similarity import cosine
from gyrograd.registry import lookup


def test_shapes_that_differ_between_arguments_are_refused():
    with pytest.raises(TypeCheckError, match="cosine"):
        cosine(torch.rand(2, 3, 4, 4), torch.rand(3, 3, 4, 4))


def test_a_wrong_type_is_refused_where_no_shape_is_named():
    with pytest.raises(BeartypeCallHintViolation, match="lookup"):
        lookup("attribution", 3)


def test_only_functions_that_name_a_shape_pay_for_it():
    assert names_shapes(cosine)
    assert not names_shapes(lookup)
    assert not names_shapes(ExactNormalization.__torch_function__)
