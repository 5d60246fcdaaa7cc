"""The toy of tan2023 Section 5.2: of two variables the gradient sees one, and SmoothGrad sees both equally."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gyrograd.errors import UserError

# Where the two series change over: both are exact to rounding there.
_WIDE = 0.5
_TERMS = 12


class TwoVariableToy(nn.Module):
    """x1 - nD where floor((x1 - x2) / D) = 2n, x2 + nD where it is 2n - 1 (tan2023 Eq. 2), as one logit.

    Continuous, unbounded, and piecewise linear: its gradient is (1, 0) or (0, 1).
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        _check_delta(delta)
        self.delta = delta

    def forward(self, x: Float[Tensor, "b 2"]) -> Float[Tensor, "b 1"]:
        step = (x[:, 0] - x[:, 1]) / self.delta
        n = (step / 2).floor()
        # x2 plus a staircase with slopes 1, 0, 1, 0, ...: the two printed cases in one.
        return (x[:, 1] + self.delta * (n + (step - 2 * n).clamp(max=1)))[:, None]


def toy_gradient(x: Float[Tensor, "b 2"], delta: float = 1.0) -> Float[Tensor, "b 2"]:
    """(1, 0) where floor((x1 - x2) / D) is even, (0, 1) where it is odd (tan2023 Eq. 3)."""
    _check_delta(delta)
    even = ((x[:, 0] - x[:, 1]) / delta).floor() % 2 == 0
    return torch.stack((even, ~even), 1).to(x.dtype)


def toy_smoothgrad(x: Float[Tensor, "b 2"], sigma: float, delta: float = 1.0) -> Float[Tensor, "b 2"]:
    """SmoothGrad of the toy, exactly.

    The first value is the chance that floor((x1 - x2 + noise) / D) is even. The noise has deviation s =
    sqrt(2) sigma, so with u = (x1 - x2) / D the chance is sum_n Phi((2n + 1 - u) D / s) - Phi((2n - u) D /
    s) = 1/2 + (2 / pi) sum_{k odd} sin(pi k u) / k exp(-(pi k sigma / D)^2). The second form shows the
    limit (1/2, 1/2), and how fast it is reached.
    """
    _check_delta(delta)
    if not 0 < sigma < math.inf:
        raise UserError(f"sigma is {sigma}; give a finite noise level above 0, or use toy_gradient.")
    # The pattern repeats after 2 steps.
    place = ((x[:, 0] - x[:, 1]).double() / delta) % 2
    width = math.sqrt(2) * sigma / delta
    first = _by_waves(place, width) if width > _WIDE else _by_intervals(place, width)
    return torch.stack((first, 1 - first), 1).to(x.dtype)


def _by_intervals(place: Tensor, width: float) -> Tensor:
    starts = 2 * torch.arange(-_TERMS, _TERMS + 1, dtype=place.dtype, device=place.device)
    low, high = (starts - place[:, None]) / width, (starts + 1 - place[:, None]) / width
    chance: Tensor = (torch.special.ndtr(high) - torch.special.ndtr(low)).sum(1)
    return chance


def _by_waves(place: Tensor, width: float) -> Tensor:
    k = 2 * torch.arange(_TERMS, dtype=place.dtype, device=place.device) + 1
    waves = torch.sin(math.pi * k * place[:, None]) / k * torch.exp(-((math.pi * k * width) ** 2) / 2)
    return 0.5 + 2 / math.pi * waves.sum(1)


def _check_delta(delta: float) -> None:
    if not 0 < delta < math.inf:
        raise UserError(f"delta is {delta}; give a finite width of the toy's steps above 0.")
