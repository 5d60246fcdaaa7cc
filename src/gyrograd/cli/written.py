"""Settings as they are written on the command line: a radius as `8/255`, a method with its settings in brackets."""

from __future__ import annotations

import ast
import math
import re
from typing import Any

from gyrograd.errors import UserError

_CALL = re.compile(r"\s*([\w.-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def radius(text: str | float | int) -> float:
    """A radius in pixel units: `8/255`, `0.03`, or the number itself."""
    above, slash, below = str(text).partition("/")
    try:
        value = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"eps is '{text}'; write it as 8/255 or 0.03.") from None
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"eps is '{text}'; give a finite number of at least 0, such as 8/255.")
    return value


def radii(text: str | float | int) -> tuple[float, ...]:
    """Several radii: `2/255,4/255,8/255`."""
    return tuple(radius(part) for part in _split(str(text)))


def called(text: str) -> tuple[str, dict[str, Any]]:
    """A name and its settings: `smoothgrad(sigma=0.2, draws=50)` is ("smoothgrad", {"sigma": 0.2, "draws": 50})."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise UserError(f"'{text}' is no name with settings; write NAME or NAME(setting=value, ...).")
    return found[1], dict(map(_setting, _split(found[2] or "")))


def several(text: str) -> list[str]:
    """Names apart by commas, each perhaps with settings in brackets; none twice."""
    names = _split(text)
    if not names:
        raise UserError("No method is named; give at least one, such as gradient.")
    if len(set(names)) != len(names):
        raise UserError(f"'{text}' names a method twice; name each once.")
    return names


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth != 0:
        raise UserError(f"'{text}' opens a bracket that is not closed, or closes one too many; mend it.")
    return [part.strip() for part in parts if part.strip()]


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key.isidentifier() or not value:
        raise UserError(f"'{text}' is no setting; write setting=value, such as steps=50.")
    return key, _value(value)


def _value(text: str) -> Any:
    """A number (`8/255` too), True, False, None, a list or tuple of them; anything else is a word."""
    if re.fullmatch(r"[\d.]+/[\d.]+", text):
        return radius(text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
