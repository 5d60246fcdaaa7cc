"""Softplus, batch normalisation and max-pools made for second derivatives against torch's own, to the third."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import gyrograd as gg
from gyrograd.numerics import second_order
from gyrograd.numerics.autograd import hessian_vector_product, input_gradient
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.second_order import (
    SecondOrder,
    all_layers,
    made_for_second_derivatives,
    missing_derivatives,
)
from gyrograd.numerics.softplus import bent


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def derivatives(layer: Callable[..., Tensor], given: list[Tensor], order: int = 3) -> list[Tensor]:
    """The value and the derivatives of this and lower orders, each along a fixed direction of the one before."""
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    out = layer(*leaves)
    value, found = out.sin().sum(), [out]
    for i in range(order):
        slopes = torch.autograd.grad(value, leaves, create_graph=True)
        found.extend(slopes)
        value = sum(((slope * draw(90 + i, *slope.shape)).sum() for slope in slopes), start=out.new_zeros(()))
    return found


def assert_same(layer: Callable[..., Tensor], given: list[Tensor]) -> None:
    expected = derivatives(layer, given)
    with SecondOrder():
        found = derivatives(layer, given)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=30)
@given(beta=st.sampled_from([1, 3.0, 20.0]), threshold=st.sampled_from([2, 20]), seed=st.integers(0, 99))
def test_softplus(beta: float, threshold: float, seed: int) -> None:
    assert_same(lambda z: F.softplus(z, beta, threshold), [draw(seed, 2, 5)])


@pytest.mark.parametrize("beta", [1, 3.0, 20.0])
def test_softplus_on_a_cpu_in_single_precision(beta: float) -> None:
    """Values and three derivatives, and the second one without a graph, against torch's own in double precision."""
    z, v = 4 * draw(0, 3, 40), draw(1, 3, 40)

    def layer(z: Tensor) -> Tensor:
        return F.softplus(z, beta)

    def curved(z: Tensor) -> Tensor:
        leaf = z.clone().requires_grad_()
        slope = torch.autograd.grad(layer(leaf).sin().sum(), leaf, create_graph=True)[0]
        return torch.autograd.grad((slope * v.to(z)).sum(), leaf)[0]

    expected = [*derivatives(layer, [z]), curved(z)]
    with made_for_second_derivatives(torch.zeros(1)):
        found = [*derivatives(layer, [z.float()]), curved(z.float())]
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5 * float(other.detach().abs().max()))


@settings(deadline=None, max_examples=30)
@given(weighted=st.booleans(), sides=st.integers(0, 3), seed=st.integers(0, 99))
def test_batch_normalisation_by_running_statistics(weighted: bool, sides: int, seed: int) -> None:
    mean, variance = draw(seed, 4), draw(seed + 1, 4).square()
    weights = [draw(seed + 2, 4), draw(seed + 3, 4)] if weighted else []
    assert_same(
        lambda z, *affine: F.batch_norm(z, mean, variance, *affine, eps=1e-3),
        [draw(seed + 4, 3, 4, *(3,) * sides), *weights],
    )


