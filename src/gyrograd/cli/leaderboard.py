"""gyrograd leaderboard: all audits below some folders, ranked, as one page or as a static site."""

from __future__ import annotations

import json as json_format
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.reporting.leaderboard import Board


def leaderboard(folders: list[str], out: Path | None = None, json: bool = False) -> None:
    """Rank all audits below folders by the steady radius of each model and method, as a page or a static site.

    Args:
        folders: folders with audits and submissions, at any depth.
        out: folder of the site (index.html and a page per model), or one page if it ends in .html; leaderboard.html in
            the first folder if left out.
        json: print JSON for machines instead of tables.
    """
    from gyrograd.cli.subject import check_file, check_folder
    from gyrograd.reporting import boards, found_audits
    from gyrograd.reporting.leaderboard import document

    places = [Path(folder) for folder in ([folders] if isinstance(folders, str) else folders)]
    audits, troubles = found_audits(*places)
    path = places[0] / "leaderboard.html" if out is None else out
    (check_file if path.suffix == ".html" else check_folder)(path)
    tables = boards(audits)
    page = _write(tables, troubles, path)
    for trouble in troubles:
        print(f"gyrograd: left out: {printable(trouble)}", file=sys.stderr)
    if json:
        print(json_format.dumps({"boards": document(tables), "page": str(page)}, indent=1))
        return
    _print(tables)
    print(printable(page))


leaderboard.several_positional = "folders"  # type: ignore[attr-defined]


def _write(tables: list[Board], troubles: list[str], path: Path) -> Path:
    """The page, or the site with its copies of cards and reports; returns the page to open."""
    from gyrograd.records import os_error_as_user_error, write_text
    from gyrograd.reporting import leaderboard_page, write_page
    from gyrograd.reporting.leaderboard import site

    if path.suffix == ".html":
        write_page(path, leaderboard_page(tables, troubles, path.parent))
        return path
    texts, copies = site(tables, troubles)
    for name, text in texts.items():
        write_text(path / name, text)
    for name, source in copies.items():
        with os_error_as_user_error(path / name):
            shutil.copyfile(source, path / name)
    return path / "index.html"


MAX_LISTED = 30
"""Pairs of one table in the terminal."""


def _print(tables: list[Board]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gyrograd.cli.terminal import Console
    from gyrograd.reporting.leaderboard import terminal_rows

    console = Console()
    for board in tables:
        every = terminal_rows(board)
        rows = every[:MAX_LISTED]
        heads = ["#", "model", "method", *(column["label"] for column in board.ordered), "unreliable"]
        needs = needed_widths(heads, rows)
        shown = columns_that_fit(needs, console.width)
        table = Table(title=escape(board.title), title_justify="left", box=None, pad_edge=False)
        for head, need in zip(heads[:shown], needs, strict=False):
            # folded here, since rich would take the room of long heads from the names of models
            table.add_column(escape("\n".join(textwrap.wrap(head, need))), overflow="fold")
        for row in rows:
            table.add_row(*(escape(cell) for cell in row[:shown]))
        console.print(table)
        if board.ranked_by is not None:
            console.print(f"Ranked by {board.ranked_by['label']}.", markup=False, highlight=False)
        if shown < len(heads):
            console.print(f"Also on the page: {'; '.join(heads[shown:])}.", markup=False, highlight=False)
        if len(rows) < len(every):
            console.print(f"{len(every) - len(rows)} more pairs on the page.", markup=False, highlight=False)
        console.print()


GAP = 2
"""Between two columns."""
NAMED = 5
"""Rank, model, method, the column that ranks and accuracy are always there, folded if it must be."""


def needed_widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Width of each column so that no word or number is broken; headers may wrap at spaces."""
    return [
        max([len(word) for word in head.split()] + [len(row[at]) for row in rows])
        for at, head in enumerate(heads)
    ]


def columns_that_fit(needs: Sequence[int], width: int) -> int:
    """Number of columns that fit this width."""
    ends = [sum(needs[: at + 1]) + GAP * at for at in range(len(needs))]
    return max(min(NAMED, len(needs)), sum(end <= width for end in ends))
