"""gyrograd compare: two audits, what changed, with intervals."""

from __future__ import annotations

import json as json_format
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.errors import UserError, printable

if TYPE_CHECKING:
    from gyrograd.reporting.comparison import Comparison


def compare(
    a: str,
    b: str,
    data: str | None = None,
    preset: str = "quick",
    images: int | None = None,
    out: Path = Path("out/compare.html"),
    json: bool = False,
) -> None:
    """Compare two audits, or two models on the same data: what improved and what got worse, image by image.

    Args:
        a: folder of the first audit, its card.json or report.html; with --data a model, as `gyrograd audit` takes it.
        b: the second.
        data: a registered set or a folder on which two models are audited first; reports are written beside the page.
        preset: for these audits: glance, quick, standard or thorough.
        images: most images of these audits.
        out: the page to write.
        json: print JSON for machines instead of a table.
    """
    from gyrograd.cli.subject import check_file
    from gyrograd.reporting import compared, comparison_page, write_page

    check_file(out)
    absent = [place for place in (a, b) if not Path(place).exists()]
    if data is None and absent:
        raise UserError(
            f"There is no audit at {absent[0]}; give the folder one wrote, or compare models with --data DATA."
        )
    places = [a, b] if data is None else _audited((a, b), data, preset, images, out.parent)
    found = compared(*map(Path, places))
    write_page(out, comparison_page(found))
    if json:
        print(json_format.dumps(found.document() | {"page": str(out)}, indent=1))
        return
    _print(found)
    print(printable(out))


def _audited(models: tuple[str, str], data: str, preset: str, images: int | None, home: Path) -> list[str]:
    """The folders of an audit of each model. What they say is no result of this verb and goes to stderr."""
    from gyrograd.cli.audit import audit, slug
    from gyrograd.cli.subject import Opening, subject
    from gyrograd.numerics.modes import flush_denormals

    folders = [home / "audits" / slug(f"{model} {data}") for model in models]
    opening = Opening(images=images)
    for model in models:
        subject(model, data, opening)  # a model that cannot be audited is found before the other one is
    with redirect_stdout(sys.stderr), flush_denormals():
        for model, folder in zip(models, folders, strict=True):
            audit(model, data, preset=preset, opening=opening, out=folder)
    return [str(folder) for folder in folders]


def _print(found: Comparison) -> None:
    from rich.markup import escape
    from rich.table import Table

    from gyrograd.cli.terminal import Console
    from gyrograd.reporting.comparison import one_sided, shared_changes, table_rows

    console = Console()
    console.print(found.sentence, markup=False, highlight=False, style="bold")
    for note in found.notes:
        console.print(note, markup=False, highlight=False, style="yellow")
    for title, findings in found.findings.items():
        if findings:
            console.print(f"{title}:", markup=False, highlight=False)
            for finding in findings:
                console.print(f"  {finding.sentence}", markup=False, highlight=False)
    if found.absent:
        console.print(found.absent, markup=False, highlight=False)
    first, second = (
        f"{name} on {card['data']['source']}"
        for name, card in zip(found.names, (found.a, found.b), strict=True)
    )
    console.print(f"From {first} to {second}:", markup=False, highlight=False)
    table = Table("method", "column", "from", "to", "change", "verdict", box=None, pad_edge=False)
    colours = {"better": "green", "worse": "red"}
    for change, row in zip(shared_changes(found), table_rows(found), strict=True):
        table.add_row(*(escape(cell) for cell in row), style=colours.get(change.verdict))
    console.print(table)
    for sentence in one_sided(found):
        console.print(sentence, markup=False, highlight=False)
