"""The page of an unfinished audit: the numbers so far; it reloads itself until the report replaces it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from gyrograd import records
from gyrograd.audit.methods import Method
from gyrograd.audit.plans import MODEL, NOISE, AuditInputs
from gyrograd.audit.table import stat, worst
from gyrograd.measurement import Table, mean_over
from gyrograd.numerics.statistics import Stat
from gyrograd.reporting.wording import counted_images

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="10">
<meta name="viewport" content="width=device-width"><title>{title}: being measured</title>
<style>:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }}
td, th {{ padding: .2em 1em .2em 0; text-align: left }} td + td {{ font-variant-numeric: tabular-nums }}</style>
<h1>{title}</h1>
<p>This audit is being measured. What is known so far; the finished report will stand here.</p>
<table><tr><th>method</th>{heads}</tr>
{rows}
</table>
</html>
"""
HEADS = {
    "insertion": "Insertion",
    "rps": "Steady under noise",
    "noise": "Top pixels kept, noise",
    "attack": "Top pixels kept, attack",
}


def write_growing_page(folder: Path, inputs: AuditInputs, methods: Sequence[Method], table: Table) -> None:
    """Write the page with the numbers so far."""
    cells = [
        [method.label, *(_text(found.get(key)) for key in HEADS)]
        for method in methods
        if (found := dict(known_so_far(inputs, table, method.name)))
    ]
    if inputs.labelled and table.has(method=MODEL, metric="correct"):
        accuracy = stat(table.of(method=MODEL, metric="correct"))
        cells.insert(0, [f"(the model: {_text(accuracy)} right)"] + [""] * len(HEADS))
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in cells)
    heads = "".join(f"<th>{escape(label)}</th>" for label in HEADS.values())
    title = escape(f"{inputs.model_name} on {inputs.data_name}")
    records.write_text(folder / "report.html", PAGE.format(title=title, heads=heads, rows=rows))


def known_so_far(inputs: AuditInputs, table: Table, method: str) -> Iterator[tuple[str, Stat | None]]:
    """The numbers of a method that were measured on at least some images."""
    preset = inputs.preset
    for key in ("insertion", "rps"):
        if table.has(method=method, metric=key):
            yield key, stat(mean_over(table.curve(method=method, metric=key)))
    for key, conditions in (("noise", (NOISE,)), ("attack", preset.searches)):
        columns = [
            table.of(method=method, condition=name, eps=preset.eps, metric="kept")
            for name in conditions
            if table.has(method=method, condition=name, eps=preset.eps, metric="kept")
        ]
        if columns:
            # An upper bound while the attack is still running.
            yield key, stat(worst(columns))


def _text(found: Stat | None) -> str:
    if found is None or found["value"] is None:
        return ""
    return f"{found['value']:.2f} ({counted_images(found['n'] or 0)})"
