"""Numbers for people: three digits, intervals in brackets, eps in 255ths. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI, Interval

UNKNOWN = "–"
"""Shown in place of a value that was not measured."""

Number = float | int
"""JSON writes 1.0 as 1."""
Form = str | Callable[[float], str]
"""How a number is written: a format such as ".3f", or a function."""


def number(value: Number | None) -> str:
    """Three decimals; very large and very small numbers with three digits."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:.3g}"


def signed_number(value: Number | None) -> str:
    """`number` with its sign, for differences; very small ones with one digit, to show that they are not zero."""
    if value is not None and 0 < abs(value) < 0.001:
        return f"{value:+.1g}"
    text = number(value)
    return text if text.startswith(("-", UNKNOWN)) else f"+{text}"


def interval_text(
    found: Interval | Mapping[str, Any] | None,
    form: Form = number,
    *,
    scale: Number = 1,
    unit: str = "",
    unknown: str = UNKNOWN,
) -> str:
    """A value with its interval, such as `0.631 [0.580, 0.677]`; a value without bounds stands alone.

    >>> interval_text(Interval(0.22, 0.26, 0.30, 9), ".0f", scale=100, unit=" %")
    '26 % [22, 30]'
    >>> interval_text({"value": 0.31, "low": None, "high": None}, "+.2f")
    '+0.31'
    """
    stat: Mapping[str, Any] | None = found.plain() if isinstance(found, Interval) else found
    if stat is None or stat.get("value") is None:
        return unknown
    return f"{_format(stat['value'], form, scale)}{unit} {bracket(stat, form, scale=scale)}".rstrip()


def bracket(stat: Mapping[str, Any] | None, form: Form = number, *, scale: Number = 1) -> str:
    """The interval in brackets, or an empty text if it is not known."""
    if stat is None or any(stat.get(key) is None for key in ("value", "low", "high")):
        return ""
    return f"[{_format(stat['low'], form, scale)}, {_format(stat['high'], form, scale)}]"


def eps_text(eps: Number | None) -> str:
    """A radius in grey levels: `8/255`, `0.5/255`."""
    return UNKNOWN if eps is None else f"{eps * 255:.3g}/255"


def radius_text(stat: Mapping[str, Any] | None, largest: float) -> str:
    """A steady radius, such as `6.9/255 [6.5, 7.3]`; if the map held at the largest radius attacked, it says so.

    Args:
        stat: the radius in grey levels.
        largest: the largest radius attacked, in grey levels.
    """
    text = interval_text(stat, ".1f", unit="/255")
    reached = stat is not None and stat.get("value") is not None and stat["value"] >= largest - 1e-6
    return f"{text} (the largest tried)" if reached else text


def few_images_note(n: int, what: str = "image") -> str:
    """Says that intervals over n images (or `what`), fewer than `MIN_IMAGES_FOR_CI`, are not to be relied on."""
    return (
        f"{n} {what}{'s are' if n > 1 else ' is'} few: intervals over fewer than {MIN_IMAGES_FOR_CI} are too narrow to "
        "go by."
    )


def _format(value: Number, form: Form, scale: Number) -> str:
    return format(value * scale, form) if isinstance(form, str) else form(value * scale)
