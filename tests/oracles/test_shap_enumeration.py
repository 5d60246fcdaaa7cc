"""SHAP against permutations, the subset formula, a KKT system and Captum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from captum.attr import KernelShap, ShapleyValues
from hypothesis import given
from hypothesis import strategies as st
from nets import batch, net
from scipy.linalg import null_space
from scipy.stats import chisquare
from torch import nn

from gyrograd.attributions.segments import segment
from gyrograd.attributions.shap import Shap, paired_coalitions, sizes_taken_whole, weighted_coalitions

CPU = torch.device("cpu")


class Game(nn.Module):
    """Any function of the d features as the logit of class 0."""

    def __init__(self, worth):
        super().__init__()
        self.worth = worth

    def forward(self, x):
        value = self.worth(x)
        return torch.stack([value, -value], 1)


def random_net(d: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(d, 12), nn.Tanh(), nn.Linear(12, 10), nn.Softplus(3), nn.Linear(10, 3)]
        model = nn.Sequential(*layers).double()
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.8)
    return model.eval()


def example(d: int, seed: int = 0, b: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(b, d, generator=generator, dtype=torch.float64) + 0.2, torch.arange(b) % 2


def every_worth(model, x, target, fill=0.0):
    """f of each coalition, by its tuple of members."""
    d = len(x)
    masks = torch.tensor(list(itertools.product((False, True), repeat=d)))
    with torch.no_grad():
        values = model(torch.where(masks, x, torch.full_like(x, fill)))[:, target]
    return {tuple(np.flatnonzero(m)): v for m, v in zip(masks.numpy(), values.tolist(), strict=True)}


def by_permutations(worth, d):
    """The mean over all orders of what a player adds when it joins."""
    value = np.zeros(d)
    for order in itertools.permutations(range(d)):
        for place, player in enumerate(order):
            before = order[:place]
            value[player] += worth[tuple(sorted((*before, player)))] - worth[tuple(sorted(before))]
    return value / math.factorial(d)


def by_subsets(worth, d):
    """tan2023 Section 3.2: sum over S without i of |S|! (d - |S| - 1)! / d! times what i adds to S."""
    value = np.zeros(d)
    for i in range(d):
        others = [j for j in range(d) if j != i]
        for size in range(d):
            share = math.factorial(size) * math.factorial(d - size - 1) / math.factorial(d)
            for members in itertools.combinations(others, size):
                value[i] += share * (worth[tuple(sorted((*members, i)))] - worth[members])
    return value


@given(d=st.integers(2, 6), seed=st.integers(0, 1000))
def test_enumerated_values_are_the_mean_over_all_permutations(d, seed):
    model, (x, target) = random_net(d, seed), example(d, seed)
    maps = Shap(segments="pixels", sampling="enumerate")(model, x, target)
    for one, label, map in zip(x, target, maps, strict=True):
        expected = by_permutations(every_worth(model, one, label), d)
        np.testing.assert_allclose(map.numpy(), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("d", [7, 8])
@pytest.mark.parametrize("fill", [0.0, 0.4])
def test_enumerated_values_are_the_subset_formula(d, fill):
    model, (x, target) = random_net(d, d), example(d)
    maps = Shap(segments="pixels", sampling="enumerate", baseline=fill)(model, x, target)
    for one, label, map in zip(x, target, maps, strict=True):
        expected = by_subsets(every_worth(model, one, label, fill), d)
        np.testing.assert_allclose(map.numpy(), expected, rtol=0, atol=1e-8)


def test_as_many_draws_as_coalitions_give_exact_values():
    model, (x, target) = random_net(6, 1), example(6)
    exact = Shap(segments="pixels", sampling="enumerate")(model, x, target)
    assert torch.equal(Shap(segments="pixels", draws=62)(model, x, target), exact)
    assert not torch.allclose(Shap(segments="pixels", draws=61)(model, x, target), exact, atol=1e-6)


def test_sampled_values_converge_to_the_exact_ones():
    model, (x, target) = random_net(12, 2), example(12)
    exact = Shap(segments="pixels", sampling="enumerate")(model, x, target)

    def error(draws):
        runs = [Shap(segments="pixels", draws=draws, seed=seed)(model, x, target) for seed in range(8)]
        return torch.stack([(run - exact).norm() / exact.norm() for run in runs]).mean()

    errors = [error(draws) for draws in (40, 400, 4000)]
    assert errors[1] < errors[0] / 2
    assert errors[2] < errors[1] / 2
    assert errors[2] < 0.01


@given(d=st.integers(2, 20), draws=st.integers(1, 40), seed=st.integers(0, 99))
def test_values_sum_to_the_whole_gain_for_any_number_of_draws(d, draws, seed):
    model, (x, target) = random_net(d, seed), example(d, seed)
    maps = Shap(segments="pixels", draws=draws, seed=seed)(model, x, target)
    row = torch.arange(len(x))
    gain = model(x)[row, target] - model(torch.zeros_like(x))[row, target]
    torch.testing.assert_close(maps.sum(1), gain.detach(), rtol=0, atol=1e-11)


@given(s=st.integers(4, 14), draws=st.integers(1, 13), seed=st.integers(0, 99))
def test_the_sampled_fit_is_the_shortest_best_one_under_the_constraint(s, draws, seed):
    """Literal: an orthonormal basis of the vectors of sum zero, and numpy's shortest solution on it."""
    model, (x, target) = random_net(s, seed), example(s, seed, b=1)
    map = Shap(segments="pixels", draws=draws, seed=seed)(model, x, target)[0]
    rows, weights = weighted_coalitions(s, draws, seed, CPU)
    z, root = rows.double().numpy(), weights.sqrt().numpy()
    with torch.no_grad():
        value = model(torch.tensor(z) * x)[:, 0].numpy()
        empty, whole = model(torch.zeros_like(x))[0, 0].item(), model(x)[0, 0].item()
    basis = null_space(np.ones((1, s)))
    left = value - empty - z.sum(1) * (whole - empty) / s
    expected = (whole - empty) / s + basis @ np.linalg.lstsq(
        root[:, None] * (z @ basis), root * left, rcond=1e-10
    )[0]
    np.testing.assert_allclose(map.numpy(), expected, rtol=1e-7, atol=1e-9)


