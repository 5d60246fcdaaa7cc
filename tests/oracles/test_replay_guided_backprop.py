"""Guided backprop against Captum where Captum sees the activations, and against the formula where it does not."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
import torchvision
from captum.attr import GuidedBackprop as CaptumGuidedBackprop
from nets import batch, net
from torch import Tensor, nn

from gyrograd.attributions.gradient import Gradient
from gyrograd.attributions.guided_backprop import GuidedBackprop


def lively(model: nn.Module) -> nn.Module:
    """BatchNorm statistics that are not the initial ones."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    return model.eval()


def resnet18() -> nn.Module:
    torch.manual_seed(0)
    return lively(torchvision.models.resnet18(num_classes=10))


def captum_map(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    with pytest.warns(UserWarning, match="backward hooks"):
        return CaptumGuidedBackprop(model).attribute(x.clone().requires_grad_(), target).detach()


def close(ours: Tensor, theirs: Tensor, tol: float = 1e-5) -> bool:
    return bool((ours - theirs).abs().max() <= tol * theirs.abs().max())


def relu_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(inplace=True),
        nn.AvgPool2d(3), nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 5),
    ).double().eval()  # fmt: skip


def test_equals_captum_on_a_net_of_relu_modules():
    x, target = batch(4)
    model = relu_net()
    maps = GuidedBackprop()(model, x, target)
    assert close(maps, captum_map(model, x, target))
    assert not close(maps, Gradient()(model, x, target), 0.1)


def test_equals_captum_on_torchvision_resnet18():
    model, x = resnet18(), torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([1, 7])
    assert close(GuidedBackprop()(model, x, target), captum_map(model, x, target))


class Functional(nn.Module):
    """The layers of `relu_net` with every kind of activation call that is not a module."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        core = self.core
        out = F.max_pool2d(torch.relu(core[0](x)), 2)
        out = core[3](out)
        out.relu_()
        out = core[7](F.avg_pool2d(out, 3).flatten(1))
        return core[10](out.clamp(min=0))


def test_functional_and_in_place_calls_give_the_map_of_the_modules():
    x, target = batch(3)
    core = relu_net()
    torch.testing.assert_close(
        GuidedBackprop()(Functional(core), x, target), GuidedBackprop()(core, x, target)
    )


ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.PReLU(), nn.ELU(), nn.SELU(), nn.CELU(), nn.GELU(),
    nn.SiLU(), nn.Mish(), nn.Softplus(beta=3), nn.Softsign(), nn.Tanh(), nn.Sigmoid(), nn.LogSigmoid(),
    nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.Softshrink(0.1), nn.Hardshrink(0.1),
    nn.Tanhshrink(), nn.Threshold(0.1, 0.0), nn.RReLU(), nn.LeakyReLU(0.1, inplace=True),
    nn.ELU(inplace=True), nn.SiLU(inplace=True), nn.Hardswish(inplace=True),
]  # fmt: skip


def slope_by_differences(activation: nn.Module, z: Tensor) -> Tensor:
    return (activation(z + 1e-6) - activation(z - 1e-6)) / 2e-6


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_every_activation_follows_the_formula(activation):
    # joo2023: R_in = R_out 1[R_out > 0] act'(z), layer by layer from the logit down.
    torch.manual_seed(0)
    activation = activation.double().eval()
    widths = [6, 8, 7, 5]
    layers = [nn.Linear(a, b).double() for a, b in pairwise(widths)]
    model = nn.Sequential(layers[0], activation, layers[1], activation, layers[2]).eval()
    x, target = torch.rand(3, 6, dtype=torch.float64), torch.tensor([0, 2, 4])
    expected = torch.zeros_like(x)
    with torch.no_grad():
        for i in range(3):
            z1 = layers[0](x[i])
            z2 = layers[1](activation(z1.clone()))
            relevance = layers[2].weight[target[i]]
            relevance = relevance.clamp(min=0) * slope_by_differences(activation, z2)
            relevance = layers[1].weight.T @ relevance
            relevance = relevance.clamp(min=0) * slope_by_differences(activation, z1)
            expected[i] = layers[0].weight.T @ relevance
    torch.testing.assert_close(GuidedBackprop()(model, x, target), expected, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", ["lenet", "residual"])
@pytest.mark.parametrize("quantity", ["logit", "probability", "loss"])
def test_equals_a_backward_pass_with_clamping_hooks(name, quantity):
    # An independent construction for Softplus: clamp the gradient that arrives at each activation's output.
    model, (x, target) = net(name), batch(3)
    x.requires_grad_()

    def clamp_arriving(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        output.register_hook(lambda gradient: gradient.clamp(min=0))

    handles = [m.register_forward_hook(clamp_arriving) for m in model.modules() if isinstance(m, nn.Softplus)]
    logits = model(x)
    rows = torch.arange(3)
    value = {
        "logit": logits[rows, target],
        "probability": logits.softmax(1)[rows, target],
        "loss": F.cross_entropy(logits, target, reduction="none"),
    }[quantity]
    (expected,) = torch.autograd.grad(value.sum(), x)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(GuidedBackprop(quantity)(model, x.detach(), target), expected)
