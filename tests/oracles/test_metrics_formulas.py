"""Every metric against its formula as printed: one example at a time, loops, float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.ndimage
import scipy.spatial.distance
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from nets import batch, net

import gyrograd as gg
from gyrograd.metrics import (
    CenterDislocation,
    CosineDistance,
    MapSimilarity,
    RankCorrelation,
    TopKIntersection,
)
from gyrograd.metrics.insertion import positions
from gyrograd.models import Normalized
from gyrograd.numerics import random
from gyrograd.numerics.statistics import area_over_eps

SEED = 7


def logit(model, x, label):
    return model(x[None])[0, label]


def gradient(model, x, label):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(logit(model, x, label), x)[0]


def noise(kind, b, shape, draw):
    """The documented draws: stream number `draw` of each example's key."""
    return getattr(random, kind)(random.keys(SEED, b), shape, stream=draw, dtype=torch.float64)


def uniform_draw(x, i, draw, eps):
    return x[i] + eps * (2 * noise("uniform", len(x), x.shape[1:], draw)[i] - 1)


def normal_draw(x, i, draw, sigma):
    return x[i] + sigma * noise("normal", len(x), x.shape[1:], draw)[i]


def slow_ssim(a, b):
    """Wang et al. 2004, window by window, zeros outside."""
    size, sigma = 7, 1.5
    line = np.exp(-((np.arange(size) - 3) ** 2) / (2 * sigma**2))
    window = np.outer(line, line) / line.sum() ** 2
    a, b = np.pad(a, 3), np.pad(b, 3)
    inner = b[3:-3, 3:-3]
    c1, c2 = (0.01 * (inner.max() - inner.min())) ** 2, (0.03 * (inner.max() - inner.min())) ** 2
    values = []
    for i in range(inner.shape[0]):
        for j in range(inner.shape[1]):
            p, q = a[i : i + size, j : j + size], b[i : i + size, j : j + size]
            mp, mq = (window * p).sum(), (window * q).sum()
            vp, vq = (window * p * p).sum() - mp**2, (window * q * q).sum() - mq**2
            both = (window * p * q).sum() - mp * mq
            values.append((2 * mp * mq + c1) * (2 * both + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
    return float(np.mean(values))


SLOW_SIMILARITY = {
    "cosine": lambda a, b: 1 - scipy.spatial.distance.cosine(a.ravel(), b.ravel()),
    "pearson": lambda a, b: scipy.stats.pearsonr(a.ravel(), b.ravel())[0],
    "spearman": lambda a, b: scipy.stats.spearmanr(a.ravel(), b.ravel())[0],
    "ssim": slow_ssim,
}


def pixels(map):
    """joo2023's picture: sizes summed over channels, over the largest."""
    summed = sum(abs(map[c]) for c in range(len(map)))
    return (summed / summed.max()).numpy()


@pytest.mark.parametrize("similarity", sorted(SLOW_SIMILARITY))
@pytest.mark.parametrize("clip", [True, False])
def test_random_perturbation_similarity(similarity, clip):
    x, target = batch(2)
    x[0] = (x[0] > 0.5).double()  # clipping matters at 0 and 1
    model, eps, draws = net("lenet"), 0.15, 3
    expected = []
    for i, label in enumerate(target):
        clean = pixels(gradient(model, x[i], label))
        total = 0.0
        for draw in range(draws):
            near = uniform_draw(x, i, draw, eps)
            near = near.clamp(0, 1) if clip else near
            total += SLOW_SIMILARITY[similarity](clean, pixels(gradient(model, near, label)))
        expected.append(total / draws)
    metric = gg.metric("rps", eps=eps, draws=draws, similarity=similarity, clip=clip)
    values = metric(model, gg.attribution("gradient"), x, target, seed=SEED)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_local_lipschitz_and_model_smoothness():
    x, target = batch(3)
    model, sigma, draws = net("residual"), 0.03, 4
    expected = []
    for i, label in enumerate(target):
        ratios = []
        for draw in range(draws):
            near = normal_draw(x, i, draw, sigma)
            change = gradient(model, near, label) - gradient(model, x[i], label)
            ratios.append(math.sqrt((change**2).sum()) / math.sqrt(((near - x[i]) ** 2).sum()))
        expected.append(max(ratios))
    explain = gg.attribution("gradient")
    values = gg.metric("local_lipschitz", sigma=sigma, draws=draws)(model, explain, x, target, seed=SEED)
    np.testing.assert_allclose(values, expected, rtol=1e-9)
    smooth = gg.metric("model_smoothness", sigma=sigma, draws=draws)(model, None, x, target, seed=SEED)
    np.testing.assert_allclose(smooth, expected, rtol=1e-9)


@pytest.mark.parametrize("quantity", ["probability", "loss"])
def test_model_smoothness_is_that_of_the_quantity(quantity):
    x, target = batch(3)
    model, how = net("residual"), {"sigma": 0.03, "draws": 4}
    explain = gg.attribution("gradient", quantity=quantity)
    expected = gg.metric("local_lipschitz", **how)(model, explain, x, target, seed=SEED)
    smooth = gg.metric("model_smoothness", quantity=quantity, **how)(model, None, x, target, seed=SEED)
    np.testing.assert_allclose(smooth, expected, rtol=1e-9)
    of_logit = gg.metric("model_smoothness", **how)(model, None, x, target, seed=SEED)
    assert ((smooth - of_logit).abs() > 1e-3 * of_logit).all()


def test_local_lipschitz_of_normalised_clipped_pictures():
    x, target = batch(2)
    model, sigma, draws = net("lenet"), 0.4, 3
    expected = []
    for i, label in enumerate(target):
        ratios = []
        for draw in range(draws):
            near = normal_draw(x, i, draw, sigma).clamp(0, 1)
            change = pixels(gradient(model, near, label)) - pixels(gradient(model, x[i], label))
            ratios.append(np.linalg.norm(change) / (near - x[i]).norm().item())
        expected.append(max(ratios))
    metric = gg.metric(
        "local_lipschitz", sigma=sigma, draws=draws, reduce="abs_sum", normalize="max", clip=True
    )
    values = metric(model, gg.attribution("gradient"), x, target, seed=SEED)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("relative", [True, False])
def test_max_sensitivity(relative):
    x, target = batch(3)
    model, eps, draws = net("lenet"), 0.1, 4
    expected = []
    for i, label in enumerate(target):
        clean = gradient(model, x[i], label)
        scale = clean.norm().item() if relative else 1.0
        near = [uniform_draw(x, i, draw, eps) for draw in range(draws)]
        expected.append(max((gradient(model, one, label) - clean).norm().item() / scale for one in near))
    metric = gg.metric("max_sensitivity", eps=eps, draws=draws, relative=relative)
    values = metric(model, gg.attribution("gradient"), x, target, seed=SEED)
    np.testing.assert_allclose(values, expected, rtol=1e-9)


@pytest.mark.parametrize("quantity", ["logit", "probability"])
def test_model_lipschitz(quantity):
    x, target = batch(3)
    model, sigma, draws = net("lenet"), 0.1, 4

    def value(image, label):
        row = model(image[None])[0]
        return (row if quantity == "logit" else torch.exp(row) / torch.exp(row).sum())[label].item()

    expected = []
    for i, label in enumerate(target):
        near = [normal_draw(x, i, draw, sigma) for draw in range(draws)]
        expected.append(
            max(abs(value(one, label) - value(x[i], label)) / (one - x[i]).norm().item() for one in near)
        )
    metric = gg.metric("model_lipschitz", sigma=sigma, draws=draws, quantity=quantity)
    np.testing.assert_allclose(metric(model, None, x, target, seed=SEED), expected, rtol=1e-9)


def test_the_slope_of_a_linear_model_never_exceeds_its_norm():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3)).double()
    x, target = torch.rand(4, 3, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 0])
    values = gg.metric("model_lipschitz", draws=200)(model, None, x, target)
    bound = model[1].weight.norm(dim=1)[target]
    assert (values <= bound * (1 + 1e-9)).all()
    assert (values >= 0.5 * bound).all()
    smooth = gg.metric("model_smoothness", draws=5)(model, None, x, target)
    torch.testing.assert_close(smooth, torch.zeros(4, dtype=torch.float64))


