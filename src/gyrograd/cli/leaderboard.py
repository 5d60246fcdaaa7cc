"""gyrograd leaderboard: all audits below a folder as one page that sorts."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gyrograd.reporting.leaderboard import Board


def leaderboard(folder: Path, out: Path | None = None, json: bool = False) -> None:
    """Rank all audits below a folder, those of the same images against each other, on one page.

    Args:
        folder: holds audits, at any depth; running another audit into it adds one.
        out: where the page goes; leaderboard.html in the folder if left out.
        json: print JSON for machines instead of tables.
    """
    from gyrograd.reporting import boards, found_audits, leaderboard_page, write_page
    from gyrograd.reporting.leaderboard import document

    audits, troubles = found_audits(folder)
    tables = boards(audits)
    path = folder / "leaderboard.html" if out is None else out
    write_page(path, leaderboard_page(tables, troubles, path.parent))
    for trouble in troubles:
        print(f"gyrograd: left out: {trouble}", file=sys.stderr)
    if json:
        print(json_format.dumps({"boards": document(tables), "page": str(path)}, indent=1))
        return
    _print(tables)
    print(path)


def _print(tables: list[Board]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from gyrograd.reporting.leaderboard import terminal_rows

    console = Console()
    for board in tables:
        table = Table(title=escape(board.title), title_justify="left", box=None, pad_edge=False)
        for head in ("#", "model", "method", "accuracy", *(column["label"] for column in board.ordered)):
            table.add_column(escape(head), overflow="fold")
        for row in terminal_rows(board):
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
        console.print()
