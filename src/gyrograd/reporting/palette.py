"""Colours, markers and dashes that the colour-blind can distinguish, also in grey, on white and on black."""

from __future__ import annotations

from typing import Any, NamedTuple

_COLOURS = {
    "ink": ("#1b1f24", "#e6edf3"),
    "dim": ("#57606a", "#9da7b1"),
    "line": ("#d0d7de", "#3d444d"),
    "paper": ("#ffffff", "#0d1117"),
    "raised": ("#f6f8fa", "#161b22"),
    "accent": ("#0969da", "#6cb6ff"),
    "good": ("#116329", "#7ee2a0"),
    "good-back": ("#dafbe1", "#0f2d1a"),
    "fair": ("#6f4e00", "#f2cc60"),
    "fair-back": ("#fff1c2", "#332701"),
    "bad": ("#a40e26", "#ff9f98"),
    "bad-back": ("#ffe3e0", "#3c1113"),
    "s0": ("#0072b2", "#58b4f0"),
    "s1": ("#d55e00", "#ff9254"),
    "s2": ("#00785a", "#2fcba0"),
    "s3": ("#a8478f", "#e69ad3"),
    "s4": ("#2f8fc4", "#a5d8ff"),
    "s5": ("#a87000", "#f0b93a"),
    "s6": ("#5c5c66", "#b8b8c4"),
    "s7": ("#882255", "#ef7fb0"),
}
LIGHT = {name: light for name, (light, _) in _COLOURS.items()}
"""Colours by name, on white. Charts are drawn with these; every value is unique."""
DARK = {name: dark for name, (_, dark) in _COLOURS.items()}
"""The same names on black."""

COLOURS = 8
MARKERS = {
    "o": "M-1 0a1 1 0 1 0 2 0a1 1 0 1 0-2 0z",
    "s": "M-.9-.9H.9V.9H-.9z",
    "D": "M0-1.25L1.25 0 0 1.25-1.25 0z",
    "^": "M0-1.2L1.2.95H-1.2z",
    "v": "M0 1.2L1.2-.95H-1.2z",
    "P": "M-.42-1.2H.42V-.42H1.2V.42H.42V1.2H-.42V.42H-1.2V-.42H-.42z",
    "X": "M-1.15-.55L-.55-1.15 0-.6.55-1.15 1.15-.55.6 0 1.15.55.55 1.15 0 .6-.55 1.15-1.15.55-.6 0z",
}
"""Matplotlib's markers, and the same shapes as SVG paths. With eight of them each colour would have only one marker."""
MARKER_REACH = 1.25
"""Largest coordinate of the SVG paths."""
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
    """The style of the method with this number; eight colours and seven markers give 56 combinations."""
    return Series(LIGHT[f"s{index % COLOURS}"], [*MARKERS][index % len(MARKERS)], DASHES[index % len(DASHES)])
