"""LRP against zennit where the definitions meet, and against the formulas in plain loops where they do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from zennit.composites import LayerMapComposite, SpecialFirstLayerMapComposite
from zennit.layer import Sum
from zennit.rules import AlphaBeta, Epsilon, Gamma, Norm, Pass, ZBox, ZPlus
from zennit.torchvision import ResNetCanonizer
from zennit.types import Activation, AvgPool, BatchNorm, Linear

from gyrograd.attributions.lrp import LRP, conservation

EPS = 1e-6
KEEP = {"bias": "keep", "pool": "signed", "residual": "signed"}
NO_BIAS = {"zero_params": ["bias"]}


def lively(model: nn.Module, seed: int = 1) -> nn.Module:
    """BatchNorm statistics that are not the initial ones; float64."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    return model.double().eval()


def vgg(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for before, width in ((3, 6), (6, 6), (6, 8)):
        parts += [
            nn.Conv2d(before, width, 3, padding=1),
            nn.BatchNorm2d(width),
            activation(),
            nn.MaxPool2d(2),
        ]
    return lively(
        nn.Sequential(*parts, nn.AvgPool2d(1), nn.Flatten(), nn.Linear(8, 7), activation(), nn.Linear(7, 5))
    )


def tanh_net() -> nn.Module:
    """Negative activations, so that every part of every rule has something to do."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 5, 3),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(5, 6, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(54, 5),
    ).double()


MODELS = {"lenet": lambda: net("lenet"), "vgg": vgg, "tanh": tanh_net}


def zennit_map(
    model: nn.Module, x: Tensor, target: Tensor, rule, first=None, canonizers=(), more=()
) -> Tensor:
    # Here signed sums and averages divide by nothing: what comes next multiplies by the sum.
    layers = [*more, (Activation, Pass()), (AvgPool, Norm(1e-12)), (BatchNorm, Pass()), (Linear, rule)]
    if first is None:
        composite = LayerMapComposite(layers, canonizers=list(canonizers))
    else:
        composite = SpecialFirstLayerMapComposite(layers, [(Linear, first)], canonizers=list(canonizers))
    x = x.clone().requires_grad_()
    with composite.context(model) as hooked:
        logits = hooked(x)
        (map,) = torch.autograd.grad(logits, x, F.one_hot(target, logits.shape[1]).to(logits))
    return map


RULES = {
    "zplus": (dict(rule="zplus", **KEEP), ZPlus(EPS), None),
    "zplus without bias": (dict(rule="zplus", **KEEP | {"bias": "drop"}), ZPlus(EPS, **NO_BIAS), None),
    "epsilon": (dict(rule="epsilon", **KEEP), Epsilon(EPS), None),
    "gamma": (dict(rule="gamma", gamma=0.4, **KEEP), Gamma(0.4, EPS), None),
    "alpha2beta1": (dict(rule="alpha2beta1", **KEEP), AlphaBeta(2.0, 1.0, EPS), None),
    "zbox first": (dict(rule="zplus", first="zbox", **KEEP), ZPlus(EPS), ZBox(0.0, 1.0, EPS)),
    "zbox and gamma": (dict(rule="gamma", first="zbox", **KEEP), Gamma(0.25, EPS), ZBox(0.0, 1.0, EPS)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model_name", MODELS)
def test_equals_zennit_with_batchnorm_passed_over(model_name, rule):
    settings, layer_rule, first_rule = RULES[rule]
    model, (x, target) = MODELS[model_name](), batch(3)
    ours = LRP(**{"first": "same", "batchnorm": "pass"} | settings)(model, x, target)
    theirs = zennit_map(model, x, target, layer_rule, first_rule)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def fused(model: nn.Sequential) -> nn.Module:
    """Each convolution and its BatchNorm as one convolution, by torch's own fusion."""
    parts = list(model)
    pairs = zip(parts, [*parts[1:], None], strict=True)
    merged = [fuse_conv_bn_eval(a, b) if isinstance(b, nn.BatchNorm2d) else a for a, b in pairs]
    return nn.Sequential(*[part for part in merged if not isinstance(part, nn.BatchNorm2d)])


@pytest.mark.parametrize("rule", ["zplus", "epsilon", "gamma", "zbox first"])
def test_equals_zennit_with_batchnorm_merged(rule):
    settings, layer_rule, first_rule = RULES[rule]
    model, (x, target) = vgg(), batch(3)
    ours = LRP(**{"first": "same"} | settings)(model, x, target)
    theirs = zennit_map(fused(model), x, target, layer_rule, first_rule)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    passed_over = LRP(**{"first": "same"} | settings | {"batchnorm": "pass"})(model, x, target)
    assert (ours - passed_over).abs().max() > 1e-3 * theirs.abs().max()


def test_equals_zennit_on_torchvision_resnet18_with_signed_sums():
    torch.manual_seed(0)
    model = lively(torchvision.models.resnet18(num_classes=10))
    x, target = torch.rand(1, 3, 33, 33, dtype=torch.float64), torch.tensor([3])
    ours = LRP(first="same", bias="keep", residual="signed", pool="signed")(model, x, target)
    theirs = zennit_map(model, x, target, ZPlus(EPS), None, [ResNetCanonizer()], [(Sum, Norm(1e-12))])
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


class SmallResidual(nn.Module):
    """One of everything the paper variant has a rule for, small enough for loops."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.inner = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.tanh(self.first((x - 0.5) / 0.2))
        return self.head(F.leaky_relu(a + self.norm(self.inner(a)), 0.3))


def affine_by_loops(a: list, w: Tensor, relevance: list, bias: Tensor | None) -> list:
    """joo2023's z+ rule, generalised to negative inputs, one product at a time."""
    out = [0.0] * len(a)
    for j in range(len(relevance)):
        parts = [
            max(a[i], 0) * max(w[j][i].item(), 0) + min(a[i], 0) * min(w[j][i].item(), 0)
            for i in range(len(a))
        ]
        total = sum(parts) + EPS + (max(bias[j].item(), 0) if bias is not None else 0)
        for i in range(len(a)):
            out[i] += parts[i] / total * relevance[j]
    return out


def zbox_by_loops(a: list, w: Tensor, relevance: list, low: float, high: float) -> list:
    """joo2023's z^B rule."""
    out = [0.0] * len(a)
    for j in range(len(relevance)):
        row = [w[j][i].item() for i in range(len(a))]
        parts = [a[i] * row[i] - low * max(row[i], 0) - high * min(row[i], 0) for i in range(len(a))]
        for i in range(len(a)):
            out[i] += parts[i] / (sum(parts) + EPS) * relevance[j]
    return out


@pytest.mark.parametrize("variant", ["paper", "reference"])
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_residual_net_follows_the_formulas_in_loops(variant, seed):
    torch.manual_seed(seed)
    model = SmallResidual().double().eval()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    nn.init.uniform_(model.norm.weight, -1, 2)
    x, target = torch.rand(1, 6, dtype=torch.float64), torch.randint(3, (1,))
    keep, merge = variant == "reference", variant == "paper"
    with torch.no_grad():
        inside = (x - 0.5) / 0.2
        a = torch.tanh(model.first(inside))
        b = model.norm(model.inner(a))
        c = F.leaky_relu(a + b, 0.3)
        scale = (
            model.norm.weight / (model.norm.running_var + model.norm.eps).sqrt() if merge else torch.ones(5)
        )
        w = model.inner.weight * scale[:, None]
        start = [1.0 if k == target.item() else 0.0 for k in range(3)]
        r = affine_by_loops(c[0].tolist(), model.head.weight, start, model.head.bias if keep else None)
        shares = [(max(p, 0), max(q, 0)) for p, q in zip(a[0].tolist(), b[0].tolist(), strict=True)]
        straight = [r[i] * p / (p + q + EPS) for i, (p, q) in enumerate(shares)]
        through = [r[i] * q / (p + q + EPS) for i, (p, q) in enumerate(shares)]
        back = affine_by_loops(a[0].tolist(), w, through, model.inner.bias if keep else None)
        total = [p + q for p, q in zip(straight, back, strict=True)]
        if keep:  # the code's z-box is for nets without BatchNorm
            expected = affine_by_loops(inside[0].tolist(), model.first.weight, total, model.first.bias)
        else:
            expected = zbox_by_loops(inside[0].tolist(), model.first.weight, total, -2.5, 2.5)
    ours = LRP.variant(variant)(model, x, target)
    torch.testing.assert_close(ours[0], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)], ids=repr)
