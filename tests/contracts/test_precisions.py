"""Every method in the precisions and modes a training loop or a GPU brings along: half precision nets, autocast blocks,
no_grad, inference mode, another default dtype. `layers_of_cuda` puts in the layers that only CUDA uses.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from every_method import EVERY, Run, attacked_by, layers_of_cuda, map_of, measured_by, slopes_of, small
from nets import batch, halved, net
from small_attributions import ONE_OF_EACH
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.baselines import baseline_of
from gyrograd.models import Normalized
from gyrograd.numerics import autograd, similarity
from gyrograd.numerics.second_order import all_layers
from gyrograd.regularizers.joint import joint_loss

HALVES = [torch.bfloat16, torch.float16]
ATTRIBUTIONS = sorted(ONE_OF_EACH)
DIFFERENTIABLE = sorted(name for name, entry in ONE_OF_EACH.items() if entry.differentiable)
# These run a model's layers themselves, so that an autocast block applies to them.
REPLAYED = {
    f"{kind} {name}"
    for kind in ("map", "slopes")
    for name in ("guided_backprop", "lrp", "deep_lift", "deep_shap")
}
# Its backward pass multiplies bfloat16 matrices in a way that ends some CPUs with an illegal instruction.
NOT_ON_EVERY_CPU = {"regularizer ssr"}
half = pytest.mark.parametrize("dtype", HALVES, ids=["bfloat16", "float16"])


class Exact(nn.Module):
    """A net of single precision in any block, whose backward pass no block changes: convolutions alone."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(
                nn.Conv2d(3, 6, 3, padding=1), nn.Softplus(3), nn.Conv2d(6, 6, 3, padding=1), nn.Softplus(3),
                nn.MaxPool2d(2), nn.Conv2d(6, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            )  # fmt: skip
        for weight in self.parameters():
            weight.data.mul_(3)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.layers(x)


def pictures() -> tuple[Tensor, Tensor]:
    x, y = batch(3)
    return x.float(), y


def alike(a: Tensor, b: Tensor) -> float:
    return float(F.cosine_similarity(a.detach().double().flatten(), b.detach().double().flatten(), dim=0))


@pytest.mark.parametrize("what", sorted(EVERY))
def test_a_half_precision_net_with_single_precision_normalisation(what):
    x, y = pictures()
    x = x.bfloat16()
    with layers_of_cuda():
        result = EVERY[what](halved(torch.bfloat16), x, y)[0]
    assert result.dtype == x.dtype
    assert result.isfinite().all()


@half
@pytest.mark.parametrize("cuda", [False, True])
@pytest.mark.parametrize("name", ATTRIBUTIONS)
def test_a_half_precision_map_is_near_the_exact_one(name, dtype, cuda):
    x, y = pictures()
    explain = small("attribution", name)
    exact = explain(net("residual").float(), x, y)
    model = net("residual").to(dtype)
    run = slopes_of(explain) if cuda and name in DIFFERENTIABLE else map_of(explain)
    with layers_of_cuda() if cuda else nullcontext():
        found = run(model, x.to(dtype), y)[0]
    assert found.dtype == dtype
    assert alike(found, exact) > 0.98


@pytest.mark.parametrize("what", sorted(set(EVERY) - NOT_ON_EVERY_CPU))
def test_under_autocast_results_are_in_single_precision(what):
    x, y = pictures()
    with torch.autocast("cpu", torch.bfloat16), layers_of_cuda():
        results = EVERY[what](net("residual").float(), x, y)
    assert {r.dtype for r in results if r.is_floating_point()} <= {torch.float32}


MORE: dict[str, Run] = {
    "path from a blur": map_of(small("attribution", "ig", baseline="blur")),
    "probabilities smoothed": map_of(small("attribution", "sg", quantity="probability")),
    "penalty on probabilities": attacked_by(
        small("attack", "aam", penalty=1.0, penalty_on="probabilities", norm="l2")
    ),
    "rps by ssim": measured_by(small("metric", "rps", similarity="ssim")),
    "eigenvalue": lambda model, x, y: [*autograd.top_eigenvalue(lambda z: model(z)[:, 0], x, steps=4)],
    "blur": lambda model, x, y: [baseline_of(x, "blur"), similarity.ssim(x, x.flip(2))],
}


