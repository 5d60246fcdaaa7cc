"""Nets whose constants are known from their weights, as models of one logit in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

BETA = 3.0


class Quadratic(nn.Module):
    """x A x / 2 + b x + c."""

    def __init__(self, a: Tensor, b: Tensor, c: float = 0.0) -> None:
        super().__init__()
        self.a, self.b, self.c = a, b, c

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return ((x @ self.a * x).sum(1) / 2 + x @ self.b + self.c)[:, None]


class Units(nn.Module):
    """sum_j a_j act(w_j x + b_j): one hidden layer, act softplus of BETA or 2 Phi - 1 (bounded)."""

    def __init__(self, w: Tensor, b: Tensor, a: Tensor, bounded: bool = False) -> None:
        super().__init__()
        self.w, self.b, self.a = (nn.Parameter(value) for value in (w, b, a))
        self.bounded = bounded

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(1) @ self.w.T + self.b
        hidden = 2 * torch.special.ndtr(z) - 1 if self.bounded else nn.functional.softplus(z, beta=BETA)
        return (hidden @ self.a)[:, None]


@dataclass(frozen=True)
class Known:
    """A model with bounds of its constants on ||x|| <= radius; exact ones for a plane, a quadratic, one unit."""

    model: nn.Module
    radius: float
    lipschitz: float
    smoothness: float
    hessian_lipschitz: float
    largest: float


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def quadratic(seed: int, d: int, radius: float = 2.0, *, flat: bool = False) -> Known:
    """A quadratic; `flat` a plane."""
    a = numbers(seed, d, d)
    a = torch.zeros(d, d, dtype=torch.float64) if flat else (a + a.T) / 2
    b = numbers(seed + 1, d)
    smooth, slope = spectral(a), float(b.norm())
    largest = smooth * radius**2 / 2 + slope * radius
    return Known(Quadratic(a, b), radius, smooth * radius + slope, smooth, 0.0, largest)


def units(seed: int, d: int, width: int = 1, radius: float = 2.0) -> Known:
    """Softplus units. |softplus''| <= BETA / 4 and |softplus'''| <= BETA^2 / (6 sqrt 3)."""
    w, b, a = numbers(seed, width, d), numbers(seed + 1, width), numbers(seed + 2, width)
    lipschitz = spectral(w) * float(a.norm())
    gram = spectral((w.T * a.abs()) @ w)
    third = BETA**2 / (6 * math.sqrt(3)) * float(w.norm(dim=1).max()) * gram
    top = nn.functional.softplus(w.norm(dim=1) * radius + b, beta=BETA)
    return Known(Units(w, b, a), radius, lipschitz, BETA / 4 * gram, third, float((a.abs() * top).sum()))


def bounded_units(seed: int, d: int, width: int = 3) -> tuple[Units, float]:
    """Units of 2 Phi - 1 with sup |f| <= the second value on the whole space."""
    w, b, a = 2 * numbers(seed, width, d), numbers(seed + 1, width), numbers(seed + 2, width)
    return Units(w, b, a, bounded=True), float(a.abs().sum())


def smoothed_units(net: Units, sigma: float) -> Units:
    """E f(x + z) of bounded units, exactly: E Phi(u + s n) = Phi(u / sqrt(1 + s^2))."""
    shrink = (1 + sigma**2 * net.w.detach().square().sum(1)).rsqrt()
    return Units(net.w.detach() * shrink[:, None], net.b.detach() * shrink, net.a.detach(), bounded=True)


def exact_smoothgrad(net: Units, x: Tensor, sigma: float, nodes: int = 80) -> Tensor:
    """E grad f(x + z) of softplus units: the noise along w_j is one normal number, so a line integral each."""
    n, weight = (torch.tensor(part) for part in np.polynomial.hermite_e.hermegauss(nodes))
    w = net.w.detach()
    z = x.flatten(1) @ w.T + net.b.detach()
    slope = torch.sigmoid(BETA * (z[..., None] + sigma * w.norm(dim=1)[:, None] * n))
    mean = slope @ (weight / weight.sum())
    return (mean * net.a.detach()) @ w


def inside(seed: int, b: int, d: int, radius: float) -> Tensor:
    """Points of the ball, anywhere from its middle to its edge."""
    direction = numbers(seed, b, d)
    share = torch.rand(b, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return radius * share * direction / direction.norm(dim=1, keepdim=True)


def field(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The first logit as a function of x."""
    return lambda x: model(x)[:, 0]


def first_class(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64)


def relative_errors(
    value: Callable[[], Tensor], tensors: dict[str, Tensor], seed: int = 0
) -> dict[str, float]:
    """Autograd against central differences of sum(along * value), one random direction for each tensor."""
    generator = torch.Generator().manual_seed(seed)
    here = value()
    along = torch.randn(here.shape, generator=generator, dtype=torch.float64)
    exact = torch.autograd.grad((here * along).sum(), list(tensors.values()), allow_unused=True)
    errors = {}
    for (key, tensor), gradient in zip(tensors.items(), exact, strict=True):
        direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        slope = 0.0 if gradient is None else float((gradient * direction).sum())
        found = [_difference(value, along, tensor, direction, step) for step in (1e-5, 1e-6)]
        errors[key] = min(abs(slope - one) / max(abs(slope), abs(one), 1e-4) for one in found)
    return errors


def _difference(
    value: Callable[[], Tensor], along: Tensor, tensor: Tensor, direction: Tensor, step: float
) -> float:
    start = tensor.detach().clone()
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            tensor.copy_(start + sign * step * direction)
        ends.append((value().detach() * along).sum().item())
    with torch.no_grad():
        tensor.copy_(start)
    return (ends[0] - ends[1]) / (2 * step)
