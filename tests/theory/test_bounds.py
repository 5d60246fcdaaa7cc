"""What is measured never exceeds its bound, on nets whose constants are known; and the bounds that are tight."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_nets import (
    BETA,
    Known,
    Units,
    bounded_units,
    exact_smoothgrad,
    field,
    first_class,
    inside,
    numbers,
    quadratic,
    smoothed_units,
    units,
)
from scipy import integrate
from scipy.stats import norm
from torch import nn

from gyrograd.attributions import Gradient, InputXGradient, IntegratedGradients, smoothgrad
from gyrograd.attributions.lime import Lime
from gyrograd.attributions.shap import Shap
from gyrograd.data.toy2d import toy2d
from gyrograd.errors import UserError
from gyrograd.numerics.autograd import input_gradient, top_eigenvalue
from gyrograd.smoothing import Gaussian, Laplace, Smoothed, Uniform
from gyrograd.theory import bounds as b
from gyrograd.theory import estimates as m

SEEDS = st.integers(0, 10_000)
SIZES = st.integers(2, 5)
FEW = settings(max_examples=10)
STEP = 0.9
"""Points compared are at most this far apart (the printed LIME bound asks for at most 1)."""


def known_net(kind: str, seed: int, d: int) -> Known:
    if kind == "softplus unit":
        return units(seed, d)
    if kind == "softplus net":
        return units(seed, d, width=4)
    return quadratic(seed, d, flat=kind == "plane")


KINDS = st.sampled_from(["plane", "quadratic", "softplus unit", "softplus net"])


def pairs(known: Known, seed: int, d: int, draws: int = 4):
    """Examples and points near them, all of norm at most the net's radius."""
    x = inside(seed + 7, 3, d, known.radius - STEP)
    return x, m.points_near(x, STEP, draws, seed=seed)


def maps(attribution, model):
    return lambda x: attribution(model, x, first_class(x))


def holds(found: m.Steepest, bound: float) -> bool:
    return bool((found.ratio <= bound * (1 + 1e-7) + 1e-9).all())


# tan2023 Theorem 4.1, the six explainers


def limits(known: Known, d: int) -> dict:
    """The map of each explainer with its bound."""
    lip, smooth, radius = known.lipschitz, known.smoothness, known.radius
    exact = {"segments": "pixels", "sampling": "enumerate"}
    lime = {**exact, "reduction": "mean", "ridge": 0.3}
    return {
        "gradient": (Gradient(), b.gradient_bound(smooth)),
        "input_x_gradient": (InputXGradient(), b.input_x_gradient_bound(lip, smooth, radius)),
        "ig": (IntegratedGradients(steps=40), b.integrated_gradients_bound(lip, smooth, radius)),
        "ig, right rule": (
            IntegratedGradients(steps=4, rule="right"),
            b.integrated_gradients_bound(lip, smooth, radius, mean_position=5 / 8),
        ),
        "shap": (Shap(**exact), b.shap_bound(lip, d)),
        "lime, uniform": (Lime(**lime, kernel="uniform"), b.lime_uniform_bound(lip, d, 0.3)),
        "lime": (
            Lime(**lime, distance="l2", width=1.5),
            b.lime_exponential_bound(lip, known.largest, radius, d=d, ridge=0.3, width=1.5),
        ),
    }


@FEW
@given(kind=KINDS, seed=SEEDS, d=SIZES)
def test_no_explainer_moves_faster_than_theorem_4_1_allows(kind, seed, d):
    known = known_net(kind, seed, d)
    x, near = pairs(known, seed, d)
    for name, (attribution, bound) in limits(known, d).items():
        assert holds(m.steepest(maps(attribution, known.model), x, near), bound), name


@given(seed=SEEDS, d=SIZES, width=st.integers(1, 5), sigma=st.floats(0.05, 3))
def test_smoothgrad_moves_no_faster_than_its_bound(seed, d, width, sigma):
    known = units(seed, d, width)
    x, near = pairs(known, seed, d)
    of = lambda z: exact_smoothgrad(known.model, z, sigma)  # noqa: E731
    assert holds(m.steepest(of, x, near), b.smoothgrad_bound_from_lipschitz(known.lipschitz, sigma))


