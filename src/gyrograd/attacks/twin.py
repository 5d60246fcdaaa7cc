"""The model to differentiate: the attacked model itself, or a Softplus twin of a piecewise linear one.

The gradient map of a ReLU net is piecewise constant, so its derivative to x is zero almost everywhere: an attack that
follows it does not move, and its "robust" number means nothing. joo2023, wang2020 and Dombrowski et al. search on a
copy with Softplus in place of ReLU and evaluate the result on the model itself. Nets of ReLU6, LeakyReLU and other
activations made of ReLUs get a twin, too (`models.piecewise`). If no twin can be made of a net whose second derivative
is zero, the result says so: a map with another kind of derivative, such as input x gradient, would be attacked along
that alone.
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
"""Default sharpness of the twin, joo2023's. (The code of wang2020 and of Ghorbani et al. uses 1.)"""
GROWTH = (10.0, 60.0)
"""Sharpness of `auto`'s twin at the first and the last step: a soft twin's slopes lead across kinks, a sharp one ends
where the model's own map moves. At equal cost up to .04 less of the top pixels is kept than with a twin of 20."""
FLAT = (
    "no second derivative and no twin to search on, so that the search cannot see slopes change: "
    "a small effect is no sign of robustness"
)

TwinBeta = float | int | tuple[float | int, float | int] | str | None
"""A sharpness, a pair (geometric growth from the first to the last), "auto" or "growing" (both only where a twin is
needed: `BETA`, `GROWTH`), or None for no twin."""
IF_NEEDED = ("auto", "growing")


@dataclass(frozen=True)
class Guide:
    """The model to differentiate. `note` describes it if it is a twin; `refusal` says why there is none."""

    model: Model
    note: str = ""
    refusal: str = ""
    growth: tuple[float | int, float | int] | None = None

    def set_step(self, step: int, steps: int) -> None:
        """Set the beta of a growing twin for this step, geometrically as in Dombrowski et al."""
        if self.growth is None:
            return
        low, high = self.growth
        beta = low * (high / low) ** (step / max(1, steps - 1))
        for module in self.model.modules():
            if isinstance(module, nn.Softplus) and "stands_for_relu" in vars(module):
                module.beta = beta


def guide_for(model: Model, x: Tensor, twin_beta: TwinBeta) -> Guide:
    """A twin if a sharpness is given, or if "auto" or "growing" finds activations made of ReLUs; else the model itself.

    The twin shares the model's weights. The two words make no twin of a smooth model, nor of one whose only kinked
    activation is Hardswish, which has a second derivative. With None there is no twin, but a missing second derivative
    is still noted.
    """
    guide = Guide(model) if twin_beta is None else _twin_or_model(model, x, twin_beta)
    doubt = _doubt(guide.model, x[:1])
    return replace(guide, note="; ".join(note for note in (guide.note, doubt) if note))


def _twin_or_model(model: Model, x: Tensor, twin_beta: TwinBeta) -> Guide:
    pair = GROWTH if twin_beta == "growing" else twin_beta
    growth = pair if isinstance(pair, tuple) else None
    beta = BETA if isinstance(pair, str) else float(growth[0] if growth else pair)  # type: ignore[arg-type]
    try:
        twin = _softplus(model, x, beta)
    except UserError as wrong:
        if twin_beta not in IF_NEEDED:
            raise
        return Guide(model, refusal=str(wrong))
    report = swap_report(twin)
    if twin_beta in IF_NEEDED and not any(place.function in WITHOUT_CURVATURE for place in report.swapped):
        return Guide(model)
    left = f", {len(report.unswapped)} kinked operations left" if report.unswapped else ""
    sharpness = f"{growth[0]:g} to {growth[1]:g}" if growth else f"{beta:g}"
    return Guide(twin, f"piecewise linear: searched on a Softplus twin, beta={sharpness}{left}", "", growth)


def _doubt(model: Model, x: Tensor) -> str:
    """A remark if the logits have no second derivative at x, tested along a random direction; else empty.

    Tested on the logits, not on a map: input x gradient has a derivative even if no gradient changes.
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
    except (
        RuntimeError
    ) as wrong:  # an operation that can be differentiated only once, which suffices for some maps
        return f"whether the model has a second derivative is not known ({str(wrong).partition(chr(10))[0]})"
    return "" if bends else FLAT


def check_twin_beta(twin_beta: TwinBeta) -> None:
    """Refuse anything but a sharpness, a pair of them, "auto", "growing" or None."""
    betas = twin_beta if isinstance(twin_beta, tuple) else (twin_beta,)
    numbers = [beta for beta in betas if isinstance(beta, float | int)]
    if twin_beta not in (*IF_NEEDED, None) and (
        len(numbers) != len(betas) or not all(0 < beta < math.inf for beta in numbers)
    ):
        raise UserError(
            f"twin_beta is {twin_beta!r}; give a sharpness such as 20, a growing pair (10, 100), 'auto', 'growing' "
            "or None."
        )


def _softplus(model: Model, x: Tensor, beta: float) -> Model:
    """The twin. Of a smoothed model the core is swapped, because recomputation in backward sees no swapped calls."""
    if isinstance(model, Smoothed):
        core = _softplus(model.core, x, beta)
        return Smoothed(core, model.kernel, model.draws, model.seed, model.max_batch).train(model.training)
    return with_activation(model, "softplus", beta, example=x[:1].detach(), partial=True, shared=True)
