"""IG-NORM: the loss's integrated gradients between x and its neighbours should be small."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.attributions.path import path_points
from gyrograd.errors import UserError
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.checks import check_not_compiled
from gyrograd.numerics.modes import eval_mode
from gyrograd.registry import register
from gyrograd.regularizers.inner import ascend, check_inner
from gyrograd.regularizers.passes import (
    auxiliary_pass,
    check_batch,
    check_choices,
    fresh_keys,
    score_of,
)
from gyrograd.types import Images, Labels, Model, PerExample, Seed


@register(
    "regularizer",
    "ig_norm",
    aliases=("rar",),
    paper="wang2020",
    equation="Table 1, baseline 'IG-NORM' (after Chen et al. 2019)",
    capturable=True,
)
@dataclass(frozen=True)
class IgNorm:
    """The l1 norm of the loss's integrated gradients from x to x', x' the neighbour at which it is largest.

    x' comes from sign ascent with `search_points` points on the path; the penalty uses `points` (right rule), as in
    Chen et al.'s code. step_size defaults to eps / 4. wang2020 uses 5 points for both (`points=5`). The norm is the
    same in any input space. x' is a constant with respect to the weights, and is sought with the model in evaluation
    mode. Each point is one pass, and the graphs of all passes are in memory.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> penalty = gg.regularizer("ig_norm", eps=4 / 255, steps=2, points=3, search_points=2)(model, x, y)
    >>> bool((penalty >= 0).all())
    True
    """

    eps: float = 8 / 255
    steps: int = 7
    step_size: float | None = None
    points: int = 50
    search_points: int = 5
    batchnorm: str = "batch"

    def __post_init__(self) -> None:
        check_choices(self)
        check_inner(self.eps, self.steps, self.step_size)
        for name in ("points", "search_points"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; give a path at least 1 point.")

    def __call__(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> PerExample:
        check_not_compiled(model)
        check_batch(model, x)
        found = self.images(model, x, y, seed=seed)
        with auxiliary_pass(model, self.batchnorm):
            return path_length(model, x.detach(), found, y, self.points)

    def images(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> Images:
        """The neighbours x' at the ends of the paths: in the ball around x and in [0, 1]."""

        def length(moved: Tensor) -> Tensor:
            return path_length(model, x.detach(), moved, y, self.search_points)

        step_size = self.eps / 4 if self.step_size is None else self.step_size
        keys = fresh_keys(seed, x)
        with eval_mode(model):
            return ascend(length, x, eps=self.eps, steps=self.steps, step_size=step_size, keys=keys)


def path_length(model: Model, x: Images, end: Images, y: Labels, points: int) -> PerExample:
    """||IG(x, end)||_1 of the loss of class y, differentiable to the weights and to `end`."""
    positions, weights = path_points("right", points)
    loss = score_of(model, x, y, "loss")
    mean = torch.zeros_like(x)
    for position, weight in zip(positions, weights, strict=True):
        # The graph reaches `end`, too, for the search: the points move with it.
        mean = mean + weight * input_gradient(loss, x + position * (end - x), create_graph=True)
    return ((end - x) * mean).abs().flatten(1).sum(1)
