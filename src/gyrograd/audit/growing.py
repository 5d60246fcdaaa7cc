"""The page of an unfinished audit: numbers and pictures so far; it reloads itself until the report replaces it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from gyrograd import records
from gyrograd.audit.methods import Method
from gyrograd.audit.pictures import picture_arrays
from gyrograd.audit.plans import MODEL, NOISE, AuditInputs
from gyrograd.audit.table import accuracy_of, stat, worst
from gyrograd.measurement import Table, mean_over
from gyrograd.numerics.statistics import Stat
from gyrograd.reporting.pictures import attack_pictures
from gyrograd.reporting.showcase import image_name
from gyrograd.reporting.wording import counted_images

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="10">
<meta name="viewport" content="width=device-width"><title>{title}: being measured</title>
<style>:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }}
td, th {{ padding: .2em 1em .2em 0; text-align: left }} td + td {{ font-variant-numeric: tabular-nums }}
img {{ width: 160px }}</style>
<h1>{title}</h1>
<p>This audit is being measured. What is known so far; the finished report will stand here.</p>
<table><tr><th>method</th>{heads}</tr>
{rows}
</table>
{pictures}</html>
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
        cells.insert(0, [f"(the model: {_text(accuracy_of(table))} right)"] + [""] * len(HEADS))
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in cells)
    heads = "".join(f"<th>{escape(label)}</th>" for label in HEADS.values())
    title = escape(f"{inputs.model_name} on {inputs.data_name}")
    pictures = first_pictures(inputs, methods)
    page = PAGE.format(title=title, heads=heads, rows=rows, pictures=pictures)
    records.write_text(folder / "report.html", page)


def first_pictures(inputs: AuditInputs, methods: Sequence[Method]) -> str:
    """The first image attacked in this process, with its maps before and after; empty if attacks are not stored.

    They are stored if images are measured one by one, as in the preset `glance`.
    """
    hits = {
        key: hit
        for key, hit in inputs.hits.items()
        if key[2] == inputs.preset.searches[0] and bool(hit.prediction_kept) and not bool(hit.stuck)
    }
    if not hits:
        return ""
    first = next(example for example, _, _ in hits)
    shown = {method: hit for (example, method, _), hit in hits.items() if example == first}
    arrays = picture_arrays([shown[method.name] for method in methods if method.name in shown])
    labels = [method.label for method in methods if method.name in shown]
    drawn = [attack_pictures(arrays, row, inputs.preset.eps) for row in range(len(labels))]
    rows = [
        f"<tr><td>{escape(label)}</td>"
        + "".join(
            f'<td><img src="{address}" alt="{escape(label)}, {when}"></td>'
            for address, when in zip(one.views["overlay"], ("before", "under attack"), strict=True)
        )
        + "</tr>"
        for label, one in zip(labels, drawn, strict=True)
        if one is not None
    ]
    name = escape(image_name({"name": inputs.names.get(first), "example": first}))
    heads = "<tr><th>method</th><th>map</th><th>map under attack</th></tr>"
    return f"<h2>The first image attacked: {name}</h2>\n<table>{heads}\n" + "\n".join(rows) + "\n</table>\n"


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
