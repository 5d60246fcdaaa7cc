"""The card for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gyrograd.audit.table import Stat
from gyrograd.audit.verdict import shown


def summary(card: Mapping[str, Any]) -> str:
    """The card for a terminal: verdict, methods, flags, advice."""
    data, model, verdict = card["data"], card["model"], card["verdict"]
    lines = [
        card["title"],
        f"{model['description']}; {data['images']} images{_labels(data)}{_accuracy(card)}",
        "",
    ]
    if not card["complete"]:
        lines += ["Interrupted: these numbers are of the images finished so far.", ""]
    lines += [f"Verdict: {verdict['grade'] or 'unknown'}", *(f"  {s}" for s in verdict["sentences"]), ""]
    lines += _table(card)
    lines += [f"  note: {note}" for note in card["settings"].get("notes", [])]
    lines += [f"  left out: {name} ({why})" for name, why in card["settings"].get("left_out", {}).items()]
    if card["flags"]:
        lines += ["", "Reasons to doubt a number:"]
        lines += [f"  {flag['where']}: {flag['name']}. {flag['what_to_do']}" for flag in card["flags"]]
    return "\n".join(lines)


SHORT = {
    "rps": "noise cos",
    "noise_kept": "noise kept",
    "attack_cosine": "attack cos",
    "top_k_kept": "attack kept",
    "insertion": "insertion",
    "deletion": "deletion",
    "adversarial_insertion": "adv. ins.",
}
"""The terminal's columns; the page has them all."""


def _table(card: Mapping[str, Any]) -> list[str]:
    """Means and half the width of their intervals, in columns."""
    width = max(len(method["label"]) for method in card["methods"]) + 4
    head = " " * width + "".join(f"{label:>13}" for label in SHORT.values())
    rows = [head]
    for method in card["methods"]:
        cells = "".join(f"{_cell(method['columns'].get(key)):>13}" for key in SHORT)
        mark = "* " if method["recommended"] else "  "
        rows.append(f"{mark}{method['label']:<{width - 2}}{cells}")
    return rows


def _cell(stat: Stat | None) -> str:
    if stat is None or stat["value"] is None:
        return "-"
    if stat["low"] is None or stat["high"] is None:
        return f"{stat['value']:.3f}"
    return f"{stat['value']:.3f} ±{(stat['high'] - stat['low']) / 2:.3f}".replace("±0.", "±.")


def _labels(data: Mapping[str, Any]) -> str:
    return (
        "" if data["labelled"] else " without labels, so each is explained for the class the model predicts"
    )


def _accuracy(card: Mapping[str, Any]) -> str:
    return f", accuracy {shown(card['accuracy'])}" if card["accuracy"] else ""