def test_batch_normalisation_by_the_batch_is_left_to_torch() -> None:
    mean, variance, z = torch.zeros(4), torch.ones(4), torch.rand(3, 4, 5, requires_grad=True)
    with SecondOrder():
        F.batch_norm(z, mean, variance, training=True)
        assert bool((mean != 0).all())  # the running statistics moved
        torch.testing.assert_close(F.batch_norm(z, None, None, training=True).mean((0, 2)), torch.zeros(4))


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 3),
    stride=st.sampled_from([None, 1, 2, 3]),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    ceil=st.booleans(),
    seed=st.integers(0, 99),
)
def test_max_pools_overlapping_or_not(
    size: int, stride: int | None, padding: int, dilation: int, ceil: bool, seed: int
) -> None:
    padding = min(padding, size // 2)
    assert_same(
        lambda z: F.max_pool2d(z, size, stride, padding, dilation, ceil_mode=ceil), [draw(seed, 2, 3, 7, 7)]
    )


@pytest.mark.parametrize("size", [(3, 2), (2, 3)])
def test_a_max_pool_whose_windows_overlap_along_one_side_only(size: tuple[int, int]) -> None:
    assert_same(lambda z: F.max_pool2d(z, size, stride=2), [draw(1, 2, 3, 7, 7)])


def test_a_max_pool_in_channels_last_is_the_same() -> None:
    z = draw(0, 2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert_same(lambda z: F.max_pool2d(z, 2), [z])


def test_what_has_no_graph_and_what_asks_for_indices_is_left_to_torch() -> None:
    z = torch.rand(2, 3, 4, 4, requires_grad=True)
    with SecondOrder():
        value, places = F.max_pool2d(z, 2, return_indices=True)
        assert (places.shape, places.dtype) == (value.shape, torch.int64)
        with torch.no_grad():
            assert not F.softplus(z).requires_grad
        assert not F.softplus(z.detach()).requires_grad


def test_the_written_out_bend_is_the_derivative_of_the_slope() -> None:
    z, slope, v = draw(0, 6).requires_grad_(), draw(1, 6), draw(2, 6)
    first = torch.ops.aten.softplus_backward(slope, z, 3.0, 20.0)
    (expected,) = torch.autograd.grad(first, z, v)
    torch.testing.assert_close(bent(z.detach(), slope, v, 3.0, 20.0), expected)


@pytest.mark.parametrize("name", ["lenet", "resnet20"])
@pytest.mark.parametrize("attribution", ["gradient", "guided_backprop", "lrp"])
def test_a_maps_derivative_is_the_same(name: str, attribution: str) -> None:
    more = {"image_size": 16} if name == "lenet" else {}
    model = gg.model(name, activation="softplus", beta=3, seed=0, num_classes=4, **more).double().eval()
    x, y = torch.rand(3, 3, 16, 16, dtype=torch.float64), torch.arange(3)

    def slope() -> Tensor:
        leaf = x.clone().requires_grad_()
        map = gg.attribution(attribution)(model, leaf, y, create_graph=True)
        return torch.autograd.grad(map.sin().sum(), leaf)[0]

    expected = slope()
    with SecondOrder():
        torch.testing.assert_close(slope(), expected, rtol=1e-8, atol=1e-12)


def test_on_a_cpu_torchs_own_layers_stay_but_for_those_that_pay() -> None:
    """Those are frozen convolutions, batch normalisation by running statistics, Softplus and max-pooling by 2."""
    held = torch.ones(3, 3, 1, 1)
    trained = held.clone().requires_grad_()
    with made_for_second_derivatives(torch.zeros(1)):
        z = torch.rand(2, 3, 4, 4, requires_grad=True)
        own = (F.softplus(z.double()), F.max_pool2d(z, 3), F.conv2d(z, trained), F.conv2d(z, weight=trained))
        ours = (
            F.conv2d(z, held),
            F.conv2d(z, weight=held),
            F.batch_norm(z, torch.zeros(3), torch.ones(3)),
            F.softplus(z),
            F.max_pool2d(z, 2),
        )
    kinds = [
        "SoftplusBackward0",
        "MaxPool2DWithIndicesBackward0",
        "ConvolutionBackward0",
        "ConvolutionBackward0",
    ]
    assert [layer.grad_fn.name() for layer in own] == kinds
    assert [layer.grad_fn.name() for layer in ours] == [
        *["_ConvolutionBackward"] * 2, "AddcmulBackward0", "_GatedSoftplusBackward", "_MaxPoolBackward",
    ]  # fmt: skip
    assert F.softplus in second_order._LAYERS


def test_layers_called_with_names_for_their_arguments_are_left_to_torch() -> None:
    z, weight = torch.rand(2, 3, 4, 4, requires_grad=True), torch.ones(3, 3, 1, 1)
    with made_for_second_derivatives(z):
        convolved = F.conv2d(input=z, weight=weight)
        normed = F.batch_norm(input=z, running_mean=torch.zeros(3), running_var=torch.ones(3))
    torch.testing.assert_close(convolved, F.conv2d(z, weight))
    torch.testing.assert_close(normed, F.batch_norm(z, torch.zeros(3), torch.ones(3)))


class Convolutions(TorchDispatchMode):
    """How many convolutions are carried out, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += "convolution" in str(func)
        return func(*args, **(kwargs or {}))


def test_on_a_cpu_the_second_derivative_of_a_depthwise_convolution_does_not_go_group_by_group() -> None:
    net = nn.Sequential(nn.Conv2d(32, 32, 3, groups=32), nn.Tanh()).requires_grad_(False)
    x = torch.rand(1, 32, 8, 8)
    with Convolutions() as seen:
        hessian_vector_product(lambda z: net(z).flatten(1).sum(1), x, torch.ones_like(x))
    assert seen.count <= 5  # there and back, and both once more


class Precisions(TorchDispatchMode):
    """The dtypes of the tensors in each convolution, forward and backward: CUDA's refuse a mixture."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[torch.dtype]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "convolution" in str(func):
            self.seen.append({a.dtype for a in args if isinstance(a, Tensor)})
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["lenet", "residual", "vgg"])
def test_under_autocast_every_convolution_is_in_its_precision(name):
    # bfloat16 training with an attack inside: torch casts for its own functions alone
    model, (x, y) = net(name).float(), batch(4)
    x = x.float().requires_grad_()
    with Precisions() as precisions:
        with all_layers(), torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        rough = torch.autograd.grad(loss, (x, *model.parameters()))
    assert precisions.seen
    assert all(seen == {torch.bfloat16} for seen in precisions.seen)
    exact = torch.autograd.grad(F.cross_entropy(model(x), y), (x, *model.parameters()))
    for mine, its in zip(rough, exact, strict=True):
        assert mine.dtype == torch.float32
        assert F.cosine_similarity(mine.flatten(), its.flatten(), dim=0) > 0.98 or its.norm() < 1e-6


ACTIVATIONS = {
    "hardsigmoid": nn.Hardsigmoid, "hardswish": nn.Hardswish, "hardtanh": nn.Hardtanh, "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "rrelu": nn.RReLU, "elu": nn.ELU, "celu": nn.CELU, "selu": nn.SELU,
    "mish": nn.Mish, "gelu": nn.GELU, "gelu_tanh": lambda: nn.GELU("tanh"), "silu": nn.SiLU,
    "log_sigmoid": nn.LogSigmoid, "softsign": nn.Softsign, "softshrink": nn.Softshrink, "hardshrink": nn.Hardshrink,
    "tanhshrink": nn.Tanhshrink, "threshold": lambda: nn.Threshold(0.1, 0.1), "glu": lambda: nn.GLU(1),
    "softplus": lambda: nn.Softplus(3),
    **{
        f"{kind.__name__} in place": lambda kind=kind: kind(inplace=True)
        for kind in (
            nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU,
            nn.Mish, nn.SiLU,
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_has_its_second_derivative(name):
    """Against central differences of the first, between the kinks."""
    module = ACTIVATIONS[name]().double().eval()
    x = torch.linspace(-5, 5, 36, dtype=torch.float64).view(6, 6) + 0.0137
    generator = torch.Generator().manual_seed(0)
    weights, v = (torch.randn(6, 6, generator=generator, dtype=torch.float64) for _ in range(2))

    def f(z):
        out = module(z * 1.0)
        return (out * weights[:, : out.shape[1]]).sum(1)

    # What is put in its place has torch's value and slope; torch's own Hardsigmoid rounds 1/6 to single precision.
    with made_for_second_derivatives(x):
        torch.testing.assert_close(f(x.clone().requires_grad_()), f(x), rtol=1e-9, atol=1e-12)
    slope = input_gradient(f, x, create_graph=True)
    torch.testing.assert_close(slope, input_gradient(f, x), rtol=0, atol=1e-6, check_stride=False)
    exact = hessian_vector_product(f, x, v)
    apart = (input_gradient(f, x + 1e-6 * v) - input_gradient(f, x - 1e-6 * v)) / 2e-6
    torch.testing.assert_close(exact, apart, rtol=0, atol=1e-7)
    with all_layers():
        torch.testing.assert_close(hessian_vector_product(f, x, v), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gradient", "input_x_gradient", "guided_backprop", "lrp"])
def test_maps_of_a_net_with_hardsigmoid_can_be_differentiated(name):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.SiLU(),
        nn.Conv2d(4, 4, 1),
        nn.Hardsigmoid(inplace=True),
        nn.Flatten(),
        nn.Linear(64, 3),
    ).double()
    x, v = (torch.rand(2, 3, 6, 6, dtype=torch.float64) for _ in range(2))
    explain, target = gg.attribution(name), torch.tensor([0, 2])
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(explain(model, leaf, target, create_graph=True).square().sum(), leaf)
    ends = [explain(model, x + step * v, target).square().sum() for step in (1e-6, -1e-6)]
    assert float((slope * v).sum()) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_under_autocast_softplus_is_as_precise_as_torchs_own(dtype):
    """Of CUDA: torch takes Softplus in float32 there, and leaves float64 alone."""
    z = torch.linspace(-3, 3, 7, dtype=dtype, requires_grad=True)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    with SecondOrder():
        assert F.softplus(z).dtype == dtype
        with torch.autocast("cpu", torch.bfloat16):
            out = F.softplus(z)
    assert out.dtype == expected
    torch.testing.assert_close(out, F.softplus(z.to(expected)), rtol=1e-5, atol=1e-6)


def test_a_normalised_vector_of_zeros_has_a_second_derivative():
    """Beside one, all others have theirs; torch's own is NaN."""
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(4, 3, dtype=torch.float64, generator=draw) for _ in range(2))
    x[1] = 0
    weight.requires_grad_()

    def slope(rows: Tensor) -> Tensor:
        leaf = rows.clone().requires_grad_()
        unit = F.normalize(F.linear(leaf, weight), dim=1)
        (first,) = torch.autograd.grad(unit.cumsum(1).pow(3).sum(), leaf, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    expected = slope(x[[0, 2, 3]])
    with made_for_second_derivatives(x):
        torch.testing.assert_close(slope(x), expected)
        torch.testing.assert_close(slope(x[[0, 2, 3]]), expected)


def test_other_norms_and_a_given_place_are_left_to_torch():
    z, place = draw(0, 3, 4), torch.empty(3, 4, dtype=torch.float64)
    expected = F.normalize(z, p=1.0)
    with made_for_second_derivatives(z):
        torch.testing.assert_close(F.normalize(z, p=1.0), expected)
        assert F.normalize(z, out=place) is place


def test_an_activation_changes_its_input_only_when_told_to():
    z = draw(0, 5).requires_grad_()
    before = z.detach().clone()
    with made_for_second_derivatives(z):
        F.hardsigmoid(z)
        assert torch.equal(z, before)
        moved = z * 1
        F.hardsigmoid(moved, inplace=True)
    torch.testing.assert_close(moved, F.hardsigmoid(before))


def test_layers_that_are_open_are_not_opened_again():
    """Each open mode sees every operation; equal ones in a gradient inside a gradient add nothing."""
    x = torch.rand(1, 3, 8, 8)

    def depth() -> int:
        return len(torch.overrides._get_current_function_mode_stack())

    with made_for_second_derivatives(x):
        once = depth()
        with made_for_second_derivatives(x), CpuLayers():
            assert depth() == once
        assert depth() == once
        with CpuLayers(held=True):  # replaces more
            assert depth() == once + 1
            with CpuLayers():
                assert depth() == once + 1
        with missing_derivatives():  # other layers
            assert depth() == once + 1
    assert depth() == 0


def test_a_mode_that_two_threads_open_at_once_is_closed_in_each():
    """Backward of a checkpointed part opens the modes of its forward pass in the thread that calls it."""
    mode, opened, closed = CpuLayers(), threading.Event(), threading.Event()

    def depth() -> int:
        return len(torch.overrides._get_current_function_mode_stack())

    def inside_of_an_equal_one() -> list[int]:
        with CpuLayers():
            with mode:
                opened.set()
                closed.wait(10)
            left = [depth()]
        return [*left, depth()]

    with ThreadPoolExecutor(1) as other:
        with mode:
            there = other.submit(inside_of_an_equal_one)
            opened.wait(10)
        here = depth()
        closed.set()
        assert (here, there.result()) == (0, [1, 0])
