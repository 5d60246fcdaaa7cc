"""Kernels: distributions of perturbations, each with the constant of tan2023 Theorem 4.3.

The constant is the slope of the total variation distance between the kernel and its shifted copy,
TV(mu_x, mu_x') <= tv_slope * ||x - x'||_2, with TV = half the integral of the absolute difference. A model
with values in an interval of length R, smoothed, is then R * tv_slope Lipschitz.

tan2023 mixes two conventions: its Gaussian constant 1/(2 sigma) is for TV as here, its uniform constant
sqrt(d)/r for twice that, and its bound "|f| <= R gives R * gamma" needs twice TV as well (an interval of
length 2R). `paper_slope` holds the constants as printed; docs/papers/tan2023.md has the counterexample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.registry import register


def _check_scale(kernel: str, name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UserError(
            f"{name} of the kernel '{kernel}' is {value}; give a width above 0 in pixel units, such as 0.1."
        )


@register("kernel", "gaussian", paper="tan2023", equation="Proposition 4.2, Theorem 4.3", aliases=("normal",))
@dataclass(frozen=True)
class Gaussian:
    """Normal noise with standard deviation sigma; smoothing with it turns the gradient into SmoothGrad.

    >>> import gyrograd as gg
    >>> noise = gg.kernel("gaussian", sigma=0.1).sample((1000,), seed=0)
    >>> round(float(noise.std()), 1)
    0.1
    """

    sigma: float = 0.1

    def __post_init__(self) -> None:
        _check_scale("gaussian", "sigma", self.sigma)

    def sample(self, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draws of this shape; fewer draws are a prefix of more."""
        # One key: all examples share the draws.
        return self.sigma * random.normal(random.keys(seed, 1), shape, dtype=dtype)[0]

    def tv_slope(self, d: int) -> float:  # noqa: ARG002 - the same in every dimension
        """1 / (sigma sqrt(2 pi)): TV is 2 Phi(s / (2 sigma)) - 1, which is concave in the shift s."""
        return 1 / (self.sigma * math.sqrt(2 * math.pi))

    def paper_slope(self, d: int) -> float:  # noqa: ARG002
        """1 / (2 sigma), from Pinsker's inequality; a little above `tv_slope`."""
        return 1 / (2 * self.sigma)


@register("kernel", "uniform", paper="wang2020", equation="UniGrad; tan2023 Theorem 4.3", aliases=("box",))
@dataclass(frozen=True)
class Uniform:
    """Uniform noise in the l-inf ball of radius eps; smoothing with it turns the gradient into UniGrad.

    >>> import gyrograd as gg
    >>> noise = gg.kernel("uniform", eps=0.1).sample((1000,), seed=0)
    >>> bool((noise.abs() <= 0.1).all())
    True
    """

    eps: float = 0.1

    def __post_init__(self) -> None:
        _check_scale("uniform", "eps", self.eps)

    def sample(self, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draws of this shape; fewer draws are a prefix of more."""
        return self.eps * (2 * random.uniform(random.keys(seed, 1), shape, dtype=dtype)[0] - 1)

    def tv_slope(self, d: int) -> float:
        """sqrt(d) / (2 eps): TV is 1 - prod(1 - |s_i| / (2 eps)), at most the sum of |s_i| over 2 eps."""
        return math.sqrt(d) / (2 * self.eps)

    def paper_slope(self, d: int) -> float:
        """sqrt(d) / eps, for twice the total variation (Appendix C.2)."""
        return math.sqrt(d) / self.eps


@register("kernel", "laplace", paper="own", equation="constant for tan2023 Theorem 4.3")
@dataclass(frozen=True)
class Laplace:
    """Laplace noise, independent for each feature, density exp(-|z| / scale) / (2 scale).

    >>> import gyrograd as gg
    >>> gg.kernel("laplace", scale=0.1).sample((2, 3), seed=0).shape
    torch.Size([2, 3])
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        _check_scale("laplace", "scale", self.scale)

    def sample(self, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draws of this shape, by inverting the distribution function."""
        # 24-bit uniforms at the middle of their cells are never 0 or 1, so the logarithm is finite.
        centred = random.uniform(random.keys(seed, 1), shape, dtype=torch.float64)[0] + 2.0**-25 - 0.5
        return (-self.scale * centred.sign() * torch.log1p(-2 * centred.abs())).to(dtype)

    def tv_slope(self, d: int) -> float:
        """sqrt(d) / (2 scale): one feature shifted by s gives TV 1 - exp(-|s| / (2 scale)) <= |s| / (2 scale)."""
        return math.sqrt(d) / (2 * self.scale)

    def paper_slope(self, d: int) -> float:
        """tan2023 names no Laplace kernel: the same constant, for twice the total variation."""
        return 2 * self.tv_slope(d)
