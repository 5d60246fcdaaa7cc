"""Compare two audits: the change from the first to the second per method and column, with intervals.

The main number is how far the recommended explanation of each model holds under attack (its steady radius, else the
share of top pixels kept). Nothing is averaged over methods, because a mean would hide a method that lost: improvements
and losses are listed per column, with their methods. Values of the same example are compared in pairs if both audits
stored them; otherwise the two means are treated as independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI, paired_difference
from gyrograd.numerics.wording import eps_text, interval_text, number, radius_text
from gyrograd.records import JsonObject
from gyrograd.reporting.charts import change_chart
from gyrograd.reporting.page import render_template
from gyrograd.reporting.pictures import load_arrays
from gyrograd.reporting.schema import (
    HOLLOW,
    MASKED,
    AuditCard,
    CardColumn,
    attack_radii,
    card_path,
    read_card,
    version_of,
)
from gyrograd.reporting.showcase import Showcase, two_models
from gyrograd.reporting.table import GROUPS
from gyrograd.reporting.values import OF_MODEL, Column, StoredValues, read_values, values_behind
from gyrograd.reporting.wording import Stat, counted_images, is_known, signed_text

Verdict = Literal["better", "worse", "no clear change", "not comparable"]
TITLES = ("Improved", "Got worse", "Better for some methods, worse for others")
YARDSTICKS = ("steady_radius", "top_k_kept")
"""Columns that measure how far an explanation holds, the best first."""
MAX_LISTED = 4
"""Columns that a note names."""


@dataclass(frozen=True)
class Change:
    """Second minus first of one method and column.

    why: the reason if they cannot be compared. only: the name of the audit that has it, if the other does not.
    """

    method: str
    label: str
    column: CardColumn
    a: Stat | None
    b: Stat | None
    change: Stat | None
    paired: bool
    verdict: Verdict
    why: str = ""
    only: str = ""


@dataclass(frozen=True)
class Finding:
    """A column with a significant change: the methods that got better and worse, and the number of methods."""

    column: CardColumn
    better: tuple[Change, ...]
    worse: tuple[Change, ...]
    methods: int

    @property
    def sentence(self) -> str:
        """Such as "Deletion: worse for 2 of 4 methods (Gradient +0.020 [+0.010, +0.030], LRP ...)"."""
        parts = [
            f"{word} for {len(changes)} of {self.methods} method{'s' if self.methods > 1 else ''} "
            f"({', '.join(f'{each.label} {signed_text(each.change)}' for each in changes)})"
            for word, changes in (("better", self.better), ("worse", self.worse))
            if changes
        ]
        return f"{self.column['label']}: {'; '.join(parts)}"


@dataclass(frozen=True)
class Comparison:
    """Two audits, their names, and the changes from the first to the second."""

    a: AuditCard
    b: AuditCard
    names: tuple[str, str]
    sentence: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    pictures: Showcase | None = None

    @property
    def findings(self) -> dict[str, list[Finding]]:
        """Columns with a significant change, by the headings of `TITLES`."""
        found: dict[str, list[Finding]] = {title: [] for title in TITLES}
        order = [*YARDSTICKS, *(each.column["key"] for each in self.changes)]
        for column, changes in sorted(by_column(self.changes), key=lambda row: order.index(row[0]["key"])):
            better = tuple(each for each in changes if each.verdict == "better")
            worse = tuple(each for each in changes if each.verdict == "worse")
            comparable = sum(each.change is not None for each in changes)
            if better or worse:
                title = TITLES[2] if better and worse else TITLES[0] if better else TITLES[1]
                found[title].append(Finding(column, better, worse, comparable))
        return found

    @property
    def absent(self) -> str:
        """The sentence if nothing improved, or nothing got worse."""
        found = self.findings
        improved, worse = found[TITLES[0]] or found[TITLES[2]], found[TITLES[1]] or found[TITLES[2]]
        if not improved and not worse:
            return "Nothing improved and nothing got worse for certain."
        return "" if improved and worse else f"Nothing {'got worse' if improved else 'improved'} for certain."

    def document(self) -> JsonObject:
        """The comparison as plain JSON values."""
        return {
            "a": _about(self.a) | {"name": self.names[0]},
            "b": _about(self.b) | {"name": self.names[1]},
            "sentence": self.sentence,
            "findings": {
                title: [finding.sentence for finding in found] for title, found in self.findings.items()
            },
            "notes": list(self.notes),
            "changes": [
                {key: value for key, value in vars(each).items() if key not in ("label", "only")}
                | {"column": each.column["key"]}
                for each in self.changes
            ],
        }


@dataclass(frozen=True)
class ComparedAudit:
    """One of the two audits: its name, its card, and its values per example."""

    name: str
    card: AuditCard
    values: StoredValues

    def method(self, name: str) -> Mapping[str, Any]:
        """The row of a method; empty if the audit does not have it."""
        return next((method for method in self.card["methods"] if method["name"] == name), {})

    def column(self, key: str) -> Mapping[str, Any]:
        """The column with this key; empty if the audit does not have it."""
        return next((column for column in self.card["columns"] if column["key"] == key), {})

    def stat(self, method: str, key: str) -> Stat | None:
        """The known value of a method in a column, else None."""
        stat: Stat | None = self.method(method).get("columns", {}).get(key)
        return stat if is_known(stat) and self.column(key) else None

    @property
    def data(self) -> str:
        """The images in words."""
        data = self.card["data"]
        digest = (data["sha256"] or "unknown")[:8]
        return f"{data['source']} ({counted_images(data['images'])}, sha256 {digest})"

    def recommended(self, key: str) -> tuple[str, Stat] | None:
        """The label of the recommended method, and its number in this column."""
        for method in self.card["methods"]:
            stat = self.stat(method["name"], key)
            if method["recommended"] and stat is not None:
                return method["label"] or method["name"], stat
        return None

    def held_clause(self, key: str, label: str, stat: Stat) -> str:
        """How far an explanation holds, by a column of `YARDSTICKS`, as a clause."""
        if key != "steady_radius":
            kept = interval_text(stat, ".0f", scale=100, unit=" %")
            return f"{label} on {self.name} keeps {kept} of its top pixels under attack"
        settings = self.card["settings"] or {}
        radii = [settings.get("eps"), *(settings.get("curve") or ())]
        largest = max((255 * eps for eps in radii if isinstance(eps, float | int)), default=math.inf)
        radius = radius_text(stat, largest)
        return f"{label} on {self.name} keeps half of its top pixels up to {radius} under attack"


def compare_audits(a: Path, b: Path) -> Comparison:
    """Compare two audits, given by their folders or card.json."""
    cards = read_card(a), read_card(b)
    folders = [card_path(place).parent for place in (a, b)]
    values = tuple(read_values(folder) for folder in folders)
    same = same_data(*cards)
    if not same:
        values = ({}, {})  # the same example number is another image in each audit
    names = names_of(cards, (a, b))
    first, second = map(ComparedAudit, names, cards, values)
    changes = tuple(_changes(first, second))
    arrays = [load_arrays(card["pictures"], folder) for card, folder in zip(cards, folders, strict=True)]
    pictures = two_models(names, cards, arrays, same)
    sentence, notes = _sentence(first, second, changes), tuple(_notes(first, second, changes))
    return Comparison(*cards, names, sentence, notes, changes, pictures)


def names_of(cards: tuple[AuditCard, AuditCard], places: tuple[Path, Path]) -> tuple[str, str]:
    """Names of the two audits: their models; files of one folder without it, models of the same name with the folders
    of their audits."""
    one, two = (str(card["model"]["source"]) for card in cards)
    if one == two:
        one, two = (f"{one} ({card_path(place).parent.name})" for place in places)
    files = Path(one), Path(two)
    if files[0].suffix and files[0].suffix == files[1].suffix and files[0].parent == files[1].parent:
        one, two = (file.stem for file in files)
    return (one, two) if one != two else (f"{one}, first", f"{two}, second")


def same_data(a: AuditCard, b: AuditCard) -> bool:
    """True if both audits used the same images, by their hash."""
    return a["data"]["sha256"] is not None and a["data"]["sha256"] == b["data"]["sha256"]


def comparison_page(found: Comparison) -> str:
    """The comparison as an HTML page, with one chart per column: each method's change with its interval."""
    charts = []
    for index, (column, changes) in enumerate(by_column([each for each in found.changes if each.change])):
        points = [(each.label, each.change or {}, each.verdict) for each in changes]
        charts.append(change_chart(f"change-{index}", column, points))
    return render_template(
        "compare", found=found, charts=charts, groups=by_column(found.changes), kinds=GROUPS
    )