@pytest.mark.parametrize("what", [*sorted(set(EVERY) - REPLAYED - NOT_ON_EVERY_CPU), *MORE])
def test_an_autocast_block_is_for_the_model_alone(what):
    # What is computed of a model that is exact must not depend on the block at all.
    x, y = pictures()
    run = (EVERY | MORE)[what]
    expected = run(Exact(), x, y)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(Exact(), x, y)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["lenet", "residual"])
def test_an_autocast_block_leaves_double_precision_alone(name):
    x, y = batch(3)
    run = slopes_of(gg.attribution("gradient"))
    expected = run(net(name), x, y)
    with torch.autocast("cpu", torch.bfloat16), layers_of_cuda():
        found = run(net(name), x, y)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)


@half
@pytest.mark.parametrize("kept", [False, True], ids=["half throughout", "statistics in single"])
def test_cudas_batch_normalisation_rounds_as_torchs_does(dtype, kept):
    norm = nn.BatchNorm2d(4).to(torch.float32 if kept else dtype).eval()
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([3.0, -2.0, 0.5, 0.0]))
        norm.running_var.copy_(torch.tensor([0.01, 1.0, 4.0, 9.0]))
        norm.weight.copy_(torch.tensor([1.0, 0.3, -2.0, 1.5]))
    z = (3 * torch.rand(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))).to(dtype).requires_grad_()
    with all_layers():
        found = norm(z)
    assert found.dtype == dtype
    torch.testing.assert_close(found, norm(z), rtol=2 * torch.finfo(dtype).eps, atol=1e-3)


def test_the_joint_pass_runs_in_an_autocast_block():
    x, y = pictures()
    align = gg.regularizer("l2_cosine", detach_clean=True)

    def slopes(model: nn.Module) -> list[Tensor]:
        loss, _ = joint_loss(model.train(), x, y, align, 0.9 * x[:2])
        return list(torch.autograd.grad(loss, list(model.parameters())))

    expected = slopes(net("residual").float())
    with torch.autocast("cpu", torch.bfloat16):
        found = slopes(net("residual").float())
    for mine, its in zip(found, expected, strict=True):
        assert alike(mine, its) > 0.99


@pytest.mark.parametrize("name", ATTRIBUTIONS)
def test_another_default_dtype_changes_nothing(name):
    x, y = pictures()
    model, explain = net("residual").float(), small("attribution", name)
    expected = explain(model, x, y)
    torch.set_default_dtype(torch.float64)
    try:
        found = explain(model, x, y)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in DIFFERENTIABLE), ("ig", {"baseline": "blur"})]
)
def test_a_map_asked_for_with_its_graph_has_one_inside_no_grad(name, settings):
    explain = small("attribution", name, **settings, max_batch=6)
    model, (x, y) = net("residual"), batch(3)
    x.requires_grad_()
    with torch.no_grad():
        map = explain(model, x, y, create_graph=True)
    (found,) = torch.autograd.grad(map.square().sum(), x)
    (expected,) = torch.autograd.grad(explain(model, x, y, create_graph=True).square().sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_smoothed_model_first_run_in_inference_mode_can_be_explained(name):
    model, (x, y) = net("residual"), batch(3)
    calm = gg.smoothed(model, gg.kernel("gaussian"), draws=4, max_batch=6)  # in parts, recomputed in backward
    fresh = copy.deepcopy(calm)
    with torch.inference_mode():
        calm(x)
    run = slopes_of(small("attribution", name))
    for mine, its in zip(run(calm, x, y), run(fresh, x, y), strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize(("setting", "value"), [("draws", 7), ("seed", 3), ("kernel", gg.kernel("uniform"))])
def test_a_smoothed_model_whose_settings_change_draws_anew(setting, value):
    model, (x, _) = net("residual"), batch(3)
    settings = {"kernel": gg.kernel("gaussian"), "draws": 4, "seed": 0}
    calm = gg.smoothed(model, **settings)
    calm(x)
    setattr(calm, setting, value)
    torch.testing.assert_close(calm(x), gg.smoothed(model, **(settings | {setting: value}))(x))


@half
def test_a_half_precision_net_may_be_normalised_afterwards(dtype):
    x, _ = pictures()
    statistics = (0.4, 0.5, 0.6), (0.2, 0.3, 0.5)
    logits = Normalized(net("residual").to(dtype), *statistics)(x.to(dtype))
    assert logits.dtype == dtype
    exact = Normalized(net("residual").float(), *statistics)(x)
    assert alike(logits, exact) > 0.99
