"""Equality and hash of methods by their settings, tensors included, and the number of passes per map."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from gyrograd.registry import fact
from gyrograd.types import Attribution


def same_settings(one: Any, other: object) -> bool:
    """True if class and settings are equal; tensors by value, on which a dataclass's own comparison fails."""
    names = [field.name for field in fields(one)]
    return type(one) is type(other) and all(_same(getattr(one, n), getattr(other, n)) for n in names)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b)


def settings_hash(one: Any) -> int:
    """A hash consistent with `same_settings`; of a tensor only the shape counts."""
    values = (getattr(one, field.name) for field in fields(one))
    return hash((type(one), *(v.shape if isinstance(v, Tensor) else v for v in values)))


class ComparedBySettings:
    """Gives a dataclass with eq=False these two, for methods whose settings can be tensors."""

    __eq__ = same_settings
    __hash__ = settings_hash


def passes_of(attribution: Attribution) -> int:
    """Model passes per map: as registered, or the `steps` or `draws` of an unregistered method.

    >>> import gyrograd as gg
    >>> passes_of(gg.attribution("smoothgrad", draws=20))
    20
    """
    passes = fact("attribution", attribution, "passes")
    if passes == 1:
        return max(int(getattr(attribution, setting, 1)) for setting in ("steps", "draws"))
    return int(getattr(attribution, passes)) if isinstance(passes, str) else int(passes)
