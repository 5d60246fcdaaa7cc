"""Cross-entropy and alignment in two first-order passes against the objective as it is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import gyrograd as gg
from gyrograd.numerics import random
from gyrograd.regularizers import L2Cosine
from gyrograd.regularizers.joint import check_joint, joint_loss
from gyrograd.regularizers.passes import statistics_of, statistics_of_first

PART, SIDE = 4, 16


def written_out(model: nn.Module, x, y, align: L2Cosine, keys) -> tuple[list, dict]:  # type: ignore[no-untyped-def]
    terms = align.terms(model, x[:PART], y[:PART], seed=keys)
    total = F.cross_entropy(model(x), y) + sum(value.mean() for value in terms.values())
    return torch.autograd.grad(total, list(model.parameters())), {k: v.mean() for k, v in terms.items()}


@pytest.mark.parametrize(
    "align", [L2Cosine(), L2Cosine(l2=0.0), L2Cosine(cosine=0.0, squared=False), L2Cosine(space="pixel")]
)
@pytest.mark.parametrize(("name", "train"), [("lenet", True), ("resnet20", False)])
def test_the_gradient_is_that_of_the_objective(name: str, train: bool, align: L2Cosine) -> None:
    size = {"image_size": SIDE} if name == "lenet" else {}
    model = gg.model(name, activation="softplus", beta=3, normalize="cifar10", seed=0, **size).double()
    model.train(train)
    x, y, keys = torch.rand(8, 3, SIDE, SIDE, dtype=torch.float64), torch.arange(8), random.keys(3, PART)
    scalar, terms = joint_loss(model, x, y, align, align.moved(x[:PART], keys))
    found = torch.autograd.grad(scalar, list(model.parameters()))
    expected, values = written_out(model, x, y, align, keys)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-12)
    for key, value in values.items():
        torch.testing.assert_close(terms[key], value.detach())
    torch.testing.assert_close(terms["cross_entropy"], F.cross_entropy(model(x), y).detach())


class Noted(TorchFunctionMode):
    """Batch normalisation in elementary operations: the first pass notes its statistics, the next ones use them."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics: list = []
        self.left = None

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        if func is not F.batch_norm:
            return func(*args, **kwargs)
        z, axes = args[0], (0, 2, 3)
        if self.left is None:
            mean = z.mean(axes, keepdim=True)
            self.statistics.append((mean, (z - mean).square().mean(axes, keepdim=True)))
        mean, variance = self.statistics[-1] if self.left is None else next(self.left)
        out = (z - mean) / (variance + kwargs["eps"]).sqrt()
        return out * kwargs["weight"].view(1, -1, 1, 1) + kwargs["bias"].view(1, -1, 1, 1)


@pytest.mark.parametrize("part", [PART, 8])
def test_batch_normalisation_takes_the_whole_batchs_statistics_as_functions_of_the_weights(part: int) -> None:
    model = gg.model("resnet20", activation="softplus", beta=3, normalize="cifar10", seed=0).double().train()
    x, y, keys = torch.rand(8, 3, SIDE, SIDE, dtype=torch.float64), torch.arange(8), random.keys(3, part)
    align = L2Cosine(l2=3.0, cosine=10.0)
    moved = align.moved(x[:part], keys)
    scalar, terms = joint_loss(model, x, y, align, moved)
    found = torch.autograd.grad(scalar, list(model.parameters()))

    with Noted() as norm:
        total = F.cross_entropy(model(x), y)
        gradients = []
        for images in (x[:part], moved):
            norm.left = iter(norm.statistics)
            leaf = images.clone().requires_grad_()
            value = model(leaf).gather(1, y[:part, None]).sum()
            gradients += torch.autograd.grad(value, leaf, create_graph=True)
    scale = torch.tensor([0.2023, 0.1994, 0.2010], dtype=torch.float64).view(1, -1, 1, 1)
    values = align.between(scale * gradients[0].detach(), scale * gradients[1])
    total = total + sum(value.mean() for value in values.values())
    expected = torch.autograd.grad(total, list(model.parameters()))
    for key, value in values.items():
        torch.testing.assert_close(terms[key], value.mean().detach(), rtol=1e-6, atol=1e-12)
    largest = max(float(one.abs().max()) for one in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * largest)


def test_the_running_statistics_move_once_a_step() -> None:
    model = gg.model("resnet20", activation="softplus", beta=3, normalize="cifar10", seed=0).train()
    x, y = torch.rand(4, 3, 32, 32), torch.arange(4)
    joint_loss(model, x, y, L2Cosine(), L2Cosine().moved(x[:2], random.keys(0, 2)))
    assert {int(v) for k, v in model.state_dict().items() if k.endswith("num_batches_tracked")} == {1}
    assert all(module.track_running_stats for module in model.modules() if isinstance(module, nn.BatchNorm2d))


@pytest.mark.parametrize("change", [{"draws": 2}, {"detach_clean": False}, {"quantity": "probability"}])
def test_settings_that_need_second_derivatives_are_refused(change: dict) -> None:
    with pytest.raises(gg.UserError, match="is for one draw, a constant clean gradient and the logit"):
        check_joint(replace(L2Cosine(), **change))
    check_joint(L2Cosine())


def test_a_whole_batch_brings_its_own_statistics() -> None:
    model = gg.model("resnet20", activation="softplus", beta=3, seed=0, num_classes=4).double().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x, moved = torch.rand(4, 3, 16, 16, dtype=torch.float64), torch.rand(4, 3, 16, 16, dtype=torch.float64)
    both = torch.cat([x, moved])
    with statistics_of(model, x):
        expected = model(both)
    with statistics_of_first(model, len(x)):
        found = model(both)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    leaf = both.clone().requires_grad_()
    with statistics_of_first(model, len(x)):
        (slope,) = torch.autograd.grad(model(leaf)[0, 0], leaf)
    assert not slope[1:].any(), "statistics are constants: no other image reaches this one's logit"
    torch.testing.assert_close(model.state_dict(), before)