def independent_difference(a: Stat, b: Stat) -> Stat:
    """b - a of two independent means from their own intervals (Zou and Donner 2008, "MOVER")."""
    value = b["value"] - a["value"]
    if any(stat[end] is None for stat in (a, b) for end in ("low", "high")):
        return {"value": value, "low": None, "high": None, "n": None}
    down = math.hypot(b["value"] - b["low"], a["high"] - a["value"])
    up = math.hypot(b["high"] - b["value"], a["value"] - a["low"])
    return {"value": value, "low": value - down, "high": value + up, "n": None}


def verdict_of(change: Stat, direction: str) -> Verdict:
    """Better or worse if the interval excludes zero, by the direction of the column."""
    low, high = change["low"], change["high"]
    if low is None or high is None or low <= 0 <= high:
        return "no clear change"
    return "better" if (low > 0) == (direction == "higher") else "worse"


def _changes(a: ComparedAudit, b: ComparedAudit) -> list[Change]:
    """The changes of all methods and columns of either audit, in the order of the first."""
    columns = {column["key"]: column for each in (b, a) for column in each.card["columns"]}
    order = dict.fromkeys(column["key"] for each in (a, b) for column in each.card["columns"])
    methods = dict.fromkeys(method["name"] for each in (a, b) for method in each.card["methods"])
    return [
        _change(a, b, method, columns[key])
        for key in order
        for method in methods
        if a.stat(method, key) is not None or b.stat(method, key) is not None
    ]


