"""Adapters to other libraries: torchmetrics' update / compute / reset, Quantus' `explain_func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.statistics import Interval, bootstrap_interval
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Labels, Metric, Model, PerExample


class RunningMetric:
    """Accumulates a metric over batches with torchmetrics' interface, without needing torchmetrics.

    Example number i draws from stream i of the seed, so the values do not depend on the batch size. All values are
    stored: `compute` returns their mean, `interval` the mean with its bootstrap interval.
    """

    def __init__(
        self,
        metric: str | Metric,
        model: Model,
        attribution: Attribution | None = None,
        *,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.metric: Any = make("metric", metric, **settings) if isinstance(metric, str) else metric
        if settings and not isinstance(metric, str):
            raise UserError(
                "Settings are for a metric given by name; this one is built already, so leave them out."
            )
        direction = lookup("metric", metric).direction if isinstance(metric, str) else "none"
        self.higher_is_better = None if direction == "none" else direction == "higher is better"
        self.model = model
        self.attribution = attribution
        self.seed = seed
        self.reset()

    def update(self, x: Tensor, target: Labels, **more: Any) -> None:
        """Measure a batch; `more` goes to the metric (`perturbed=`)."""
        keys = random.keys(self.seed, self.seen + len(x), x.device)[self.seen :]
        values = self.metric(self.model, self.attribution, x, target, seed=keys, **more)
        self._parts.append(values.detach().cpu())

    @property
    def seen(self) -> int:
        """Number of examples measured so far."""
        return sum(len(part) for part in self._parts)

    @property
    def values(self) -> PerExample:
        """The values of all examples so far."""
        if not self._parts:
            raise UserError("Nothing has been measured; call update(x, target) first.")
        return torch.cat(self._parts)

    def compute(self) -> Tensor:
        """The mean over all examples so far."""
        return self.values.mean()

    def interval(self, level: float = 0.95) -> Interval:
        """The mean with its bootstrap interval over examples."""
        return bootstrap_interval(self.values.double().numpy(), level=level)

    def reset(self) -> None:
        """Forget all values."""
        self._parts: list[Tensor] = []

    def __call__(self, x: Tensor, target: Labels, **more: Any) -> PerExample:
        """Measure a batch and return its values."""
        self.update(x, target, **more)
        return self._parts[-1]


def as_quantus_explain(attribution: Attribution) -> Callable[..., NDArray[Any]]:
    """The attribution as Quantus' `explain_func(model, inputs, targets, **kw) -> array`."""

    def explain_func(model: Model, inputs: Any, targets: Any, **_: Any) -> NDArray[Any]:
        weight = next(model.parameters(), torch.empty(0))
        x = torch.as_tensor(inputs, device=weight.device, dtype=weight.dtype)
        target = torch.as_tensor(targets, device=weight.device).long()
        return np.asarray(attribution(model, x, target).detach().cpu().numpy())

    return explain_func
