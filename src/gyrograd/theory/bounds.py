"""Bounds of wang2020 and tan2023 on how far an explanation can move, from constants of the model.

The constants belong to the explained value f on the set of inputs that the explanation evaluates: lipschitz L (bounds
the gradient's length), smoothness H (bounds the Hessian's spectral norm), largest (sup |f|: wang2020's F, tan2023's R),
radius (sup ||x||: tan2023's beta). Distances are Euclidean.

Each function is one printed constant. If the print is wrong or not tight, `form` selects a version: "paper" as printed,
"corrected" without its error, "sharp" the best constant known to us. The bounds on smoothed models hold for the
expectation; a mean over finitely many draws can exceed them.
"""

import math
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.types import Kernel

Amount: TypeAlias = float | Tensor
"""One number for all examples, or one per example."""
Form = Literal["paper", "corrected", "sharp"]


# wang2020


def saliency_bound(lipschitz: Amount, distance: Amount) -> Amount:
    """2 L / ||x - x*||, x* the point of the ball where the gradient changes fastest (wang2020 Theorem 1).

    The theorem's "O(L)" does not follow: nothing keeps x* away from x, and f = sin(kx) / k has L = 1 and a
    gradient that changes k times as fast as x.
    """
    _check_at_least_zero(lipschitz=lipschitz)
    _check_above_zero(distance=distance)
    return 2 * lipschitz / distance


def smoothgrad_bound_from_largest(largest: Amount, sigma: float, *, form: Form = "sharp") -> Amount:
    """2 F / sigma^2 for SmoothGrad of any |f| <= F (wang2020 Theorem 2); sharp: 0.968 F / sigma^2.

    The sharp constant is 4 phi(1), E|n^2 - 1| of a standard normal n; f = F sign(|x| - sigma) attains it.
    """
    check_name("form of this bound", form, ("paper", "sharp"))
    _check_at_least_zero(largest=largest)
    _check_above_zero(sigma=sigma)
    constant = 2.0 if form == "paper" else 4 * math.exp(-0.5) / math.sqrt(2 * math.pi)
    return constant * largest / sigma**2


def sigma_that_lowers_the_bound(radius: Amount, largest: Amount, lipschitz: Amount) -> Amount:
    """sqrt(delta F / L): above this sigma Theorem 2's bound is below Theorem 1's (wang2020 Proposition 2).

    delta is the radius of the ball. Bounds are compared, not robustness: on a flat piece of a ReLU net the
    gradient is constant and SmoothGrad is not.
    """
    _check_at_least_zero(radius=radius, largest=largest)
    _check_above_zero(lipschitz=lipschitz)
    # Not math.sqrt: each amount may be a tensor.
    product: Amount = (radius * largest / lipschitz) ** 0.5
    return product


def gradient_change_bound(radius: Amount, curvature: Amount, *, hessian_lipschitz: Amount = 0.0) -> Amount:
    """delta max|xi|: the gradient's largest change in a ball (wang2020 Theorem 3; joo2023 Eq. 1).

    delta is the ball's radius, `curvature` the largest size of an eigenvalue of the Hessian at x. It holds
    to first order, so exactly only for a constant Hessian; `hessian_lipschitz` M adds M delta^2 / 2 and
    makes it strict. The ball is Euclidean: joo2023 Eq. 1 says any p, and for p = infinity a factor sqrt(d)
    is missing.
    """
    _check_at_least_zero(radius=radius, curvature=curvature, hessian_lipschitz=hessian_lipschitz)
    return radius * curvature + hessian_lipschitz * radius**2 / 2


def loss_change_bound(radius: Amount, slope: Amount, curvature: Amount) -> Amount:
    """delta ||grad|| + delta^2 max|xi| / 2: the loss's largest change, to second order (wang2020 B2)."""
    _check_at_least_zero(radius=radius, slope=slope, curvature=curvature)
    return radius * slope + radius**2 * curvature / 2


# tan2023, Theorem 4.1


def gradient_bound(smoothness: float) -> float:
    """H (tan2023 Theorem C.15)."""
    _check_at_least_zero(smoothness=smoothness)
    return smoothness


def input_x_gradient_bound(lipschitz: float, smoothness: float, radius: float) -> float:
    """beta H + L (tan2023 Theorem C.16)."""
    _check_at_least_zero(lipschitz=lipschitz, smoothness=smoothness, radius=radius)
    return radius * smoothness + lipschitz


def integrated_gradients_bound(
    lipschitz: float, smoothness: float, radius: float, *, mean_position: float = 0.5
) -> float:
    """beta H / 2 + L (tan2023 Theorem C.14).

    beta bounds ||x - baseline||; the paper has the zero baseline. The 1/2 is the mean position on the path:
    (steps + 1) / (2 steps) for the right rule, 1/2 for trapezoid and midpoint.
    """
    _check_at_least_zero(
        lipschitz=lipschitz, smoothness=smoothness, radius=radius, mean_position=mean_position
    )
    return mean_position * radius * smoothness + lipschitz


def smoothgrad_bound_from_lipschitz(lipschitz: float, sigma: float) -> float:
    """sqrt(2 / pi) L / sigma (tan2023 Theorem C.7); f = L |x| attains it."""
    _check_at_least_zero(lipschitz=lipschitz)
    _check_above_zero(sigma=sigma)
    return math.sqrt(2 / math.pi) * lipschitz / sigma


