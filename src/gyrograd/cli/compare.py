"""gyrograd compare: two audits, what changed, with intervals."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gyrograd.reporting.comparison import Comparison


def compare(a: Path, b: Path, out: Path = Path("out/compare.html"), json: bool = False) -> None:
    """Compare two audits: B against A, per method and column, image by image where both kept their records.

    Args:
        a: folder of the first audit, or its card.json.
        b: folder of the second.
        out: where the page goes.
        json: print JSON for machines instead of a table.
    """
    from gyrograd.reporting import compared, comparison_page, write_page

    found = compared(a, b)
    write_page(out, comparison_page(found))
    if json:
        print(json_format.dumps(found.document() | {"page": str(out)}, indent=1))
        return
    _print(found)
    print(out)


def _print(found: Comparison) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from gyrograd.reporting.comparison import table_rows

    console = Console()
    for letter, card in (("A", found.a), ("B", found.b)):
        model, data = card["model"]["source"], card["data"]["source"]
        console.print(f"{letter}: {model} on {data}", markup=False, highlight=False)
    console.print(found.sentence, markup=False, highlight=False, style="bold")
    for note in found.notes:
        console.print(note, markup=False, highlight=False, style="yellow")
    table = Table("method", "column", "A", "B", "B - A", "verdict", box=None, pad_edge=False)
    colours = {"better": "green", "worse": "red"}
    for change, row in zip(found.changes, table_rows(found), strict=True):
        table.add_row(*(escape(cell) for cell in row), style=colours.get(change.verdict))
    console.print(table)
