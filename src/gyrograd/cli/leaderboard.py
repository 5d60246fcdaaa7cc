"""gyrograd leaderboard: all audits below some folders, ranked, as one page or as a static site."""

from __future__ import annotations

import json as json_format
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.cli.options import Syntax
from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.reporting.leaderboard import Board


@Syntax(words={"folders": "+"})
def leaderboard(folders: list[str], out: Path | None = None, json: bool = False) -> None:
    """Rank all audits below folders, as a page or a static site.

    Models and methods are ranked by their steady radius.

    Args:
        folders: folders with audits and submissions, at any depth.
        out: folder of the site (index.html and a page per model), or one page if it ends in .html; default:
            leaderboard.html in the first folder.
        json: print JSON instead of tables.
    """
    from gyrograd.cli.inputs import check_file, check_folder
    from gyrograd.reporting import boards, find_audits
    from gyrograd.reporting.leaderboard import document

    places = [Path(folder) for folder in ([folders] if isinstance(folders, str) else folders)]
    audits, troubles = find_audits(*places)
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


def _write(tables: list[Board], troubles: list[str], path: Path) -> Path:
    """Write the page, or the site with copies of cards and reports; returns the page to open."""
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
"""Most rows per table in the terminal."""


def _print(tables: list[Board]) -> None:
    from gyrograd.cli.terminal import Console, print_table, say
    from gyrograd.reporting.leaderboard import terminal_rows

    for board in tables:
        every = terminal_rows(board)
        rows = every[:MAX_LISTED]
        heads = ["#", "model", "method", *(column["label"] for column in board.ordered), "unreliable"]
        needs = needed_widths(heads, rows)
        shown = columns_that_fit(needs, Console().width)
        # Headers are wrapped here, because rich would shorten the names of models instead.
        wrapped = ["\n".join(textwrap.wrap(*pair)) for pair in zip(heads[:shown], needs, strict=False)]
        print_table(wrapped, [row[:shown] for row in rows], title=board.title)
        if board.ranked_by is not None:
            say(f"Ranked by {board.ranked_by['label']}.")
        doubtful = [row[0] for row in rows if row[-1]]
        if doubtful and shown < len(heads):
            say(f"Unreliable, as the page explains: {', '.join(doubtful)}.")
        if shown < len(heads):
            say(f"Also on the page: {'; '.join(heads[shown:])}.")
        if len(rows) < len(every):
            say(f"{len(every) - len(rows)} more pairs on the page.")
        print()


GAP = 2
"""Between two columns."""
NAMED = 5
"""Columns that are always shown: rank, model, method, the ranking column and accuracy."""


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
