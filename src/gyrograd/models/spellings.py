"""ReLUs by other names: `x.clamp(min=0)`, `torch.maximum(x, zero)`, `torch.where(x > 0, x, 0)`, `x * (x > 0)`.

Each call is read as one of the forms of `piecewise`, or as none. A comparison with zero is stored on the mask it
returns, so that the call that uses the mask can be recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gyrograd.models.piecewise import CALLS, IN_PLACE, SETTINGS
from gyrograd.registry import Settings


@dataclass(frozen=True)
class Spelled:
    """A call read as an activation: its form, input and settings, and whether it overwrites the input."""

    form: str
    z: Tensor
    settings: Settings = field(default_factory=dict)
    in_place: bool = False


@dataclass(eq=False)
class Sign:
    """The meaning of a mask: where z is above zero (or below, if not `above`), and how the mask was used."""

    z: Tensor
    above: bool
    version: int
    used: bool = False
    misused: bool = False

    def is_of(self, z: Any) -> bool:
        """True if z is the tensor that was compared, and unchanged since."""
        return z is self.z and z._version == self.version


def read_activation(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    """The activation that a call computes, or None."""
    if func in CALLS:
        form = CALLS[func]
        given = {**dict(zip(("input", *SETTINGS[form], "inplace"), args, strict=False)), **kwargs}
        z, in_place = given.pop("input"), given.pop("inplace", False) or func in IN_PLACE
        return Spelled(form, z, given, in_place)
    name = getattr(func, "__name__", "")
    reader = _READERS.get(name.strip("_"))
    if reader is None:
        return None
    found: Spelled | None = reader(args, kwargs)
    writes = (
        (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
    )
    if found is None or not (writes or kwargs.get("inplace")):
        return found
    first = args[0] if args else kwargs.get("input")
    # Only into the activation's own input: `mask *= x` overwrites the mask.
    return Spelled(found.form, found.z, found.settings, True) if found.z is first else None


def read_comparison(func: Any, args: Sequence[Any]) -> Sign | None:
    """The sign that a comparison with zero computes, or None for any other call."""
    sides = _COMPARISONS.get(getattr(func, "__name__", "").strip("_"))
    if sides is None or len(args) != 2:
        return None
    for z, other, above in ((args[0], args[1], sides), (args[1], args[0], not sides)):
        if _is_activation(z) and is_zero(other):
            return Sign(z, above, z._version)
    return None


def sign_of(value: Any) -> Sign | None:
    """The sign stored on a mask, or None."""
    return getattr(value, "_sign", None) if isinstance(value, Tensor) else None


def mark(mask: Any, sign: Sign) -> Any:
    """The mask with its sign stored on it."""
    if isinstance(mask, Tensor):
        mask._sign = sign  # type: ignore[attr-defined]
    return mask


def converts(func: Any) -> bool:
    """True if a call converts a mask to numbers, or reads only its shape."""
    return getattr(func, "__name__", "") in _CONVERSIONS


def is_zero(operand: Any) -> bool:
    """True for the number 0 or a tensor of zeros."""
    if isinstance(operand, Tensor):
        return not operand.requires_grad and operand.numel() > 0 and not bool(operand.any())
    return isinstance(operand, int | float) and not isinstance(operand, bool) and operand == 0


def _from_clamp(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    given = {**dict(zip(("input", "min", "max"), args, strict=False)), **kwargs}
    z, low, high = given["input"], given.get("min"), given.get("max")
    if not _is_activation(z) or low is None or not is_zero(low):
        return None
    if high is None:
        return Spelled("relu", z)
    if isinstance(high, int | float) and high > 0:
        return Spelled("hardtanh", z, {"min_val": 0.0, "max_val": float(high)})
    return None


def _from_threshold(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    given = {**dict(zip(("input", "threshold", "value"), args, strict=False)), **kwargs}
    both = is_zero(given.get("threshold")) and is_zero(given.get("value"))
    return Spelled("relu", given["input"]) if both and _is_activation(given.get("input")) else None


def _larger(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    given = {**dict(zip(("input", "other"), args, strict=False)), **kwargs}
    a, b = given.get("input"), given.get("other")
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return None  # for example torch.max(z, dim)
    for z, other in ((a, b), (b, a)):
        same_shape = torch.broadcast_shapes(z.shape, other.shape) == z.shape
        if _is_activation(z) and same_shape and is_zero(other):
            return Spelled("relu", z)
    return None


def _from_where(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    """`torch.where(z > 0, z, 0)`, or with `z < 0` the other way round."""
    order = ("condition", "input", "other")
    if len(args) == 3 and sign_of(args[1]) is not None:  # z.where(z > 0, 0)
        order = ("input", "condition", "other")
    given = {**dict(zip(order, args, strict=False)), **kwargs}
    sign = sign_of(given.get("condition"))
    if sign is None:
        return None
    kept, dropped = given.get("input"), given.get("other")
    if not sign.above:
        kept, dropped = dropped, kept
    return Spelled("relu", sign.z) if sign.is_of(kept) and is_zero(dropped) else None


def _from_product(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    """`z * (z > 0)`, in either order."""
    pair = [*args, *kwargs.values()]
    for z, mask in (pair, pair[::-1]) if len(pair) == 2 else ():
        sign = sign_of(mask)
        if sign is not None and sign.above and sign.is_of(z):
            return Spelled("relu", z)
    return None


def _from_fill(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Spelled | None:
    """`z.masked_fill(z < 0, 0)` and `z[z < 0] = 0`."""
    if kwargs or len(args) != 3:
        return None
    sign = sign_of(args[1])
    below = sign is not None and not sign.above and sign.is_of(args[0])
    return Spelled("relu", args[0]) if below and is_zero(args[2]) else None


def _is_activation(z: Any) -> bool:
    return isinstance(z, Tensor) and z.is_floating_point() and z.ndim > 1


_READERS: dict[str, Any] = {
    **dict.fromkeys(("clamp", "clip", "clamp_min"), _from_clamp),
    "threshold": _from_threshold,
    **dict.fromkeys(("maximum", "max", "fmax"), _larger),
    "where": _from_where,
    **dict.fromkeys(("mul", "multiply", "rmul", "imul"), _from_product),
    **dict.fromkeys(("masked_fill", "setitem"), _from_fill),
}
_COMPARISONS = {"gt": True, "ge": True, "greater": True, "lt": False, "le": False, "less": False}
_CONVERSIONS = {"float", "double", "half", "bfloat16", "to", "type", "type_as", "__get__", "dim", "size"}
