"""Softplus after the max-pool of a LeNet: the same numbers to the bit, a quarter of the work, if nobody looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

import gyrograd as gg
from gyrograd.attributions.layout import logits_of
from gyrograd.models.activations import with_activation
from gyrograd.numerics import cpu_layers
from gyrograd.numerics.cpu_layers import CpuLayers, pool_activations
from gyrograd.numerics.second_order import made_for_second_derivatives

ORDERED = [(2, 32, 32, 32), (2, 32, 32, 32), (2, 64, 16, 16), (2, 64, 16, 16), (2, 256)]
SWAPPED = [(2, 32, 32, 32), (2, 32, 16, 16), (2, 64, 16, 16), (2, 64, 8, 8), (2, 256)]
"""Shapes of the numbers that the five activations see, with the pools after the second and the fourth, and before."""


@pytest.fixture
def net() -> nn.Module:
    return with_activation(gg.model("lenet", seed=0), "softplus").eval().requires_grad_(False)


@pytest.fixture
def x() -> Tensor:
    return torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@contextmanager
def softplus_sees() -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the numbers that pass a Softplus in the block."""
    seen: list[tuple[int, ...]] = []
    of_ours = cpu_layers.softplus_on_cpu

    def noted(z: Tensor, *settings: Any, **more: Any) -> Tensor:
        seen.append(tuple(z.shape))
        return of_ours(z, *settings, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_layers, "softplus_on_cpu", noted)
        yield seen


class Recorder(TorchFunctionMode):
    """Sees every operation and changes none."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_softplus_sees_what_the_pool_leaves(net: nn.Module, x: Tensor) -> None:
    for run in (logits_of, gg.attribution("gradient"), gg.attribution("smoothgrad", draws=1)):
        with softplus_sees() as seen:
            run(net, x, *([] if run is logits_of else [torch.tensor([0, 1])]))
        assert seen[-5:] == SWAPPED


def watched_by_a_hook(net: Any, stack: ExitStack) -> None:
    stack.callback(net.act2.register_forward_hook(lambda *_: None).remove)
    stack.callback(net.pool2.register_full_backward_hook(lambda *_: None).remove)


def watched_by_a_global_hook(_: Any, stack: ExitStack) -> None:
    stack.callback(register_module_forward_hook(lambda *_: None).remove)


def watched_by_a_recorder(_: Any, stack: ExitStack) -> None:
    stack.enter_context(Recorder())


@pytest.mark.parametrize("watched", [watched_by_a_hook, watched_by_a_global_hook, watched_by_a_recorder])
def test_whoever_looks_sees_the_layers_in_their_order(
    net: nn.Module, x: Tensor, watched: Callable[[Any, ExitStack], None]
) -> None:
    with softplus_sees() as seen, CpuLayers(), ExitStack() as stack:
        watched(net, stack)
        net(x)
    assert seen == ORDERED


def test_methods_that_record_the_model_see_the_layers_in_their_order(net: nn.Module, x: Tensor) -> None:
    for name in ("lrp", "guided_backprop", "grad_cam"):
        with softplus_sees() as seen:
            gg.attribution(name)(net, x, torch.tensor([0, 1]))
        assert [shape[1:] for shape in seen[-5:]] == [shape[1:] for shape in ORDERED], name


class Own(nn.Softplus):
    """A user's layer may do anything in its `forward`."""


@pytest.mark.parametrize(
    ("activation", "pool", "dtype"),
    [
        (nn.Softplus(), nn.AvgPool2d(2), torch.float32),
        (nn.Softplus(), nn.MaxPool2d(2), torch.float64),
        (Own(), nn.MaxPool2d(2), torch.float32),
    ],
)
def test_other_layers_keep_their_order(activation: nn.Module, pool: nn.Module, dtype: torch.dtype) -> None:
    with softplus_sees() as seen, CpuLayers():
        pool_activations(torch.randn(1, 2, 4, 4, dtype=dtype), activation, pool)
    assert seen == [(1, 2, 4, 4)]


def test_an_activation_that_also_falls_keeps_its_place() -> None:
    z = torch.linspace(-3, 1, 16).view(1, 1, 4, 4)
    with CpuLayers():
        assert torch.equal(pool_activations(z, nn.SiLU(), nn.MaxPool2d(2)), nn.MaxPool2d(2)(nn.SiLU()(z)))


@pytest.mark.parametrize("beta", [1.0, 0.7, 20.0])
def test_values_and_both_derivatives_are_those_of_the_layers_in_their_order_to_the_bit(
    net: Any, x: Tensor, beta: float
) -> None:
    for layer in net.modules():
        if isinstance(layer, nn.Softplus):
            layer.beta = beta

    def derivatives() -> tuple[Tensor, ...]:
        leaf = x.contiguous(memory_format=torch.channels_last).requires_grad_()
        with made_for_second_derivatives(x):
            logits = net(leaf)
            (slope,) = torch.autograd.grad(logits[:, 3].sum(), leaf, create_graph=True)
        (once,) = torch.autograd.grad(logits[:, 3].sum(), leaf, retain_graph=True)
        (bend,) = torch.autograd.grad((slope * torch.linspace(1, 3, x.numel()).view_as(x)).sum(), leaf)
        return logits, slope, once, bend

    swapped = derivatives()
    with Recorder():
        ordered = derivatives()
    for one, other in zip(swapped, ordered, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("graph", [False, True])
def test_a_slope_in_the_plain_layout_takes_that_of_the_numbers(graph: bool) -> None:
    z = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    with CpuLayers():
        out = nn.functional.softplus(z)
    slope = torch.randn(2, 8, 4, 4)
    (once,) = torch.autograd.grad(out, z, slope, create_graph=graph)
    torch.testing.assert_close(once, slope * z.sigmoid())
    assert once.is_contiguous(memory_format=torch.channels_last)