def shap_bound(lipschitz: float, d: int, *, form: Form = "sharp") -> float:
    """2 sqrt(d) L for d features (tan2023 Theorem C.11); sharp: sqrt(2 d) L.

    The print takes ||x - x'|| for every coalition. A feature is in half of them, so that the squares of the
    two terms of value i sum to ||x - x'||^2 on average, and (a + b)^2 <= 2 (a^2 + b^2) gives the rest.
    """
    check_name("form of this bound", form, ("paper", "sharp"))
    _check_at_least_zero(lipschitz=lipschitz)
    _check_features(d)
    return (2 if form == "paper" else math.sqrt(2)) * math.sqrt(d) * lipschitz


def lime_uniform_bound(lipschitz: float, d: int, ridge: float) -> float:
    """2 sqrt(d + 1) L / (4 lambda + 1): LIME on d features, equal weight for all coalitions (tan2023 Lemma C.9).

    For the mean over all coalitions with penalty lambda ||w||^2 and no intercept.
    """
    _check_at_least_zero(lipschitz=lipschitz, ridge=ridge)
    _check_features(d)
    return 2 * math.sqrt(d + 1) * lipschitz / (4 * ridge + 1)


def lime_exponential_bound(
    lipschitz: float,
    largest: float,
    radius: float,
    *,
    d: int,
    ridge: float,
    width: float,
    form: Form = "sharp",
) -> float:
    """LIME with the kernel exp(-||x - z||^2 / width^2) (tan2023 Theorem C.10), the constants written out.

    C (sqrt(d+1) L / 2 + s R sqrt(d-1) / 2) + C^2 s R m, with C = 4 / (exp(-beta^2 / width^2) + 4 lambda).
    s is the kernel's slope, 2 beta / width^2 exp(2 beta / width^2) in print (which needs ||x - x'|| <= 1).
    m comes from the mean squared size of coalitions; in print, (d - 1) sqrt(d) / 4, the variance of the size
    is left out. "corrected" has m = d sqrt(d-1) / 4; "sharp" has that and the true slope,
    min(2 beta / width^2, sqrt(2 / e) / width), for any distance.
    """
    check_name("form of this bound", form, get_args(Form))
    _check_at_least_zero(lipschitz=lipschitz, largest=largest, radius=radius, ridge=ridge)
    _check_above_zero(width=width)
    _check_features(d)
    slope = _kernel_slope(radius, width, sharp=form == "sharp")
    inverse = 4 / (_exp(-((radius / width) ** 2)) + 4 * ridge)
    moment = (d - 1) * math.sqrt(d) / 4 if form == "paper" else d * math.sqrt(d - 1) / 4
    first = math.sqrt(d + 1) * lipschitz / 2 + slope * largest * math.sqrt(d - 1) / 2
    return inverse * first + inverse**2 * slope * largest * moment


# tan2023, Proposition 4.2 and Theorem 4.3


def smoothed_lipschitz(kernel: Kernel, d: int, *, spread: float, lipschitz: float = math.inf) -> float:
    """min(L, spread * gamma) for the smoothed model (tan2023 Theorem 4.3).

    `spread` is sup f - inf f, which is 1 for a probability and 2 R for |f| <= R; gamma is the kernel's slope of total
    variation.
    """
    _check_at_least_zero(spread=spread, lipschitz=lipschitz)
    _check_features(d)
    return min(lipschitz, spread * kernel.tv_slope(d))


def printed_smoothed_lipschitz(
    kernel: Kernel, d: int, *, largest: float, lipschitz: float = math.inf
) -> float:
    """min(L, R gamma) with gamma as printed (tan2023 Proposition 4.2 and Theorem 4.3).

    For the Gaussian this is R / (2 sigma), which holds for 0 <= f <= R and not for |f| <= R as stated:
    f = R sign(x) has slope 0.80 R / sigma. For the uniform kernel it holds.
    """
    printed = getattr(kernel, "paper_slope", None)
    if printed is None:
        raise UserError(f"tan2023 prints no constant for {kernel}; use smoothed_lipschitz.")
    _check_at_least_zero(largest=largest, lipschitz=lipschitz)
    _check_features(d)
    return min(lipschitz, largest * float(printed(d)))


def sigma_that_smooths(spread: float, lipschitz: float) -> float:
    """spread / (L sqrt(2 pi)): with a larger sigma the Gaussian-smoothed model is less steep than L.

    tan2023 Proposition 4.2 prints R / (2 L), and below it L / 2, a slip.
    """
    _check_at_least_zero(spread=spread)
    _check_above_zero(lipschitz=lipschitz)
    return spread / (lipschitz * math.sqrt(2 * math.pi))


def _kernel_slope(radius: float, width: float, *, sharp: bool) -> float:
    """How fast exp(-u^2 / width^2) changes with u in [0, radius]: as printed, or its largest derivative."""
    edge = 2 * radius / width**2
    return min(edge, math.sqrt(2 / math.e) / width) if sharp else edge * _exp(edge)


def _exp(power: float) -> float:
    """exp, or infinity beyond the range of floats; the printed bound is then vacuous."""
    return math.exp(power) if power < 700 else math.inf


def _check_features(d: int) -> None:
    if d < 1:
        raise UserError(f"d is {d}; give the number of features, at least 1.")


def _check_at_least_zero(**amounts: Amount) -> None:
    for name, amount in amounts.items():
        if not bool((torch.as_tensor(amount) >= 0).all()):
            raise UserError(f"{name} is {amount}; give 0 or more.")


def _check_above_zero(**amounts: Amount) -> None:
    for name, amount in amounts.items():
        if not bool((torch.as_tensor(amount) > 0).all()):
            raise UserError(f"{name} is {amount}; give a number above 0.")
