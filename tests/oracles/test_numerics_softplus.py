"""Softplus on a CPU against torch's own in double precision: values to the last digits, in any layout and position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.numerics import cpu_layers
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.softplus import NUMBERS_AT_ONCE, softplus_on_cpu

DIGITS = 1e-5
"""Largest relative error: ten times what was seen, which grows with |beta z| because exp does."""


@pytest.mark.parametrize("beta", [0.1, 1, 3.0, 50.0])
def test_values_have_all_their_digits_also_where_they_are_tiny(beta: float) -> None:
    z = torch.linspace(-60, 60, 20_001) / beta
    expected = F.softplus(z.double(), beta, 1000)
    error = (softplus_on_cpu(z, beta).double() - expected).abs() / expected
    assert float(error.max()) < DIGITS


@pytest.mark.parametrize("beta", [0.1, 1, 3.0, 50.0])
def test_values_at_the_bend_have_all_their_digits(beta: float) -> None:
    z = torch.linspace(-1, 1, 20_001) / beta
    expected = F.softplus(z.double(), beta, 1000)
    error = (softplus_on_cpu(z, beta).double() - expected).abs() / expected
    assert float(error.max()) < 4e-6  # ten times what was seen


@given(
    seed=st.integers(0, 99), beta=st.sampled_from([0.5, 1, 20.0]), scale=st.sampled_from([0.01, 1.0, 30.0])
)
def test_values_are_torchs_up_to_rounding(seed: int, beta: float, scale: float) -> None:
    z = scale * torch.randn(3, 7, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(softplus_on_cpu(z, beta), F.softplus(z, beta), rtol=DIGITS, atol=0)


def test_infinities_zeros_and_nan() -> None:
    z = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 3e38, -3e38])
    torch.testing.assert_close(softplus_on_cpu(z, 3), F.softplus(z, 3), equal_nan=True)
    assert softplus_on_cpu(torch.empty(0, 4)).shape == (0, 4)
    assert softplus_on_cpu(torch.tensor(1.0)).shape == ()


LAYOUTS = {
    "plain": lambda z: z,
    "channels last": lambda z: z.contiguous(memory_format=torch.channels_last),
    "transposed": lambda z: z.transpose(2, 3),
    "with gaps": lambda z: z[:, ::2, :, 1:],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_depends_on_neither_layout_nor_block(layout: str) -> None:
    """One row alone gives the bits that it gives among others, so batches can be split anywhere."""
    z = 4 * torch.randn(9, 16, 40, 33)
    assert z.numel() > NUMBERS_AT_ONCE
    z = LAYOUTS[layout](z)
    together = softplus_on_cpu(z, 3)
    assert together.stride() == F.softplus(z, 3).stride()
    for row in range(len(z)):
        alone = softplus_on_cpu(z[row : row + 1].clone(memory_format=torch.contiguous_format), 3)
        assert torch.equal(together[row : row + 1], alone)


def test_what_it_is_not_made_for_is_left_to_torch() -> None:
    z = torch.randn(50).requires_grad_()
    for other in (z.double(), z.half()):
        assert torch.equal(softplus_on_cpu(other, 2), F.softplus(other, 2))
        assert softplus_on_cpu(other, 2).grad_fn.name() == "SoftplusBackward0"
    assert torch.equal(softplus_on_cpu(3 * z, 1, 2), F.softplus(3 * z, 1, 2))  # linear above 2
    assert torch.equal(softplus_on_cpu(z, -1), F.softplus(z, -1))


@pytest.mark.parametrize("beta", [0.1, 1, 3.0, 50.0])
def test_values_in_bfloat16_are_the_nearest_ones(beta: float) -> None:
    """Up to a tenth of the distance to the next one, by which the polynomial is off before rounding."""
    z = (torch.linspace(-60, 60, 20_001) / beta).bfloat16()
    expected = F.softplus(z.double(), beta, 1000)
    error = (softplus_on_cpu(z, beta).double() - expected).abs() / expected
    assert float(error.max()) < 1.1 * 2**-8 + 1e-4  # 2**-8 is half the distance


@pytest.mark.parametrize("layout", LAYOUTS)
def test_derivatives_in_bfloat16_are_those_in_double_precision(layout: str) -> None:
    z = LAYOUTS[layout](2 * torch.randn(2, 6, 10, 10)).bfloat16()
    pair = z.clone().requires_grad_(), z.double().requires_grad_()
    out = softplus_on_cpu(pair[0], 3)
    assert out.dtype == torch.bfloat16
    found, expected = out, F.softplus(pair[1], 3)
    for _ in range(2):
        (found,) = torch.autograd.grad(found.square().sum(), pair[0], create_graph=True)
        (expected,) = torch.autograd.grad(expected.square().sum(), pair[1], create_graph=True)
        scale = float(expected.detach().abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.05 * scale)


@pytest.mark.parametrize("beta", [1, 3.0, 50.0])
def test_a_first_derivative_alone_is_torchs(beta: float) -> None:
    """Without a graph it takes another kernel than with one."""
    z = (torch.linspace(-30, 30, 2001) / beta).requires_grad_()
    expected = torch.autograd.grad(F.softplus(z.double(), beta, 1000).sum(), z)[0]
    for graph in (False, True):
        (found,) = torch.autograd.grad(softplus_on_cpu(z, beta).sum(), z, create_graph=graph)
        torch.testing.assert_close(found.detach(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("graph", [False, True])
def test_every_run_of_a_model_has_it(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(cpu_layers, "softplus_on_cpu", lambda *a: seen.append(a) or softplus_on_cpu(*a))
    z = torch.randn(4, 5)
    with CpuLayers(), torch.set_grad_enabled(graph):
        inside = [F.softplus(z.requires_grad_(graph), 2), torch.nn.Softplus(2)(z)]
    own = softplus_on_cpu(z.detach(), 2)
    assert all(torch.equal(one, own) for one in inside)
    assert not torch.equal(
        own, F.softplus(z.detach(), 2)
    )  # by a bit here and there: the test can tell them apart
    assert all(one.requires_grad is graph for one in inside)
    if graph:
        leaf = z.detach().double().requires_grad_()
        found, expected = inside[0].sin(), F.softplus(leaf, 2).sin()
        for _ in range(3):  # derivatives taken after the block
            (found,) = torch.autograd.grad(found.sum(), z, create_graph=True)
            (expected,) = torch.autograd.grad(expected.sum(), leaf, create_graph=True)
            scale = float(expected.detach().abs().max())
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5 * scale)