def test_the_smoothgrad_bound_is_attained_by_the_absolute_value():
    """L |x|, smoothed: the gradient is L (2 Phi(x / sigma) - 1), of slope sqrt(2 / pi) L / sigma at 0."""
    lip, sigma, step = 1.7, 0.4, 1e-4
    slope = lip * (2 * norm.cdf(step / sigma) - 1) / step
    assert slope == pytest.approx(b.smoothgrad_bound_from_lipschitz(lip, sigma), rel=1e-6)


def test_smoothgrad_is_the_gradient_of_the_smoothed_net():
    """wang2020 Proposition 1: many draws tend to the exact integral, at the rate of their number."""
    known, x = units(3, 3, 4), inside(1, 4, 3, 1.5)
    exact = exact_smoothgrad(known.model, x, 0.5)
    drawn = smoothgrad(sigma=0.5, draws=4000)(known.model, x, first_class(x))
    assert (drawn - exact).abs().max() < 6 * known.lipschitz / math.sqrt(4000)
    plain = Gradient()(known.model, x, first_class(x))
    assert (plain - exact).abs().max() > 0.1


@FEW
@given(seed=SEEDS, d=st.integers(2, 4))
def test_every_form_of_a_bound_holds_and_the_sharp_one_is_lowest(seed, d):
    known = known_net("softplus net", seed, d)
    x, near = pairs(known, seed, d)
    shap = [b.shap_bound(known.lipschitz, d, form=form) for form in ("sharp", "paper")]
    shape = {"d": d, "ridge": 0.3, "width": 1.5}
    sizes = (known.lipschitz, known.largest, known.radius)
    lime = [b.lime_exponential_bound(*sizes, **shape, form=form) for form in ("sharp", "corrected", "paper")]
    exact = {"segments": "pixels", "sampling": "enumerate"}
    maker = Lime(**exact, reduction="mean", ridge=0.3, distance="l2", width=1.5)
    assert shap[0] < shap[1]
    assert lime[0] < lime[2] < lime[1]
    assert all(holds(m.steepest(maps(Shap(**exact), known.model), x, near), bound) for bound in shap)
    assert all(holds(m.steepest(maps(maker, known.model), x, near), bound) for bound in lime)


def test_a_wide_lime_kernel_is_the_uniform_one():
    wide = b.lime_exponential_bound(1.3, 5.0, 2.0, d=4, ridge=0.2, width=1e6, form="paper")
    assert wide == pytest.approx(b.lime_uniform_bound(1.3, 4, 0.2), rel=1e-6)


def test_the_printed_lime_bound_is_infinite_where_floats_end():
    narrow = {"d": 4, "ridge": 0.2, "width": 0.05}
    assert b.lime_exponential_bound(1.0, 1.0, 2.0, **narrow, form="paper") == math.inf
    assert b.lime_exponential_bound(1.0, 1.0, 2.0, **narrow) < 1e4


