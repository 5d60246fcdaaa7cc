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
    """Compare two audits, or two models on the same data.

    Shows what improved and what got worse, image by image.

    Args:
        a: folder of the first audit, its card.json or report.html; with --data a model, as `gyrograd audit` takes it.
        b: the second audit or model.
        data: a registered set or a folder on which two models are audited first, with their reports next to the page.
        preset: preset of these audits: glance, quick, standard or thorough.
        images: number of images in these audits, at most.
        out: the page to write.
        json: print JSON instead of a table.
    """
    from gyrograd.cli.inputs import check_file
    from gyrograd.reporting import compare_audits, comparison_page, write_page

    check_file(out)
    absent = [place for place in (a, b) if not Path(place).exists()]
    if data is None and absent:
        raise UserError(
            f"There is no audit at {absent[0]}; give the folder one wrote, or compare models with --data DATA."
        )
    places = [a, b] if data is None else _run_audits((a, b), data, preset, images, out.parent)
    found = compare_audits(*map(Path, places))
    write_page(out, comparison_page(found))
    if json:
        print(json_format.dumps(found.document() | {"page": str(out)}, indent=1))
        return
    _print(found)
    print(printable(out))


def _run_audits(models: tuple[str, str], data: str, preset: str, images: int | None, home: Path) -> list[str]:
    """Audit both models and return their folders; the audits' own output goes to stderr."""
    from gyrograd.cli.audit import audit, slug
    from gyrograd.cli.inputs import Opening, open_inputs
    from gyrograd.numerics.modes import flush_denormals

    folders = [home / "audits" / slug(f"{model} {data}") for model in models]
    opening = Opening(images=images)
    for model in models:
        open_inputs(model, data, opening)  # refuse a model that cannot be audited before auditing the other
    with redirect_stdout(sys.stderr), flush_denormals():
        for model, folder in zip(models, folders, strict=True):
            audit(model, data, preset=preset, opening=opening, out=folder)
    return [str(folder) for folder in folders]


def _print(found: Comparison) -> None:
    from gyrograd.cli.terminal import print_table, say
    from gyrograd.reporting.comparison import one_sided, shared_changes, table_rows

    say(found.sentence, style="bold")
    for note in found.notes:
        say(note, style="yellow")
    for title, findings in found.findings.items():
        if findings:
            say(f"{title}:")
            for finding in findings:
                say(f"  {finding.sentence}")
    if found.absent:
        say(found.absent)
    first, second = (
        f"{name} on {card['data']['source']}"
        for name, card in zip(found.names, (found.a, found.b), strict=True)
    )
    say(f"From {first} to {second}:")
    colours = {"better": "green", "worse": "red"}
    styles = [colours.get(change.verdict) for change in shared_changes(found)]
    print_table(("method", "column", "from", "to", "change", "verdict"), table_rows(found), styles=styles)
    for sentence in one_sided(found):
        say(sentence)