def _change(a: ComparedAudit, b: ComparedAudit, method: str, column: CardColumn) -> Change:
    key = column["key"]
    before, after = a.stat(method, key), b.stat(method, key)
    label = a.method(method).get("label") or b.method(method).get("label") or method
    one, two = ((each.column(key).get("detail"), each.column(key).get("direction")) for each in (a, b))
    radii = [attack_radii(each.card, column) for each in (a, b)]
    change, paired, why, only = None, False, "", ""
    if before is None or after is None:
        only = b.name if before is None else a.name
        why = f"only in {only}"
    elif one != two:
        why = f"measured differently: {one[0]}; {two[0]}"
    elif radii[0] != radii[1]:
        texts = (", ".join(eps_text(eps) for eps in each) for each in radii)
        why = f"measured differently: attacked at {'; at '.join(texts)}"
    else:
        pair = _paired_change(
            values_behind(a.values, method, key, before), values_behind(b.values, method, key, after)
        )
        change, paired = pair or independent_difference(before, after), pair is not None
    verdict = "not comparable" if change is None else verdict_of(change, column["direction"])
    return Change(method, label, column, before, after, change, paired, verdict, why, only)


def _paired_change(a: Column | None, b: Column | None) -> Stat | None:
    """b - a over the examples that have both values; None if there are fewer than two."""
    if a is None or b is None:
        return None
    both = [(a[i], b[i]) for i in a if i in b and a[i] is not None and b[i] is not None]
    if len(both) < 2:
        return None
    return paired_difference([y for _, y in both], [x for x, _ in both]).plain()


def _sentence(a: ComparedAudit, b: ComparedAudit, changes: Sequence[Change]) -> str:
    """Which model holds further with its recommended explanation, and the change of accuracy."""
    verdicts = [each.verdict for each in changes if each.change is not None]
    if not verdicts:
        return "The two audits have no method and column in common, so nothing can be compared."
    clause = _compare_recommended(a, b, changes) or (
        f"Of {len(verdicts)} numbers that both audits have, {b.name} is better in {verdicts.count('better')} and "
        f"worse in {verdicts.count('worse')}"
    )
    before, after = a.card["accuracy"], b.card["accuracy"]
    if is_known(before) and is_known(after):
        right = (
            values_behind(a.values, OF_MODEL, "accuracy", before),
            values_behind(b.values, OF_MODEL, "accuracy", after),
        )
        clause += f"; accuracy {signed_text(_paired_change(*right) or independent_difference(before, after))}"
    return f"{clause}."


def _compare_recommended(a: ComparedAudit, b: ComparedAudit, changes: Sequence[Change]) -> str | None:
    """Compare the recommended explanations of both models by the first of `YARDSTICKS` that both audits have."""
    comparable = {each.column["key"] for each in changes if each.change is not None}
    for key in YARDSTICKS:
        one, two = a.recommended(key), b.recommended(key)
        if one is None or two is None or key not in comparable:
            continue
        first, second = a.held_clause(key, *one), b.held_clause(key, *two)
        verdict = verdict_of(independent_difference(one[1], two[1]), "higher")
        if verdict == "no clear change":
            return f"Neither holds clearly further: {first}; {second}"
        return f"{b.name} holds {'further' if verdict == 'better' else 'less far'}: {second}; {first}"
    return None