def test_enough_sampled_coalitions_solve_the_kkt_system():
    s, draws = 9, 200
    model, (x, target) = random_net(s, 3), example(s, b=1)
    map = Shap(segments="pixels", draws=draws, seed=4)(model, x, target)[0]
    rows, weights = weighted_coalitions(s, draws, 4, CPU)
    z, w = rows.double(), weights[:, None]
    with torch.no_grad():
        gain = (model(z * x) - model(torch.zeros_like(x)))[:, 0]
        whole = (model(x) - model(torch.zeros_like(x)))[0, 0]
    system = torch.zeros(s + 1, s + 1).double()
    system[:s, :s], system[:s, s], system[s, :s] = 2 * z.T @ (w * z), 1, 1
    expected = torch.linalg.solve(system, torch.cat([2 * z.T @ (weights * gain), whole[None]]))[:s]
    torch.testing.assert_close(map, expected, rtol=1e-9, atol=1e-11)


def test_equal_players_get_equal_values_and_idle_ones_nothing():
    game = Game(lambda x: (x[:, 0] * x[:, 1]).exp() + torch.sin(3 * x[:, 2]) * (x[:, 0] + x[:, 1]))
    x = torch.tensor([[0.7, 0.7, 0.4, 0.9, 0.2]]).double()
    values = Shap(segments="pixels", sampling="enumerate")(game, x, torch.tensor([0]))[0]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-12)
    assert values[3:].abs().max() < 1e-12
    assert values[:3].abs().min() > 0.01


@pytest.mark.parametrize("draws", [60, 100])
def test_a_linear_model_is_exact_from_few_draws(draws):
    x, target = example(14)
    model = nn.Linear(14, 3).double()
    values = Shap(segments="pixels", draws=draws)(model, x, target)
    torch.testing.assert_close(values, (model.weight[target] * x).detach(), rtol=0, atol=1e-10)


def test_what_a_coalition_and_its_complement_share_does_not_reach_the_values():
    d = 10
    x = torch.full((1, d), 1.0).double()
    plain = Game(lambda x: (x[:, :-1] * x[:, 1:]).sum(1))
    shared = Game(lambda x: (x[:, :-1] * x[:, 1:]).sum(1) + 5 * (x.sum(1) - d / 2) ** 4)
    shap = Shap(segments="pixels", draws=60)
    target = torch.tensor([0])
    torch.testing.assert_close(shap(shared, x, target), shap(plain, x, target), rtol=0, atol=1e-9)


