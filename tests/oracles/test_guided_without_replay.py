"""Guided backprop without a graph (one pass back through the true run) against the replay it stands for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nets import batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.smoothing import Gaussian, smoothed


class Doubled(torch.autograd.Function):
    """Twice its input, seen by torch as one opaque step, with a derivative of its own that is not the true one."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z * 2.0

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Tensor:
        return gradient[0] * 7.0


class Odd(nn.Module):
    """Every way a tensor can be used twice, cut, overwritten, handed back or hidden from autograd."""

    def __init__(self, hidden: str = "") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Conv2d(3, 8, 3, padding="same")
        self.second = nn.Conv2d(4, 8, 3, padding=1, groups=2, stride=2)
        self.head = nn.Linear(16, 5)
        self.hidden = hidden
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu_(self.first((x - 0.5) / 0.25))
        left, right = z.contiguous().chunk(2, 1)
        z = self.second(left + 0.5 * right - left.tanh())
        z = F.silu(F.pad(z, (1, 1, 1, 1), value=0.3))
        z = (z + z).type_as(x).view_as(torch.sigmoid(z))
        if self.hidden == "no_grad":
            with torch.no_grad():
                z = F.softplus(z, 3)
        if self.hidden == "function":
            z = Doubled.apply(z)
        pooled = torch.cat([F.max_pool2d(z, 2).mean((2, 3)), F.adaptive_avg_pool2d(z, 1).flatten(1)], 1)
        logits: Tensor = self.head(F.dropout(pooled, training=self.training))
        return logits


def both_ways(model: nn.Module, x: Tensor, target: Tensor, **settings: str) -> tuple[Tensor, Tensor]:
    """The map without a graph, and the one that is replayed."""
    explain = GuidedBackprop(**settings)
    return explain(model, x, target), explain(model, x, target, create_graph=True).detach()


def assert_same(quick: Tensor, replayed: Tensor) -> None:
    assert replayed.abs().max() > 0
    torch.testing.assert_close(quick, replayed, rtol=1e-9, atol=1e-12 * float(replayed.abs().max()))


@pytest.mark.parametrize("quantity", ["logit", "probability", "log_probability", "loss"])
@pytest.mark.parametrize("name", ["lenet", "residual"])
def test_equals_the_replay_on_the_small_nets(name, quantity):
    x, target = batch(3)
    assert_same(*both_ways(net(name), x, target, quantity=quantity))


def test_equals_the_replay_where_tensors_are_cut_shared_and_overwritten():
    x, target = batch(3)
    model = Odd().eval()
    assert_same(*both_ways(model, x, target))
    assert not torch.allclose(
        GuidedBackprop()(model, x, target), gg.attribution("gradient")(model, x, target)
    )


def test_equals_the_replay_on_a_smoothed_model():
    x, target = batch(2)
    assert_same(*both_ways(smoothed(net("lenet"), Gaussian(0.1), draws=4), x, target))


def test_gradients_switched_off_inside_do_not_change_the_map():
    x, target = batch(2)
    quick = GuidedBackprop()(Odd("no_grad").eval(), x, target)
    open_model = Odd("no_grad").eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "no_grad", torch.enable_grad)
        replayed = GuidedBackprop()(open_model, x, target, create_graph=True).detach()
    assert_same(quick, replayed)


def test_a_custom_autograd_function_is_followed_inside():
    x, target = batch(2)
    assert_same(
        GuidedBackprop()(Odd("function").eval(), x, target), _doubled_by_hand(Odd().eval(), x, target)
    )


def _doubled_by_hand(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The head is linear in what was doubled, so the map doubles."""
    return 2 * GuidedBackprop()(model, x, target, create_graph=True).detach()


@pytest.mark.parametrize("grad", [True, False])
def test_nothing_is_left_on_the_images_or_the_weights(grad):
    x, target = batch(2)
    x.requires_grad_(grad)
    model = net("residual")
    map = GuidedBackprop()(model, x, target)
    assert not map.requires_grad
    assert x.requires_grad is grad
    assert x.grad is None
    assert all(weight.grad is None for weight in model.parameters())
