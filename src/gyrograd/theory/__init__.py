"""Theorems as functions, each beside what can be measured of it.

criteria: joo2023's l2 and cosine criteria and the bound between them. curvature: the input Hessian and its
norms. bounds: what wang2020 and tan2023 promise. measured: the empirical side. toy: tan2023's two variables.
alignment_toy: the four nets of joo2023 Figure 1.
tradeoff: robustness against faithfulness, and what to choose.
"""

from gyrograd.theory import bounds, measured, toy
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
    "expected_cosine_criterion",
    "expected_l2_criterion",
    "frobenius_bound",
    "hessian",
    "interior_optimum",
    "l2_criterion",
    "loss_curvatures",
    "loss_hessian",
    "measured",
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