def test_average_pool_shares_by_positive_parts(pool):
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), pool, nn.Flatten(), nn.Linear(1, 2, bias=False))
    model = model.double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[3].weight.copy_(torch.tensor([[2.0], [1.0]]))
    x = torch.tensor([[[[0.5, -0.25], [0.25, 0.25]]]], dtype=torch.float64)
    map = LRP(first="same", stabilizer=1e-12)(model, x, torch.tensor([0]))
    torch.testing.assert_close(map.flatten(), torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64))


def test_starting_from_the_value_scales_the_map_by_the_logit():
    model, (x, target) = vgg(), batch(2)
    logit = model(x).gather(1, target[:, None])[:, :, None, None]
    torch.testing.assert_close(LRP(start="value")(model, x, target), LRP()(model, x, target) * logit)


class Dense(nn.Module):
    """BatchNorm before the convolution, as in DenseNet, and growing concatenations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 2 * i) for i in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(4 + 2 * i, 2, 3, padding=1) for i in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            features.append(conv(F.relu(norm(torch.cat(features, 1)))))
        return self.head(F.relu(torch.cat(features, 1)).mean((2, 3)))


@pytest.mark.parametrize(
    "model", [vgg(), lively(Dense()), net("residual"), net("lenet")], ids=lambda m: type(m).__name__
)
def test_the_conserving_variant_hands_on_all_relevance(model):
    x, target = batch(3)
    map = LRP.variant("conserving")(model, x, target)
    arrived = conservation(map, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(arrived, torch.ones(3, dtype=torch.float64), rtol=1e-4, atol=0)


def test_a_kept_bias_takes_relevance_away():
    x, target = batch(3)
    arrived = conservation(
        LRP.variant("reference")(net("lenet"), x, target), torch.ones(3, dtype=torch.float64)
    )
    assert ((arrived > 0.3) & (arrived < 0.99)).all()


@pytest.mark.parametrize("variant", ["paper", "reference", "conserving", "epsilon", "gamma"])
def test_a_normaliser_inside_the_model_gives_the_bounds_of_the_zbox(variant):
    class Normalised(nn.Module):
        def __init__(self, core: nn.Module) -> None:
            super().__init__()
            self.core = core
            self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3], dtype=torch.float64).view(1, 3, 1, 1))
            self.register_buffer("std", torch.tensor([0.2, 0.25, 0.3], dtype=torch.float64).view(1, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.core((x - self.mean) / self.std)

    model, (x, target) = Normalised(net("lenet")), batch(2)
    ours = LRP.variant(variant, bias="keep", pool="signed")(model, x, target)
    box = ZBox(-model.mean / model.std, (1 - model.mean) / model.std, LRP.variant(variant).stabilizer)
    rule = {"epsilon": Epsilon(EPS), "gamma": Gamma(0.25, EPS)}.get(
        variant, ZPlus(LRP.variant(variant).stabilizer)
    )
    first = None if variant == "epsilon" else box
    theirs = zennit_map(model.core, (x - model.mean) / model.std, target, rule, first)
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
