"""gyrograd leaderboard: all audits below a folder as one page that sorts."""

from __future__ import annotations

import json as json_format
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.reporting.leaderboard import Board


def leaderboard(folder: Path, out: Path | None = None, json: bool = False) -> None:
    """Rank all audits below a folder, those of the same images against each other, on one page.

    Args:
        folder: holds audits, at any depth; running another audit into it adds one.
        out: where the page goes; leaderboard.html in the folder if left out.
        json: print JSON for machines instead of tables.
    """
    from gyrograd.cli.subject import check_file
    from gyrograd.reporting import boards, found_audits, leaderboard_page, write_page
    from gyrograd.reporting.leaderboard import document

    audits, troubles = found_audits(folder)
    path = folder / "leaderboard.html" if out is None else out
    check_file(path)
    tables = boards(audits)
    write_page(path, leaderboard_page(tables, troubles, path.parent))
    for trouble in troubles:
        print(f"gyrograd: left out: {printable(trouble)}", file=sys.stderr)
    if json:
        print(json_format.dumps({"boards": document(tables), "page": str(path)}, indent=1))
        return
    _print(tables)
    print(printable(path))


def _print(tables: list[Board]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gyrograd.cli.terminal import Console
    from gyrograd.reporting.leaderboard import terminal_rows

    console = Console()
    for board in tables:
        heads = ["#", "model", "method", "accuracy", *(column["label"] for column in board.ordered)]
        rows = terminal_rows(board)
        needs = needed_widths(heads, rows)
        shown = columns_that_fit(needs, console.width)
        table = Table(title=escape(board.title), title_justify="left", box=None, pad_edge=False)
        for head, need in zip(heads[:shown], needs, strict=False):
            # folded here, since rich would take the room of long heads from the names of models
            table.add_column(escape("\n".join(textwrap.wrap(head, need))), overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row[:shown]))
        console.print(table)
        if shown < len(heads):
            console.print(f"Also on the page: {'; '.join(heads[shown:])}.", markup=False, highlight=False)
        console.print()


GAP = 2
"""Between two columns."""
NAMED = 5
"""Rank, model, method, accuracy and the column that ranks are always there, folded if it must be."""


def needed_widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Of each column, so that no word and no number is broken in two; heads may fold at spaces."""
    return [
        max([len(word) for word in head.split()] + [len(row[at]) for row in rows])
        for at, head in enumerate(heads)
    ]


def columns_that_fit(needs: Sequence[int], width: int) -> int:
    """How many of the columns stand side by side in this width."""
    ends = [sum(needs[: at + 1]) + GAP * at for at in range(len(needs))]
    return max(min(NAMED, len(needs)), sum(end <= width for end in ends))