def _notes(a: ComparedAudit, b: ComparedAudit, changes: Sequence[Change]) -> list[str]:
    notes = [
        f"The audit of {each.name} was interrupted." for each in (a, b) if each.card["complete"] is False
    ]
    for each in (a, b):
        doubts: dict[str, list[str]] = {}
        for flag in each.card["flags"] or ():
            if flag["name"] in HOLLOW | MASKED:
                doubts.setdefault(flag["where"] or "", []).append(flag["name"].replace("_", " "))
        if doubts:
            listed = "; ".join(f"{where} ({', '.join(names)})" for where, names in doubts.items())
            notes.append(
                f"Flagged for {each.name}: {listed}. Such a map holds still, or seems to, for a reason of its own: its "
                "numbers do not show that it is better."
            )
    if not same_data(a.card, b.card):
        notes.append(
            f"{a.name} was measured on {a.data} and {b.name} on {b.data}: a difference may come from the images, not "
            "the model."
        )
    made_by = [version_of(each.card) for each in (a, b)]
    if None not in made_by and made_by[0] != made_by[1]:
        notes.append(
            f"{a.name} was measured by gyrograd {made_by[0]} and {b.name} by {made_by[1]}: a difference may come from "
            "the version, not the model."
        )
    weights = a.card["model"]["sha256"]
    if weights is not None and weights == b.card["model"]["sha256"]:
        notes.append("Both audits are of the same weights: what changed is how they were measured.")
    for method in dict.fromkeys(each.method for each in changes):
        one, two = (each.method(method).get("settings") for each in (a, b))
        if one is not None and two is not None and one != two:
            notes.append(f"{method} has other settings for {b.name} ({two}) than for {a.name} ({one}).")
    few = {
        each.column["label"]
        for each in changes
        if each.change is not None
        and any(0 < (stat["n"] or 0) < MIN_IMAGES_FOR_CI for stat in (each.a, each.b, each.change) if stat)
    }
    if few:
        every = sorted(few)
        labels = ", ".join(every[:MAX_LISTED]) + (", ..." if len(every) > MAX_LISTED else "")
        notes.append(
            f"Fewer than {MIN_IMAGES_FOR_CI} images, over which intervals are too narrow to go by: {labels}."
        )
    lost = {each.column["label"]: each.why for each in changes if each.why.startswith("measured differently")}
    return [*notes, *(f"{label}: {why}." for label, why in lost.items())]


def by_column(changes: Sequence[Change]) -> list[tuple[CardColumn, list[Change]]]:
    """The changes of each column, in order."""
    keys = dict.fromkeys(each.column["key"] for each in changes)
    by_key = [[each for each in changes if each.column["key"] == key] for key in keys]
    return [(mine[0].column, mine) for mine in by_key]


def _about(card: AuditCard) -> JsonObject:
    return {
        "model": card["model"],
        "data": {key: card["data"][key] for key in ("source", "images", "sha256")},
        "grade": card["verdict"]["grade"],
        "accuracy": card["accuracy"],
    }


def table_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Rows for the terminal: method, column, first, second, change, verdict; only numbers that both audits have.

    The notes say what was measured differently; the page has every interval.
    """
    return [
        (
            each.label,
            each.column["label"],
            number((each.a or {}).get("value")),
            number((each.b or {}).get("value")),
            signed_text(each.change),
            each.why.partition(":")[0] or f"{each.verdict}{', paired' if each.paired else ''}",
        )
        for each in shared_changes(found)
    ]


def shared_changes(found: Comparison) -> list[Change]:
    """The changes for which both audits have a value."""
    return [each for each in found.changes if is_known(each.a) and is_known(each.b)]


def one_sided(found: Comparison) -> list[str]:
    """One sentence per method, or column of a method, that only one of the audits has."""
    sentences = []
    for name in found.names:
        alone = [each for each in found.changes if each.only == name]
        shared = {each.method for each in shared_changes(found)}
        whole = dict.fromkeys(each.label for each in alone if each.method not in shared)
        parts = [f"{each.column['label']} of {each.label}" for each in alone if each.method in shared]
        listed = [*whole, *parts]
        sentences += [f"Only in {name}: {', '.join(listed)}."] if listed else []
    return sentences
