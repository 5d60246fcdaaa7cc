"""Copies of models whose weights are computed at each forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import gyrograd as gg
from gyrograd.numerics.copies import copy_of

X, TARGET = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2])


def pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", amount=0.3)


FORMS = {
    "pruned": pruned,
    "weight_norm": weight_norm,
    "spectral_norm": spectral_norm,
    "parametrized": parametrizations.weight_norm,
}
every = pytest.mark.parametrize("form", FORMS)


def net(form: str) -> nn.Module:
    wrap = FORMS[form]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = wrap(nn.Conv2d(3, 6, 3)), nn.ReLU(), nn.Flatten(), wrap(nn.Linear(6 * 36, 3))
    model = nn.Sequential(*layers).eval()
    model(X)  # leaves weights with a history
    return model


@every
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_copy_computes_the_same_from_weights_of_its_own(form):
    model = net(form)
    before, twin = model(X), copy_of(model)
    assert torch.equal(twin(X), before)
    with torch.no_grad():
        for weight in twin.parameters():
            weight.mul_(2).add_(0.1)
    assert not torch.allclose(twin(X), before)
    assert torch.equal(model(X), before)


@every
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_shared_weights_stay_one(form):
    model = net(form)
    twin = copy_of(model, model.parameters())
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2).add_(0.1)
    assert torch.equal(twin(X), model(X))


@every
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_relu_net_is_searched_through_its_twin_and_can_be_randomised(form):
    model, gradient = net(form), gg.attribution("gradient")
    hit = gg.attack("auto", eps=8 / 255, steps=1)(model, gradient, X, TARGET)
    assert any("searched on a Softplus twin" in flag for flag in hit.flags)
    assert gg.metric("parameter_randomization")(net(form), gradient, X, TARGET).isfinite().all()
