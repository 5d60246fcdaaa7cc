"""Integrated gradients: the gradient averaged along the straight path from a baseline to the input."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, check_baseline
from gyrograd.attributions.batching import MAX_BATCH, copies_at_once, explain_in_parts
from gyrograd.attributions.gradient import score
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import UserError, check_name
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets

Rule = Literal["left", "right", "midpoint", "trapezoid"]


FEWEST_TO_THIN = 16
"""Steps from which on a quarter of them makes a map that moves like the whole: of 8 steps even half do not."""


def path_points(rule: str, steps: int) -> tuple[list[float], list[float]]:
    """Positions in [0, 1] and weights that sum to 1; the trapezoid rule has steps + 1 points."""
    if rule == "trapezoid":
        return [i / steps for i in range(steps + 1)], [
            (0.5 if i in (0, steps) else 1) / steps for i in range(steps + 1)
        ]
    shift = {"left": 0.0, "right": 1.0, "midpoint": 0.5}[rule]
    return [(i + shift) / steps for i in range(steps)], [1 / steps] * steps


@register(
    "attribution",
    "integrated_gradients",
    aliases=("ig",),
    paper="tan2023",
    equation="Section 3.2, Integrated Gradient",
    differentiable=True,
    order=30,
    label="Integrated Gradients",
    passes="steps",
    about="The gradient averaged on the way from a black image, times the brightness.",
)
@dataclass(frozen=True, eq=False)
class IntegratedGradients(ComparedBySettings):
    """(x - baseline) times the mean gradient along the path between them.

    wang2020 and RAR use the right rule with 50 steps, tan2023 10 points; joo2023's code omits the factor x - baseline
    (`times_input=False`). Completeness (the map sums to the difference of the explained value) holds up to the error
    of the rule.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("integrated_gradients", steps=100)(model, x, target=3)
    >>> change = (model(x) - model(torch.zeros_like(x)))[:, 3]
    >>> torch.allclose(maps.flatten(1).sum(1), change, atol=0.05)
    True
    """

    steps: int = 50
    baseline: Baseline = "zero"
    rule: str = "trapezoid"
    times_input: bool = True
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_baseline(self.baseline)
        if self.steps < 1:
            raise UserError(f"Integrated gradients needs at least one step, not {self.steps}; 50 is usual.")
        check_name("path rule", self.rule, get_args(Rule))

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def explain(x: Tensor, target: Tensor, start: Tensor) -> Tensor:
            positions, weights = path_points(self.rule, self.steps)
            at_once = copies_at_once(self.max_batch, x, model)
            mean = torch.zeros_like(x)
            # The gradient at the baseline itself depends only on the weights: if those are frozen it needs no graph,
            # which would cost several times as much.
            held = not (start.requires_grad or any(weight.requires_grad for weight in model.parameters()))
            fixed = int(create_graph and positions[0] == 0 and held)
            # The point without a graph is in a pass of its own.
            starts = [*range(fixed), *range(fixed, len(positions), at_once)]
            for first, end in zip(starts, [*starts[1:], len(positions)], strict=True):
                alpha, weight = _column(positions[first:end], x), _column(weights[first:end], x)
                points = (start + alpha * (x - start)).flatten(0, 1)
                once = not create_graph or end <= fixed
                repeated = target.repeat(len(alpha))
                explained = score(
                    model, repeated, self.quantity, check=not create_graph, any_layout=once or held
                )
                gradient = input_gradient(explained, points, create_graph=not once)
                mean = mean + (weight * gradient.unflatten(0, (len(alpha), len(x)))).sum(0)
            return (x - start) * mean if self.times_input else mean

        passes = self.steps + (self.rule == "trapezoid")
        return explain_in_parts(
            explain, model, x, target, self.max_batch, create_graph, passes=passes, baseline=self.baseline
        )

    def coarser(self) -> IntegratedGradients | None:
        """The map from a quarter of the points, which an attack may follow at first; None if those are too few.

        The gradient changes little between neighbouring points, so a few of them, in the middle of their intervals,
        move like all of them. (Random draws do not: each has something of its own.)
        """
        return replace(self, steps=self.steps // 4, rule="midpoint") if self.steps >= FEWEST_TO_THIN else None


def _column(values: list[float], x: Tensor) -> Tensor:
    """The values along a new first axis, ready to multiply a batch."""
    return torch.tensor(values, dtype=x.dtype, device=x.device).reshape(-1, *[1] * x.dim())