def test_the_constants_are_the_printed_ones():
    lip, smooth, r, beta, d, lam, s = 1.3, 0.7, 2.1, 1.9, 5, 0.4, 1.6
    assert b.gradient_bound(smooth) == 0.7
    assert b.input_x_gradient_bound(lip, smooth, beta) == pytest.approx(beta * smooth + lip)
    assert b.integrated_gradients_bound(lip, smooth, beta) == pytest.approx((beta * smooth + 2 * lip) / 2)
    assert b.smoothgrad_bound_from_lipschitz(lip, s) == pytest.approx(math.sqrt(2 / (math.pi * s**2)) * lip)
    assert b.shap_bound(lip, d, form="paper") == pytest.approx(2 * math.sqrt(d) * lip)
    c_lam = 4 / (4 * lam + 1)
    assert b.lime_uniform_bound(lip, d, lam) == pytest.approx(math.sqrt(d + 1) * c_lam * lip / 2)
    c = 4 / (math.exp(-(beta**2) / s**2) + 4 * lam)
    grow = math.exp(2 * beta / s**2)
    first = math.sqrt(1 + d) * lip / 2 + beta * r * math.sqrt(d - 1) / s**2 * grow
    printed = c * first + c**2 * beta * r * (d - 1) * math.sqrt(d) / (2 * s**2) * grow
    shape = {"d": d, "ridge": lam, "width": s}
    assert b.lime_exponential_bound(lip, r, beta, **shape, form="paper") == pytest.approx(printed)
    mended = c * first + c**2 * beta * r * d * math.sqrt(d - 1) / (2 * s**2) * grow
    assert b.lime_exponential_bound(lip, r, beta, **shape, form="corrected") == pytest.approx(mended)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_the_moments_behind_the_lime_bounds_by_enumeration(d):
    """The last one is (d - 1)^2 / 8 in print: the print leaves out the variance of the coalition's size."""
    r = numbers(d, d).numpy()
    kept, dropped, twice = 0.0, 0.0, 0.0
    for bits in itertools.product((0, 1), repeat=d):
        e = np.array(bits)
        kept += ((r * e) ** 2).sum() * e.sum() / 2**d
        dropped += ((r * (1 - e)) ** 2).sum() * e.sum() / 2**d
        twice += ((r * (1 - e)) ** 2).sum() * e.sum() ** 2 / 2**d
    size = (r**2).sum()
    assert kept == pytest.approx((d + 1) / 4 * size)
    assert dropped == pytest.approx((d - 1) / 4 * size)
    assert twice == pytest.approx(d * (d - 1) / 8 * size)
    assert twice > (d - 1) ** 2 / 8 * size * 1.05


@given(radius=st.floats(0.05, 5), width=st.floats(0.1, 5), seed=SEEDS)
def test_the_sharp_kernel_slope_bounds_the_kernel(radius, width, seed):
    u, v = np.sort(np.random.default_rng(seed).uniform(0, radius, (2, 500)), 0)
    gap = np.abs(np.exp(-((u / width) ** 2)) - np.exp(-((v / width) ** 2)))
    slope = b._kernel_slope(radius, width, sharp=True)
    assert (gap <= slope * (v - u) * (1 + 1e-9) + 1e-14).all()
    assert slope <= b._kernel_slope(radius, width, sharp=False)


# tan2023 Theorem 4.1 on a trained net


@pytest.fixture(scope="module")
def trained() -> Known:
    """A softplus net trained on the two moons; constants of its first logit on a grid, plus the gaps' share."""
    data = toy2d(n=200)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(2, 8), nn.Softplus(BETA), nn.Linear(8, 2)).double()
    optimizer = torch.optim.Adam(layers.parameters(), lr=0.05)
    x, y = data.images.double(), data.labels
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layers(x), y).backward()
        optimizer.step()
    assert (layers(x).argmax(1) == y).double().mean() > 0.85
    first, last = layers[0], layers[2]
    net = Units(first.weight.detach(), first.bias.detach(), last.weight[0].detach())
    return Known(net, 2.0, *estimates(net, 2.0))


