"""What the attack thinks of itself: flags where a challenger of `auto` beat its main search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gyrograd.attacks.doubts import DOUBTS, OFTEN
from gyrograd.audit.methods import Method
from gyrograd.audit.presets import Preset
from gyrograd.audit.table import column
from gyrograd.records import Record

MASKED = {"beaten_by_noise", "beaten_by_transfer", "beaten_by_squares"}
"""Flags of maps whose derivative leads a search astray: under attack they look steadier than they are."""


def challenges(
    records: Mapping[str, Record], methods: Sequence[Method], preset: Preset
) -> list[dict[str, Any]]:
    """A flag for each method and each challenger that won often, at any radius."""
    if "auto" not in preset.attacks:
        return []
    found = []
    for method in methods:
        record = records[f"{method.name} under auto"]
        for name, doubt in DOUBTS.items():
            shares = [
                sum(won.values()) / len(won)
                for at in range(len(record.settings["attack"]["eps"]))
                if (
                    won := {
                        e: v for e, v in column(record, f"beaten_by_{name}[{at}]").items() if v is not None
                    }
                )
            ]
            if max(shares, default=0.0) > OFTEN:
                found.append(
                    {
                        "name": f"beaten_by_{name.replace(' ', '_')}",
                        "where": method.name,
                        "raised_if": doubt.raised_if,
                        "explanation": doubt.explanation,
                        "what_to_do": doubt.what_to_do,
                        "measured": max(shares),
                    }
                )
    return found


def masked(flags: Sequence[Mapping[str, Any]]) -> set[str]:
    """The methods that an attack along their derivative cannot judge."""
    return {str(flag["where"]) for flag in flags if flag["name"] in MASKED}
