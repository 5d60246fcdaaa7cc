"""Theorems as functions, and estimates of the quantities that they bound.

criteria: joo2023's l2 and cosine criteria and the bound between them. curvature: the input Hessian and its norms.
bounds: the bounds of wang2020 and tan2023. estimates: empirical values of the bounded quantities. toy: tan2023's
two-variable example. alignment_toy: the four nets of joo2023 Figure 1. tradeoff: robustness against faithfulness.
"""

from gyrograd.renames import keep_old_names
from gyrograd.theory import bounds, estimates, toy
from gyrograd.theory.criteria import (
    cosine_criterion,
    expected_cosine_criterion,
    expected_l2_criterion,
    frobenius_bound,
    l2_criterion,
    product_bound,
    scaled_last_layer,
    scaled_layer,
    squared_bound,
)
from gyrograd.theory.curvature import (
    hessian,
    loss_curvatures,
    loss_hessian,
    squared_frobenius_norm,
    top_loss_curvature,
)
from gyrograd.theory.tradeoff import (
    Point,
    Promise,
    Recommendation,
    compare,
    interior_optimum,
    pareto,
    recommend,
    sweep,
)

__all__ = [
    "Point",
    "Promise",
    "Recommendation",
    "bounds",
    "compare",
    "cosine_criterion",
    "estimates",
    "expected_cosine_criterion",
    "expected_l2_criterion",
    "frobenius_bound",
    "hessian",
    "interior_optimum",
    "l2_criterion",
    "loss_curvatures",
    "loss_hessian",
    "pareto",
    "product_bound",
    "recommend",
    "scaled_last_layer",
    "scaled_layer",
    "squared_bound",
    "squared_frobenius_norm",
    "sweep",
    "top_loss_curvature",
    "toy",
]

keep_old_names(__name__, measured="gyrograd.theory.estimates")
