"""Sentences of reports; `numerics.wording` formats numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from gyrograd.numerics.wording import UNKNOWN, Number, interval_text, signed_number

Stat = Mapping[str, Any]
"""`numerics.statistics.Stat` as read from a file."""


def signed_text(stat: Stat | None) -> str:
    """A difference with its interval: `+0.310 [+0.270, +0.350]`."""
    return interval_text(stat, signed_number)


def notes_of(card: Mapping[str, Any]) -> list[str]:
    """Notes that a reader must know before any number: about model, images, and methods that were left out."""
    settings = card["settings"] or {}
    notes, left = settings.get("notes"), settings.get("left_out")
    texts = [str(note) for note in notes] if isinstance(notes, list) else []
    absent = left.items() if isinstance(left, dict) else ()
    return [*texts, *_weaker_attack(settings), *(f"Left out: {name}. {why}" for name, why in absent)]


def _weaker_attack(settings: Mapping[str, Any]) -> list[str]:
    """A note for audits older than `auto`, whose attacks did not minimise the numbers shown."""
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


def is_known(stat: Stat | None) -> TypeGuard[Stat]:
    """True if there is a value."""
    return stat is not None and stat.get("value") is not None


def overlap(a: Stat | None, b: Stat | None) -> bool | None:
    """True if two intervals overlap; None if an end is unknown."""
    if a is None or b is None or any(stat.get(end) is None for stat in (a, b) for end in ("low", "high")):
        return None
    return bool(a["low"] <= b["high"] and b["low"] <= a["high"])


def duration(seconds: Number | None) -> str:
    """`93 s`, `12 min`, `3.5 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
