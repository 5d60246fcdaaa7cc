"""Every method on a device that is not the CPU: `elsewhere` emulates one, with CUDA's branches and real numbers.

All that is made on the way must be where the images are, and the numbers must be the CPU's. What only CUDA's own
kernels can show (their rounding, their speed) is not seen here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from elsewhere import DEVICE, Elsewhere, elsewhere, fetched, moved, sent
from every_method import EVERY, Run, attacked_by, map_of, measured_by, slopes_of, small, trained_with
from nets import batch, net
from small_attributions import ONE_OF_EACH
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.metrics import RunningMetric, raised_flags
from gyrograd.models import Normalized
from gyrograd.numerics import autograd, balls, random, similarity
from gyrograd.regularizers.joint import joint_loss

GRADIENT = gg.attribution("gradient")


def attribution(name: str, **settings) -> Run:
    return map_of(small("attribution", name, **settings))


def attack(name: str, **settings) -> Run:
    return attacked_by(small("attack", name, **settings))


def metric(name: str, **settings) -> Run:
    return measured_by(small("metric", name, **settings))


def _eigenvalue(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    value, vector = autograd.top_eigenvalue(lambda z: model(z)[:, 0], x, steps=4)
    return [value, vector, autograd.logit_jacobian(model, x)]


def _draws(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    keys = random.subkeys(random.keys(3, len(x), x.device), 5)
    radii = x.new_tensor([0.1, 0.2, 0.3])
    return [
        random.signs(keys, (7,), dtype=x.dtype),
        random.integers(keys, (7,), 11, stream=2),
        random.permutation(keys, 9),
        random.subkeys(keys, 1 << 62),
        balls.L2(radii).sample(x, keys),
        balls.Linf(radii).sample(x, keys, stream=1 << 40),
    ]


def _joint(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    model.train()
    align = gg.regularizer("l2_cosine", detach_clean=True)
    loss, terms = joint_loss(model, x, y, align, 0.9 * x[:2])
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    model.eval()
    return [*terms.values(), *slopes]


MORE: dict[str, Run] = {
    **{f"path from {b}": attribution("ig", baseline=b) for b in ("mean", "blur", 0.5, (0.1, 0.2, 0.3))},
    "path from an image on the host": attribution("ig", baseline=torch.full((3, 12, 12), 0.3)),
    **{f"lrp {v}": slopes_of(gg.attribution("lrp", variant=v)) for v in ("reference", "epsilon", "gamma")},
    "lime, superpixels": attribution("lime", segments="quickshift", max_dist=1.5, allow_single=True),
    "lime, segments on the host": attribution("lime", segments=torch.arange(144).reshape(12, 12) // 20),
    "shap, all coalitions": attribution("shap", sampling="enumerate"),
    "shap, some sizes whole": attribution("shap", segments="grid", grid=2, draws=12),
    **{f"{name}, reference": attack(name, protocol="reference") for name in ("mass_center", "top_k")},
    "attack in the l2 ball": attack("aam", norm="l2", eps=0.5, start="random", restarts=2),
    "attack with Adam": attack("aam", stepper="adam", box="image", restore=True),
    "attack from the surface": attack("aam", start="surface", box="batch", projection="rescale", trace=True),
    "attack of the prediction's map": attack("aam", explained="prediction", stop_at=0.1),
    "attack towards a map on the host": attack("aam", goal=torch.eye(12)),
    "attack towards an image on the host": attack("aam", goal=torch.full((1, 3, 12, 12), 0.4)),
    "noise in the l2 ball": attack("random", norm="l2", fill="volume", like="mass_center"),
    "pgd on the margin": attack("pgd", loss="margin", norm="l2", start="random"),
    **{f"rps by {s}": metric("rps", similarity=s) for s in ("pearson", "spearman", "ssim")},
    "faithfulness over superpixels": metric("faithfulness", segments="quickshift", similarity="spearman"),
    "infidelity of squares": metric("infidelity", perturbation="square", patch=3, baseline="mean"),
    "insertion into a blur": metric("insertion", substrate="blur", ties="strict"),
    "kendall": lambda model, x, y: [similarity.kendall(x.flatten(1), x.flatten(1).flip(1))],
    "iga, reference": trained_with("iga", protocol="reference"),
    "atex, reference": trained_with("atex", protocol="reference", across=2),
    "l2_cosine, frozen": trained_with("l2_cosine", batchnorm="frozen", space="pixel"),
    "eigenvalue and Jacobian": _eigenvalue,
    "random numbers": _draws,
    "joint pass": _joint,
}


def assert_the_same_there(run: Run, model: nn.Module) -> None:
    x, y = batch(3)
    twin = moved(model)  # before the run, which may move running statistics
    expected = run(model, x, y)
    with elsewhere():
        found = run(twin, sent(x), sent(y))
    for mine, its in zip(found, expected, strict=True):
        assert isinstance(mine, Elsewhere), f"a result of shape {tuple(its.shape)} is on the host"
        torch.testing.assert_close(fetched(mine), its.detach(), rtol=1e-6, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("what", EVERY)
def test_every_method_gives_the_same_on_another_device(what):
    assert_the_same_there(EVERY[what], net("residual"))


@pytest.mark.parametrize("what", MORE)
def test_every_choice_gives_the_same_on_another_device(what):
    model = Normalized(net("residual"), (0.4, 0.5, 0.6), (0.2, 0.3, 0.5)).double().eval()
    assert_the_same_there(MORE[what], model)


@pytest.mark.parametrize("twin_beta", ["auto", (5, 50)])
def test_an_attack_finds_its_twin_on_another_device(twin_beta):
    assert_the_same_there(attack("targeted_map", twin_beta=twin_beta), net("functional_relu"))


@pytest.mark.parametrize("name", ["swin", "lenet"])
def test_models_make_nothing_on_the_host(name):
    small_swin = {"width": 12, "depths": (2, 2), "heads": (2, 2), "factors": (2, 2)}
    model = gg.model(name, num_classes=4, seed=0, **(small_swin if name == "swin" else {})).double().eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with elsewhere():
        found = moved(model)(sent(x))
    torch.testing.assert_close(fetched(found), model(x).detach())


def test_doubts_and_running_metrics_are_the_same_on_another_device():
    x, y = batch(3)

    def seen(model: nn.Module, x: Tensor, y: Tensor) -> tuple[list[float], Tensor]:
        running = RunningMetric("rps", model, GRADIENT, draws=2)
        running.update(x[:2], y[:2])
        running.update(x[2:], y[2:])
        return [flag.measured for flag in raised_flags(model, GRADIENT, x, y)], running.values

    model = net("residual")
    expected = seen(model, x, y)
    twin = moved(model)
    with elsewhere():
        found = seen(twin, sent(x), sent(y))
    assert found[0] == pytest.approx(expected[0])
    torch.testing.assert_close(found[1], expected[1])  # kept on the host


@pytest.mark.parametrize("name", sorted(set(ONE_OF_EACH) - {"lime", "shap"}))
def test_classes_on_another_device_are_one_sentence(name):
    x, y = batch(3)
    model = moved(net("residual"))
    with (
        elsewhere(),
        pytest.raises(UserError, match=r"target is on cpu .* on cuda:1; .*target\.to\(x\.device\)"),
    ):
        small("attribution", name)(model, sent(x), y)


def test_the_emulated_device_refuses_what_cuda_refuses():
    x = sent(torch.ones(3))
    with elsewhere():
        for mistake in (
            lambda: x + torch.ones(3),
            lambda: torch.where(x > 0, x, torch.zeros(3)),
            lambda: x.new_zeros(3).copy_(x) @ torch.arange(3.0),
            lambda: torch.cat([x, torch.tensor([1.0])]),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                mistake()
        for mistake in (x.numpy, lambda: np.asarray(x)):
            with pytest.raises(TypeError, match="cuda:1"):
                mistake()
        assert (x + torch.tensor(1.0) + torch.ones(3, device=DEVICE)).tolist() == [3, 3, 3]
        assert x[torch.tensor([0])].tolist() == [1]  # an index may come from the host
        assert type(x.cpu()) is Tensor
        assert (x.device, x.is_cuda) == (DEVICE, True)


def test_python_code_in_a_backward_pass_is_watched_too():
    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            return z.clone()

        @staticmethod
        def backward(ctx, slope):
            return slope * torch.ones(3)

    with elsewhere():
        x = sent(torch.ones(3)).requires_grad_()
        with pytest.raises(RuntimeError, match="same device"):
            torch.autograd.grad(Careless.apply(x).sum(), x)
