"""Accuracy of the model, which robust training usually lowers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.numerics.checks import check_target, class_indices
from gyrograd.numerics.maps import holds_nan
from gyrograd.registry import register
from gyrograd.types import Attribution, Inputs, Model, PerExample, Seed, Targets


@register(
    "metric",
    "accuracy",
    aliases=("acc",),
    paper="joo2023",
    equation="Table 1, Accuracy",
    direction="higher is better",
)
@dataclass(frozen=True)
class Accuracy:
    """1 where the largest logit is the target's, else 0; the attribution is not used.

    >>> import gyrograd as gg
    >>> model, data = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=4)
    >>> right = gg.metric("accuracy")(model, None, data.pixels(), gg.predict(model, data.pixels()))
    >>> right.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    max_batch: int = MAX_BATCH
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(
        self, model: Model, attribution: Attribution | None, x: Inputs, target: Targets, *, seed: Seed = 0
    ) -> PerExample:
        logits = logits_in_parts(model, x, self.max_batch)
        target = class_indices(target, x)
        check_target(target, *logits.shape)
        # argmax takes NaN for the largest value, so a model without an answer would be right on class 0.
        return ((logits.argmax(1) == target) & ~holds_nan(logits)).to(x.dtype)
