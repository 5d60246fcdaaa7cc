"""Guided backprop and LRP differentiated again, against finite differences, to x and to every weight tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from nets import batch, net
from torch import Tensor, nn

from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.attributions.lrp import LRP

METHODS = {
    "guided": GuidedBackprop(),
    "guided probability": GuidedBackprop("probability"),
    "paper": LRP.variant("paper"),
    "reference": LRP.variant("reference"),
    "conserving": LRP.variant("conserving"),
    "epsilon": LRP.variant("epsilon"),
    "gamma": LRP.variant("gamma"),
    "alpha2beta1 from the value": LRP(rule="alpha2beta1", start="value", first="same"),
}


class Gates(nn.Module):
    """What the shared nets lack: a learned slope, a concatenation, average pools, scaling, a view overwritten."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Conv2d(3, 3, 5, padding=2)
        self.slope = nn.PReLU(4)
        self.hidden = nn.Linear(7 * 9, 9)
        self.head = nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.4) / torch.tensor([0.2, 0.3, 0.25], dtype=x.dtype).view(1, 3, 1, 1)
        both = torch.cat([self.slope(self.left(x)), torch.tanh(self.right(x)) * 2], 1)
        pooled = nn.functional.avg_pool2d(both, 4).flatten(1)
        hidden = nn.functional.silu(self.hidden(pooled), inplace=True)
        return self.head(hidden)


def _vgg() -> nn.Module:
    parts: list[nn.Module] = []
    for before, width in ((3, 4), (4, 4), (4, 5)):
        parts += [
            nn.Conv2d(before, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(5, 5))


def model_named(name: str) -> nn.Module:
    if name not in {"gates", "small_vgg"}:
        return net(name)
    torch.manual_seed(3)
    model = Gates() if name == "gates" else _vgg()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.3, 0.3)
            nn.init.uniform_(module.running_var, 0.3, 1.5)
    return model.double().eval()


def slope(value: Callable[[], float], weights: Tensor, direction: Tensor, h: float) -> float:
    """Central difference along a direction; the weights are put back."""
    start = weights.detach().clone()

    def at(t: float) -> float:
        weights.data.copy_(start + t * direction)
        return value()

    difference = (at(h) - at(-h)) / (2 * h)
    weights.data.copy_(start)
    return difference


def disagreement(
    found: float, value: Callable[[], float], weights: Tensor, direction: Tensor, size: float
) -> float:
    """Relative error; a step that crosses a kink or comes near a pole is made smaller, a wrong slope stays wrong."""
    worst = float("inf")
    for h in (1e-5, 1e-6, 1e-7):
        true = slope(value, weights, direction, h)
        worst = min(worst, abs(true - found) / max(abs(true), abs(found), 1e-7 * size))
        if worst <= 1e-6:
            break
    return worst


CASES = [
    *(("residual", method) for method in METHODS),
    *(("mlp", method) for method in ("guided", "paper", "epsilon")),
    *(("lenet", method) for method in ("guided", "reference", "gamma")),
    *(("functional_relu", method) for method in ("guided", "paper")),
    *(("small_vgg", method) for method in ("guided", "paper", "reference")),
    *(("gates", method) for method in ("guided", "paper", "epsilon", "gamma")),
]


@pytest.mark.parametrize(("model_name", "method"), CASES)
def test_second_derivatives_match_finite_differences_to_x_and_every_weight(model_name, method):
    model = model_named(model_name)
    x, target = batch(2)
    x.requires_grad_()
    explain, generator = METHODS[method], torch.Generator().manual_seed(1)
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    total = (explain(model, x, target, create_graph=True) * v).sum()
    tensors = {"x": x, **dict(model.named_parameters())}
    gradients = torch.autograd.grad(total, list(tensors.values()), allow_unused=True, materialize_grads=True)
    size, moved = abs(total.item()), 0
    for (name, weights), gradient in zip(tensors.items(), gradients, strict=True):
        direction = torch.randn(weights.shape, generator=generator, dtype=weights.dtype)
        found = (gradient * direction).sum().item()
        error = disagreement(
            found, lambda: (explain(model, x, target) * v).sum().item(), weights, direction, size
        )
        assert error <= 1e-4, name
        moved += abs(found) > 1e-7 * size
    # Only biases (and what a rule leaves out by definition) may have no influence on the map.
    assert moved >= len(tensors) // 2


def test_the_outer_derivative_is_not_guided():
    # A net of one activation: map = relu(w2) act'(w1 x) w1, so d map / d x = relu(w2) act''(w1 x) w1^2, also if < 0.
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Softplus(), nn.Linear(1, 2, bias=False)).double()
    with torch.no_grad():
        model[0].weight.fill_(-2.0)
        model[2].weight.copy_(torch.tensor([[1.5], [0.3]]))
    x = torch.tensor([[0.4]], dtype=torch.float64, requires_grad=True)
    map = GuidedBackprop()(model, x, torch.tensor([0]), create_graph=True)
    s = torch.sigmoid(-2.0 * x)
    torch.testing.assert_close(map, 1.5 * s * -2.0)
    (curvature,) = torch.autograd.grad(-map.sum(), x)
    torch.testing.assert_close(curvature, -1.5 * s * (1 - s) * 4.0)
