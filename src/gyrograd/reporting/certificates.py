"""The card's certificates as a section of the page: certified beside attacked, and a picture of the pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gyrograd.reporting.pictures import data_address

COLOURS = {"+": (0.0, 0.45, 0.70), "-": (0.62, 0.80, 0.92), ".": (0.93, 0.93, 0.93), "x": (0.84, 0.37, 0.0)}
"""Of a pixel's state; told apart by the colour-blind too."""


@dataclass(frozen=True)
class CertifiedDrawing:
    """A picture of an image's pixels, and the share of each state."""

    title: str
    address: str
    shares: dict[str, float]


@dataclass(frozen=True)
class CertifiedSection:
    """All that the section shows."""

    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    """The card's rows, and what attacks `kept` of the method's top pixels."""
    drawings: list[CertifiedDrawing]

    @property
    def with_stability(self) -> bool:
        """True if a method was certified by its segments."""
        return any(row["stability"] is not None for row in self.rows)


def certified_section(card: dict[str, Any]) -> CertifiedSection | None:
    """The section of a checked card; None if nothing was certified."""
    facts = card["certificates"]
    if facts is None:
        return None
    kept = {method["name"]: method["columns"].get("top_k_kept") for method in card["methods"]}
    rows = [row | {"kept": kept.get(row["method"])} for row in facts["rows"]]
    drawings = [_drawing(picture) for picture in facts["pictures"] or ()]
    return CertifiedSection(facts, rows, drawings)


def _drawing(picture: dict[str, Any]) -> CertifiedDrawing:
    states = "".join(picture["rows"])
    colours = np.array([[COLOURS[state] for state in row] for row in picture["rows"]])
    shares = {state: states.count(state) / len(states) for state in COLOURS}
    return CertifiedDrawing(picture["label"], data_address(colours), shares)
