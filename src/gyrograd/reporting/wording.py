"""Numbers as people read them: three digits, intervals in brackets, eps as a share of 255."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gyrograd.registry import readable as readable

UNKNOWN = "–"
"""What stands where nothing was measured."""

Number = float | int
"""JSON writes 1.0 as 1."""
Stat = Mapping[str, Any]
"""`value`, `low`, `high` and `n`: a mean over n examples and its interval. Any of them may be None."""


def number(value: Number | None) -> str:
    """Three decimals; very large and very small numbers with three digits."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:.3g}"


def bracket(stat: Stat | None) -> str:
    """The interval in brackets, or nothing where it is not known."""
    if not known(stat) or stat is None or stat.get("low") is None or stat.get("high") is None:
        return ""
    return f"[{number(stat['low'])}, {number(stat['high'])}]"


def with_interval(stat: Stat | None) -> str:
    """`0.631 [0.580, 0.677]`."""
    if not known(stat) or stat is None:
        return UNKNOWN
    return f"{number(stat['value'])} {bracket(stat)}".strip()


def signed(stat: Stat | None) -> str:
    """A difference with its interval: `+0.310 [+0.270, +0.350]`."""
    if not known(stat) or stat is None:
        return UNKNOWN
    if stat.get("low") is None or stat.get("high") is None:
        return _plus(stat["value"])
    return f"{_plus(stat['value'])} [{_plus(stat['low'])}, {_plus(stat['high'])}]"


def notes_of(card: Mapping[str, Any]) -> list[str]:
    """What a reader must know of model, images and methods before any number: the notes, and what was left out."""
    settings = card["settings"] or {}
    notes, left = settings.get("notes"), settings.get("left_out")
    told = [str(note) for note in notes] if isinstance(notes, list) else []
    absent = left.items() if isinstance(left, dict) else ()
    return [*told, *_weaker_attack(settings), *(f"Left out: {name}. {why}" for name, why in absent)]


def _weaker_attack(settings: Mapping[str, Any]) -> list[str]:
    """Audits made before `auto` attacked other numbers than those they show."""
    attacks = settings.get("attacks")
    if not isinstance(attacks, list) or "auto" in attacks:
        return []
    return [
        f"The attacks of this audit ({', '.join(str(name) for name in attacks)}) were not aimed at the numbers shown, "
        "so that maps look steadier here than under `auto`; audit again for numbers to go by."
    ]


def counted_images(count: int) -> str:
    """`1 image`, `1,000 images`."""
    return "1 image" if count == 1 else f"{count:,} images"


def known(stat: Stat | None) -> bool:
    """Whether there is a value at all."""
    return stat is not None and stat.get("value") is not None


def eps_text(eps: Number | None) -> str:
    """`8/255` where eps is a whole number of grey levels, the number itself elsewhere."""
    if eps is None:
        return UNKNOWN
    levels = eps * 255
    if levels >= 0.99 and abs(levels - round(levels)) < 0.02:
        return f"{round(levels)}/255"
    return f"{eps:.3g}"


def duration(seconds: Number | None) -> str:
    """`93 s`, `12 min`, `3.5 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _plus(value: Number) -> str:
    text = number(value)
    return text if text.startswith("-") else f"+{text}"
