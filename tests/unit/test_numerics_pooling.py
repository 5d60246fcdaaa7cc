"""Max-pooling by 2 x 2 on a CPU: torch's numbers to the bit, and everything else left to torch."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.pooling import max_pool_on_cpu, pair, windows_are_apart


def with_ties(*shape: int) -> Tensor:
    """Whole numbers from -3 to 3: every kind of tie occurs in some window."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).float()


def pooled_twice_differentiated(z: Tensor, fast: bool) -> tuple[Tensor, ...]:
    z = z.clone().requires_grad_()
    with CpuLayers() if fast else nullcontext():
        out = F.max_pool2d(z, 2)
    weights = torch.linspace(-1, 2, out.numel()).view_as(out)
    (slope,) = torch.autograd.grad((out.square() * weights).sum(), z, create_graph=True)
    (bend,) = torch.autograd.grad((slope * torch.linspace(1, 3, z.numel()).view_as(z)).sum(), z)
    return out, slope, bend


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_both_derivatives_are_those_of_torch_to_the_bit(
    dtype: torch.dtype, layout: torch.memory_format
) -> None:
    z = with_ties(3, 4, 6, 8).to(dtype).contiguous(memory_format=layout)
    for ours, theirs in zip(
        pooled_twice_differentiated(z, True), pooled_twice_differentiated(z, False), strict=True
    ):
        assert torch.equal(ours, theirs)
        assert ours.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("graph", [False, True])
def test_a_slope_goes_where_torch_sends_it(
    dtype: torch.dtype, layout: torch.memory_format, graph: bool
) -> None:
    """With and without a graph, which take other kernels; also a slope that comes in the plain layout."""
    z = with_ties(3, 4, 6, 8).to(dtype).contiguous(memory_format=layout).requires_grad_()
    slope = torch.linspace(-1, 2, 3 * 4 * 3 * 4).view(3, 4, 3, 4).to(dtype)
    with CpuLayers():
        out = F.max_pool2d(z, 2)
    (ours,) = torch.autograd.grad(out, z, slope, create_graph=graph)
    (theirs,) = torch.autograd.grad(F.max_pool2d(z, 2), z, slope)
    assert torch.equal(ours, theirs)
    assert ours.is_contiguous(memory_format=layout)


def test_windows_are_apart_unless_a_pixel_is_in_two() -> None:
    assert windows_are_apart(2)
    assert windows_are_apart(2, 3)
    assert windows_are_apart((2, 3), (2, 3))
    assert not windows_are_apart(3, 2)
    assert not windows_are_apart((2, 3), 2)
    assert not windows_are_apart(2, dilation=2)


def test_without_a_graph_only_values_are_made() -> None:
    z = with_ties(2, 3, 4, 4)
    assert torch.equal(max_pool_on_cpu(z, 2), F.max_pool2d(z, 2))
    with torch.no_grad():
        assert max_pool_on_cpu(z.requires_grad_(), 2).grad_fn is None


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((2, 3, 7, 8), {"kernel_size": 2}),
        ((2, 3, 8, 7), {"kernel_size": 2}),
        ((2, 3, 8, 8), {"kernel_size": 3, "stride": 2, "padding": 1}),
        ((2, 3, 8, 8), {"kernel_size": (2, 1)}),
        ((2, 3, 8, 8), {"kernel_size": 2, "stride": 1}),
        ((2, 3, 8, 8), {"kernel_size": 2, "dilation": 2}),
        ((3, 8, 8), {"kernel_size": [2]}),
    ],
)
def test_other_windows_are_left_to_torch(shape: tuple[int, ...], window: dict) -> None:
    z = with_ties(*shape)
    assert torch.equal(max_pool_on_cpu(z, **window), F.max_pool2d(z, **window))


def test_positions_are_returned_where_they_are_asked_for() -> None:
    z = with_ties(2, 3, 4, 4)
    for ours, theirs in zip(
        max_pool_on_cpu(z, 2, return_indices=True), F.max_pool2d(z, 2, return_indices=True), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_pair_is_one_number_twice_or_two_numbers() -> None:
    assert [pair(value) for value in (2, [3], (2, 1))] == [[2, 2], [3, 3], [2, 1]]
