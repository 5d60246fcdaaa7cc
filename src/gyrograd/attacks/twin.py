"""Where the derivative comes from: the model itself, or a Softplus twin of a piecewise linear one.

The gradient map of a ReLU net is piecewise constant, so its derivative to x is zero almost everywhere and an
attack that follows it stands still: a "robust" number that means nothing. joo2023, wang2020 and Dombrowski et
al. all search on a copy with Softplus in place of ReLU; what is found is judged on the model itself. Nets of
ReLU6, LeakyReLU and others made of ReLUs get a twin too (`models.piecewise`). Where none can be made of a net
whose second derivative is zero, the result says so: maps that have a derivative of another kind, such as input x
gradient, would be attacked along it alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models.activations import swap_report, with_activation
from gyrograd.models.piecewise import WITHOUT_CURVATURE
from gyrograd.numerics import random
from gyrograd.numerics.autograd import hessian_vector_product
from gyrograd.smoothing import Smoothed
from gyrograd.types import Model

BETA = 20.0
"""Sharpness of the twin unless set: joo2023's. (wang2020's and Ghorbani et al.'s code have 1.)"""
FLAT = (
    "no second derivative and no twin to search on, so that the search cannot see slopes change: "
    "a small effect is no sign of robustness"
)

TwinBeta = float | int | tuple[float | int, float | int] | str | None
"""A sharpness, two of them (grows from the first to the last, geometrically), "auto", or None: no twin."""


@dataclass(frozen=True)
class Guide:
    """The model that is differentiated. `note` says what it is if it is not the model; `refusal` why not."""

    model: Model
    note: str = ""
    refusal: str = ""
    growth: tuple[float | int, float | int] | None = None

    def set_step(self, step: int, steps: int) -> None:
        """Sharpen a growing twin to its beta at this step: geometric, as Dombrowski et al. do."""
        if self.growth is None:
            return
        low, high = self.growth
        beta = low * (high / low) ** (step / max(1, steps - 1))
        for module in self.model.modules():
            if isinstance(module, nn.Softplus) and "stands_for_relu" in vars(module):
                module.beta = beta


def guide_for(model: Model, x: Tensor, twin_beta: TwinBeta) -> Guide:
    """The twin where one is asked for, or where "auto" finds a ReLU or what is made of ReLUs; else the model itself.

    The twin shares the model's weights. A model that was smooth from the start is left alone by "auto", and so is
    one that bends by itself between its kinks (Hardswish alone). None makes no twin; what is left without a second
    derivative is noted all the same.
    """
    guide = Guide(model) if twin_beta is None else _twin_or_model(model, x, twin_beta)
    doubt = _doubt(guide.model, x[:1])
    return replace(guide, note="; ".join(note for note in (guide.note, doubt) if note))


def _twin_or_model(model: Model, x: Tensor, twin_beta: TwinBeta) -> Guide:
    growth = twin_beta if isinstance(twin_beta, tuple) else None
    beta = BETA if isinstance(twin_beta, str) else float(growth[0] if growth else twin_beta)  # type: ignore[arg-type]
    try:
        twin = _softplus(model, x, beta)
    except UserError as wrong:
        if twin_beta != "auto":
            raise
        return Guide(model, refusal=str(wrong))
    report = swap_report(twin)
    if twin_beta == "auto" and not any(place.function in WITHOUT_CURVATURE for place in report.swapped):
        return Guide(model)
    left = f", {len(report.unswapped)} kinked operations left" if report.unswapped else ""
    sharpness = f"{growth[0]:g} to {growth[1]:g}" if growth else f"{beta:g}"
    return Guide(twin, f"piecewise linear: searched on a Softplus twin, beta={sharpness}{left}", "", growth)


def _doubt(model: Model, x: Tensor) -> str:
    """What a reader must know if the logits have no second derivative at x, along a random direction.

    Asked of the logits and not of a map: input x gradient has a derivative even where no slope changes.
    """
    streams = random.keys(0, len(x), x.device)
    along = random.normal(streams, tuple(x.shape[1:]), dtype=x.dtype)

    def mixed(z: Tensor) -> Tensor:
        logits = model(z)
        weights = random.normal(streams, tuple(logits.shape[1:]), stream=1, dtype=x.dtype)
        mixture: Tensor = (logits * weights).sum(1)
        return mixture

    try:
        bends = bool(hessian_vector_product(mixed, x, along).any())
    except RuntimeError as wrong:  # an operation that can be differentiated once only; some maps need no more
        return f"whether the model has a second derivative is not known ({str(wrong).partition(chr(10))[0]})"
    return "" if bends else FLAT


def check_twin_beta(twin_beta: TwinBeta) -> None:
    """Refuse what is not a sharpness."""
    betas = twin_beta if isinstance(twin_beta, tuple) else (twin_beta,)
    numbers = [beta for beta in betas if isinstance(beta, float | int)]
    if twin_beta not in ("auto", None) and (
        len(numbers) != len(betas) or not all(0 < beta < math.inf for beta in numbers)
    ):
        raise UserError(
            f"twin_beta is {twin_beta!r}; give a sharpness such as 20, a growing pair (10, 100), 'auto' or None."
        )


def _softplus(model: Model, x: Tensor, beta: float) -> Model:
    """The swap goes inside a smoothed model: that one recomputes in backward, where a swap of calls is off."""
    if isinstance(model, Smoothed):
        core = _softplus(model.core, x, beta)
        return Smoothed(core, model.kernel, model.draws, model.seed, model.max_batch).train(model.training)
    return with_activation(model, "softplus", beta, example=x[:1].detach(), partial=True, shared=True)
