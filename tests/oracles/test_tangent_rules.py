"""Every rule of the tangent table over shapes and aliasing, against differentiating a gradient: equal, or a refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.numerics.tangents import _RULES, joint_pass
from gyrograd.training.objective import Objective, Term

sizes = st.integers(1, 6)


class Around(nn.Module):
    """A layer that bends, the operation, another layer that bends; b x channels x 2 x side in between."""

    def __init__(
        self, operation: Callable[[Around, Tensor], Tensor], channels: int, side: int, out: int
    ) -> None:
        super().__init__()
        self.operation = operation
        self.channels, self.side, self.out = channels, side, out
        self.before = nn.Linear(6, channels * 2 * side)
        self.linear = nn.Linear(side, out)
        self.conv = nn.ModuleList(kind(channels, out, 1) for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        self.norm = nn.BatchNorm2d(channels)
        self.shift = nn.Parameter(torch.randn(channels, 2, side))
        self.after = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.softplus(self.before(x.flatten(1))).view(len(x), self.channels, 2, self.side)
        z = self.operation(self, z)
        return self.after(F.softplus(z.flatten(1)))


def relu_in_place_and_both_used(net: Around, z: Tensor) -> Tensor:
    h = z - 0.7
    g = F.relu(h, inplace=True)
    return h + 2.0 * g


def activations_in_place_in_a_row(net: Around, z: Tensor) -> Tensor:
    h = z - 0.7
    F.relu(h, inplace=True)
    g = h - 0.2
    F.elu(g, inplace=True)
    return h + g


def view_read_after_in_place(net: Around, z: Tensor) -> Tensor:
    h = z - 0.7
    view = h[:, :, :1]
    F.relu(h, inplace=True)
    return torch.cat([view, h], dim=2)


def part_written_in_place(net: Around, z: Tensor) -> Tensor:
    h = z - 0.7
    F.relu(h[:, :, 1:], inplace=True)
    return h * 1.5


def sum_in_place_of_an_alias(net: Around, z: Tensor) -> Tensor:
    h = z * 0.5
    same = h
    h += 1.0
    h += z
    h.add_(0.25)
    return same + h


OPERATIONS: dict[str, Callable[[Around, Tensor], Tensor]] = {
    "linear": lambda net, z: net.linear(z),
    "linear on tokens": lambda net, z: net.linear(z[:, :, 0]),
    "linear without bias": lambda net, z: F.linear(z, net.linear.weight),
    "conv1d": lambda net, z: net.conv[0](z.flatten(2)),
    "conv2d": lambda net, z: net.conv[1](z),
    "conv3d": lambda net, z: net.conv[2](z[:, :, None]),
    "unbatched conv2d": lambda net, z: F.conv2d(z[:, :, 0], z.new_ones(len(z), len(z), 1, 1)),
    "max_pool2d": lambda net, z: F.max_pool2d(z, 2, 1, 1),
    "max_pool2d of three axes": lambda net, z: F.max_pool2d(z[:, 0], 2, 1, 1),
    "avg_pool2d": lambda net, z: F.avg_pool2d(z, 2, 1, 1),
    "avg_pool2d of three axes": lambda net, z: F.avg_pool2d(z[:, 0], 2, 1, 1),
    "adaptive_avg_pool2d": lambda net, z: F.adaptive_avg_pool2d(z, (1, 2)),
    "batch_norm": lambda net, z: net.norm(z),
    "softplus": lambda net, z: F.softplus(z, 3),
    "relu": lambda net, z: F.relu(z - 0.7),
    "torch.relu": lambda net, z: torch.relu(z - 0.7),
    "Tensor.relu": lambda net, z: (z - 0.7).relu(),
    "silu": lambda net, z: F.silu(z),
    "gelu": lambda net, z: F.gelu(z, approximate="tanh"),
    "elu": lambda net, z: nn.ELU(0.5, inplace=True)(z - 0.7),
    "leaky_relu": lambda net, z: nn.LeakyReLU(0.2)(z - 0.7),
    "tanh": lambda net, z: torch.tanh(z),
    "sigmoid": lambda net, z: torch.sigmoid(z),
    "relu in place, input read again": relu_in_place_and_both_used,
    "activations in place in a row": activations_in_place_in_a_row,
    "a view read after its base was overwritten": view_read_after_in_place,
    "a part written in place": part_written_in_place,
    "sum in place of an alias": sum_in_place_of_an_alias,
    "flatten": lambda net, z: torch.flatten(z, 2).flatten(1),
    "view": lambda net, z: z.view(len(z), -1, 2),
    "reshape": lambda net, z: z.reshape(-1, 2, net.side, net.channels),
    "view as integers": lambda net, z: z.view(torch.int64).view(torch.float64),
    "contiguous": lambda net, z: z[:, :, :, ::2].contiguous(),
    "mean": lambda net, z: z.mean((2, 3)),
    "mean of channels": lambda net, z: torch.mean(z, dim=1, keepdim=True),
    "mean of all": lambda net, z: z + z.mean(),
    "mean over rows": lambda net, z: z.mean(0),
    "mean over rows, counted from the end": lambda net, z: z.mean(-4),
    "one row": lambda net, z: z[0],
    "rows turned": lambda net, z: z[list(range(len(z)))[::-1]],
    "indices at two places": lambda net, z: z[:, [0, 0], :, [0, 0]],
    "slices": lambda net, z: z[..., :1] + z[:, :, None, 1],
    "constant": lambda net, z: z + 1.0,
    "constant for each pixel": lambda net, z: z + net.shift - 0.5 * net.shift[None],
    "constant for each row": lambda net, z: z + torch.arange(len(z), dtype=z.dtype).view(-1, 1, 1, 1),
    "sum of other shapes": lambda net, z: z + z.mean((2, 3), keepdim=True),
    "sum of fewer axes": lambda net, z: z + z[:, 0],
    "difference": lambda net, z: z - 0.5 * F.relu(z),
    "alpha": lambda net, z: torch.sub(torch.add(z, F.relu(z), alpha=0.3), 1.0, alpha=2),
    "factor": lambda net, z: net.shift * (z * 2.0) / 3.0,
    "factor for each row": lambda net, z: z * torch.arange(len(z), dtype=z.dtype).view(-1, 1, 1, 1),
    "cat": lambda net, z: torch.cat([z, F.relu(z)], 1),
    "cat, counted from the end": lambda net, z: torch.cat((z, z), -1),
    "cat of rows": lambda net, z: torch.cat([z, z], -4)[: len(z)],
    "pad": lambda net, z: F.pad(z, (1, 0, 0, 1)),
    "pad with ones": lambda net, z: F.pad(z, (1, 0), value=1.0),
    "dropout": lambda net, z: F.dropout(z, 0.5, training=False),
}  # fmt: skip


REFUSED = {
    "unbatched conv2d", "max_pool2d of three axes", "a view read after its base was overwritten",
    "a part written in place", "view as integers", "mean of all", "mean over rows",
    "mean over rows, counted from the end", "one row", "rows turned", "indices at two places", "constant for each row",
    "sum of fewer axes", "factor for each row", "cat of rows", "pad with ones",
}  # fmt: skip


def plain(net: nn.Module, clean: Tensor, moved: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the derivatives of the moved images' logits along their directions, image by image."""
    columns = []
    for image, direction in zip(moved, along, strict=True):
        leaf = image[None].clone().requires_grad_()
        slopes = [torch.autograd.grad(logit, leaf, create_graph=True)[0] for logit in net(leaf)[0]]
        columns.append(torch.stack([(slope[0] * direction).sum() for slope in slopes]))
    return torch.cat([net(image[None]) for image in clean]), torch.stack(columns)


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=4, deadline=None, derandomize=True)
@given(clean=st.integers(1, 3), moved=st.integers(1, 2), channels=sizes, side=st.integers(2, 5), out=sizes)
def test_a_rule_gives_the_derivative_of_the_plain_path_or_refuses(name, clean, moved, channels, side, out):
    generator = torch.Generator().manual_seed(channels * 100 + side * 10 + out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(clean + 7 * moved)
        net = Around(OPERATIONS[name], channels, side, out).double().eval()
        images = [
            torch.randn(n, 1, 2, 3, generator=generator, dtype=torch.float64) for n in (clean, moved, moved)
        ]
        try:
            net(images[0][:1])
        except (RuntimeError, IndexError):
            return  # no net of these sizes
    if name in REFUSED:
        with pytest.raises(gg.UserError, match=r"fast=False\.$"):
            joint_pass(net, *images)
        return
    logits, slopes = joint_pass(net, *images)
    expected_logits, expected_slopes = plain(net, *images)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(slopes, expected_slopes, rtol=1e-9, atol=1e-10)
    found, wanted = (
        torch.autograd.grad(a.square().sum() + b.sum(), list(net.parameters()), allow_unused=True)
        for a, b in ((logits, slopes), (expected_logits, expected_slopes))
    )
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_every_rule_is_tried():
    """A new rule needs a net above that calls it."""
    called = set()

    class Noting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.add(func)
            return func(*args, **(kwargs or {}))

    for name, operation in OPERATIONS.items():
        net = Around(operation, 3, 3, 3).double().eval()
        if name not in REFUSED:
            with Noting():
                net(torch.randn(1, 6, dtype=torch.float64))
    spellings = {getattr(func, "__name__", "").strip("_").removeprefix("i") for func in called}
    missing = {getattr(func, "__name__", "").strip("_").removeprefix("i") for func in _RULES} - spellings
    assert missing <= {"truediv", "div", "mul", "sub"}  # other spellings of / * -


def with_terms(fast: bool) -> Objective:
    return Objective({"l2_cosine": Term(gg.regularizer("l2_cosine"), 1.0)}, fast=fast)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_net_on_which_the_joint_pass_is_wrong_is_refused_on_its_first_batch(monkeypatch, dtype):
    net = Around(lambda net, z: F.silu(z), 3, 3, 3).to(dtype)
    x, y = torch.randn(4, 1, 2, 3, dtype=dtype), torch.arange(4) % 3
    net(x)
    known = _RULES[F.silu]
    # Off by a tenth of one layer's slope: far less than any fault that was found.
    monkeypatch.setitem(_RULES, F.silu, lambda rows, func, z, **_: known(rows, func, z) * torch.where(
        torch.arange(len(z)) < rows.primal, 1.0, 0.9).to(z.dtype).view(-1, 1, 1, 1))  # fmt: skip
    with pytest.raises(gg.UserError, match=r"another weight gradient .* train it with fast=False"):
        with_terms(True)(net, x, y, seed=0)
    with_terms(False)(net, x, y, seed=0)


def test_a_net_that_fails_in_the_joint_pass_alone_is_refused_in_a_sentence(monkeypatch):
    net = Around(lambda net, z: F.silu(z), 3, 3, 3)
    x, y = torch.randn(4, 1, 2, 3), torch.arange(4) % 3
    net(x)

    def failing(*_, **__):
        raise RuntimeError("sizes do not match\nand more")

    monkeypatch.setitem(_RULES, F.silu, failing)
    with pytest.raises(
        gg.UserError, match=r"fails on this model \(sizes do not match\); train it with fast=False"
    ):
        with_terms(True)(net, x, y, seed=0)


def test_the_comparison_leaves_the_net_as_it_was_and_comes_once(monkeypatch):
    net = gg.model("lenet", activation="softplus", beta=3, image_size=8, seed=0).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    x, y = torch.rand(4, 3, 8, 8), torch.arange(4)
    with_terms(True)(net, x, y, seed=0)
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in net.parameters())
    monkeypatch.setattr("gyrograd.regularizers.joint._plain_gradient", None)
    with_terms(True)(net, x, y, seed=1)


class Single(nn.Module):
    """A net that computes in single precision whatever it is given, and cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.inner(x.flatten(1) * torch.ones(6)))

    def __deepcopy__(self, memo: object) -> nn.Module:
        raise TypeError("no copies")


def test_a_net_that_cannot_be_copied_is_compared_as_it_is():
    net = Single().train()
    x, y = torch.randn(4, 1, 2, 3), torch.arange(4) % 3
    with_terms(True)(net, x, y, seed=0)
    assert net.training
