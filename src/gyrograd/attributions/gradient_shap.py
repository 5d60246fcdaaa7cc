"""GradientSHAP, also called expected gradients: integrated gradients averaged over many baselines."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, baseline_of, check_baseline, examples_of
from gyrograd.attributions.batching import MAX_BATCH, copies_at_once, explain_in_parts
from gyrograd.attributions.gradient import score_gradient
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets

POSITION, CHOICE, NOISE, BASELINE = range(4)
"""Random streams, one per purpose."""


@register(
    "attribution",
    "gradient_shap",
    aliases=("expected_gradients", "eg"),
    paper="Erion et al. 2021",
    equation="Equation 3 (expected gradients)",
    differentiable=True,
    order=35,
    label="GradientSHAP",
    passes="draws",
    about="The gradient averaged on the ways from many other images to this one, times what differs.",
)
@dataclass(frozen=True, eq=False)
class GradientShap(ComparedBySettings):
    """E[(x - x') df/dx (x' + a (x - x'))], a uniform on [0, 1], x' a random baseline (Erion et al. 2021).

    Each draw takes a position a and a baseline x': one of the images given (a tensor of several examples); or "noise",
    each pixel uniform on [0, 1]; or one of the fixed ones of integrated gradients. `sigma` adds normal noise to x
    first, as Captum's GradientShap does. All examples use the same draws for a seed, so a map depends on its example
    alone and can be differentiated again. It sums to f(x) minus the mean f(x'), up to the error of sampling.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.model("lenet", num_classes=10, seed=0).eval(), torch.rand(2, 3, 32, 32)
    >>> others = torch.rand(20, 3, 32, 32)
    >>> gg.attribution("gradient_shap", baseline=others, draws=4)(model, x, torch.tensor([0, 1])).shape
    torch.Size([2, 3, 32, 32])
    """

    draws: int = 50
    baseline: Baseline = "noise"
    sigma: float = 0.0
    seed: int = 0
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        if self.baseline != "noise":
            check_baseline(self.baseline)
        if self.draws < 1:
            raise UserError(f"GradientSHAP needs at least one draw, not {self.draws}; 50 is usual.")
        if not 0 <= self.sigma < math.inf:
            raise UserError(f"sigma is {self.sigma}; give a width in pixel units, 0 or more.")

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def explain(x: Tensor, target: Tensor) -> Tensor:
            at_once = copies_at_once(self.max_batch, x, model)
            # One key for all examples, so that a map does not depend on the other images of its batch.
            key = random.keys(self.seed, 1, x.device)
            positions = random.uniform(key, (self.draws,), stream=POSITION, dtype=x.dtype)[0]
            starts, positions = self._starts(x, key), positions.reshape(-1, *[1] * x.dim())
            shape = (self.draws, *x.shape[1:])
            noise = random.normal(key, shape, stream=NOISE, dtype=x.dtype)[0] if self.sigma else None
            total = torch.zeros_like(x)
            for first in range(0, self.draws, at_once):
                part = slice(first, first + at_once)
                start = starts[part] if len(starts) > 1 else starts  # one baseline for all draws
                way = x - start if noise is None else x + self.sigma * noise[part, None] - start
                points = (start + positions[part] * way).flatten(0, 1)
                repeated = target.repeat(len(points) // len(x))
                slope = score_gradient(model, points, repeated, self.quantity, create_graph=create_graph)
                total = total + (way * slope.unflatten(0, (-1, len(x)))).sum(0)
            return total / self.draws

        return explain_in_parts(explain, model, x, target, self.max_batch, create_graph, passes=self.draws)

    def _starts(self, x: Tensor, key: Tensor) -> Tensor:
        """Baselines, `n b ...`, with 1 in place of n or b if they are shared."""
        shape = (self.draws, *x.shape[1:])
        if isinstance(self.baseline, str) and self.baseline == "noise":
            return random.uniform(key, shape, stream=BASELINE, dtype=x.dtype)[0].unsqueeze(1)
        if isinstance(self.baseline, Tensor) and self.baseline.dim() == x.dim():
            examples = examples_of(x, self.baseline)
            chosen = random.integers(key, (self.draws,), len(examples), stream=CHOICE)[0]
            return examples[chosen].unsqueeze(1)
        return baseline_of(x, self.baseline).unsqueeze(0)
