"""Parse values that only the command line has: radii such as `8/255`, and lists of methods."""

from __future__ import annotations

import math

from gyrograd.errors import UserError
from gyrograd.parsing import make_from_text, number, parse_call, settings, split, value

__all__ = ["make_from_text", "parse_call", "pixel_radius", "radii", "radius", "settings", "several", "value"]


def radius(text: str | float | int) -> float:
    """A radius in pixel units: `8/255`, `0.03`, or the number itself."""
    try:
        eps = number(str(text))
    except UserError:
        raise UserError(f"A radius is '{text}'; write it as 8/255 or 0.03.") from None
    if not (math.isfinite(eps) and eps >= 0):
        raise UserError(f"A radius is '{text}'; give a finite number of at least 0, such as 8/255.")
    return eps


def pixel_radius(text: str | float | int) -> float:
    """A radius of one pixel's change, which is at most 1."""
    eps = radius(text)
    if eps > 1:
        raise UserError(
            f"A radius is '{text}' and pixels lie in [0, 1]; write {text}/255 if you mean grey levels."
        )
    return eps


def radii(text: str | float | int) -> tuple[float, ...]:
    """Several radii: `2/255,4/255,8/255`."""
    return tuple(radius(part) for part in split(str(text)))


def several(text: str) -> list[str]:
    """Split comma-separated names with optional settings in brackets; a repeated name is an error."""
    names = split(text)
    if not names:
        raise UserError("No method is named; give at least one, such as gradient.")
    if len(set(names)) != len(names):
        raise UserError(f"'{text}' names a method twice; name each once.")
    return names
