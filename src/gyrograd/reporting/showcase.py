"""The pictures beside a verdict: image, map, and the map after the worst attack; two explanations below one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gyrograd.numerics.wording import eps_text
from gyrograd.reporting.pictures import Views, scale_bar, sign_bar

VIEWS = {"overlay": "over the image", "map": "the map alone", "sign": "with its sign"}
"""What the switch offers, by the name of a view."""


@dataclass(frozen=True)
class ShowcaseRow:
    """One explanation: a picture at the left with its words, the map before and after, and words for each."""

    picture: str
    alt: str
    caption: tuple[str, ...]
    title: str
    views: Views
    after: str


@dataclass(frozen=True)
class Showcase:
    """All rows under one switch between views, and a colour bar with words for each."""

    heading: str
    rows: tuple[ShowcaseRow, ...]
    scale: str = field(default_factory=scale_bar)
    signs: str = field(default_factory=sign_bar)

    @property
    def offered(self) -> dict[str, str]:
        """The views that some row has."""
        return {name: words for name, words in VIEWS.items() if any(name in row.views for row in self.rows)}


def showcase(heading: str, rows: Sequence[ShowcaseRow]) -> Showcase | None:
    """The rows to show; None if there are none."""
    return Showcase(heading, tuple(rows)) if rows else None


def stays(kept: float | None) -> str:
    """`3 % of its top pixels stay`, what an attack leaves of a map."""
    return "attacked" if kept is None else f"{kept * 100:.0f} % of its top pixels stay"


def change_words(eps: float | None) -> str:
    """What the picture of a difference shows."""
    if eps is None:
        return "black and white are the largest change"
    return f"at most {eps_text(eps)} per pixel, drawn {0.5 / eps:.0f} times as strong"
