"""Maps differentiated again, against central differences in float64: to x and to every weight."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from differences import derivative_errors
from nets import NETS, batch, net
from small_attributions import NEEDS_PLACES, ON_ANY_NET, small
from torch import Tensor, nn

import gyrograd as gg

METHODS = [name for name, entry in ON_ANY_NET.items() if entry.differentiable]
FORWARD_ONLY = [name for name in METHODS if ON_ANY_NET[name].forward_only]
ALIKE = NEEDS_PLACES | {"deep_lift", "deep_shap", "gradient_shap", "smooth_lrp", *FORWARD_ONLY}
"""On two nets only: class activation maps need places, means over draws are like their terms, those that have an
oracle of their own are differentiated there on more, and maps of forward passes have the model's first derivative."""
FIRST = [name for name in METHODS if name not in ALIKE] + ["deep_lift", "grad_cam", "shap"]
BAR = 1e-5


def explains(structure: str, name: str) -> bool:
    return structure in {"residual", "functional_relu"} or name not in ALIKE


def relative_errors(explain, model: nn.Module, x: Tensor, target: Tensor, seed: int = 0) -> dict[str, float]:
    """Errors of the derivatives of <along, map> to x and to the weights."""
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)
    x = x.clone().requires_grad_()

    def projected(graph: bool = False) -> Tensor:
        return (explain(model, x, target, create_graph=graph) * along).sum()

    tensors = {"x": x, **dict(model.named_parameters())}
    return derivative_errors(projected, projected(graph=True), tensors, bar=BAR, floor=1e-2, seed=seed + 1)


@pytest.mark.parametrize(
    ("structure", "name"), [pair for pair in product(sorted(NETS), METHODS) if explains(*pair)]
)
def test_derivatives_of_the_map_to_x_and_every_weight_match_finite_differences(structure, name):
    x, target = batch(2, seed=3)
    errors = relative_errors(small(name), net(structure), x, target)
    assert max(errors.values()) <= BAR, errors


@pytest.mark.parametrize("quantity", ["probability", "log_probability", "loss"])
@pytest.mark.parametrize("name", FIRST)
def test_derivatives_match_for_every_quantity(name, quantity):
    x, target = batch(2, seed=4)
    errors = relative_errors(small(name, quantity=quantity), net("residual"), x, target)
    assert max(errors.values()) <= BAR, errors


@pytest.mark.parametrize("baseline", ["mean", "blur", 0.5, (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("rule", ["left", "right", "midpoint"])
def test_integrated_gradients_match_for_every_baseline_and_rule(baseline, rule):
    x, target = batch(2, seed=5)
    explain = gg.attribution("ig", steps=4, baseline=baseline, rule=rule)
    assert max(relative_errors(explain, net("lenet"), x, target).values()) <= BAR


@pytest.mark.parametrize("rule", ["left", "trapezoid"])
def test_integrated_gradients_have_the_same_derivative_where_weights_are_held(rule):
    """There the point at the baseline is left out of the graph, and out of nothing else."""
    (x, target), model = batch(2, seed=5), copy.deepcopy(net("lenet"))
    explain, slopes = gg.attribution("ig", steps=3, baseline=0.5, rule=rule), []
    for trained in (True, False):
        model.requires_grad_(trained)
        leaf = x.clone().requires_grad_()
        map = explain(model, leaf, target, create_graph=True)
        torch.testing.assert_close(map.detach(), explain(model, x, target), rtol=1e-9, atol=1e-12)
        slopes += torch.autograd.grad(map.square().sum(), leaf)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gradient", "input_x_gradient", "integrated_gradients"])
def test_derivatives_match_on_a_smoothed_model_cut_into_parts(name):
    x, target = batch(2, seed=6)
    calm = gg.smoothed(net("residual"), gg.kernel("gaussian", sigma=0.1), draws=5, max_batch=4)
    assert max(relative_errors(small(name), calm, x, target).values()) <= BAR


@pytest.mark.parametrize("name", FORWARD_ONLY)
def test_derivatives_match_where_activations_are_computed_again(name):
    """In parts of five rows, whose activations no graph keeps."""
    x, target = batch(2, seed=6)
    errors = relative_errors(small(name, max_batch=5), net("residual"), x, target)
    assert max(errors.values()) <= BAR, errors


@pytest.mark.parametrize("name", ["lime", "shap"])
def test_derivatives_match_between_the_jumps_of_superpixels(name):
    x, target = batch(2, seed=6)
    explain = gg.attribution(name, draws=30, max_dist=1.5, allow_single=True)
    assert max(relative_errors(explain, net("residual"), x, target).values()) <= BAR


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("occlusion", {"baseline": "blur"}),
        ("rise", {"baseline": "mean"}),
        ("lime", {"distance": "l2", "width": 4.0}),  # the distance to x is a function of x, too
        ("lime", {"ridge": 0.0, "intercept": True, "baseline": "blur"}),
        ("shap", {"baseline": "mean"}),
    ],
)
def test_derivatives_pass_through_baselines_and_distances(name, settings):
    x, target = batch(2, seed=8)
    assert max(relative_errors(small(name, **settings), net("lenet"), x, target).values()) <= BAR


class Attention(nn.Module):
    """Patches, one block of fused attention, a mean: what a vision transformer does, small."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        q, k, v = (
            part.unflatten(2, (2, 4)).transpose(1, 2) for part in self.qkv(self.norm(tokens)).chunk(3, dim=2)
        )
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(F.gelu(tokens + mixed).mean(1))


@pytest.mark.parametrize("name", FIRST)
def test_derivatives_match_on_fused_attention(name):
    torch.manual_seed(0)
    x, target = batch(2, seed=7)
    assert max(relative_errors(small(name), Attention().double().eval(), x, target).values()) <= BAR


def test_the_harness_sees_a_map_whose_graph_is_cut():
    """The fault of Captum's input x gradient: a detached gradient times x."""

    def detached(model, x, target, *, create_graph=False):
        return x * gg.attribution("gradient")(model, x.detach(), target)

    x, target = batch(2, seed=3)
    assert relative_errors(detached, net("lenet"), x, target)["x"] > 0.05
