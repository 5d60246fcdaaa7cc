"""Certificates against maps whose every answer is known, and against an attack that tries to break them."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net
from scipy import stats
from torch import nn

import gyrograd as gg
from gyrograd.metrics import CertifiedCosine, CertifiedPixels, certificates
from gyrograd.metrics.certificates import lower_share

SIGMA = 0.1


class Nothing(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :2]


def by_side(model, x, target, *, create_graph=False):
    """The left pixel is the larger one where the first value is positive, the right one elsewhere."""
    left = (x[:, :1, :1, :1] > 0).to(x)
    return torch.cat([left, 1 - left], 3)


def by_sign(model, x, target, *, create_graph=False):
    """A map along one axis that turns round where the first value changes its sign."""
    return torch.cat([x[:, :1, :1, :1].sign(), torch.zeros_like(x[:, :1, :1, :1])], 3)


def itself(model, x, target, *, create_graph=False):
    return x.abs()


def at(distances):
    """One image per distance of its first value from zero; everything else does not matter."""
    x = torch.zeros(len(distances), 1, 1, 2, dtype=torch.float64)
    x[:, 0, 0, 0] = torch.tensor(distances, dtype=torch.float64)
    return x, torch.zeros(len(distances), dtype=torch.int64)


DISTANCES = [side * d for d in np.linspace(0.005, 0.3, 60) for side in (-1, 1)]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 60), alpha=st.floats(1e-4, 0.2), p=st.floats(0.01, 0.99))
def test_a_share_lies_below_its_bound_no_more_often_than_alpha(n, alpha, p):
    """Summed over all outcomes, not sampled."""
    bounds = lower_share(torch.arange(n + 1), n, alpha).numpy()
    wrong = stats.binom.pmf(np.arange(n + 1), n, p)[bounds > p].sum()
    assert wrong <= alpha * (1 + 1e-9)
    assert (np.diff(bounds) >= 0).all()
    assert bounds[-1] == pytest.approx(alpha ** (1 / n))


def test_a_pixel_is_certified_up_to_where_it_flips_and_no_further():
    x, target = at(DISTANCES)
    found = CertifiedPixels(sigma=SIGMA, top=0.5, draws=1000, held_out=50, alpha=0.001).certificate(
        Nothing(), by_side, x, target
    )
    truth = x[:, 0, 0, 0].abs()
    certified = found.radius.amin((1, 2))
    assert (certified <= truth).all()
    assert (found.in_top[:, 0, 0] == (x[:, 0, 0, 0] > 0))[certified > 0].all()
    # Clopper-Pearson of 1000 draws leaves little below the truth, where the truth is within reach of 1000 draws.
    near = (truth > SIGMA) & (truth < 1.8 * SIGMA)
    assert (certified[near] > 0.75 * truth[near]).all()
    assert torch.equal(found.states(0.0) == 0, torch.zeros_like(found.in_top))
    assert torch.equal(found.share(10.0), torch.zeros(len(x), dtype=torch.float64))


def test_a_direction_is_certified_up_to_where_it_turns_and_no_further():
    x, target = at([abs(d) for d in DISTANCES])
    metric = CertifiedCosine(sigma=SIGMA, draws=1000, held_out=50, alpha=0.001)
    found = metric.certificate(Nothing(), by_sign, x, target)
    side = found.direction[:, 0, 0, 0]  # close to the kink the held-out draws may guess the wrong one
    truth = torch.special.ndtr(side * x[:, 0, 0, 0] / SIGMA)
    assert (found.low <= truth).all()
    assert (found.low > truth - 0.15).all()
    right = side > 0
    for radius in (0.0, 0.05, 0.1):
        # Along the first axis the mean of the turned directions is exactly what the lemma allows.
        worst = 2 * torch.special.ndtr((x[:, 0, 0, 0] - radius) / SIGMA) - 1
        bound = found.cosine(radius)
        assert (bound[right] <= worst[right].clamp_min(-1)).logical_or(bound[right] == -1).all()
        assert ((bound == -1) | (bound > 0)).all()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(4, 40), looks=st.integers(1, 4), alpha=st.floats(1e-3, 0.2), p=st.floats(0.05, 0.95))
def test_bounds_of_all_looks_together_are_wrong_no_more_often_than_alpha(n, looks, alpha, p):
    """The chance that some look's bound is above the truth, summed over all paths of the counts; not sampled.

    Whatever rule stops the draws, the bound that is given is the best of some of these looks.
    """
    ends = certificates.look_ends(n, looks)
    assert ends[-1] == n
    right = np.array([1.0])  # probability of each count, as long as no bound was wrong
    seen = 0
    for end in ends:
        right = np.convolve(right, stats.binom.pmf(np.arange(end - seen + 1), end - seen, p))
        bounds = lower_share(torch.arange(end + 1), end, alpha / len(ends)).numpy()
        right, seen = np.where(bounds > p, 0.0, right), end
    assert 1 - right.sum() <= alpha * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("looks", [1, 4])
def test_early_stopping_saves_draws_and_certifies_nothing_false(looks):
    x, target = at([abs(d) for d in DISTANCES[::4]])
    pixels = CertifiedPixels(sigma=SIGMA, radius=0.05, draws=800, held_out=20, looks=looks)
    found = pixels.certificate(Nothing(), by_side, x, target)
    truth = x[:, 0, 0, 0]
    assert (found.radius.amin((1, 2)) <= truth).all()
    angle = CertifiedCosine(sigma=SIGMA, radius=0.05, draws=800, held_out=20, looks=looks)
    turned = angle.certificate(Nothing(), by_sign, x, target)
    side = turned.direction[:, 0, 0, 0]
    assert (turned.low <= torch.special.ndtr(side * truth / SIGMA)).all()
    if looks == 1:
        assert (found.draws == 800).all()
        assert (turned.draws == 800).all()
        return
    # What is far from the radius asked for, on either side, is settled after the first look or two.
    far, hopeless, near = truth > 2 * SIGMA, truth < 0.02, (truth - 0.06).abs() < 0.01
    assert (found.draws[far] == 100).all()
    assert found.draws[hopeless].double().mean() < 350
    assert found.draws[near].double().mean() > 400
    assert (found.radius.amin((1, 2))[far] >= 0.05).all()
    assert turned.draws[hopeless].double().mean() < 350


def test_an_image_gets_the_same_certificate_whoever_stops_beside_it():
    x, target = at([0.02, 0.06, 0.3])
    metric = CertifiedPixels(sigma=SIGMA, radius=0.05, draws=800, held_out=20, looks=4)
    keys = gg.numerics.random.keys(0, 3)
    together = metric.certificate(Nothing(), by_side, x, target, seed=keys)
    for i in range(3):
        alone = metric.certificate(Nothing(), by_side, x[i : i + 1], target[i : i + 1], seed=keys[i : i + 1])
        assert torch.equal(alone.radius[0], together.radius[i])
        assert alone.draws[0] == together.draws[i]


def test_only_pixels_that_do_flip_within_the_radius_are_refuted():
    """The left pixel is in the top where the first value is positive, so it flips at that distance and no nearer."""
    x, target = at([0.01, 0.03, 0.06, 0.11, 0.3])
    metric = CertifiedPixels(sigma=SIGMA, radius=0.1, draws=400, held_out=50)
    found = metric.certificate(Nothing(), by_side, x, target)
    refuted = certificates.find_refuted(metric, Nothing(), by_side, x, target, found)
    truth = x[:, 0, 0, 0]
    sure = found.radius.amin((1, 2)) >= metric.radius
    assert not (refuted.any((1, 2)) & (sure | (truth > metric.radius))).any()
    assert refuted[:3].all()


def test_what_noise_alone_decides_is_not_certified():
    """Pixels of pure noise are in the top half half of the time; without a correction 5 % of them would pass."""
    x, target = torch.zeros(20, 1, 16, 16), torch.zeros(20, dtype=torch.int64)
    found = CertifiedPixels(sigma=SIGMA, draws=200, held_out=20, alpha=0.05).certificate(
        Nothing(), itself, x, target
    )
    assert (found.radius > 0).flatten(1).any(1).sum() <= 4  # one of twenty is expected at most


@pytest.mark.parametrize(
    ("fault", "broken"),
    [(None, False), ("sigma", True), ("alpha", True)],
    ids=["as it is", "sigma twice as large", "no confidence"],
)
def test_an_attack_breaks_certificates_only_where_they_are_wrong(fault, broken, monkeypatch):
    """x moves by the certified radius towards its kink; the majority of fresh draws must still be the guess."""
    if fault == "alpha":
        monkeypatch.setattr(
            certificates, "lower_share", lambda agreeing, draws, alpha: agreeing / draws + 0.03
        )
    x, target = at(DISTANCES)
    found = CertifiedPixels(sigma=SIGMA, draws=500, held_out=50).certificate(Nothing(), by_side, x, target)
    radius = found.radius[:, 0, 0] * (2 if fault == "sigma" else 1)
    moved = x.clone()
    moved[:, 0, 0, 0] -= 0.999 * radius * x[:, 0, 0, 0].sign()
    after = torch.special.ndtr(
        moved[:, 0, 0, 0] / SIGMA
    )  # the true share of draws with the left pixel in the top
    held = torch.where(found.in_top[:, 0, 0], after, 1 - after) >= 0.5
    assert bool((~held)[radius > 0].any()) == broken


def test_random_and_steepest_changes_of_a_net_break_no_certificate():
    model, explain = net("lenet").double(), gg.attribution("gradient")
    x, target = batch(3)
    x = x.double()
    certified = CertifiedPixels(sigma=0.15, draws=200, held_out=20, alpha=0.01)
    found = certified.certificate(model, explain, x, target)
    radius = 0.03
    sure = found.radius >= radius
    assert sure.float().mean() > 0.02  # or the test would show nothing
    slope = explain(model, x, target)
    generator = torch.Generator().manual_seed(0)
    for direction in (slope, -slope, *torch.randn(3, *x.shape, generator=generator, dtype=x.dtype)):
        length = direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        moved = x + radius * direction / length
        again = CertifiedPixels(sigma=0.15)
        around = certificates._Draws(again, model, explain, moved, target, seed=7)
        share = again._count_in_top(around, torch.arange(len(x)), slice(0, 200)) / 200
        agreeing = torch.where(found.in_top, share, 1 - share)[sure]
        # A true share of a half or more shows as less than .3 in 200 draws once in 10^8.
        assert (agreeing > 0.3).all()


def test_a_linear_net_is_certified_as_far_as_the_draws_can_tell():
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False)).double()
    x, target = torch.rand(2, 3, 2, 2, dtype=torch.float64), torch.tensor([0, 1])
    explain = gg.attribution("gradient")
    found = CertifiedPixels(sigma=SIGMA, draws=100, held_out=5, alpha=0.01).certificate(
        model, explain, x, target
    )
    most = SIGMA * stats.norm.ppf((0.01 / 4) ** (1 / 100))
    torch.testing.assert_close(found.radius, torch.full_like(found.radius, most))
    direction = CertifiedCosine(sigma=SIGMA, draws=100, held_out=5, alpha=0.01).certificate(
        model, explain, x, target
    )
    slope = explain(model, x, target)
    torch.testing.assert_close(direction.direction, slope / slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1))
    doubt = 7 * math.log(200) / (3 * 99)
    torch.testing.assert_close(direction.low, torch.full((2,), 1 - doubt, dtype=torch.float64))
    assert direction.cosine(0.0)[0] == pytest.approx(1 - 2 * doubt)


def test_looks_share_alpha():
    """A linear net's draws all agree; each of three looks has a third of alpha, and the last knows most."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False)).double()
    x, target = torch.rand(2, 3, 2, 2, dtype=torch.float64), torch.tensor([0, 1])
    given = {"sigma": SIGMA, "draws": 100, "held_out": 5, "alpha": 0.01, "looks": 3, "radius": 0.21}
    found = CertifiedPixels(**given).certificate(model, gg.attribution("gradient"), x, target)
    most = SIGMA * stats.norm.ppf((0.01 / 3 / 4) ** (1 / 100))
    torch.testing.assert_close(found.radius, torch.full_like(found.radius, most))
    turned = CertifiedCosine(**given).certificate(model, gg.attribution("gradient"), x, target)
    doubt = 7 * math.log(2 * 3 / 0.01) / (3 * 99)
    torch.testing.assert_close(turned.low, torch.full((2,), 1 - doubt, dtype=torch.float64))


def test_a_map_of_zeros_has_no_direction_to_certify():
    x, target = at([0.1])
    zero = CertifiedCosine(draws=20, held_out=5)(Nothing(), lambda m, x, t: torch.zeros_like(x), x, target)
    assert zero.tolist() == [-1.0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"draws": 10}, "certify 144 pixels up to .* even if all agree"),
        ({"sigma": 0.0}, "sigma is 0.0"),
        ({"radius": -1.0}, "radius is -1.0"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"top": 1.0}, "top is 1.0"),
        ({"held_out": 0}, "held_out is 0"),
        ({"looks": 0}, "looks is 0"),
    ],
)
def test_settings_that_cannot_certify_are_told_in_a_sentence(changes, why):
    x, target = batch(1)
    with pytest.raises(gg.UserError, match=why):
        gg.metric("certified_pixels", **changes)(net("lenet"), gg.attribution("gradient"), x, target)


def test_examples_in_the_documentation_run():
    result = doctest.testmod(certificates)
    assert result.attempted > 0
    assert result.failed == 0