def two_maps(b=4, side=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (b, 3, side, side)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


def summed(map):
    return sum(map[c].abs() for c in range(3)).numpy()


@given(st.integers(0, 10**6), st.integers(1, 36))
def test_top_k_intersection(seed, k):
    a, b = two_maps(2, seed=seed)
    for i in range(2):
        before, after = summed(a[i]).ravel(), summed(b[i]).ravel()
        top = set(np.argsort(-before)[:k])
        overlap = len(top & set(np.argsort(-after)[:k])) / k
        mass = sum(after[j] for j in top) / after.sum()
        assert TopKIntersection(k)(a, b)[i].item() == pytest.approx(overlap)
        assert TopKIntersection(k, "supplement")(a, b)[i].item() == pytest.approx(mass)


@given(st.integers(0, 10**6))
def test_rank_correlation_center_dislocation_and_cosine_distance(seed):
    a, b = two_maps(2, seed=seed)
    values = {
        "cor": RankCorrelation()(a, b),
        "cosd": CosineDistance()(a, b),
        "signed cosd": CosineDistance("none")(a, b),
        "cdl": CenterDislocation()(a, b),
        "cdl supplement": CenterDislocation("supplement")(a, b),
    }
    for i in range(2):
        before, after = summed(a[i]), summed(b[i])
        centres = [np.array(scipy.ndimage.center_of_mass(map)) for map in (before, after)]
        scaled = [map / map.sum() * 36 for map in (before, after)]
        expected = {
            "cor": scipy.stats.spearmanr(before.ravel(), after.ravel())[0],
            "cosd": scipy.spatial.distance.cosine(before.ravel(), after.ravel()),
            "signed cosd": scipy.spatial.distance.cosine(a[i].ravel(), b[i].ravel()),
            "cdl": np.linalg.norm(centres[0] - centres[1]),
            "cdl supplement": sum(
                abs(p - q) for p, q in zip(scaled[0].ravel(), scaled[1].ravel(), strict=True)
            ),
        }
        for name, value in expected.items():
            assert values[name][i].item() == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("similarity", sorted(SLOW_SIMILARITY))
def test_similarity_to_the_clean_map(similarity):
    a, b = two_maps(3)
    values = MapSimilarity(similarity)(a, b)
    expected = [SLOW_SIMILARITY[similarity](pixels(a[i]), pixels(b[i])) for i in range(3)]
    np.testing.assert_allclose(values, expected, rtol=1e-9)


def test_attack_responses_compare_the_maps_at_x_and_at_the_perturbed_inputs():
    x, target = batch(3)
    model, explain, perturbed = net("lenet"), gg.attribution("gradient"), 1 - x
    clean = torch.stack([gradient(model, x[i], target[i]) for i in range(3)])
    attacked = torch.stack([gradient(model, perturbed[i], target[i]) for i in range(3)])
    pairs = {
        ("k_in", ("k", 9), ("variant", "supplement")): TopKIntersection(9, "supplement"),
        ("cor",): RankCorrelation(),
        ("cdl",): CenterDislocation(),
        ("cosd",): CosineDistance(),
        ("similarity_to_clean", ("similarity", "ssim")): MapSimilarity("ssim"),
    }
    for (name, *settings), measure in pairs.items():
        values = gg.metric(name, **dict(settings))(model, explain, x, target, perturbed=perturbed)
        torch.testing.assert_close(values, measure(clean, attacked))


@pytest.mark.parametrize("similarity", sorted(SLOW_SIMILARITY))
def test_similarity_to_the_target_map(similarity):
    x, target = batch(2)
    model, perturbed = net("lenet"), 1 - x
    frame = np.ones((12, 12))
    frame[2:-2, 2:-2] = 0
    own = torch.rand(2, 12, 12, dtype=torch.float64)
    metric = gg.metric("similarity_to_target", similarity=similarity)
    for chosen in (None, own):
        values = metric(model, gg.attribution("gradient"), x, target, perturbed=perturbed, target_map=chosen)
        for i in range(2):
            aim = frame if chosen is None else (own[i] / own[i].max()).numpy()
            expected = SLOW_SIMILARITY[similarity](aim, pixels(gradient(model, perturbed[i], target[i])))
            assert values[i].item() == pytest.approx(expected)


def test_values_over_eps_and_their_area():
    x, target = batch(2)
    model, explain, metric = net("lenet"), gg.attribution("gradient"), gg.metric("k_in", k=20)
    at = {16: 1 - x, 2: x, 8: x.flip(3), 4: x.sqrt()}
    values = metric.over_eps(model, explain, x, target, at)
    columns = [metric(model, explain, x, target, perturbed=at[eps]) for eps in (2, 4, 8, 16)]
    torch.testing.assert_close(values, torch.stack(columns, 1))
    assert (values[:, 0] == 1).all()
    expected = [(v[0] + v[1]) / 2 + (v[1] + v[2]) / 2 + (v[2] + v[3]) / 2 for v in values.tolist()]
    np.testing.assert_allclose(area_over_eps(values.numpy()), expected)


def slow_curve(model, x, label, order_map, ratios, *, insert, empty, ties="exact"):
    """joo2023's game on one image, pixel by pixel."""
    flat = [
        (-order_map[r, c].item(), r, c) for r in range(order_map.shape[0]) for c in range(order_map.shape[1])
    ]
    ranked = sorted(flat)
    curve = []
    for ratio in ratios:
        count = int(ratio * len(flat) + 1e-9)
        if ties == "exact":
            chosen = [(r, c) for _, r, c in ranked[:count]]
        else:
            bar = -ranked[count][0] if count < len(flat) else -math.inf
            chosen = [(r, c) for value, r, c in ranked if -value > bar]
        image = (empty if insert else x).clone()
        for r, c in chosen:
            image[:, r, c] = (x if insert else empty)[:, r, c]
        row = torch.exp(model(image[None])[0])
        curve.append((row[label] / row.sum()).item())
    return curve


@pytest.mark.parametrize("game", ["insertion", "deletion", "adversarial_insertion"])
@pytest.mark.parametrize("ratios", ["paper", "reference", (0.0, 0.29, 0.5)])
def test_pixel_games(game, ratios):
    x, target = batch(2)
    perturbed = x.flip(3)
    model = net("lenet")
    attacked = game == "adversarial_insertion"
    shares = {"paper": [i / 20 for i in range(21)], "reference": [i / 20 for i in range(20)]}.get(
        ratios, ratios
    )
    curves = []
    for i, label in enumerate(target):
        map = gradient(model, (perturbed if attacked else x)[i], label).abs().sum(0)
        empty = torch.zeros_like(x[i])
        curves.append(slow_curve(model, x[i], label, map, shares, insert=game != "deletion", empty=empty))
    metric, explain = gg.metric(game, ratios=ratios), gg.attribution("gradient")
    more = {"perturbed": perturbed} if attacked else {}
    np.testing.assert_allclose(metric.curve(model, explain, x, target, **more), curves, rtol=1e-9)
    np.testing.assert_allclose(metric(model, explain, x, target, **more), np.mean(curves, 1), rtol=1e-9)


@pytest.mark.parametrize("ties", ["exact", "strict"])
def test_ties_are_taken_in_order_or_left_out(ties):
    x, target = batch(3)
    model = net("lenet")
    coarse = (torch.rand_like(x) * 3).floor()
    coarse[2] = 1  # constant
    shares = [i / 20 for i in range(20)]
    metric = gg.metric("insertion", ratios="reference", ties=ties)
    curves = metric.curve_of_map(model, coarse, x, target)
    for i, label in enumerate(target):
        expected = slow_curve(
            model,
            x[i],
            label,
            coarse[i].abs().sum(0),
            shares,
            insert=True,
            empty=torch.zeros_like(x[i]),
            ties=ties,
        )
        np.testing.assert_allclose(curves[i], expected, rtol=1e-9)
    # Equal images in different places of a batch may differ in the last digit.
    assert (curves[2].max() - curves[2].min() < 1e-12).item() is (ties == "strict")


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_positions_rank_every_pixel_once_and_larger_ones_first(seed, levels):
    map = torch.randint(levels, (2, 1, 5, 4), generator=torch.Generator().manual_seed(seed)).double()
    exact, strict = positions(map).flatten(1), positions(map, "strict").flatten(1)
    for i in range(2):
        values = map[i].flatten().tolist()
        assert sorted(exact[i].tolist()) == list(range(20))
        assert exact[i].tolist() == [
            sum(w > v or (w == v and q < p) for q, w in enumerate(values)) for p, v in enumerate(values)
        ]
        assert strict[i].tolist() == [sum(w >= v for w in values) - 1 for v in values]


def test_the_substrate_is_what_the_model_sees_as_zero_or_what_is_asked_for():
    x, target = batch(2)
    mean = (0.2, 0.5, 0.7)
    model = Normalized(net("lenet"), mean, (0.3, 0.3, 0.3)).double()
    grey = torch.tensor(mean, dtype=torch.float64).view(3, 1, 1).expand(3, 12, 12)
    own = x.mean((2, 3), keepdim=True).expand_as(x)
    cases = {
        "model_zero": grey.expand_as(x),
        "zero": torch.zeros_like(x),
        "mean": own,
        0.25: torch.full_like(x, 0.25),
    }
    for substrate, empty in cases.items():
        curve = gg.metric("insertion", substrate=substrate, ratios=(0.0, 1.0)).curve(
            model, gg.attribution("gradient"), x, target
        )
        for i, label in enumerate(target):
            both = torch.softmax(model(torch.stack([empty[i], x[i]]).float().double()), 1)[:, label]
            torch.testing.assert_close(curve[i], both.detach(), rtol=1e-5, atol=1e-7)


def test_insertion_ends_where_deletion_begins():
    x, target = batch(3)
    model, explain = net("lenet"), gg.attribution("gradient")
    put_in = gg.metric("insertion").curve(model, explain, x, target)
    taken_out = gg.metric("deletion").curve(model, explain, x, target)
    torch.testing.assert_close(put_in[:, -1], taken_out[:, 0])
    torch.testing.assert_close(put_in[:, 0], taken_out[:, -1])
    torch.testing.assert_close(
        put_in[:, -1], torch.softmax(model(x), 1).gather(1, target[:, None])[:, 0].detach()
    )


SLOW_AGREEMENT = {
    "inverse_l2": lambda a, b: 1 / np.linalg.norm(a - b),
    "pearson": SLOW_SIMILARITY["pearson"],
    "spearman": SLOW_SIMILARITY["spearman"],
    "cosine": SLOW_SIMILARITY["cosine"],
}


@pytest.mark.parametrize("similarity", sorted(SLOW_AGREEMENT))
@pytest.mark.parametrize("contribution", ["slope", "difference"])
def test_faithfulness(similarity, contribution):
    x, target = batch(2)
    x[0, :, :4, :4] = 0  # a group that equals its reference
    model, grid = net("residual"), 3
    expected = []
    for i, label in enumerate(target):
        map = gradient(model, x[i], label)
        importance, marginal = [], []
        for r in range(grid):
            for c in range(grid):
                cell = (slice(None), slice(4 * r, 4 * r + 4), slice(4 * c, 4 * c + 4))
                without = x[i].clone()
                without[cell] = 0
                drop = (logit(model, x[i], label) - logit(model, without, label)).item()
                mean = x[i][cell].mean().item()
                slope = drop / mean if mean else 0.0
                marginal.append(slope if contribution == "slope" else drop)
                importance.append(map[cell].sum().item())
        expected.append(SLOW_AGREEMENT[similarity](np.array(importance), np.array(marginal)))
    metric = gg.metric("faithfulness", grid=grid, similarity=similarity, contribution=contribution)
    values = metric(model, gg.attribution("gradient"), x, target)
    np.testing.assert_allclose(values, expected, rtol=1e-8)


def test_faithfulness_of_single_elements_is_equation_1():
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(4, 6), torch.nn.Softplus(), torch.nn.Linear(6, 3)
    )
    model = model.double()
    x, target = 0.1 + 0.8 * torch.rand(3, 4, dtype=torch.float64), torch.tensor([0, 1, 2])
    metric = gg.metric("faithfulness", segments="pixels", reference=0.05)
    for i, value in enumerate(metric(model, gg.attribution("gradient"), x, target)):
        p = []
        for j in range(4):
            without = x[i].clone()
            without[j] = 0.05
            p.append(
                (logit(model, x[i], target[i]) - logit(model, without, target[i])).item()
                / (x[i, j].item() - 0.05)
            )
        assert value.item() == pytest.approx(1 / np.linalg.norm(gradient(model, x[i], target[i]).numpy() - p))