@pytest.mark.parametrize("smallest", [1, 2])
def test_sampled_sizes_follow_the_shapley_kernel_and_members_are_equally_likely(smallest):
    s, draws = 7, 8000
    rows = paired_coalitions(s, draws, 0, CPU, smallest)
    assert torch.equal(rows[1::2], ~rows[::2])
    sizes = rows[::2].sum(1)
    seen = np.array([(sizes == k).sum().item() for k in range(smallest, s - smallest + 1)])
    chance = np.array([1 / (k * (s - k)) for k in range(smallest, s - smallest + 1)])
    assert seen.sum() == draws // 2
    assert chisquare(seen, seen.sum() * chance / chance.sum()).pvalue > 0.001
    pairs = rows[::2][sizes == 2]
    kinds = torch.unique(pairs, dim=0, return_counts=True)[1].numpy()
    assert len(kinds) == math.comb(s, 2)
    assert chisquare(kinds).pvalue > 0.001


def kernel(s: int, k: int) -> float:
    """Lundberg and Lee 2017, Theorem 2."""
    return (s - 1) / (math.comb(s, k) * k * (s - k))


@given(s=st.integers(2, 11), draws=st.integers(1, 300), seed=st.integers(0, 9))
def test_weights_are_the_kernel_on_whole_sizes_and_share_its_rest_among_the_draws(s, draws, seed):
    rows, weights = weighted_coalitions(s, draws, seed, CPU)
    smallest, left = sizes_taken_whole(s, draws)
    assert len(rows) <= draws or draws > 2**s - 2
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)
    rest = 0.0
    for k in range(1, s):
        mine = weights[rows.sum(1) == k]
        if min(k, s - k) < smallest:
            assert len(mine) == math.comb(s, k)
            assert np.allclose(mine, kernel(s, k), rtol=1e-10, atol=0)
        else:
            rest += mine.sum().item()
    expected = sum(math.comb(s, k) * kernel(s, k) for k in range(smallest, s - smallest + 1))
    assert rest == pytest.approx(expected if 2 * smallest <= s else 0.0)
    assert sum(math.comb(s, k) for k in range(1, s) if min(k, s - k) < smallest) + left == draws


@given(s=st.integers(2, 12))
def test_draws_for_every_coalition_leave_nothing_to_sample(s):
    assert 2 * sizes_taken_whole(s, 2**s - 2)[0] > s
    assert 2 * sizes_taken_whole(s, 2**s - 3)[0] <= s


def test_captums_exact_shapley_values_are_ours():
    x, target = batch(2)
    model, mask = net("residual"), segment(x, "grid", grid=2)
    ours = Shap(segments=mask, sampling="enumerate")(model, x, target)
    maps = ShapleyValues(model).attribute(x, target=target, feature_mask=mask[:, None])
    # Captum gives its maps in float32.
    torch.testing.assert_close(ours, maps.double(), rtol=1e-5, atol=1e-6)


def test_captums_kernel_shap_on_the_same_coalitions_gives_the_same_map():
    x, target = batch(2)
    model, mask = net("lenet"), segment(x, "grid", grid=3)
    ours = Shap(segments=mask, draws=80, seed=2)(model, x, target)
    rows, weights = weighted_coalitions(9, 80, 2, CPU)
    rows = rows.double()
    given_weights = {tuple(row): weight for row, weight in zip(rows.tolist(), weights, strict=True)}
    ends = torch.tensor([[1.0], [0.0]]).double().expand(2, 9)

    def same_coalitions(*_, **__):
        yield from torch.cat([ends, rows])[:, None]

    for i in range(2):
        captum = KernelShap(model)
        captum.perturb_func = same_coalitions
        captum.similarity_func = lambda *args, **_: given_weights.get(
            tuple(args[2][0].tolist()), torch.tensor(1e6)
        )
        theirs = captum.attribute(
            x[i : i + 1], target=int(target[i]), feature_mask=mask[i : i + 1, None], n_samples=2 + len(rows)
        )
        # Captum holds the constraint by a weight of 1e6 and fits in float32.
        torch.testing.assert_close(ours[i], theirs[0].double(), rtol=1e-3, atol=1e-4)
