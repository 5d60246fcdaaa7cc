"""Types of batches, maps and models, and the protocols of interchangeable parts.

Axes: b examples, c channels, h w pixels, k classes, n draws, d flattened features. Nothing inherits from the protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

Images: TypeAlias = Float[Tensor, "b c h w"]
"""Pixels in [0, 1]; the model owns its normalisation."""
Inputs: TypeAlias = Float[Tensor, "b *shape"]
"""Images, or any other tensor with one example per row (the 2-D toy)."""
Bytes: TypeAlias = UInt8[Tensor, "b c h w"]
"""Images as stored: 0 to 255."""
Labels: TypeAlias = Int[Tensor, " b"]
Targets: TypeAlias = Tensor | npt.NDArray[Any] | Sequence[int] | int
"""The classes to explain, as callers may give them; `numerics.checks.class_indices` converts them to `Labels`."""
Logits: TypeAlias = Float[Tensor, "b k"]
PerExample: TypeAlias = Float[Tensor, " b"]
Flags: TypeAlias = Bool[Tensor, " b"]

Seed: TypeAlias = int | Int[Tensor, " b"]
"""One number for the batch (example i draws from stream i), or one key per example."""

Model: TypeAlias = nn.Module
"""Maps images `b c h w` in [0, 1] to logits `b k`."""
ScalarField: TypeAlias = Callable[[Tensor], Tensor]
"""Maps inputs `b ...` to one number per example, `b`."""


@runtime_checkable
class Attribution(Protocol):
    """Returns maps shaped like x; examples are independent, and nothing is left behind on the model."""

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor: ...


@runtime_checkable
class Metric(Protocol):
    """Returns one number per example. Metrics of attacked maps also take the attacked inputs, `perturbed=`."""

    def __call__(
        self,
        model: Model,
        attribution: Attribution,
        x: Tensor,
        target: Tensor,
        *,
        seed: Seed = 0,
        **perturbed: Tensor,
    ) -> Tensor: ...


@runtime_checkable
class AttackOutcome(Protocol):
    """Result of an attack, one row per example; `attacks.AttackResult` documents the fields."""

    @property
    def x(self) -> Tensor: ...
    @property
    def x_clean(self) -> Tensor: ...
    @property
    def target(self) -> Tensor: ...
    @property
    def map_clean(self) -> Tensor: ...
    @property
    def map(self) -> Tensor: ...
    @property
    def start(self) -> Tensor: ...
    @property
    def value(self) -> Tensor: ...
    @property
    def prediction_kept(self) -> Tensor: ...
    @property
    def stuck(self) -> Tensor: ...
    @property
    def budget_used(self) -> Tensor: ...
    @property
    def eps(self) -> float: ...
    @property
    def flags(self) -> tuple[str, ...]: ...
    def save(self, folder: Path | str, examples: Sequence[int] | None = None) -> Path: ...


@runtime_checkable
class Attack(Protocol):
    """Returns a perturbed batch inside the ball and the box, with its effect on each map.

    Called with several radii an attack returns a tuple; `every_radius` always does.
    """

    def __call__(
        self, model: Model, attribution: Attribution, x: Tensor, target: Tensor, *, seed: Seed = 0
    ) -> AttackOutcome: ...

    def every_radius(
        self, model: Model, attribution: Attribution, x: Tensor, target: Tensor, *, seed: Seed = 0
    ) -> tuple[AttackOutcome, ...]: ...


@runtime_checkable
class Regularizer(Protocol):
    """Returns one penalty per example, differentiable to the weights."""

    def __call__(self, model: Model, x: Tensor, y: Tensor, *, seed: Seed | None = None) -> Tensor: ...


@runtime_checkable
class Kernel(Protocol):
    """A distribution of perturbations with the constants its theorems need."""

    def sample(self, shape: tuple[int, ...], seed: int, dtype: torch.dtype = ...) -> Tensor: ...

    def tv_slope(self, d: int) -> float:
        """gamma of tan2023 Theorem 4.3: total variation of two shifted copies over their distance."""
        ...
