"""The report card: the document, the records behind it, the pictures, their files, and the card for a terminal."""

from __future__ import annotations

import io
import json
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyrograd import records as disk
from gyrograd.measurement import Table, fingerprint
from gyrograd.numerics.wording import interval_text
from gyrograd.records import Record
from gyrograd.reporting.table import image_counts
from gyrograd.reporting.wording import counted_images

PICTURES = "pictures.npz"


@dataclass(frozen=True, eq=False)
class Card:
    """Result of an audit.

    document: the content of card.json. records: the numbers of every example by cell. table: the same numbers by
    method, condition, eps and metric.
    """

    document: dict[str, Any]
    records: dict[str, Record] = field(default_factory=dict)
    pictures: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    table: Table | None = None

    def __repr__(self) -> str:
        return f"Card({self.document['title']}: {self.grade or 'not judged'}; .summary(), .to_html(path), .records)"

    def __str__(self) -> str:
        return self.summary()

    @property
    def grade(self) -> str | None:
        """steady, shaky or unsafe; None if no attack had a derivative to follow."""
        found: str | None = self.document["verdict"]["grade"]
        return found

    def summary(self, width: int | None = None) -> str:
        """Verdict, table of methods and flags as text, wrapped at `width`; without it every sentence is one line."""
        return summary(self.document, width)

    def save(self, folder: Path | str) -> Path:
        """Write card.json, pictures.npz, missing records and the report; returns its path."""
        from gyrograd.reporting.card import write_report

        folder = Path(folder)
        for record in self.records.values():
            # An audit with a folder has stored its shards already; one without writes each record as one file.
            known = fingerprint([record.name, record.settings])
            if not any((folder / "records").glob(f"*-{known}")):
                disk.write(folder / "records" / f"{known}.json", record)
        self._write_pictures(folder)
        disk.write_text(folder / "card.json", json.dumps(self.document, indent=1, allow_nan=False) + "\n")
        write_report(self.document, folder)
        return folder / "report.html"

    def to_html(self, path: Path | str) -> Path:
        """Write only the page, as one self-contained file."""
        disk.write_text(path, self._page())
        return Path(path)

    def _repr_html_(self) -> str:
        """The page for notebooks, in an iframe, so that its style does not affect the notebook."""
        return (
            f'<iframe srcdoc="{escape(self._page())}" style="width: 100%; height: 44em; border: 0"></iframe>'
        )

    def _page(self) -> str:
        from gyrograd.reporting.card import contents, html_report
        from gyrograd.reporting.schema import check_card

        with tempfile.TemporaryDirectory() as folder:
            self._write_pictures(Path(folder))
            return html_report(contents(check_card(self.document), Path(folder)))

    def _write_pictures(self, folder: Path) -> None:
        if self.pictures:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **self.pictures)  # type: ignore[arg-type]
            disk.write_bytes(folder / PICTURES, buffer.getvalue())


HARD_SPACE = "\N{NO-BREAK SPACE}"


def summary(card: Mapping[str, Any], width: int | None = None) -> str:
    """The card as text: verdict, methods, flags, advice.

    `width` is the terminal's width; without it every sentence is one line, for files and other programs.
    """
    data, model, verdict = card["data"], card["model"], card["verdict"]
    about = f"{model['description']}; {counted_images(data['images'])}"
    if not data["labelled"]:
        about += " without labels, so each is explained for the class the model predicts"
    if card["accuracy"]:
        about += f", accuracy {interval_text(card['accuracy'], '.3f')}"
    lines = [card["title"], about, ""]
    if not card["complete"]:
        lines += ["Interrupted: these numbers are of the images finished so far.", ""]
    lines += [f"Verdict: {verdict['grade'] or 'not judged'}", *(f"  {s}" for s in verdict["sentences"]), ""]
    lines = _wrap_lines(lines, width) + _table(card, width)
    head = len(lines)
    lines += LEGEND
    lines += [f"  note: {note}" for note in card["settings"].get("notes", [])]
    lines += [f"  left out: {name} ({why})" for name, why in card["settings"].get("left_out", {}).items()]
    if card["flags"]:
        lines += ["", "Reasons to doubt a number:"]
        for flag in card["flags"]:
            lines.append(f"  {flag['where']}: {flag['name'].replace('_', ' ')}. {flag['what_to_do']}")
    return "\n".join([*lines[:head], *_wrap_lines(lines[head:], width)])


def _wrap_lines(lines: Sequence[str], width: int | None) -> list[str]:
    """Wrap long lines; continuation lines are indented by two more spaces."""
    if width is None:
        return list(lines)
    folded: list[str] = []
    for line in lines:
        inner = " " * (len(line) - len(line.lstrip()) + 2)
        bound = line.replace(" %", f"{HARD_SPACE}%")  # a number keeps its unit
        parts = textwrap.wrap(bound, max(20, width), subsequent_indent=inner, break_on_hyphens=False)
        folded += [part.replace(HARD_SPACE, " ") for part in parts or [""]]
    return folded


SHORT = {
    "steady_radius": "steady, /255",
    "rps": "noise cos",
    "noise_kept": "noise kept",
    "attack_cosine": "attack cos",
    "top_k_kept": "attack kept",
    "insertion": "insertion",
    "deletion": "deletion",
    "adversarial_insertion": "adv. ins.",
}
"""Columns shown in the terminal; the page has all."""


LEGEND = (
    "  columns: kept is the share of a map's top pixels that stay, cos its cosine to the map before;",
    "  ± is half of the 95 % interval. The page explains all columns.",
)
"""Below the table in the terminal."""

CELL = 13


def _table(card: Mapping[str, Any], width: int | None) -> list[str]:
    """Means with half-widths of their intervals, split into several tables if one would be too wide."""
    first = max(len(method["label"]) for method in card["methods"]) + 4
    shown = [key for key in SHORT if any(key in method["columns"] for method in card["methods"])]
    fit = len(shown) if width is None else max(1, (width - first) // CELL)
    lines: list[str] = []
    for at in range(0, len(shown), fit):
        keys = shown[at : at + fit]
        lines += [""] if lines else []
        lines.append(" " * first + "".join(f"{SHORT[key]:>{CELL}}" for key in keys))
        for method in card["methods"]:
            cells = "".join(f"{_cell(method['columns'].get(key)):>{CELL}}" for key in keys)
            mark = "* " if method["recommended"] else "  "
            lines.append(f"{mark}{method['label']:<{first - 2}}{cells}")
        lines.append(f"  {'images':<{first - 2}}" + "".join(f"{_count(card, key):>{CELL}}" for key in keys))
    return lines


def _count(card: Mapping[str, Any], key: str) -> str:
    """Number of images behind a column's means."""
    n = image_counts(card, key)
    return "-" if not n else f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"


def _cell(stat: Mapping[str, Any] | None) -> str:
    if stat is None or stat["value"] is None:
        return "-"
    if stat["low"] is None or stat["high"] is None:
        return f"{stat['value']:.3f}"
    return f"{stat['value']:.3f} ±{(stat['high'] - stat['low']) / 2:.3f}".replace("±0.", "±.")
