"""The card for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from gyrograd.numerics.wording import interval_text
from gyrograd.reporting.table import image_counts
from gyrograd.reporting.wording import counted_images

HARD_SPACE = "\N{NO-BREAK SPACE}"


def summary(card: Mapping[str, Any], width: int | None = None) -> str:
    """The card for a terminal: verdict, methods, flags, advice.

    `width` is that of the terminal. Without one every sentence is one line, for files and other programs.
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
    lines = _folded(lines, width) + _table(card, width)
    told = len(lines)
    lines += [f"  note: {note}" for note in card["settings"].get("notes", [])]
    lines += [f"  left out: {name} ({why})" for name, why in card["settings"].get("left_out", {}).items()]
    if card["flags"]:
        lines += ["", "Reasons to doubt a number:"]
        lines += [f"  {flag['where']}: {flag['name']}. {flag['what_to_do']}" for flag in card["flags"]]
    return "\n".join([*lines[:told], *_folded(lines[told:], width)])


def _folded(lines: Sequence[str], width: int | None) -> list[str]:
    """Long lines in several, each as far in as it began and two more."""
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
"""The terminal's columns; the page has them all."""


CELL = 13


def _table(card: Mapping[str, Any], width: int | None) -> list[str]:
    """Means and half the width of their intervals, in columns; in several tables where one would be too wide."""
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
    """How many images a column's means are of."""
    n = image_counts(card, key)
    return "-" if not n else f"{n[0]}" if len(n) == 1 else f"{n[0]} to {n[-1]}"


def _cell(stat: Mapping[str, Any] | None) -> str:
    if stat is None or stat["value"] is None:
        return "-"
    if stat["low"] is None or stat["high"] is None:
        return f"{stat['value']:.3f}"
    return f"{stat['value']:.3f} ±{(stat['high'] - stat['low']) / 2:.3f}".replace("±0.", "±.")
