"""Sets of allowed perturbations: l-infinity and l2 balls, with one radius or one per example, and the box.

`delta` is the perturbation, x + delta the perturbed input. Every method treats each example alone.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.numerics import random
from gyrograd.types import Flags, Inputs, PerExample

Radius: TypeAlias = float | int | Float[Tensor, " b"]


@dataclass(frozen=True)
class Linf:
    """All delta with no entry above eps in absolute value."""

    eps: Radius

    def __post_init__(self) -> None:
        _check_radius(self.eps)

    def norm(self, delta: Inputs) -> PerExample:
        return delta.abs().flatten(1).amax(1)

    def project(self, delta: Inputs) -> Inputs:
        """The nearest point of the ball: each entry clipped."""
        radius = column(self.eps, delta)
        return torch.minimum(torch.maximum(delta, -radius), radius)

    def rescale(self, delta: Inputs) -> Inputs:
        """A delta outside the ball, scaled back to the radius in its own direction (wang2020's attacks)."""
        radius, size = column(self.eps, delta), column(self.norm(delta), delta)
        outside = size > radius
        return torch.where(outside, delta / torch.where(outside, size, 1) * radius, delta)

    def sample(self, x: Inputs, keys: random.Keys, *, stream: int = 0) -> Inputs:
        """Uniform in the ball, shaped like x."""
        draws = random.uniform(keys, tuple(x.shape[1:]), stream=stream, dtype=x.dtype)
        return (2 * draws - 1) * column(self.eps, x)

    def steepest(self, grad: Inputs) -> Inputs:
        """The step of norm one along which the gradient promises most; zero where the gradient is zero."""
        return grad.sign()

    def inside(
        self, x: Inputs, delta: Inputs, tol: float = 1e-6, low: float = 0.0, high: float = 1.0
    ) -> Flags:
        """True if delta lies in the ball and x + delta in the box, up to tol."""
        return (self.norm(delta) <= _each(self.eps, delta) + tol) & _in_box(x + delta, low - tol, high + tol)


@dataclass(frozen=True)
class L2:
    """All delta of Euclidean length at most eps."""

    eps: Radius

    def __post_init__(self) -> None:
        _check_radius(self.eps)

    def norm(self, delta: Inputs) -> PerExample:
        largest, rest = _scale_out(delta)
        return largest.flatten() * _length(rest)

    def project(self, delta: Inputs) -> Inputs:
        """The nearest point of the ball: the whole delta scaled back to the radius."""
        radius, size = column(self.eps, delta), column(self.norm(delta), delta)
        # Slightly short, so that rounding leaves the result inside and a second projection changes nothing.
        short = 1 - 8 * torch.finfo(delta.dtype).eps
        outside = size > radius
        return torch.where(outside, delta / torch.where(outside, size, 1) * (radius * short), delta)

    def rescale(self, delta: Inputs) -> Inputs:
        """The same as `project`: in the l2 ball the nearest point keeps the direction."""
        return self.project(delta)

    def sample(self, x: Inputs, keys: random.Keys, *, stream: int = 0) -> Inputs:
        """Uniform in the volume of the ball: a normal direction at a radius of eps u^(1/d)."""
        direction = self.steepest(random.normal(keys, tuple(x.shape[1:]), stream=stream, dtype=x.dtype))
        u = random.uniform(random.subkeys(keys, stream), (1,), dtype=torch.float64).flatten()
        share = u.pow(1 / x[0].numel()).to(x.dtype)  # the volume within a radius grows as its d-th power
        return self.project(direction * column(share, x) * column(self.eps, x))

    def steepest(self, grad: Inputs) -> Inputs:
        """The step of norm one along which the gradient promises most; zero where the gradient is zero."""
        _, rest = _scale_out(grad)
        size = _length(rest)
        return rest / column(torch.where(size > 0, size, 1), grad)

    def inside(
        self, x: Inputs, delta: Inputs, tol: float = 1e-6, low: float = 0.0, high: float = 1.0
    ) -> Flags:
        """True if delta lies in the ball and x + delta in the box, up to tol."""
        return (self.norm(delta) <= _each(self.eps, delta) + tol) & _in_box(x + delta, low - tol, high + tol)


Ball: TypeAlias = Linf | L2
BALLS: dict[str, type[Linf] | type[L2]] = {"linf": Linf, "l2": L2}


def ball(norm: str, eps: Radius) -> Ball:
    """The ball of a norm by name: "linf" or "l2"."""
    check_name("norm", norm, BALLS)
    return BALLS[norm](eps)


def into_box(x: Inputs, delta: Inputs, low: float = 0.0, high: float = 1.0) -> Inputs:
    """delta, shortened so that x + delta, as computed, lies in [low, high].

    x itself lies in the box; if rounding left it outside, x + delta is on the edge.
    """
    moved = x + delta
    above, below = moved > high, moved < low
    cut = torch.where(above, high - x, torch.where(below, low - x, delta))
    # high - x is rounded, so x + (high - x) can be one floating-point number too large: take one step back.
    landed = x + cut
    cut = torch.where(landed > high, torch.nextafter(cut, torch.full_like(cut, -math.inf)), cut)
    return torch.where(landed < low, torch.nextafter(cut, torch.full_like(cut, math.inf)), cut)


def _in_box(x: Tensor, low: float, high: float) -> Tensor:
    return ((x >= low) & (x <= high)).flatten(1).all(1)


def _scale_out(delta: Tensor) -> tuple[Tensor, Tensor]:
    """The largest entry, and delta divided by it: squares of tiny entries would underflow."""
    largest = delta.abs().flatten(1).amax(1)
    largest = column(torch.where(largest > 0, largest, 1), delta)
    return largest, delta / largest


def _length(delta: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
    return length


def _each(eps: Radius, delta: Tensor) -> Tensor:
    """The radius of each example, in the dtype and on the device of delta."""
    # A number is written where delta is: a copy of it from the host would make a CUDA graph impossible.
    radii = eps.to(delta) if isinstance(eps, Tensor) else delta.new_full((), eps)
    if radii.dim() == 1 and len(radii) != len(delta):
        raise UserError(f"There are {len(radii)} radii for {len(delta)} examples; give one eps for each.")
    return radii.expand(len(delta))


def column(eps: Radius, delta: Tensor) -> Tensor:
    """The radius of each example, shaped to be multiplied with delta."""
    return _each(eps, delta).view(-1, *[1] * (delta.dim() - 1))


def _check_radius(eps: Radius) -> None:
    fits = (torch.isfinite(eps) & (eps >= 0)).all() if isinstance(eps, Tensor) else 0 <= eps < math.inf
    if not fits:
        raise UserError(f"eps is {eps}; give a finite radius of at least 0, such as 8 / 255.")
