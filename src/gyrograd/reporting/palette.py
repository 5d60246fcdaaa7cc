"""Colours, markers and dashes that the colour-blind can distinguish, also in grey, on white and on black."""

from __future__ import annotations

from typing import Any, NamedTuple

LIGHT = {
    "ink": "#1b1f24",
    "dim": "#57606a",
    "line": "#d0d7de",
    "paper": "#ffffff",
    "raised": "#f6f8fa",
    "accent": "#0969da",
    "good": "#116329",
    "good-back": "#dafbe1",
    "fair": "#6f4e00",
    "fair-back": "#fff1c2",
    "bad": "#a40e26",
    "bad-back": "#ffe3e0",
    "s0": "#0072b2",
    "s1": "#d55e00",
    "s2": "#00785a",
    "s3": "#a8478f",
    "s4": "#2f8fc4",
    "s5": "#a87000",
    "s6": "#5c5c66",
    "s7": "#882255",
}
"""Colours by name, on white. Charts are drawn with these; every value is unique."""

DARK = {
    "ink": "#e6edf3",
    "dim": "#9da7b1",
    "line": "#3d444d",
    "paper": "#0d1117",
    "raised": "#161b22",
    "accent": "#6cb6ff",
    "good": "#7ee2a0",
    "good-back": "#0f2d1a",
    "fair": "#f2cc60",
    "fair-back": "#332701",
    "bad": "#ff9f98",
    "bad-back": "#3c1113",
    "s0": "#58b4f0",
    "s1": "#ff9254",
    "s2": "#2fcba0",
    "s3": "#e69ad3",
    "s4": "#a5d8ff",
    "s5": "#f0b93a",
    "s6": "#b8b8c4",
    "s7": "#ef7fb0",
}
"""The same names on black."""

COLOURS = 8
MARKERS = "osD^vPX*"
DASHES: tuple[Any, ...] = (
    "-",
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (7, 2, 1.5, 2)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
)


class Series(NamedTuple):
    """The style of one method, the same in all charts of a report."""

    colour: str
    marker: str
    dash: Any


def series(index: int) -> Series:
    """The style of the method with this number; eight colours and five dashes give forty combinations."""
    return Series(LIGHT[f"s{index % COLOURS}"], MARKERS[index % len(MARKERS)], DASHES[index % len(DASHES)])
