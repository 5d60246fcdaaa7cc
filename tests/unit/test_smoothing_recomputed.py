"""A smoothed model in parts, differentiated where torch recomputes the parts on a thread of its own, as CUDA does."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Thread

import pytest
import torch
from torch import Tensor

import gyrograd as gg
from gyrograd.numerics.second_order import all_layers


def slope(calm: torch.nn.Module, x: Tensor, block: ExitStack) -> Tensor:
    """The second derivative; the last backward, and all it recomputes, on another thread."""
    leaf = x.clone().requires_grad_()
    with block:
        (first,) = torch.autograd.grad(calm(leaf)[:, 0].sum(), leaf, create_graph=True)
    found: list[Tensor] = []
    thread = Thread(target=lambda: found.append(torch.autograd.grad(first.square().sum(), leaf)[0]))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", ["lenet", "resnet20"])
def test_parts_are_recomputed_with_the_layers_they_were_made_of(name: str) -> None:
    more = {"image_size": 8} if name == "lenet" else {}
    model = gg.model(name, activation="softplus", beta=3, seed=0, num_classes=3, **more).double().eval()
    calm = gg.smoothed(model, gg.kernel("gaussian", sigma=0.1), draws=4, max_batch=4).eval()
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    expected = slope(calm, x, ExitStack())
    torch.testing.assert_close(slope(calm, x, all_layers()), expected, rtol=1e-9, atol=1e-12)


class Gated(torch.nn.Module):
    """A layer of each kind that is replaced in second derivatives: torch has none of Hardsigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.each = torch.nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.norm = torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.each(torch.nn.functional.softplus(self.first(x))))
        logits: Tensor = self.last(torch.nn.functional.hardsigmoid(inner).mean((2, 3)))
        return logits


@pytest.mark.parametrize("name", ["gradient", "lrp", "guided_backprop", "deep_lift", "grad_cam"])
def test_maps_and_attacks_do_not_depend_on_the_parts_of_a_smoothed_model(name: str) -> None:
    torch.manual_seed(0)
    core = Gated().double().eval().requires_grad_(False)
    noise, explain = gg.kernel("gaussian", sigma=0.1), gg.attribution(name)
    x, target = torch.rand(2, 3, 6, 6, dtype=torch.float64), torch.tensor([0, 1])
    found = []
    for max_batch in (2, 8):
        calm = gg.smoothed(core, noise, draws=4, max_batch=max_batch)
        leaf = x.clone().requires_grad_()
        graph = explain(calm, leaf, target, create_graph=True)
        (second,) = torch.autograd.grad(graph.square().sum(), leaf)
        hit = gg.attack("top_k", eps=8 / 255, steps=2, k=4)(calm, explain, x, target)
        found.append((explain(calm, x, target), graph.detach(), second, hit.x))
    for parts, whole in zip(*found, strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-8, atol=1e-12)
