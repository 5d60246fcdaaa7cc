"""A smoothed model in parts, differentiated where torch recomputes the parts on a thread of its own, as CUDA does."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Thread

import pytest
import torch
from torch import Tensor

import gyrograd as gg
from gyrograd.numerics import second_order
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
def test_parts_are_recomputed_with_the_layers_they_were_made_of(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"image_size": 8} if name == "lenet" else {}
    model = gg.model(name, activation="softplus", beta=3, seed=0, num_classes=3, **more).double().eval()
    calm = gg.smoothed(model, gg.kernel("gaussian", sigma=0.1), draws=4, max_batch=4).eval()
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    expected = slope(calm, x, ExitStack())
    monkeypatch.setattr(second_order, "made_for_second_derivatives", lambda _: all_layers())
    torch.testing.assert_close(slope(calm, x, all_layers()), expected, rtol=1e-9, atol=1e-12)