def estimates(net: Units, radius: float, side: int = 61) -> tuple[float, float, float, float]:
    """L, H, the Hessian's own Lipschitz constant (from the weights) and sup |f|, over [-radius, radius]^2.

    A grid sees the largest value up to half a cell's diagonal times the next constant.
    """
    line = torch.linspace(-radius, radius, side, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    gap = float(line[1] - line[0]) / math.sqrt(2)
    w, a = net.w.detach(), net.a.detach()
    gram = float(torch.linalg.matrix_norm((w.T * a.abs()) @ w, 2))
    third = BETA**2 / (6 * math.sqrt(3)) * float(w.norm(dim=1).max()) * gram
    smooth = float(m.largest_curvature(field(net), grid[None]).max()) + third * gap
    lip = float(m.largest_slope(field(net), grid[None]).max()) + smooth * gap
    largest = float(net(grid).detach().abs().max()) + lip * gap
    return lip, smooth, third, largest


def test_the_bounds_hold_on_a_trained_net_with_estimated_constants(trained):
    x, near = pairs(trained, 1, 2, draws=40)
    for name, (attribution, bound) in limits(trained, 2).items():
        found = m.steepest(maps(attribution, trained.model), x, near)
        assert holds(found, bound), name
        # The estimate is no empty promise: some explainers come within a factor of ten of it.
        if name in ("gradient", "ig"):
            assert float(found.ratio.max()) > bound / 10, name


def test_estimated_constants_are_close_to_and_not_above_those_of_the_weights(trained):
    w, a = trained.model.w.detach(), trained.model.a.detach()
    gram = float(torch.linalg.matrix_norm((w.T * a.abs()) @ w, 2))
    gap = 4.0 / 60 / math.sqrt(2)
    assert trained.smoothness - trained.hessian_lipschitz * gap <= BETA / 4 * gram
    slope = trained.lipschitz - trained.smoothness * gap
    assert slope <= float(torch.linalg.matrix_norm(w, 2)) * float(a.norm())


# wang2020


@given(kind=KINDS, seed=SEEDS, d=SIZES)
def test_theorem_1_bounds_the_saliency_map(kind, seed, d):
    known = known_net(kind, seed, d)
    x, near = pairs(known, seed, d)
    found = m.steepest(lambda z: input_gradient(field(known.model), z), x, near)
    assert (found.ratio <= b.saliency_bound(known.lipschitz, found.distance) * (1 + 1e-9)).all()
    local = m.largest_slope(field(known.model), torch.cat([x[None], near]))
    assert (local <= known.lipschitz * (1 + 1e-9)).all()
    assert (found.ratio <= b.saliency_bound(local, found.distance) * (1 + 1e-9)).all()


@given(seed=SEEDS, d=SIZES, sigma=st.floats(0.05, 3))
def test_theorem_2_bounds_smoothgrad_of_a_bounded_net(seed, d, sigma):
    net, largest = bounded_units(seed, d)
    calm, x = smoothed_units(net, sigma), inside(seed, 3, d, 2.0)
    found = m.steepest(lambda z: input_gradient(field(calm), z), x, m.points_near(x, 1.0, 8, seed=seed))
    sharp, printed = (b.smoothgrad_bound_from_largest(largest, sigma, form=f) for f in ("sharp", "paper"))
    assert holds(found, sharp)
    assert printed == pytest.approx(2 * largest / sigma**2)
    assert sharp < printed


def test_the_smoothed_net_of_the_tests_is_the_integral():
    net, _ = bounded_units(3, 2)
    x, sigma = inside(1, 2, 2, 1.0), 0.7
    n, weight = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
    nodes = torch.cartesian_prod(n, n)
    weights = (weight[:, None] * weight).ravel() / weight.sum() ** 2
    for i in range(2):
        literal = float((net(x[i] + sigma * nodes)[:, 0] * weights).sum().detach())
        assert smoothed_units(net, sigma)(x[i : i + 1]).item() == pytest.approx(literal, abs=1e-6)


def test_the_sharp_constant_of_theorem_2_is_attained():
    """F sign(|x| - sigma), smoothed: its curvature at 0, by numerical integration of Lemma 3's formula."""
    largest, sigma = 1.4, 0.3
    integrand = lambda t: (t * t - 1) * np.sign(abs(t) - 1) * norm.pdf(t)  # noqa: E731
    value, _ = integrate.quad(integrand, -12, 12, points=[-1, 1], limit=200)
    found = largest * value / sigma**2
    assert found == pytest.approx(b.smoothgrad_bound_from_largest(largest, sigma), rel=1e-7)


def test_above_proposition_2s_sigma_the_smoothed_bound_is_lower():
    radius, largest, lip = 0.5, 1.5, 2.0
    edge = b.sigma_that_lowers_the_bound(radius, largest, lip)
    saliency = b.saliency_bound(lip, radius)
    assert b.smoothgrad_bound_from_largest(largest, edge * 1.01, form="paper") < saliency
    assert b.smoothgrad_bound_from_largest(largest, edge * 0.99, form="paper") > saliency
    assert b.smoothgrad_bound_from_largest(largest, edge, form="paper") == pytest.approx(saliency)


@given(seed=SEEDS, d=SIZES, radius=st.floats(0.01, 2))
def test_theorem_3_holds_and_is_attained_by_quadratics(seed, d, radius):
    known, x = quadratic(seed, d), inside(seed, 2, d, 1.0)
    slope = lambda z: input_gradient(field(known.model), z)  # noqa: E731
    values, vectors = torch.linalg.eigh(known.model.a)
    top = int(values.abs().argmax())
    bound = b.gradient_change_bound(radius, known.smoothness)
    assert (m.largest_change(slope, x, m.points_near(x, radius, 8, seed=seed)) <= bound * (1 + 1e-9)).all()
    reached = m.largest_change(slope, x, (x + radius * vectors[:, top])[None])
    assert torch.allclose(reached, torch.full_like(reached, bound), rtol=1e-9)


@given(seed=SEEDS, d=SIZES, width=st.integers(1, 4), radius=st.floats(0.01, 2))
def test_theorem_3_holds_for_softplus_nets_with_the_remainder_written_out(seed, d, width, radius):
    known, x = units(seed, d, width), inside(seed, 2, d, 1.0)
    value, _ = top_eigenvalue(field(known.model), x, steps=200, tol=1e-9)
    bound = b.gradient_change_bound(radius, value.abs(), hessian_lipschitz=known.hessian_lipschitz)
    slope = lambda z: input_gradient(field(known.model), z)  # noqa: E731
    found = m.largest_change(slope, x, m.points_near(x, radius, 8, seed=seed))
    assert (found <= bound * (1 + 1e-6) + 1e-12).all()


@given(seed=SEEDS, d=SIZES, radius=st.floats(0.01, 2))
def test_the_second_order_bound_of_the_loss_holds_for_quadratics(seed, d, radius):
    known, x = quadratic(seed, d), inside(seed, 2, d, 1.0)
    slope = input_gradient(field(known.model), x).norm(dim=1)
    found = m.largest_change(known.model, x, m.points_near(x, radius, 8, seed=seed))
    assert (found <= b.loss_change_bound(radius, slope, known.smoothness) * (1 + 1e-9)).all()


# tan2023 Proposition 4.2 and Theorem 4.3


@given(seed=SEEDS, d=SIZES, sigma=st.floats(0.05, 3))
def test_a_smoothed_net_is_as_flat_as_theorem_4_3_says(seed, d, sigma):
    net, largest = bounded_units(seed, d)
    calm, x = smoothed_units(net, sigma), inside(seed, 3, d, 2.0)
    found = m.steepest(calm, x, m.points_near(x, 1.0, 8, seed=seed))
    assert holds(found, b.smoothed_lipschitz(Gaussian(sigma), d, spread=2 * largest))


@given(width=st.floats(0.05, 2), shift=st.floats(1e-3, 3), place=st.floats(-2, 2), gate=st.floats(0.01, 3))
def test_every_kernel_keeps_its_constant_on_a_step_and_a_bump(width, shift, place, gate):
    """Functions with values 0 and 1, smoothed on a line: a step at 0, and a bump of half width `gate`."""
    cdfs = {
        Gaussian(width): lambda t: norm.cdf(t / width),
        Uniform(width): lambda t: np.clip((t / width + 1) / 2, 0, 1),
        Laplace(width): lambda t: np.where(t < 0, np.exp(-abs(t) / width) / 2, 1 - np.exp(-abs(t) / width) / 2),
    }  # fmt: skip
    for kernel, cdf in cdfs.items():
        bound = b.smoothed_lipschitz(kernel, 1, spread=1.0)
        step = abs(cdf(place + shift) - cdf(place))
        bump = [cdf(gate - p) - cdf(-gate - p) for p in (place, place + shift)]
        assert step <= bound * shift * (1 + 1e-9)
        assert abs(bump[1] - bump[0]) <= bound * shift * (1 + 1e-9)


@pytest.mark.parametrize("kernel", [Gaussian(0.3), Uniform(0.3), Laplace(0.3)])
def test_the_constants_are_attained_by_a_step(kernel):
    """The step's smoothed slope at its edge is the density at 0."""
    density = {Gaussian: 1 / (0.3 * math.sqrt(2 * math.pi)), Uniform: 1 / 0.6, Laplace: 1 / 0.6}
    assert b.smoothed_lipschitz(kernel, 1, spread=1.0) == pytest.approx(density[type(kernel)])


def test_a_smoothed_net_is_never_steeper_than_the_net():
    assert b.smoothed_lipschitz(Gaussian(0.01), 10, spread=1.0, lipschitz=0.2) == 0.2
    assert b.printed_smoothed_lipschitz(Gaussian(0.01), 10, largest=1.0, lipschitz=0.2) == 0.2
    edge = b.sigma_that_smooths(1.0, 0.2)
    assert b.smoothed_lipschitz(Gaussian(edge * 1.01), 10, spread=1.0, lipschitz=0.2) < 0.2
    assert b.smoothed_lipschitz(Gaussian(edge * 0.99), 10, spread=1.0, lipschitz=0.2) == 0.2


def test_printed_smoothing_constants():
    assert b.printed_smoothed_lipschitz(Gaussian(0.2), 9, largest=3.0) == pytest.approx(3 / 0.4)
    assert b.printed_smoothed_lipschitz(Uniform(0.2), 9, largest=3.0) == pytest.approx(3 * 3 / 0.2)


# The empirical side


def test_points_near_fill_the_ball():
    x = numbers(0, 2, 3, 1, 1)
    near = m.points_near(x, 0.5, 20_000)
    share = (near - x).flatten(2).norm(dim=2) / 0.5
    assert float(share.max()) <= 1 + 1e-12
    # The share of points within half the radius is 2^-d.
    assert float((share < 0.5).double().mean()) == pytest.approx(1 / 8, abs=0.01)
    assert (near - x).flatten(2).mean(0).abs().max() < 0.01


def test_steepest_finds_the_largest_ratio_and_where_it_is():
    x = torch.zeros(1, 1, dtype=torch.float64)
    near = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)[:, None, None]
    found = m.steepest(lambda z: torch.where(z == 2, 10.0, z), x, near)
    assert (found.ratio.item(), found.distance.item()) == (5.0, 2.0)
    assert m.largest_change(lambda z: torch.where(z == 2, 10.0, z), x, near).item() == 10
    still = m.steepest(torch.zeros_like, x, near)
    assert (still.ratio.item(), still.distance.item()) == (0.0, 1.0)


