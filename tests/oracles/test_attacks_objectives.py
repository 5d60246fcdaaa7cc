"""Objectives against their formulas in plain loops, and their derivatives against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from nets import batch, net
from small_attributions import ONE_OF_EACH, small
from torch import Tensor

import gyrograd as gg
from gyrograd.attacks.engine import derivative
from gyrograd.attacks.looks import look
from gyrograd.attacks.objectives import (
    Scene,
    away_from,
    far_from,
    goal_maps,
    margin,
    mass_on,
    mass_on_own_top,
    mean_square_to,
    minus_cross_entropy,
    overlap_with,
    toward,
    with_penalty,
)
from gyrograd.numerics.maps import top_k_mask

METHODS = [name for name, entry in ONE_OF_EACH.items() if entry.differentiable]
H = 12


def pixels(map: Tensor) -> list[list[float]]:
    """Sizes summed over the channels of one example."""
    return [[sum(abs(float(map[c, i, j])) for c in range(3)) for j in range(H)] for i in range(H)]


def scaled(rows: list[list[float]], how: str) -> list[list[float]]:
    flat = [v for row in rows for v in row]
    scale = {"max": max(flat), "sum": sum(flat), "area": sum(flat) / H**2}[how]
    return [[v / scale for v in row] for row in rows]


def squares(a: list[list[float]], b: list[list[float]]) -> float:
    return sum((a[i][j] - b[i][j]) ** 2 for i in range(H) for j in range(H))


def materials() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Old and new maps, old and new logits, a goal."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 3, 3, H, H, generator=generator, dtype=torch.float64)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    return (
        maps[0],
        maps[1],
        logits[0],
        logits[1],
        torch.rand(3, H, H, generator=generator, dtype=torch.float64),
    )


def check(objective, formula) -> None:
    _, map, _, logits, _ = materials()
    expected = torch.tensor([formula(i) for i in range(3)], dtype=torch.float64)
    torch.testing.assert_close(objective(map, logits), expected, rtol=1e-10, atol=1e-12)


def test_toward_is_half_the_squared_distance_of_max_scaled_maps():
    _, map, _, _, goal = materials()
    check(toward(goal, "abs_sum"), lambda i: 0.5 * squares(scaled(pixels(map[i]), "max"), goal[i].tolist()))


def test_away_from_is_the_cosine_or_minus_half_the_squared_distance():
    old, map, *_ = materials()

    def cosine(i: int) -> float:
        a, b = ([v for row in pixels(m[i]) for v in row] for m in (old, map))
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))

    check(away_from(old, "abs_sum", "cosine"), cosine)
    check(
        away_from(old, "abs_sum", "l2"),
        lambda i: -0.5 * squares(scaled(pixels(map[i]), "max"), scaled(pixels(old[i]), "max")),
    )


def test_mass_and_overlap_are_k_in_as_the_supplement_and_as_the_code_of_wang2020_have_it():
    old, map, *_ = materials()

    def top(m: Tensor) -> set[int]:
        flat = [v for row in pixels(m) for v in row]
        return set(sorted(range(H * H), key=lambda p: -flat[p])[:7])

    mask = top_k_mask(old.abs().sum(1), 7)
    shares = [[v for row in scaled(pixels(m), "sum") for v in row] for m in map]
    check(mass_on(mask, "abs_sum"), lambda i: sum(shares[i][p] for p in top(old[i])))
    check(mass_on_own_top(7, "abs_sum"), lambda i: sum(shares[i][p] for p in top(map[i])))
    check(overlap_with(mask, "abs_sum"), lambda i: len(top(old[i]) & top(map[i])) / 7)


def test_far_from_is_minus_the_squared_distance_of_the_centres():
    _, map, *_ = materials()

    def formula(i: int) -> float:
        share = scaled(pixels(map[i]), "sum")
        row = sum(a * share[a][b] for a in range(H) for b in range(H))
        column = sum(b * share[a][b] for a in range(H) for b in range(H))
        return -((row - 2.0) ** 2 + (column - 7.5) ** 2)

    check(far_from(torch.tensor([[2.0, 7.5]] * 3, dtype=torch.float64), "abs_sum"), formula)


def test_top_k_looks_at_two_hundredths_of_the_pixels_unless_told():
    old, map, logits, _, _ = materials()
    scene = Scene(old, torch.zeros(3, dtype=torch.int64), old, logits)
    usual, three, six = (
        gg.attack("top_k", **how).aim(scene).judge(map, logits) for how in ({}, {"k": 3}, {"k": 6})
    )
    assert torch.equal(usual, three)  # 144 pixels
    assert (usual < six).all()


def test_the_clean_centre_is_cut_to_whole_pixels_if_asked():
    old, _, logits, _, _ = materials()
    scene = Scene(old, torch.zeros(3, dtype=torch.int64), old, logits)
    exact, cut = (
        gg.attack("mass_center", truncated=truncated).aim(scene).judge(old, logits)
        for truncated in (False, True)
    )
    torch.testing.assert_close(exact, torch.zeros(3, dtype=torch.float64))
    for i in range(3):
        share = scaled(pixels(old[i]), "sum")
        row = sum(a * share[a][b] for a in range(H) for b in range(H))
        column = sum(b * share[a][b] for a in range(H) for b in range(H))
        assert cut[i].item() == pytest.approx(-((row % 1) ** 2 + (column % 1) ** 2))


@pytest.mark.parametrize("scale", ["sum", "area"])
def test_manipulate_weighs_the_mean_square_of_the_map_and_of_the_probabilities(scale):
    _, map, old_logits, logits, goal = materials()
    objective = with_penalty(mean_square_to(goal, "abs_sum", scale, 1e11), 1e6, old_logits, "probabilities")

    def probabilities(row: Tensor) -> list[float]:
        powers = [math.exp(v) for v in row.tolist()]
        return [p / sum(powers) for p in powers]

    def formula(i: int) -> float:
        pairs = zip(probabilities(logits[i]), probabilities(old_logits[i]), strict=True)
        change = sum((p - q) ** 2 for p, q in pairs) / 5
        return 1e11 * squares(scaled(pixels(map[i]), scale), goal[i].tolist()) / H**2 + 1e6 * change

    check(objective, formula)


def test_the_logit_penalty_is_the_mean_square_over_classes():
    _, _, old_logits, logits, _ = materials()
    zero = with_penalty(lambda map, _: map.flatten(1).sum(1) * 0, 0.5, old_logits, "logits")
    check(zero, lambda i: 0.5 * sum(float(logits[i, k] - old_logits[i, k]) ** 2 for k in range(5)) / 5)


def test_prediction_objectives_are_minus_the_loss_and_the_margin():
    *_, logits, _ = materials()
    target = torch.tensor([0, 3, 4])

    def loss(i: int) -> float:
        return float(logits[i, target[i]]) - math.log(sum(math.exp(v) for v in logits[i].tolist()))

    def lead(i: int) -> float:
        others = [float(logits[i, k]) for k in range(5) if k != int(target[i])]
        return float(logits[i, target[i]]) - max(others)

    check(minus_cross_entropy(target), loss)
    check(margin(target), lead)


def test_the_margin_is_to_the_best_other_class_where_all_logits_are_below_zero():
    logits = torch.tensor([[-5.0, -2.0, -9.0], [-1.0, -2.0, -9.0]], dtype=torch.float64)
    target = torch.tensor([0, 0])
    assert margin(target)(logits, logits).tolist() == [-3.0, 1.0]


def test_a_goal_image_stands_for_its_own_map_of_the_predicted_class():
    x, _ = batch(2)
    other, _ = batch(2, seed=9)
    model, explain = net("lenet"), gg.attribution("gradient")
    goals = goal_maps(other, model, explain, x, "abs_sum", "sum")
    for i in range(2):
        label = model(other[i : i + 1]).argmax(1)
        rows = scaled(pixels(explain(model, other[i : i + 1], label)[0]), "sum")
        torch.testing.assert_close(goals[i], torch.tensor(rows, dtype=torch.float64))
    torch.testing.assert_close(goal_maps(other[:1], model, explain, x, "abs_sum", "sum")[1], goals[0])


AIMS = {
    "targeted_map": {"penalty": 0.5},
    "untargeted_map": {"measure": "cosine"},
    "untargeted_map l2": {"measure": "l2"},
    "top_k": {"k": 9},
    "top_k recomputed": {"k": 9, "mask": "recomputed"},
    "mass_center": {"truncated": True},
    "manipulate": {"weight": 1.0, "scale": "area", "penalty": 100.0},
}


def assert_derivative_matches(attack, name: str, structure: str) -> None:
    """One random direction; the smallest of three steps, since a kink can lie between two points."""
    x, target = batch(2, seed=6)
    model, explain = net(structure), small(name)
    generator = torch.Generator().manual_seed(1)
    start = (x + 0.02 * torch.randn(x.shape, generator=generator, dtype=x.dtype)).clamp(0, 1)
    map, logits = look(model, explain, x, target, graph=False)
    goal = goal_maps("frame", model, explain, x, "abs_sum", str(getattr(attack, "scale", "max")))
    objective = attack.aim(Scene(x, target, map, logits, goal)).descend
    gradient, *_ = derivative(model, explain, start, target, objective)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    slope = (gradient * direction).flatten(1).sum(1)

    def value(at: Tensor) -> Tensor:
        return objective(*look(model, explain, at, target, graph=False))

    errors = [
        (slope - (value(start + h * direction) - value(start - h * direction)) / (2 * h)).abs()
        for h in (1e-5, 1e-6, 1e-7)
    ]
    assert (torch.stack(errors).amin(0) <= 1e-5 * slope.abs().clamp(min=1e-3)).all(), (slope, errors)


@pytest.mark.parametrize("aim", sorted(AIMS))
def test_the_derivative_of_every_objective_matches_finite_differences(aim):
    assert_derivative_matches(gg.attack(aim.split()[0], **AIMS[aim]), "gradient", "residual")


@pytest.mark.parametrize("name", METHODS)
def test_the_derivative_matches_for_every_attribution_with_its_penalty(name):
    assert_derivative_matches(gg.attack("targeted_map", penalty=0.5), name, "lenet")


@pytest.mark.parametrize("name", METHODS)
def test_the_logits_of_a_look_are_those_of_the_model(name):
    x, target = batch(2)
    model = net("residual")
    for graph in (False, True):
        map, logits = look(model, small(name), x.clone().requires_grad_(graph), target, graph=graph)
        torch.testing.assert_close(logits, model(x))
        torch.testing.assert_close(map, small(name)(model, x, target))
        assert logits.requires_grad == graph
