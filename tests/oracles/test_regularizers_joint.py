"""Cross-entropy and alignment in two first-order passes against the objective as it is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gyrograd as gg
from gyrograd.numerics import random
from gyrograd.regularizers import L2Cosine
from gyrograd.regularizers.joint import check_joint, joint_loss

PART = 4


def written_out(model: nn.Module, x, y, align: L2Cosine, keys) -> tuple[list, dict]:  # type: ignore[no-untyped-def]
    terms = align.terms(model, x[:PART], y[:PART], seed=keys)
    total = F.cross_entropy(model(x), y) + sum(value.mean() for value in terms.values())
    return torch.autograd.grad(total, list(model.parameters())), {k: v.mean() for k, v in terms.items()}


@pytest.mark.parametrize(
    "align", [L2Cosine(), L2Cosine(l2=0.0), L2Cosine(cosine=0.0, squared=False), L2Cosine(space="pixel")]
)
@pytest.mark.parametrize(("name", "train"), [("lenet", True), ("resnet20", False)])
def test_the_gradient_is_that_of_the_objective(name: str, train: bool, align: L2Cosine) -> None:
    model = gg.model(name, activation="softplus", beta=3, normalize="cifar10", seed=0).double().train(train)
    x, y, keys = torch.rand(8, 3, 32, 32, dtype=torch.float64), torch.arange(8), random.keys(3, PART)
    scalar, terms = joint_loss(model, x, y, align, align.moved(x[:PART], keys))
    found = torch.autograd.grad(scalar, list(model.parameters()))
    expected, values = written_out(model, x, y, align, keys)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-12)
    for key, value in values.items():
        torch.testing.assert_close(terms[key], value.detach())
    torch.testing.assert_close(terms["cross_entropy"], F.cross_entropy(model(x), y).detach())


def test_batch_statistics_change_the_direction_little() -> None:
    # The two ways see statistics of different images, so they agree closely, not to the last digit.
    model = gg.model("resnet20", activation="softplus", beta=3, normalize="cifar10", seed=0).double().train()
    x, y, keys = torch.rand(32, 3, 32, 32, dtype=torch.float64), torch.arange(32) % 10, random.keys(3, 32)
    align = L2Cosine(l2=0.0, cosine=100.0)
    scalar, _ = joint_loss(model, x, y, align, align.moved(x, keys))
    found = torch.cat([g.flatten() for g in torch.autograd.grad(scalar, list(model.parameters()))])
    total = F.cross_entropy(model(x), y) + align(model, x, y, seed=keys).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(model.parameters()))])
    assert F.cosine_similarity(found, expected, dim=0) > 0.9


@pytest.mark.parametrize("change", [{"draws": 2}, {"detach_clean": False}, {"quantity": "probability"}])
def test_settings_that_need_second_derivatives_are_refused(change: dict) -> None:
    with pytest.raises(gg.UserError, match="knows one draw, a constant clean gradient and the logit"):
        check_joint(replace(L2Cosine(), **change))
    check_joint(L2Cosine())
