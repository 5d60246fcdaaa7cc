"""Self-contained HTML pages: they open offline, light and dark, on a phone too; all text is escaped.

`render_template` makes the page of any template; `page` the one of text, tables and figures.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gyrograd.errors import printable
from gyrograd.numerics import wording as numbers
from gyrograd.records import write_text
from gyrograd.registry import readable
from gyrograd.reporting import wording
from gyrograd.reporting.palette import DARK, LIGHT
from gyrograd.reporting.showcase import Showcase

MOST_COLUMNS = 5
"""Columns that fit a page without scrolling."""


@dataclass(frozen=True)
class Table:
    """A table of text.

    Columns are right-aligned numbers, except the first, `names`, and `sentences`, which may wrap. colours: "good" or
    "bad" for cells with these texts.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()
    colours: Mapping[str, str] = field(default_factory=dict)

    @property
    def wide(self) -> bool:
        """True if the table is too wide for most screens; the page then says so and lets it scroll."""
        return len(self.header) > MOST_COLUMNS

    def kind(self, column: int) -> str:
        """The CSS class of a column's cells."""
        title = self.header[column]
        return "words" if title in self.sentences else "left" if title in self.names else ""


@dataclass(frozen=True)
class Figure:
    """A picture and its caption."""

    png: bytes
    caption: str

    @property
    def base64(self) -> str:
        """The picture as base64 text."""
        return base64.b64encode(self.png).decode("ascii")


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, a table and figures."""

    heading: str
    paragraphs: tuple[str, ...] = ()
    table: Table | None = None
    figures: tuple[Figure, ...] = field(default=())
    folded: bool = False
    """Collapsed until its heading is clicked."""


def page(
    title: str,
    lead: tuple[str, ...],
    sections: tuple[Section, ...],
    footer: tuple[str, ...],
    beside: Showcase | None = None,
    *,
    badges: tuple[tuple[str, str], ...] = (),
) -> str:
    """The page as HTML; all text is escaped. `beside`: pictures next to the lead; `badges`: words below the title, with
    their colours."""
    return render_template(
        "page", title=title, lead=lead, sections=sections, footer=footer, beside=beside, badges=badges
    )


def write_page(path: Path, html: str) -> None:
    """Write the page atomically."""
    write_text(path, html)


def keep_options_whole(text: str) -> Any:
    """The text as HTML in which options such as --max_accuracy_loss are not broken across lines."""
    from markupsafe import Markup, escape

    # Browsers break a line after a hyphen, and "--" at its end reads as a dash.
    return Markup(re.sub(r"--\w[\w-]*", r'<span class="option">\g<0></span>', str(escape(text))))


FILTERS = {
    "number": numbers.number,
    "bracket": numbers.bracket,
    "with_interval": numbers.interval_text,
    "signed": wording.signed_text,
    "eps_text": numbers.eps_text,
    "duration": wording.duration,
    "readable": readable,
    "counted_images": wording.counted_images,
    "notes_of": wording.notes_of,
    "options": keep_options_whole,
}


def render_template(name: str, **values: Any) -> str:
    """Render the template `NAME.html.jinja`."""
    text: str = _environment().get_template(f"{name}.html.jinja").render(light=LIGHT, dark=DARK, **values)
    # Names of files and models appear on pages; their control characters are escaped.
    return "\n".join(printable(line.replace("\t", " ")) for line in text.split("\n"))


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment
