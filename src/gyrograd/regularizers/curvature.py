"""Curvature penalties: the input Hessian of a class's score, or of the loss, should be small."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast, get_args

from torch import Tensor

from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.numerics.checks import check_not_compiled, is_being_recorded
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.regularizers.passes import (
    WrittenOut,
    auxiliary_pass,
    check_batch,
    check_choices,
    fresh_keys,
    score_of,
    seen_in,
    uses_batch_statistics,
)
from gyrograd.theory.curvature import Channels, Probe, squared_frobenius_norm, top_loss_curvature
from gyrograd.types import Inputs, Labels, Model, PerExample, Seed

_PROBED_EXAMPLES = 4
"""Examples on which a net in training mode is tested for being piecewise linear."""


PixelUnit = Literal["unit", "byte"]
"""Range of pixels: 0 to 1, or 0 to 255."""


@register(
    "regularizer",
    "hessian",
    paper="Dombrowski et al. 2022",
    equation="in joo2023, baseline 'Hessian'",
    capturable=True,
)
@dataclass(frozen=True)
class Hessian:
    """||H v||^2 for a random v, H the input Hessian of the label's score: in expectation its squared Frobenius norm.

    One v ~ N(0, I) per example and call, as in joo2023's code; `draws` averages more, and `probe="signs"` has less
    variance. A piecewise linear net (ReLU) has no Hessian and is refused.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model = gg.model("lenet", num_classes=10, activation="softplus", seed=0)      # ReLU has no curvature
    >>> penalty = gg.regularizer("hessian")(model, data.pixels(), data.labels)
    >>> bool((penalty >= 0).all())
    True
    """

    draws: int = 1
    probe: str = "normal"
    quantity: str = "logit"
    space: str = "normalized"
    batchnorm: str = "batch"

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_name("probe", self.probe, get_args(Probe))
        check_choices(self)
        check_counts(draws=self.draws)

    def __call__(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> PerExample:
        check_not_compiled(model)
        check_batch(model, x)
        keys = fresh_keys(seed, x)
        penalty = self._norm(model, x, y, keys, self.batchnorm, graph=True)
        probed = penalty
        if uses_batch_statistics(model, self.batchnorm):
            # The test is about evaluation mode: in training mode batch statistics give a ReLU net curvature, too, and
            # take it from any net where they are those of a single row (BatchNorm1d), which they turn into a constant.
            # A few examples will do: a piecewise linear net has no curvature at any of them.
            some = slice(_PROBED_EXAMPLES)
            probed = self._norm(model, x[some], y[some], keys[some], "frozen", graph=False)
        _refuse_flat(probed)
        return penalty

    def _norm(
        self, model: Model, x: Tensor, y: Tensor, keys: Tensor, batchnorm: str, *, graph: bool
    ) -> Tensor:
        there, u = seen_in(model, x, self.space)
        field = score_of(there, x, y, self.quantity)
        with auxiliary_pass(model, batchnorm), WrittenOut():
            probe = cast(Probe, self.probe)
            return squared_frobenius_norm(
                field, u, None, draws=self.draws, seed=keys, probe=probe, create_graph=graph
            )


@register("regularizer", "ssr", paper="wang2020", equation="Definition 7, Proposition 3", capturable=True)
@dataclass(frozen=True)
class Ssr:
    """Smooth surface regularisation: scale times the largest eigenvalue of the loss's input Hessian.

    The Hessian is the closed form W (diag p - p p^T) W^T, W the gradients of the logits: exact for piecewise linear
    nets, the Gauss-Newton part for others. Its top eigenvalue comes from a k x k problem (B1) and costs k backward
    passes, one of which is differentiated again (all k if the net normalises by the batch). No label is used.
    `scale` is the paper's s, and `pixels` the unit of its eigenvalue: "unit" ([0, 1], as everywhere here; C2 finds
    s = 1 good) or "byte" ([0, 255], as in the released code, whose s is 1e6). In bytes the eigenvalue is 255^2
    times smaller, so s = 1e6 there is scale 15.4 here. The paper mixes beta s lambda + (1 - beta) CE; see
    docs/concepts/regularizers.md. `channels="mean"` averages W over the colours first, as the released code does
    without mention in the paper.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> bool((gg.regularizer("ssr", scale=1.0)(model, x, y) >= 0).all())
    True
    """

    scale: float = 1.0
    channels: str = "all"
    space: str = "pixel"
    batchnorm: str = "batch"
    pixels: str = "unit"

    def __post_init__(self) -> None:
        check_name("unit of pixels", self.pixels, get_args(PixelUnit))
        check_name("treatment of channels", self.channels, get_args(Channels))
        check_choices(self)
        if not 0 < self.scale < math.inf:
            raise UserError(f"scale is {self.scale}; give a finite factor above 0, such as 1.")

    def __call__(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> PerExample:  # noqa: ARG002
        check_not_compiled(model)
        check_batch(model, x)
        there, u = seen_in(model, x, self.space)
        with auxiliary_pass(model, self.batchnorm):
            channels = cast(Channels, self.channels)
            # A derivative to bytes is 255 times smaller than one to pixels in [0, 1], and this is a second derivative.
            factor = self.scale / (255**2 if self.pixels == "byte" else 1)
            independent = not uses_batch_statistics(model, self.batchnorm)
            return factor * top_loss_curvature(
                there, u, channels=channels, create_graph=True, independent=independent
            )


def _refuse_flat(penalty: Tensor) -> None:
    """Refuse a penalty that is zero for every example: training would silently do nothing."""
    if not is_being_recorded(penalty) and not penalty.detach().any():
        raise UserError(
            "The input Hessian is zero at every example, as it is for a piecewise linear (ReLU) net: use softplus "
            "activations, quantity='loss', or the regularizers l2 and cosine, which need no second derivative."
        )
