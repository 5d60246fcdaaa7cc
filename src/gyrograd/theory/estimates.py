"""Empirical values of the quantities in the theorems: maxima over sample points, which never exceed the true supremum.

So a measured change must stay below its bound. A constant estimated here (Lipschitz, smoothness) is a lower estimate: a
bound built on it holds for the sample points only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.errors import UserError, check_counts
from gyrograd.numerics import random
from gyrograd.numerics.autograd import input_gradient, top_eigenvalue
from gyrograd.types import Inputs, PerExample, ScalarField, Seed


@dataclass(frozen=True)
class Steepest:
    """The largest ||of(x) - of(x')|| / ||x - x'|| over the points, and the distance of the x' that attains it."""

    ratio: PerExample
    distance: PerExample


def points_near(x: Inputs, radius: float, draws: int, *, seed: Seed = 0) -> Float[Tensor, "n b *shape"]:
    """Points uniform in the l2 ball around each example."""
    if not 0 < radius < float("inf"):
        raise UserError(f"The radius is {radius}; give a finite length above 0.")
    check_counts(draws=draws)
    keys, d = random.keys(seed, len(x), x.device), x[0].numel()
    direction = random.normal(keys, (draws, d), dtype=x.dtype)
    direction = direction / direction.norm(dim=2, keepdim=True)
    # The volume within r grows as r^d, so that u^(1/d) is uniform in the ball.
    length = radius * random.uniform(keys, (draws, 1), stream=1, dtype=x.dtype) ** (1 / d)
    moved = x.flatten(1).unsqueeze(1) + length * direction
    points: Tensor = moved.transpose(0, 1).reshape(draws, *x.shape)
    return points


def steepest(of: Callable[[Tensor], Tensor], x: Inputs, near: Float[Tensor, "n b *shape"]) -> Steepest:
    """Lower estimate of the local Lipschitz constant of a map, a gradient or an output, over these points.

    tan2023 Eq. 4; the left side of wang2020 Theorems 1 and 2. A point equal to x is left out.
    """
    here = _rows(of(x))
    # The distance is NaN until a point that differs from x was seen.
    ratio, place = here.new_zeros(len(x)), here.new_full((len(x),), torch.nan)
    for point in near:
        distance = (point - x).flatten(1).norm(dim=1)
        change = (_rows(of(point)) - here).norm(dim=1)
        found = torch.where(distance > 0, change / torch.where(distance > 0, distance, 1), 0)
        better = (found > ratio) | (place.isnan() & (distance > 0))
        ratio, place = torch.where(better, found, ratio), torch.where(better, distance, place)
    if place.isnan().any():
        raise UserError("Every point equals its example; give points near x that differ from it.")
    return Steepest(ratio, place)


def largest_change(
    of: Callable[[Tensor], Tensor], x: Inputs, near: Float[Tensor, "n b *shape"]
) -> PerExample:
    """The largest ||of(x) - of(x')|| over these points: the left side of wang2020 Theorem 3."""
    here = _rows(of(x))
    return torch.stack([(_rows(of(point)) - here).norm(dim=1) for point in near]).amax(0)


def largest_slope(f: ScalarField, points: Float[Tensor, "n b *shape"]) -> PerExample:
    """The largest gradient norm over these points, a lower estimate of the Lipschitz constant (wang2020 Lemma 1)."""
    return torch.stack([input_gradient(f, point).flatten(1).norm(dim=1) for point in points]).amax(0)


def largest_curvature(
    f: ScalarField, points: Float[Tensor, "n b *shape"], *, steps: int = 50, tol: float = 1e-4, seed: Seed = 0
) -> PerExample:
    """The largest magnitude of a Hessian eigenvalue over these points, a lower estimate of the smoothness H."""
    sizes = [top_eigenvalue(f, point, steps=steps, tol=tol, seed=seed)[0].abs() for point in points]
    return torch.stack(sizes).amax(0)


def _rows(values: Tensor) -> Float[Tensor, "b d"]:
    return values.detach().reshape(len(values), -1)
