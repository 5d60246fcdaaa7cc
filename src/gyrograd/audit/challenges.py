"""What the attack thinks of itself: flags where a challenger of `auto` beat its main search, or that was misled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gyrograd.attacks.doubts import DOUBTS, MISLED, OFTEN
from gyrograd.audit.methods import Method
from gyrograd.audit.presets import Preset
from gyrograd.audit.table import Column, column
from gyrograd.records import Record

MASKED = {"beaten_by_noise", "beaten_by_transfer", "beaten_by_squares", "search_misled"}
"""Flags of maps whose derivative leads a search astray: under attack they look steadier than they are."""
RAISED = {
    **{f"beaten_by_{name.replace(' ', '_')}": (f"beaten_by_{name}", doubt) for name, doubt in DOUBTS.items()},
    "search_misled": ("misled", MISLED),
}
"""Flags by name: the column of an attack's record that counts the images, and what it means."""


def challenges(
    records: Mapping[str, Record], methods: Sequence[Method], preset: Preset
) -> list[dict[str, Any]]:
    """A flag for each method and each challenger that won often, at any radius, and where its search was misled."""
    if "auto" not in preset.attacks:
        return []
    found = []
    for method in methods:
        record = records[f"{method.name} under auto"]
        for name, (counted, doubt) in RAISED.items():
            shares = [
                _share(column(record, f"{counted}[{at}]"))
                for at in range(len(record.settings["attack"]["eps"]))
            ]
            if max(shares, default=0.0) > OFTEN:
                found.append(
                    {
                        "name": name,
                        "where": method.name,
                        "raised_if": doubt.raised_if,
                        "explanation": doubt.explanation,
                        "what_to_do": doubt.what_to_do,
                        "measured": max(shares),
                    }
                )
    return found


def _share(counted: Column) -> float:
    """The share of the images that can be judged."""
    known = [value for value in counted.values() if value is not None]
    return sum(known) / len(known) if known else 0.0


def masked(flags: Sequence[Mapping[str, Any]]) -> set[str]:
    """The methods that an attack along their derivative cannot judge."""
    return {str(flag["where"]) for flag in flags if flag["name"] in MASKED}
