"""LIME against tan2023's closed forms, literal loops, numpy's least squares and Captum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from captum._utils.models.linear_model import SkLearnRidge
from captum.attr import Lime as CaptumLime
from hypothesis import given
from hypothesis import strategies as st
from nets import batch, net
from torch import nn

from gyrograd.attributions.lime import Lime, ridge_fit
from gyrograd.attributions.segments import segment, uniform_table


def flat_net(d: int, seed: int = 0, k: int = 3) -> nn.Module:
    """A nonlinear net of d features in float64."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(d, 12), nn.Tanh(), nn.Linear(12, 10), nn.Softplus(3), nn.Linear(10, k)]
        net = nn.Sequential(*layers).double()
        for weight in net.parameters():
            nn.init.normal_(weight, std=0.6)
    return net.eval()


def example(d: int, seed: int = 0, b: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(b, d, generator=generator, dtype=torch.float64) + 0.1
    return x, torch.randint(3, (b,), generator=generator)


def expectations(model, x, target, kernel):
    """E[kernel eps eps^T] and E[kernel f eps] over Bernoulli(1/2), one coalition after the other."""
    d = len(x)
    second, first = np.zeros((d, d)), np.zeros(d)
    for bits in itertools.product((0, 1), repeat=d):
        eps = np.array(bits, float)
        z = x.numpy() * eps
        value = model(torch.tensor(z)[None])[0, target].item()
        weight = kernel(x.numpy(), z)
        second += weight * np.outer(eps, eps) / 2**d
        first += weight * value * eps / 2**d
    return second, first


@given(d=st.integers(2, 7), seed=st.integers(0, 1000), ridge=st.floats(0.01, 3), width=st.floats(0.5, 5))
def test_enumerated_lime_is_lemma_c8(d, seed, ridge, width):
    model, (x, target) = flat_net(d, seed), example(d, seed)
    lime = Lime(
        segments="pixels", sampling="enumerate", distance="l2", width=width, ridge=ridge, reduction="mean"
    )
    maps = lime(model, x, target)
    for one, label, map in zip(x, target, maps, strict=True):
        second, first = expectations(
            model, one, label, lambda x, z: math.exp(-np.sum((x - z) ** 2) / width**2)
        )
        expected = np.linalg.solve(second + ridge * np.eye(d), first)
        np.testing.assert_allclose(map.numpy(), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("d", [2, 5, 10])
@pytest.mark.parametrize("ridge", [0.05, 1.0])
def test_enumerated_uniform_lime_is_the_last_line_of_the_proof_of_lemma_c8(d, ridge):
    model, (x, target) = flat_net(d), example(d)
    lime = Lime(segments="pixels", sampling="enumerate", kernel="uniform", ridge=ridge, reduction="mean")
    maps = lime(model, x, target)
    for one, label, map in zip(x, target, maps, strict=True):
        _, first = expectations(model, one, label, lambda x, z: 1.0)
        expected = 4 / (4 * ridge + 1) * (first - first.sum() / (4 * ridge + 1 + d))
        np.testing.assert_allclose(map.numpy(), expected, rtol=1e-8, atol=1e-10)


def test_the_mean_counts_a_coalition_as_often_as_it_was_drawn():
    # 40 draws of 2 segments hold at most 4 different coalitions; the mean is over the 40.
    model, (x, target) = flat_net(2), example(2)
    how = {"segments": "pixels", "draws": 40, "kernel": "uniform"}
    mean = Lime(ridge=0.1, reduction="mean", **how)(model, x, target)
    total = Lime(ridge=4.0, reduction="sum", **how)(model, x, target)
    np.testing.assert_allclose(mean, total, rtol=1e-9, atol=1e-12)


def test_with_a_quarter_taken_out_of_the_second_fraction_too_lemma_c8_fails():
    """1/(ridge + (1 + d)/4) as the second fraction, one reading of the statement: not the minimiser."""
    d, ridge = 4, 0.5
    model, (x, target) = flat_net(d), example(d, b=1)
    second, first = expectations(model, x[0], target[0], lambda x, z: 1.0)
    right = 1 / (ridge + 1 / 4) * (first - first.sum() / (4 * ridge + 1 + d))
    wrong = 1 / (ridge + 1 / 4) * (first - first.sum() / (ridge + (1 + d) / 4))
    slope_at = lambda w: 2 * (second + ridge * np.eye(d)) @ w - 2 * first  # noqa: E731
    assert np.abs(slope_at(right)).max() < 1e-12
    assert np.abs(slope_at(wrong)).max() > 0.1


def test_the_l2_kernel_measures_all_channels_from_the_image_to_the_perturbed_one():
    x, target = batch(2)
    model, labels, fill = net("lenet"), segment(x, "grid", grid=2), x.mean((2, 3), keepdim=True).expand_as(x)
    lime = Lime(
        segments="grid", grid=2, sampling="enumerate", distance="l2", width=4.0, ridge=0.2, baseline="mean"
    )
    maps = lime(model, x, target)
    for i in range(2):
        second, first = 0.2 * torch.eye(4).double(), torch.zeros(4).double()
        for bits in itertools.product((0.0, 1.0), repeat=4):
            eps = torch.tensor(bits).double()
            z = torch.where(eps[labels[i]] > 0, x[i], fill[i])
            weight = math.exp(-(x[i] - z).square().sum().item() / 16)
            second += weight * torch.outer(eps, eps)
            first += weight * model(z[None])[0, target[i]].item() * eps
        expected = torch.linalg.solve(second, first)[labels[i]]
        torch.testing.assert_close(maps[i], expected.expand(3, 12, 12), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("intercept", [False, True])
def test_no_other_coefficients_fit_better(intercept):
    d = 5
    model, (x, target) = flat_net(d), example(d, b=1)
    settings = {"segments": "pixels", "draws": 40, "seed": 3, "width": 0.6, "ridge": 0.3}
    w = Lime(intercept=intercept, **settings)(model, x, target)[0]
    z = (uniform_table(3, 40, d, x.device) < 0.5).double()
    value = model(z * x)[:, target[0]].detach()
    weight = torch.exp(-((1 - torch.sqrt(z.sum(1) / d)) ** 2) / 0.6**2)

    def objective(w):
        left = value - z @ w
        if intercept:
            left = left - (weight * left).sum() / weight.sum()
        return (weight * left**2).sum() + 0.3 * (w**2).sum()

    for direction in (*torch.eye(d).double(), torch.ones(d).double()):
        assert objective(w) < objective(w + 1e-3 * direction)
        assert objective(w) < objective(w - 1e-3 * direction)


@given(
    n=st.integers(3, 12),
    s=st.integers(2, 12),
    ridge=st.sampled_from([0.0, 0.2, 5.0]),
    intercept=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_fit_is_numpys_on_the_augmented_system(n, s, ridge, intercept, seed):
    rng = np.random.default_rng(seed)
    z, value, weight = rng.integers(0, 2, (n, s)).astype(float), rng.normal(size=n), rng.random(n) + 0.1
    root = np.sqrt(weight)
    if intercept and ridge == 0:  # which of many fits is the shortest then depends on how the constant counts
        mean = weight @ z / weight.sum()
        expected = np.linalg.lstsq(
            root[:, None] * (z - mean), root * (value - weight @ value / weight.sum()), rcond=1e-12
        )[0]
    else:
        columns = np.hstack([z, np.ones((n, 1))]) if intercept else z
        rows = np.vstack([root[:, None] * columns, np.sqrt(ridge) * np.eye(s, columns.shape[1])])
        expected = np.linalg.lstsq(rows, np.concatenate([root * value, np.zeros(s)]), rcond=1e-12)[0][:s]
    fit = ridge_fit(torch.tensor(z), torch.tensor(value), torch.tensor(weight), ridge, intercept)
    np.testing.assert_allclose(fit.numpy(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("fill", [0.0, 0.3])
@pytest.mark.parametrize("sampling", ["bernoulli", "enumerate"])
def test_a_linear_model_gets_its_coefficients_back(fill, sampling):
    x, target = batch(3, side=6)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 5)).double()
    lime = Lime(
        segments="grid", grid=3, ridge=0.0, intercept=True, baseline=fill, sampling=sampling, draws=60
    )
    maps = lime(model, x, target)
    parts = (model[1].weight[target].view_as(x) * (x - fill)).detach().sum(1)
    cells = parts.reshape(3, 3, 2, 3, 2).sum((2, 4)).repeat_interleave(2, 1).repeat_interleave(2, 2)
    torch.testing.assert_close(maps, cells[:, None].expand_as(x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("intercept", [False, True])
def test_captum_on_the_same_coalitions_gives_the_same_map(intercept):
    x, target = batch(3)
    model = net("lenet")
    mask = segment(x, "grid", grid=3)
    lime = Lime(draws=50, segments=mask, width=0.7, ridge=1.0, intercept=intercept, seed=5)
    rows = (uniform_table(5, 50, 9, x.device) < 0.5).double()

    def similarity(original, perturbed, z, **_):
        return torch.exp(-((1 - z.double().mean().sqrt()) ** 2) / 0.7**2)

    for i in range(3):
        given_rows = iter(rows)
        captum = CaptumLime(
            model,
            interpretable_model=SkLearnRidge(alpha=1.0, fit_intercept=intercept),
            similarity_func=similarity,
            perturb_func=lambda *_, rows=given_rows, **__: next(rows)[None],
        )
        theirs = captum.attribute(
            x[i : i + 1], target=int(target[i]), feature_mask=mask[i : i + 1, None], n_samples=50
        )
        ours = lime(model, x, target)[i]
        # Captum keeps its regression in float32.
        torch.testing.assert_close(ours, theirs[0].double(), rtol=1e-4, atol=1e-5)
