"""Activations that consist of ReLUs, and their smooth forms, in which each ReLU is a Softplus.

A continuous piecewise linear function is a line and a sum of shifted ReLUs, so one table holds both: with `ramp` a ReLU
a form is torch's own activation, with `ramp` a Softplus of sharpness beta its smooth form, which is at most a few
log(2) / beta away from it. Forms have the names and settings of torch.nn.functional; modules hold their settings under
the same names.

Hardswish is z times such a function: it bends by itself between -3 and 3, and its form rounds off the two ends.
Threshold and Hardshrink jump, so that no smooth form is near them, and have none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

Ramp = Callable[[Tensor], Tensor]
"""A ReLU or its replacement."""


def _hardtanh(ramp: Ramp, z: Tensor, min_val: float | int = -1.0, max_val: float | int = 1.0) -> Tensor:
    return min_val + ramp(z - min_val) - ramp(z - max_val)


def _leaky_relu(ramp: Ramp, z: Tensor, negative_slope: float | int = 0.01) -> Tensor:
    return negative_slope * z + (1 - negative_slope) * ramp(z)


def _prelu(ramp: Ramp, z: Tensor, weight: Tensor) -> Tensor:
    slope = weight.reshape(-1, *(1 for _ in z.shape[2:]))
    return slope * z + (1 - slope) * ramp(z)


def _rrelu(
    ramp: Ramp, z: Tensor, lower: float | int = 1 / 8, upper: float | int = 1 / 3, training: bool = False
) -> Tensor:
    # The mean slope in training mode, too, where torch draws one per number.
    del training
    return _leaky_relu(ramp, z, (lower + upper) / 2)


def _hardsigmoid(ramp: Ramp, z: Tensor) -> Tensor:
    return _hardtanh(ramp, z, -3, 3) / 6 + 0.5


def _softshrink(ramp: Ramp, z: Tensor, lambd: float | int = 0.5) -> Tensor:
    return ramp(z - lambd) - ramp(-z - lambd)


FORMS: dict[str, Callable[..., Tensor]] = {
    "relu": lambda ramp, z: ramp(z),
    "relu6": lambda ramp, z: _hardtanh(ramp, z, 0, 6),
    "hardtanh": _hardtanh,
    "leaky_relu": _leaky_relu,
    "prelu": _prelu,
    "rrelu": _rrelu,
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda ramp, z: z * _hardsigmoid(ramp, z),
    "softshrink": _softshrink,
}
MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.ReLU6: "relu6",
    nn.Hardtanh: "hardtanh",
    nn.LeakyReLU: "leaky_relu",
    nn.PReLU: "prelu",
    nn.RReLU: "rrelu",
    nn.Hardsigmoid: "hardsigmoid",
    nn.Hardswish: "hardswish",
    nn.Softshrink: "softshrink",
}
CALLS: dict[Any, str] = {
    getattr(home, spelled): name
    for home in (F, torch, Tensor)
    for name in FORMS
    for spelled in (name, f"{name}_")
    if hasattr(home, spelled)
}
"""Every spelling of a form as a call: `F.relu6`, `torch.relu_`, `Tensor.prelu`, ..."""
IN_PLACE = {call for call in CALLS if call.__name__.endswith("_")}
WITHOUT_CURVATURE = (set(FORMS) | {kind.__name__ for kind in MODULES}) - {"hardswish", "Hardswish"}
"""Forms and modules whose second derivative is zero wherever it exists: a net of them alone needs a twin."""
SETTINGS = {form: list(inspect.signature(smooth).parameters)[2:] for form, smooth in FORMS.items()}


def _whole(form: str) -> Callable[..., Tensor]:
    def call(z: Tensor, *, ramp: Ramp, **settings: Any) -> Tensor:
        return FORMS[form](ramp, z, **settings)

    call.__name__ = form
    return call


WHOLE = {form: _whole(form) for form in FORMS}


def apply_form(form: str, ramp: Ramp, z: Tensor, **settings: Any) -> Tensor:
    """The form at z, as one call with the activation's name for the innermost function mode."""
    # Guided backprop and LRP have rules for activations; the rules of its parts would give another map.
    if form != "relu" and has_torch_function_unary(z):
        whole: Tensor = handle_torch_function(WHOLE[form], (z,), z, ramp=ramp, **settings)
        return whole
    return FORMS[form](ramp, z, **settings)


def overwrite(activation: Ramp, z: Tensor) -> Tensor:
    """Write the activation into z, for callers that ignore the result of an in-place call."""
    # The activation keeps the clone for its backward pass.
    out: Tensor = z.copy_(activation(z.clone()))
    return out


class InPlace(nn.Module):
    """An activation that writes its result into its input, as the replaced one did."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, z: Tensor) -> Tensor:
        return overwrite(self.activation, z)


class Softened(nn.Module):
    """An activation module with `ramp` for its ReLUs and the same settings, including a PReLU's weight."""

    def __init__(self, kinked: nn.Module, ramp: nn.Module) -> None:
        super().__init__()
        self.kind = type(kinked)
        self.ramp = ramp
        _copy_settings(kinked, self, self.kind)

    def forward(self, z: Tensor) -> Tensor:
        form = MODULES[self.kind]
        return apply_form(form, self.ramp, z, **{name: getattr(self, name) for name in SETTINGS[form]})

    def original(self) -> nn.Module:
        """torch's module with these settings."""
        module = self.kind()
        _copy_settings(self, module, self.kind)
        return module

    def extra_repr(self) -> str:
        return self.kind.__name__


def _copy_settings(giver: nn.Module, taker: nn.Module, kind: type[nn.Module]) -> None:
    for name in SETTINGS[MODULES[kind]]:
        setattr(taker, name, getattr(giver, name))
