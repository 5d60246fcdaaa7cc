"""Convolutions made for second derivatives against torch's own, to the third derivative."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.numerics.convolution import FastConvolutions


@settings(deadline=None, max_examples=40)
@given(
    dimensions=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_three_derivatives_are_those_of_torch(
    dimensions: int, stride: int, padding: int, dilation: int, groups: int, bias: bool, seed: int
) -> None:
    function = (F.conv1d, F.conv2d, F.conv3d)[dimensions - 1]
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    side = (5,) * dimensions
    given = [draw(2, 4, *side), draw(6, 4 // groups, *(2,) * dimensions), *([draw(6)] if bias else [])]
    along = [draw(*tensor.shape) for tensor in given]

    def derivatives() -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        out = function(
            *leaves,
            **({} if bias else {"bias": None}),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        value, found = out.sin().sum(), [out]
        for _ in range(3):
            slopes = torch.autograd.grad(value, leaves, create_graph=True)
            found.extend(slopes)
            value = sum(
                ((slope * v).sum() for slope, v in zip(slopes, along, strict=True)), start=out.new_zeros(())
            )
        return found

    expected = derivatives()
    with FastConvolutions():
        found = derivatives()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("train", [True, False])
def test_a_regularisers_weight_gradient_is_the_same(train: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # by torch's own layers first
    monkeypatch.setattr("gyrograd.numerics.autograd.made_for_second_derivatives", lambda _: ExitStack())
    model = gg.model("resnet20", activation="softplus", beta=3, seed=0, num_classes=4).double().train(train)
    x, y = torch.rand(3, 3, 16, 16, dtype=torch.float64), torch.arange(3)
    penalty = gg.regularizer("l2_cosine")
    expected = torch.autograd.grad(
        penalty(model, x, y, seed=1).sum(), list(model.parameters()), allow_unused=True
    )
    with FastConvolutions():
        total = penalty(model, x, y, seed=1).sum()
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-12)


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.masks: list[tuple[bool, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.convolution_backward.default:
            self.masks.append(tuple(args[-1]))
        return func(*args, **(kwargs or {}))


def test_an_input_gradient_computes_no_weight_gradient() -> None:
    x = torch.rand(2, 3, 6, 6, requires_grad=True)
    with FastConvolutions():
        out = nn.Conv2d(3, 4, 3)(x).tanh().sum()
    with Counting() as seen:
        torch.autograd.grad(out, x, create_graph=True)
    assert seen.masks == [(True, False, False)]


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_word_and_unbatched_images_are_left_to_torch(padding: str) -> None:
    x, weight = torch.rand(3, 6, 6), torch.rand(4, 3, 3, 3, requires_grad=True)
    expected = F.conv2d(x, weight, padding=padding)
    with FastConvolutions():
        torch.testing.assert_close(F.conv2d(x, weight, padding=padding), expected)
        torch.testing.assert_close(F.conv2d(x[None], weight, padding=padding)[0], expected)
        with torch.no_grad():
            assert not F.conv2d(x[None], weight).requires_grad


def test_every_derivative_has_the_layout_of_the_input() -> None:
    """Even if the slope comes in the plain layout, as it does from a flattened image."""
    x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
    with FastConvolutions(held_only=True):
        out = F.conv2d(x, torch.randn(5, 3, 3, 3))
    plain = torch.ones(out.shape).requires_grad_()
    (slope,) = torch.autograd.grad(out, x, plain, create_graph=True)
    (bend,) = torch.autograd.grad(slope, plain, torch.ones(x.shape))
    for one in (out, slope, bend):
        assert one.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("biased", [True, False])
def test_values_and_derivatives_with_held_weights_are_those_of_torch(biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((2, 3, 6, 6), (5, 3, 3, 3), (5,))
    )

    def derivatives() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        out = F.conv2d(leaf, weight, bias if biased else None, padding=1)
        (slope,) = torch.autograd.grad(out.sin().sum(), leaf, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sin().sum(), leaf)
        return [out, slope, bend]

    expected = derivatives()
    with FastConvolutions(held_only=True):
        found = derivatives()
    assert found[0].grad_fn.name() == "_ConvolutionBackward"
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