def test_faithfulness_has_no_slope_for_a_group_whose_mean_change_is_zero():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 1, bias=False)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 2.0, 4.0, 3.0]]))
    x = torch.tensor([0.25, 0.75, 0.75, 0.25], dtype=torch.float64).view(1, 1, 2, 2)
    whole, zero = torch.zeros(1, 2, 2, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    for contribution, expected in (("slope", 0.0), ("difference", 0.5)):
        metric = gg.metric("faithfulness", reference=0.5, contribution=contribution)
        assert metric.contributions(model, x, zero, whole).item() == expected


def test_faithfulness_of_superpixels_compares_each_image_on_its_own_groups():
    x, target = batch(2, side=24)
    x[1] = x[1].mean((1, 2), keepdim=True) + 0.001 * x[1]  # far fewer superpixels than noise has
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Softplus(), torch.nn.Flatten(), torch.nn.LazyLinear(5)
    )
    model = model.double()
    model(x)
    metric = gg.metric("faithfulness", segments="quickshift", similarity="pearson", contribution="difference")
    explain = gg.attribution("gradient")
    whole = metric(model, explain, x, target)
    alone = torch.cat([metric(model, explain, x[i : i + 1], target[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(whole, alone)


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("perturbation", ["gaussian", "square"])
def test_infidelity(rescale, perturbation):
    x, target = batch(3)
    model, sigma, draws, patch = net("lenet"), 0.2, 6, 5
    expected = []
    for i, label in enumerate(target):
        map = gradient(model, x[i], label)
        promised, happened = [], []
        for draw in range(draws):
            if perturbation == "gaussian":
                shake = sigma * noise("normal", 3, x.shape[1:], draw)[i]
            else:
                corner = noise("uniform", 3, (2,), draw)[i]
                top, left = (int(u * (12 - patch + 1)) for u in corner.tolist())
                shake = torch.zeros_like(x[i])
                shake[:, top : top + patch, left : left + patch] = x[
                    i, :, top : top + patch, left : left + patch
                ]
            promised.append((shake * map).sum().item())
            happened.append((logit(model, x[i], label) - logit(model, x[i] - shake, label)).item())
        p, h = np.array(promised), np.array(happened)
        factor = (p @ h) / (p @ p) if rescale else 1.0
        expected.append(np.mean((factor * p - h) ** 2))
    metric = gg.metric(
        "infidelity", sigma=sigma, draws=draws, perturbation=perturbation, patch=patch, rescale=rescale
    )
    values = metric(model, gg.attribution("gradient"), x, target, seed=SEED)
    np.testing.assert_allclose(values, expected, rtol=1e-8)


def test_infidelity_of_a_linear_models_gradient_is_zero():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).double()
    x, target = torch.rand(2, 3, 4, 4, dtype=torch.float64), torch.tensor([0, 2])
    values = gg.metric("infidelity")(model, gg.attribution("gradient"), x, target)
    torch.testing.assert_close(values, torch.zeros(2, dtype=torch.float64))


def test_accuracy():
    x, _ = batch(8)
    model = net("lenet")
    target = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])
    expected = [float(int(np.argmax(model(x[i : i + 1]).detach().numpy())) == target[i]) for i in range(8)]
    assert gg.metric("accuracy")(model, None, x, target).tolist() == expected
    right = model(x).argmax(1)
    assert gg.metric("accuracy")(model, None, x, right).tolist() == [1.0] * 8


@pytest.mark.parametrize("percent", range(0, 101, 7))
def test_a_share_is_that_many_pixels_in_spite_of_rounding(percent):
    """0.28 * 100 is 28.000000000000004 and 0.57 * 100 is 56.99999999999999: both are whole shares of pixels."""
    count = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(100, 1, bias=False)).double()
    torch.nn.init.ones_(count[1].weight)
    x = torch.ones(1, 1, 10, 10, dtype=torch.float64)
    for share in (percent / 100, 0.29, 0.57, 0.58):
        metric = gg.metric("insertion", ratios=(share,), quantity="logit")
        value = metric(count, gg.attribution("gradient"), x, torch.zeros(1, dtype=torch.int64))
        assert value.item() == round(100 * share)


def test_the_declared_range_of_the_rank_correlation_is_reached_at_both_ends():
    a = torch.arange(12.0).reshape(1, 1, 3, 4) + 1
    same = RankCorrelation()
    ends = float(same(a, 13 - a)), float(same(a, a))
    assert ends == pytest.approx(same.range)