@given(seed=SEEDS, d=SIZES)
def test_estimated_constants_never_exceed_the_true_ones(seed, d):
    known = quadratic(seed, d)
    points = inside(seed, 12, d, known.radius).reshape(4, 3, d)
    assert (m.largest_slope(field(known.model), points) <= known.lipschitz * (1 + 1e-9)).all()
    found = m.largest_curvature(field(known.model), points, steps=300, tol=1e-8)
    assert torch.allclose(found, torch.full_like(found, known.smoothness), rtol=1e-4)


# Mistakes


def test_mistakes_get_a_sentence():
    with pytest.raises(UserError, match="sigma is 0.0; give a number above 0"):
        b.smoothgrad_bound_from_lipschitz(1.0, 0.0)
    with pytest.raises(UserError, match="lipschitz is -1.0; give 0 or more"):
        b.saliency_bound(-1.0, 1.0)
    with pytest.raises(UserError, match="number of features"):
        b.shap_bound(1.0, 0)
    with pytest.raises(UserError, match="no form of this bound 'corrected'"):
        b.shap_bound(1.0, 2, form="corrected")
    with pytest.raises(UserError, match="differ from it"):
        m.steepest(torch.sin, torch.zeros(1, 1), torch.zeros(1, 1, 1))
    with pytest.raises(UserError, match="length above 0"):
        m.points_near(torch.zeros(1, 1), 0.0, 1)


def test_a_kernel_without_a_printed_constant_is_refused():
    class Own:
        def sample(self, shape, seed, dtype=torch.float32):
            return torch.zeros(shape, dtype=dtype)

        def tv_slope(self, d):
            return 1.0

    assert Smoothed(nn.Linear(2, 1), Own()).draws == 50
    with pytest.raises(UserError, match="use smoothed_lipschitz"):
        b.printed_smoothed_lipschitz(Own(), 2, largest=1.0)
