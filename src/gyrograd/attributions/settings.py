"""Methods are values: equal settings are equal methods, also where a setting is a tensor; and what a map costs."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from gyrograd.registry import fact
from gyrograd.types import Attribution


def same_settings(one: Any, other: object) -> bool:
    """Equal class and equal settings, tensors by their values (the dataclass's own test fails on tensors)."""
    names = [field.name for field in fields(one)]
    return type(one) is type(other) and all(_same(getattr(one, n), getattr(other, n)) for n in names)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu())
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b)


def settings_hash(one: Any) -> int:
    """A hash that agrees with `same_settings`: tensors count by their shape."""
    values = (getattr(one, field.name) for field in fields(one))
    return hash((type(one), *(v.shape if isinstance(v, Tensor) else v for v in values)))


def passes_of(attribution: Attribution) -> int:
    """Model passes per map: as registered; of an object of an unregistered class its `steps` or `draws`, if any.

    >>> import gyrograd as gg
    >>> passes_of(gg.attribution("smoothgrad", draws=20))
    20
    """
    passes = fact("attribution", attribution, "passes")
    if passes == 1:
        return max(int(getattr(attribution, setting, 1)) for setting in ("steps", "draws"))
    return int(getattr(attribution, passes)) if isinstance(passes, str) else int(passes)
