"""Safe printing: names of files and classes are untrusted, and control characters in them would reach the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len
from rich.console import Console as _Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gyrograd.errors import printable


class Console(_Console):
    """Rich's console, which escapes control characters in every text."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Every text on its way to the terminal: lines, titles, cells of tables."""
        return super().render_str(escape_controls(text), **how)


def escape_controls(text: object) -> str:
    """The text with control characters escaped, except line breaks."""
    return "\n".join(printable(line) for line in str(text).split("\n"))


def say(text: object, *, style: str | None = None, wrap: bool = True, stderr: bool = False) -> None:
    """Print a sentence; nothing in it is markup. Without `wrap` it stays one line, however long."""
    Console(stderr=stderr).print(text, style=style, markup=False, highlight=False, soft_wrap=not wrap)


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str | None = None,
    styles: Iterable[str | None] = (),
    unbroken: bool = False,
) -> None:
    """Print a table. `styles`: one per row, if there are any; with `unbroken` only the first column may wrap.

    In a terminal cells wrap at spaces, and words are broken only if it is too narrow for the longest ones. A file or a
    program gets every row as one line.
    """
    rows = [tuple(row) for row in rows]
    columns = [tuple(map(str, column)) for column in zip(heads, *rows, strict=True)]
    console = Console()
    if not console.is_terminal:
        console = Console(width=_whole_width(columns, title))
    widths = None if unbroken else _widths(columns, console.width)
    table = Table(title=title and escape(title), title_justify="left", box=None, pad_edge=False)
    table.show_header = any(heads)
    for number, head in enumerate(heads):
        # Folded, not cut: the ends of long names tell them apart.
        width = None if widths is None else widths[number]
        table.add_column(escape(head), no_wrap=unbroken and number > 0, overflow="fold", width=width)
    for row, style in zip_longest(rows, styles):
        table.add_row(*(cell if isinstance(cell, Text) else escape(cell) for cell in row), style=style)
    console.print(table)


GAP = 2
"""Between two columns."""


def _whole_width(columns: Sequence[Sequence[str]], title: str | None) -> int:
    """The width at which nothing wraps."""
    rows = sum(_longest_line(column) for column in columns) + GAP * (len(columns) - 1)
    return max(rows, _longest_line([title or ""]), 1)


def _longest_line(cells: Sequence[str]) -> int:
    return max(cell_len(line) for cell in cells for line in escape_controls(cell).split("\n"))


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths at which no word is broken; None if all cells fit as they are, or the words do not fit either."""
    whole = [_longest_line(column) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
    spare = room - GAP * (len(columns) - 1) - sum(words)
    wanted = [cell - word for cell, word in zip(whole, words, strict=True)]
    if spare < 0 or sum(wanted) <= spare:
        return None
    # Short columns, such as names of two words, stay whole if they can; the others share the rest by what they need.
    whole_ones = [want if want <= room // 10 else 0 for want in wanted]
    if sum(whole_ones) > spare:
        whole_ones = [0] * len(columns)
    rest, needed = spare - sum(whole_ones), sum(wanted) - sum(whole_ones)
    shares = [mine or rest * want // needed for mine, want in zip(whole_ones, wanted, strict=True)]
    return [word + share for word, share in zip(words, shares, strict=True)]
