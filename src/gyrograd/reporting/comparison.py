"""Two audits side by side: what changed from A to B, per method and column, with intervals.

Values of the same example are compared as pairs where both audits left them; elsewhere the two means are taken
as independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gyrograd.numerics.statistics import Interval, paired_difference
from gyrograd.reporting.charts import Chart, change_chart
from gyrograd.reporting.schema import card_path, read_card
from gyrograd.reporting.table import GROUPS
from gyrograd.reporting.templates import rendered
from gyrograd.reporting.values import Column, Measured, read_values, values_behind
from gyrograd.reporting.wording import Stat, counted_images, known, number, signed

Verdict = Literal["better", "worse", "no clear change", "not comparable"]
WORDS = {
    "attack": ("steadier", "less steady", "under attack"),
    "noise": ("steadier", "less steady", "under noise"),
    "faithfulness": ("more faithful", "less faithful", "in faithfulness"),
}
"""What B is where it is better, what where it is worse, and in which respect."""


@dataclass(frozen=True)
class Change:
    """B - A of one method and column. `why` says what stands in the way where they cannot be compared."""

    method: str
    label: str
    column: dict[str, Any]
    a: dict[str, Any] | None
    b: dict[str, Any] | None
    change: dict[str, Any] | None
    paired: bool
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two audits and what changed between them."""

    a: dict[str, Any]
    b: dict[str, Any]
    sentence: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]

    def document(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "a": _about(self.a),
            "b": _about(self.b),
            "sentence": self.sentence,
            "notes": list(self.notes),
            "changes": [_plain(change) for change in self.changes],
        }


def compared(a: Path, b: Path) -> Comparison:
    """Two audit folders (or their card.json) compared."""
    first, second = read_card(a), read_card(b)
    values = tuple(read_values(card_path(place).parent) for place in (a, b))
    if not same_data(first, second):
        values = ({}, {})  # equal numbers would be different images
    changes = tuple(_changes(first, second, values[0], values[1]))
    sentence = _sentence(first, second, changes, values)
    return Comparison(first, second, sentence, tuple(_notes(first, second, changes)), changes)


