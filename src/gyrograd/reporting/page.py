"""A self-contained HTML page of text, tables and figures: opens offline, light and dark, on a phone too."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gyrograd.records import write_text
from gyrograd.reporting.showcase import Showcase
from gyrograd.reporting.templates import rendered

MOST_COLUMNS = 5
"""Columns that fit a page without scrolling."""


@dataclass(frozen=True)
class Table:
    """Cells as they shall read.

    Columns hold numbers and stand to the right, but for the first, for `names`, and for `sentences`, which may take
    several lines. `colours`: good or bad, for cells of these words.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    colours: Mapping[str, str] = field(default_factory=dict)

    @property
    def wide(self) -> bool:
        """Too wide for most screens: told so, and scrolled."""
        return len(self.header) > MOST_COLUMNS

    def kind(self, column: int) -> str:
        """The class of a column's cells in the style sheet."""
        title = self.header[column]
        return "words" if title in self.sentences else "left" if title in self.names else ""


@dataclass(frozen=True)
class Figure:
    """A picture and the sentence under it."""

    png: bytes
    caption: str

    @property
    def base64(self) -> str:
        """The picture as text, for the page itself."""
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    table: Table | None = None
    figures: tuple[Figure, ...] = field(default=())
    folded: bool = False
    """Shown when its heading is pressed."""


def page(
    title: str,
    lead: tuple[str, ...],
    sections: tuple[Section, ...],
    footer: tuple[str, ...],
    beside: Showcase | None = None,
    *,
    badges: tuple[tuple[str, str], ...] = (),
) -> str:
    """The page as HTML; all text is escaped. `beside`: pictures next to the lead; `badges`: words below the title and
    the colour of each."""
    return rendered(
        "page", title=title, lead=lead, sections=sections, footer=footer, beside=beside, badges=badges
    )


def write_page(path: Path, html: str) -> None:
    """Write the page whole or not at all."""
    write_text(path, html)
