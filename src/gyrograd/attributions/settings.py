"""Equality, hash and text of methods by their settings, tensors included, and the number of passes per map."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


def text_of(value: Any) -> str:
    """`repr(value)` for records: two that differ only in a tensor, or in a function, have different texts.

    >>> text_of((torch.zeros(3, 32, 32), 4))
    '(tensor of shape (3, 32, 32), sha256 f3289a094a7f, 4)'
    """
    with _TensorsByDigest():
        text = repr(value)
    if not _ADDRESS.search(text):
        return text
    # The address of a function, or of an object without a repr. Another one may get it once this one is gone, as when
    # a cell of a notebook is run again; so it is kept, and in another process the text is another.
    _KEPT.setdefault(text, value)
    return f"{text} of process {_PROCESS}"


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PROCESS = secrets.token_hex(6)
_KEPT: dict[str, Any] = {}
"""Values whose texts have addresses, by their texts."""


class _TensorsByDigest(TorchFunctionMode):
    """Shows tensors by shape and digest: torch rounds their numbers, and leaves out most of a large one."""

    # A mode, because a tensor may be a setting of a method that is itself a setting.

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__repr__:
            return func(*args, **(kwargs or {}))
        values = args[0].detach().cpu().contiguous()
        numbers = hashlib.sha256(values.reshape(-1).view(torch.uint8).numpy())
        digest = hashlib.sha256(f"{values.dtype}".encode() + numbers.digest()).hexdigest()
        return f"tensor of shape {tuple(values.shape)}, sha256 {digest[:12]}"


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