def same_data(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether both audits looked at the same set of images, by its hash."""
    return a["data"]["sha256"] is not None and a["data"]["sha256"] == b["data"]["sha256"]


def comparison_page(found: Comparison) -> str:
    """The comparison as a page of its own."""
    return rendered("compare", found=found, charts=_charts(found), groups=_tables(found), names=GROUPS)


def independent_difference(a: Stat, b: Stat) -> dict[str, Any]:
    """b - a of two independent means from their own intervals (Zou and Donner 2008, "MOVER")."""
    value = b["value"] - a["value"]
    if any(stat[end] is None for stat in (a, b) for end in ("low", "high")):
        return {"value": value, "low": None, "high": None, "n": None}
    down = math.hypot(b["value"] - b["low"], a["high"] - a["value"])
    up = math.hypot(b["high"] - b["value"], a["value"] - a["low"])
    return {"value": value, "low": value - down, "high": value + up, "n": None}


def verdict_of(change: Stat, direction: str) -> Verdict:
    """Better or worse where the interval leaves zero out, by the direction of the column."""
    low, high = change["low"], change["high"]
    if low is None or high is None or low <= 0 <= high:
        return "no clear change"
    return "better" if (low > 0) == (direction == "higher") else "worse"


def _changes(a: dict[str, Any], b: dict[str, Any], values_a: Measured, values_b: Measured) -> list[Change]:
    """All methods and columns that either audit has, A's order first."""
    columns = {column["key"]: column for card in (b, a) for column in card["columns"]}
    order = dict.fromkeys(column["key"] for card in (a, b) for column in card["columns"])
    methods = dict.fromkeys(method["name"] for card in (a, b) for method in card["methods"])
    return [
        _change(a, b, method, columns[key], values_a, values_b)
        for key in order
        for method in methods
        if _stat(a, method, key) is not None or _stat(b, method, key) is not None
    ]


def _change(
    a: dict[str, Any],
    b: dict[str, Any],
    method: str,
    column: dict[str, Any],
    values_a: Measured,
    values_b: Measured,
) -> Change:
    key = column["key"]
    before, after = _stat(a, method, key), _stat(b, method, key)
    label = _label(a, method) or _label(b, method) or method
    why = _obstacle(a, b, key, before, after)
    if why or before is None or after is None:
        return Change(method, label, column, before, after, None, False, "not comparable", why)
    pair = _paired(values_behind(values_a, method, key, before), values_behind(values_b, method, key, after))
    change = pair or independent_difference(before, after)
    verdict = verdict_of(change, column["direction"])
    return Change(method, label, column, before, after, change, pair is not None, verdict)


def _obstacle(a: dict[str, Any], b: dict[str, Any], key: str, before: Stat | None, after: Stat | None) -> str:
    if not known(before):
        return "only in B"
    if not known(after):
        return "only in A"
    one, two = _column(a, key), _column(b, key)
    if (one["detail"], one["direction"]) != (two["detail"], two["direction"]):
        return f"measured differently: {one['detail']}; {two['detail']}"
    return ""


def _paired(a: Column | None, b: Column | None) -> dict[str, Any] | None:
    """b - a over the examples both have a value of, or None where there are not two of them."""
    if a is None or b is None:
        return None
    both = [(a[i], b[i]) for i in a if i in b and a[i] is not None and b[i] is not None]
    if len(both) < 2:
        return None
    return _as_stat(paired_difference([y for _, y in both], [x for x, _ in both]))


def _as_stat(found: Interval) -> dict[str, Any]:
    return {"value": found.value, "low": found.low, "high": found.high, "n": found.n}


def _sentence(
    a: dict[str, Any], b: dict[str, Any], changes: Sequence[Change], values: tuple[Measured, ...]
) -> str:
    """What changed in one line: for each group its first column, averaged over the methods both audits have."""
    clauses: list[str] = []
    for group in WORDS:
        shared = _first_column(changes, group)
        if shared:
            change = _averaged(shared, values)
            words = _words(group, verdict_of(change, shared[0].column["direction"]), first=not clauses)
            clauses.append(f"{words}: {signed(change)}")
    if known(a["accuracy"]) and known(b["accuracy"]):
        clauses.append(f"accuracy {signed(independent_difference(a['accuracy'], b['accuracy']))}")
    if not clauses:
        return "The two audits have no method and column in common, so nothing can be compared."
    unclear = clauses[0].startswith(("no clear", "accuracy"))
    return f"{'B against A:' if unclear else 'B is'} {'; '.join(clauses)}."


def _words(group: str, verdict: Verdict, first: bool) -> str:
    where = WORDS[group][2]
    if verdict not in ("better", "worse"):
        return f"no clear difference {where}"
    word = WORDS[group][verdict == "worse"] + (" than A" if first else "")
    return word if group == "faithfulness" else f"{word} {where}"


def _first_column(changes: Sequence[Change], group: str) -> list[Change]:
    """The comparable changes of the group's first column."""
    comparable = [each for each in changes if each.column["group"] == group and each.change is not None]
    return [each for each in comparable if each.column["key"] == comparable[0].column["key"]]


def _averaged(shared: list[Change], values: tuple[Measured, ...]) -> dict[str, Any]:
    """The mean change over methods. Pairs are averaged within each example; else the bounds are averaged,

    which is right if the methods err together and wide if they do not.
    """
    if all(each.paired for each in shared):
        key = shared[0].column["key"]
        sides = [
            _mean_column([values_behind(side, each.method, key, stat) for each, stat in stats])
            for side, stats in zip(
                values, ([(e, e.a) for e in shared], [(e, e.b) for e in shared]), strict=True
            )
        ]
        pair = _paired(*sides)
        if pair is not None:
            return pair
    found = [each.change for each in shared if each.change is not None]
    ends = {key: [change[key] for change in found] for key in ("value", "low", "high")}
    return {key: None if None in row else sum(row) / len(row) for key, row in ends.items()} | {"n": None}


def _mean_column(columns: list[Column | None]) -> Column:
    """Each example's mean over the methods; left out where one of them has no value."""
    held = [column for column in columns if column is not None]
    shared = [i for i in held[0] if all(column.get(i) is not None for column in held)]
    return {i: sum(column[i] or 0.0 for column in held) / len(held) for i in shared}


def _notes(a: dict[str, Any], b: dict[str, Any], changes: Sequence[Change]) -> list[str]:
    notes = [
        f"{name}'s audit was interrupted." for name, card in (("A", a), ("B", b)) if card["complete"] is False
    ]
    if not same_data(a, b):
        notes.append(
            f"A was measured on {_data(a)} and B on {_data(b)}: a difference may come from the images, not the model."
        )
    if a["model"]["sha256"] is not None and a["model"]["sha256"] == b["model"]["sha256"]:
        notes.append("Both audits are of the same weights: what changed is how they were measured.")
    for method in {each.method: None for each in changes}:
        one, two = (_method(card, method).get("settings") for card in (a, b))
        if one is not None and two is not None and one != two:
            notes.append(f"{method} has other settings in B ({two}) than in A ({one}).")
    lost = {each.column["label"]: each.why for each in changes if each.why.startswith("measured differently")}
    return [*notes, *(f"{label}: {why}." for label, why in lost.items())]


def _data(card: dict[str, Any]) -> str:
    digest = (card["data"]["sha256"] or "unknown")[:8]
    return f"{card['data']['source']} ({counted_images(card['data']['images'])}, sha256 {digest})"


def _charts(found: Comparison) -> list[Chart]:
    """A panel a column: each method's change with its interval."""
    keys = dict.fromkeys(each.column["key"] for each in found.changes if each.change is not None)
    panels = []
    for index, key in enumerate(keys):
        mine = [each for each in found.changes if each.column["key"] == key and each.change is not None]
        points = [(each.label, each.change or {}, each.verdict) for each in mine]
        panels.append(change_chart(f"change-{index}", mine[0].column, points))
    return panels


def _tables(found: Comparison) -> list[tuple[dict[str, Any], list[Change]]]:
    keys = dict.fromkeys(each.column["key"] for each in found.changes)
    by_key = [[each for each in found.changes if each.column["key"] == key] for key in keys]
    return [(changes[0].column, changes) for changes in by_key]


def _stat(card: dict[str, Any], method: str, key: str) -> dict[str, Any] | None:
    stat: dict[str, Any] | None = _method(card, method).get("columns", {}).get(key)
    return stat if known(stat) and _column(card, key) else None


def _method(card: dict[str, Any], name: str) -> dict[str, Any]:
    return next((method for method in card["methods"] if method["name"] == name), {})


def _column(card: dict[str, Any], key: str) -> dict[str, Any]:
    return next((column for column in card["columns"] if column["key"] == key), {})


def _label(card: dict[str, Any], method: str) -> str | None:
    return _method(card, method).get("label")


def _about(card: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": card["model"],
        "data": {key: card["data"][key] for key in ("source", "images", "sha256")},
        "grade": card["verdict"]["grade"],
        "accuracy": card["accuracy"],
    }


def _plain(change: Change) -> dict[str, Any]:
    return {
        "method": change.method,
        "column": change.column["key"],
        "a": change.a,
        "b": change.b,
        "change": change.change,
        "paired": change.paired,
        "verdict": change.verdict,
        "why": change.why,
    }


def table_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Method, column, A, B, B - A, verdict of what both audits have, as the terminal shows them.

    Why something was measured differently is among the notes; the page has every interval.
    """
    return [
        (
            each.label,
            each.column["label"],
            number((each.a or {}).get("value")),
            number((each.b or {}).get("value")),
            signed(each.change),
            each.why.partition(":")[0] or f"{each.verdict}{', paired' if each.paired else ''}",
        )
        for each in shared_changes(found)
    ]


def shared_changes(found: Comparison) -> list[Change]:
    """The changes of which both audits have a value."""
    return [each for each in found.changes if known(each.a) and known(each.b)]


def one_sided(found: Comparison) -> list[str]:
    """A sentence for what only one of the audits has: whole methods by their name, else their columns."""
    sentences = []
    for letter in "AB":
        alone = [each for each in found.changes if each.why == f"only in {letter}"]
        shared = {each.method for each in shared_changes(found)}
        whole = dict.fromkeys(each.label for each in alone if each.method not in shared)
        parts = [f"{each.column['label']} of {each.label}" for each in alone if each.method in shared]
        names = [*whole, *parts]
        sentences += [f"Only in {letter}: {', '.join(names)}."] if names else []
    return sentences
