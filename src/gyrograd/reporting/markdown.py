"""The report as Markdown: the same text and numbers, with the figures in the folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gyrograd.numerics.wording import interval_text, number
from gyrograd.registry import readable
from gyrograd.reporting.charts import Chart, labels_of
from gyrograd.reporting.schema import Predicted, WorstAttack
from gyrograd.reporting.table import counts
from gyrograd.reporting.wording import counted_images, duration, notes_of

if TYPE_CHECKING:
    from gyrograd.reporting.card import Contents

BADGES = {"steady": "✔ steady", "shaky": "▲ shaky", "unsafe": "✖ unsafe", None: "not judged"}


def markdown_report(shown: Contents) -> str:
    """The report; names are escaped, so that none becomes markup."""
    parts = (_head, _methods, _attacks, _charts, _bounds, _flags, _rerun)
    return "\n\n".join(block for part in parts for block in part(shown) if block) + "\n"


def escape(text: object) -> str:
    """The text on one line, with Markdown and HTML characters escaped."""
    one_line = " ".join(str(text).split())
    return re.sub(r"([\\`*_{}\[\]<>|#~$&])", r"\\\1", one_line)


def table_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table of escaped cells."""
    lines = [[escape(cell) for cell in line] for line in (header, *rows)]
    lines.insert(1, ["---"] * len(header))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _head(shown: Contents) -> list[str]:
    card = shown.card
    unfinished = "> **This audit is not finished.** What follows is what it had measured by then."
    sentences = " ".join(escape(sentence) for sentence in card["verdict"]["sentences"])
    accuracy = f"Accuracy {interval_text(card['accuracy'])}." if card["accuracy"] else ""
    data = card["data"]
    return [
        f"# {escape(card['title'])}",
        "" if card["complete"] else unfinished,
        f"**{BADGES[card['verdict']['grade']]}** {sentences}",
        "\n".join(f"- {escape(note)}" for note in notes_of(card)),
        f"Model: {escape(card['model']['source'])}, {escape(card['model'].get('description') or '')}. "
        f"Data: {escape(data['source'])}, {counted_images(data['images'])}. {accuracy}".strip(),
    ]


def _methods(shown: Contents) -> list[str]:
    columns = [column for _, group in shown.groups for column in group]
    images = counts(shown.card)
    header = ["method"]
    for column in columns:
        of = f", {images[column['key']]}" if column["key"] in images else ""
        header.append(f"{column['label']} ({column['direction']} is better{of})")
    notes = [f"- {escape(row.label)}: {escape(note)}" for row in shown.rows for note in row.notes]
    detailed = [column for column in columns if column.get("detail")]
    details = [f"- {escape(column['label'])}: {escape(column['detail'])}" for column in detailed]
    marks = {"best": "● ", "level": "○ ", "": ""}
    rows = [
        [
            f"{row.label} ({row.standing})" if row.standing else row.label,
            *(f"{marks[cell.mark]}{cell.value} {cell.interval}".strip() for cell in row.cells),
        ]
        for row in shown.rows
    ]
    return [
        "## Methods",
        "Means over images with 95 % bootstrap intervals. ● best of its column, ○ level with it (their intervals "
        "overlap).",
        table_text(header, rows),
        "\n".join(details),
        "\n".join(notes),
    ]


def _attacks(shown: Contents) -> list[str]:
    if not shown.attacks:
        return []
    sheet = "![Image, attacked image, what changed, map before, map after](figures/attacks.png)"
    picture = sheet if shown.sheet else ""
    lines = [f"- {escape(attack.title)}: {_attack_words(attack.facts)}" for attack in shown.attacks]
    return ["## The most damaging attacks found", picture, shown.no_pictures or "", "\n".join(lines)]


def _attack_words(facts: WorstAttack) -> str:
    kept = "" if facts["kept"] is None else f"{facts['kept'] * 100:.0f} % of the top pixels stay; "
    words = f"{kept}cosine of the map before and after {number(facts['cosine'])}"
    before, after = facts["before"], facts["after"]
    if before and after:
        words += f"; prediction {_class(before)} before, {_class(after)} after"
    return words + "."


def _class(found: Predicted) -> str:
    return f"{escape(found['label'])} ({number(found['probability'])})"


def _charts(shown: Contents) -> list[str]:
    blocks: list[str] = []
    if shown.eps:
        blocks += ["## Growing eps", *_figure(shown.eps)]
    if shown.games:
        blocks += ["## Insertion and deletion", *(b for chart in shown.games for b in _figure(chart))]
    if shown.plane:
        plane = shown.card["plane"]
        chosen = plane and plane["recommended"]
        why = (chosen and chosen["why"]) or ""
        blocks += ["## Robustness against faithfulness", escape(why), *_figure(shown.plane)]
    return blocks


def _figure(chart: Chart) -> list[str]:
    return [f"![{escape(chart.alt)}](figures/{chart.name}.png)", table_text(chart.header, chart.rows)]


def _bounds(shown: Contents) -> list[str]:
    bounds = shown.card["bounds"]
    if not bounds:
        return []
    words = {True: "holds", False: "does not hold", None: "not tested"}
    rows = [
        (
            bound["label"],
            bound.get("reference") or "",
            number(bound.get("bound")),
            number(bound.get("measured")),
            words[bound.get("holds")],
            bound.get("note") or "",
        )
        for bound in bounds
    ]
    return ["## Bounds", table_text(("what", "reference", "bound", "measured", "", "note"), rows)]


def _flags(shown: Contents) -> list[str]:
    labels = labels_of(shown.card) | {None: "all"}
    lines = [
        f"- **{escape(readable(flag['name']))}** ({escape(labels.get(flag['where'], flag['where']))}, measured "
        f"{number(flag.get('measured'))})\n"
        f"  - Raised if: {escape(flag['raised_if'])}\n"
        f"  - Why it matters: {escape(flag['explanation'])}\n"
        f"  - What to do: {escape(flag['what_to_do'])}"
        for flag in shown.card["flags"] or ()
    ]
    return ["## Reasons for doubt", "\n".join(lines) or "None of the checks was raised."]


def _rerun(shown: Contents) -> list[str]:
    card = shown.card
    rerun: Mapping[str, Any] = card["rerun"] or {}
    versions = ", ".join(f"{name} {number}" for name, number in (rerun.get("versions") or {}).items())
    facts = [
        ("versions", versions),
        ("hardware", rerun.get("hardware")),
        ("time", duration(rerun.get("seconds"))),
        ("seed", rerun.get("seed")),
        ("model sha256", card["model"].get("sha256")),
        ("data sha256", card["data"].get("sha256")),
    ]
    return [
        "## Run it again",
        _code_block(rerun.get("command") or ""),
        "\n".join(f"- {name}: {escape(value)}" for name, value in facts if value not in (None, "")),
        _code_block(json.dumps(card["settings"], indent=1, sort_keys=True)),
    ]


def _code_block(text: str) -> str:
    """A code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}" if text else ""
