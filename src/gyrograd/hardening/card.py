"""The before/after card of `harden`: as JSON, as Markdown, and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyrograd import progress, reporting
from gyrograd.audit import Card, Preset
from gyrograd.hardening.scores import MethodScore, best_score, method_scores
from gyrograd.hardening.search import Try, strength_in_words
from gyrograd.numerics.statistics import Interval, Stat
from gyrograd.numerics.wording import UNKNOWN, interval_text, radius_text
from gyrograd.records import JsonObject
from gyrograd.reporting.showcase import two_models
from gyrograd.reporting.wording import overlap
from gyrograd.training.building import Split
from gyrograd.training.tables import Table, difference, interval, plain

CARD = "card.json"
SCHEMA = 2
EXPLAINED = (
    "The steady radius is how far pixels may change before an attacker has moved half of the map's top pixels; the "
    "share of them that stays is the mean over the radii attacked."
)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of a hardening run. `after` is None if every try lost too much accuracy.

    accuracy: 0 or 1 per test image, before and after. seconds: training time of all tries.
    """

    source: str
    split: Split
    settings: Mapping[str, Any]
    preset: Preset
    limit: float
    tries: Sequence[Try]
    chosen: Try | None
    before: Card
    after: Card | None
    accuracy: tuple[Sequence[float | None], Sequence[float | None]]
    seconds: float
    notes: Sequence[str]
    kept: Mapping[float, float]
    """Share of the best map's top pixels that stays, by strength, for the audited tries."""

    @property
    def gain(self) -> Interval | None:
        """Paired difference, after - before, of the share of the best map's top pixels that stays."""
        if self.after is None:
            return None
        return difference(best_score(self.after, self.preset).kept, best_score(self.before, self.preset).kept)

    @property
    def better(self) -> bool:
        """True if the interval of the gain lies above zero."""
        return self.gain is not None and self.gain.low > 0


def card_of(found: Outcome) -> JsonObject:
    """The card as a JSON document."""
    before = best_score(found.before, found.preset)
    after = None if found.after is None else best_score(found.after, found.preset)
    columns = {
        "accuracy": _paired_row("accuracy", found.accuracy[0], found.accuracy[1] if after else None),
        "steady_radius": {
            "label": "steady radius of the best explanation, of 255",
            "before": before.radius,
            "after": after.radius if after else None,
            "difference": None,
        },
        "kept": _paired_row("its top pixels kept under attack", before.kept, after.kept if after else None),
        "insertion": _paired_row("its Insertion", before.insertion, after.insertion if after else None),
    }
    return {
        "schema": SCHEMA,
        "kind": "harden",
        "model": found.source,
        "data": found.split.train.name,
        "judged_on": found.split.how,
        "images": {
            "learnt": len(found.split.train),
            "judged": len(found.split.test),
            "attacked": len(before.kept),
        },
        "max_accuracy_loss": found.limit,
        "better": found.better,
        "chosen": found.chosen.strength if found.chosen is not None and found.better else None,
        "best": {"before": before.label, "after": after.label if after else None},
        "verdict": _verdict(found, before, after),
        "columns": columns,
        "methods": _methods(found),
        "tries": [
            vars(one)
            | {
                "kept": found.kept.get(one.strength),
                "words": strength_in_words(found.settings["terms"], one.strength),
            }
            for one in found.tries
        ],
        "seconds": round(found.seconds, 1),
        "notes": list(found.notes),
        "settings": dict(found.settings),
    }


def card_table(card: Mapping[str, Any]) -> Table:
    """Table of before, after and difference: accuracy, then each method."""
    accuracy = card["columns"]["accuracy"]
    before, after = (_percent(accuracy[when]) for when in ("before", "after"))
    rows: list[tuple[str, ...]] = [("accuracy", before, after, _points(accuracy["difference"]))]
    for method in card["methods"]:
        mark = " *" if method["label"] in card["best"].values() else ""
        both = method["before"], method["after"] or {}
        kept = [_percent(each.get("kept")) for each in both]
        rows += [
            (f"{method['label']}{mark}", "", "", ""),
            ("  radius, /255", *(interval_text(each.get("radius"), ".1f") for each in both), ""),
            ("  top kept", *kept, _points(method["difference"])),
            ("  Insertion", *(interval_text(each.get("insertion"), ".3f") for each in both), ""),
        ]
    return Table(("", "before", "after", "change, points"), tuple(rows))


TRIED = ("try", "accuracy", "top kept", "")


def _try_rows(card: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """One table row per try."""
    rows = []
    for one in card["tries"]:
        kept = UNKNOWN if one["kept"] is None else f"{one['kept']:.1%}"
        mark = "" if one["holds"] else "loses too much accuracy"
        if one["strength"] == card["chosen"]:
            mark = "kept"
        rows.append((one["words"], f"{one['accuracy']:.1%}", kept, mark))
    return tuple(rows)


def _sample_sentence(card: Mapping[str, Any], mark: str) -> str:
    """The sentence about the number of images behind the numbers; `mark` is the sign at the recommended method."""
    counts = card["images"]
    return (
        f"Trained on {counts['learnt']:,} images of {_line(card['data'])}; accuracy on {counts['judged']:,} images "
        f"({_line(card['judged_on'])}), {counts['attacked']:,} of which are explained and attacked. Means with 95 % "
        f"bootstrap intervals; changes are paired, image by image. {mark}: the explanation the audit recommends."
    )


def card_text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    blocks = [
        f"# {_line(card['model'])}, hardened",
        "\n".join(f"- {sentence}" for sentence in card["verdict"]),
        f"{_sample_sentence(card, '`*`')} {EXPLAINED} The audits: `before/report.html`"
        + (", `after/report.html`." if card["best"]["after"] else "."),
        card_table(card).markdown(),
        "## Tries",
        Table(TRIED, _try_rows(card)).markdown(),
        "\n".join(["## Notes", "", *(f"- {_line(note)}" for note in card["notes"])]) if card["notes"] else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def card_page(card: Mapping[str, Any], found: Outcome) -> str:
    """The card as a page: the verdict, the recommended map before and after on one image, the numbers."""
    shown = None
    if found.after is not None:
        names = ("the net as it came", "the hardened net")
        audits = (found.before, found.after)
        documents, arrays = [audit.document for audit in audits], [audit.pictures for audit in audits]
        shown = two_models(names, documents, arrays, alike=True)
    table = card_table(card)
    sections = [
        reporting.Section(
            "Before and after",
            (_sample_sentence(card, "*"), f"{EXPLAINED} Every sentence here goes by these two."),
            reporting.Table(table.header, table.rows),
        ),
        reporting.Section("Tries", (), reporting.Table(TRIED, _try_rows(card), names=("",))),
    ]
    if card["notes"]:
        sections.append(reporting.Section("Notes", tuple(_line(note) for note in card["notes"])))
    paths = "before/report.html" + (" and after/report.html" if card["best"]["after"] else "")
    footer = (f"The audits: {paths}, next to this page. The same as text: card.md, as JSON: {CARD}.",)
    title = f"{_line(card['model'])}: before and after hardening"
    return reporting.page(title, tuple(card["verdict"]), tuple(sections), footer, shown)


def _verdict(found: Outcome, before: MethodScore, after: MethodScore | None) -> list[str]:
    """Sentences: what was gained and at what cost, or what to try if nothing was gained."""
    terms, limit = found.settings["terms"], f"{100 * found.limit:g} point{'' if found.limit == 0.01 else 's'}"
    start = mean(found.accuracy[0])
    lost = [(strength_in_words(terms, t.strength), 100 * (start - t.accuracy)) for t in found.tries]
    losses = ", ".join(
        f"{try_} {'loses' if x >= 0 else 'gains'} {abs(x):.1f} points of accuracy" for try_, x in lost
    )
    if after is None or found.chosen is None:
        return [
            f"No try kept accuracy within {limit} of {start:.1%}, and the model is as it was: {losses}.",
            f"Allow more (--max_accuracy_loss {2 * found.limit or 0.01:g}), train longer (--epochs "
            f"{2 * found.settings['epochs']}), try again from a smaller radius (--eps) or with another --lr.",
        ]
    gain = found.gain
    now, then = (_percent(plain(interval(held.kept))) for held in (after, before))
    stays = f"{now} of its top pixels stay, {then} before"
    change = difference(found.accuracy[1], found.accuracy[0])
    accuracies = f"{start:.1%} before, {found.chosen.accuracy:.1%} after"
    price = f"Accuracy {_change_clause(change)}: {accuracies}; the limit is {limit}."
    if change is not None and change.low > 0:
        price += " It rises: the model was not fully trained, and part of any gain may come from more training alone."
    if gain is None:
        return [
            "No attack had a derivative to follow, which says nothing about the explanations, so the model is "
            f"unchanged. {price}"
        ]
    if not found.better:
        return [
            "The explanations do not hold significantly further, so the model is unchanged: with "
            f"{after.label} {stays} ({_points(plain(gain))} points). {price}",
            *_others_that_gained(_methods(found), after.label),
            f"Try a larger radius (--eps {2 * found.chosen.strength:.3g}/255), more epochs (--epochs "
            f"{2 * found.settings['epochs']}) or a higher limit (--max_accuracy_loss {2 * found.limit or 0.01:g}); "
            "more --images make the intervals narrower.",
        ]
    largest = 255 * max(found.preset.radii)
    return [
        f"The explanations hold better under attack: averaged over the radii attacked, with {after.label} {stays} "
        f"({_points(plain(gain))} points).",
        f"Half of them stay up to {radius_text(after.radius, largest)}, before up to "
        f"{radius_text(before.radius, largest)} with {before.label}"
        f"{': intervals that overlap' if overlap(before.radius, after.radius) is not False else ''}.",
        price,
        f"Insertion of the map goes from {mean(before.insertion):.3f} to {mean(after.insertion):.3f} "
        f"({interval_text(difference(after.insertion, before.insertion), '+.3f')}).",
        f"Kept: {strength_in_words(terms, found.chosen.strength)}. Trained "
        f"{progress.duration_in_words(found.seconds)} in all: {losses}.",
    ]


def _methods(found: Outcome) -> list[JsonObject]:
    """Numbers per method, before and, if both audits have it, after."""
    after = {} if found.after is None else method_scores(found.after, found.preset)
    return [
        {
            "name": name,
            "label": held.label,
            "before": _numbers(held),
            "after": _numbers(after[name]) if name in after else None,
            "difference": plain(difference(after[name].kept, held.kept)) if name in after else None,
        }
        for name, held in method_scores(found.before, found.preset).items()
    ]


def _numbers(held: MethodScore) -> dict[str, Stat | None]:
    return {
        "radius": held.radius,
        "kept": plain(interval(held.kept)),
        "insertion": plain(interval(held.insertion)),
    }


def _paired_row(
    label: str, before: Sequence[float | None], after: Sequence[float | None] | None
) -> JsonObject:
    return {
        "label": label,
        "before": plain(interval(before)),
        "after": None if after is None else plain(interval(after)),
        "difference": None if after is None else plain(difference(after, before)),
    }


def _change_clause(change: Interval | None) -> str:
    """`falls by 0.7 points [0.2, 1.2]`."""
    if change is None or change.value == 0:
        return "stays as it was"
    word, sign = ("falls", -1) if change.value < 0 else ("rises", 1)
    ends = sorted(100 * sign * end for end in (change.low, change.high))
    return f"{word} by {100 * abs(change.value):.1f} points [{ends[0]:.1f}, {ends[1]:.1f}]"


def _percent(stat: Stat | None) -> str:
    return interval_text(stat, ".1f", scale=100, unit=" %")


def _points(stat: Stat | None) -> str:
    return interval_text(stat, "+.1f", scale=100)


def _others_that_gained(methods: Sequence[Mapping[str, Any]], recommended: str) -> list[str]:
    """A sentence about the maps that do hold further, if the recommended one does not."""
    gained = [
        f"{method['label']} ({_points(method['difference'])} points)"
        for method in methods
        if method["difference"] and method["difference"]["low"] > 0 and method["label"] != recommended
    ]
    if not gained:
        return []
    return [f"Other maps hold further: {', '.join(gained)}. The weights of every try are in tries/."]


def mean(values: Sequence[float | None]) -> float:
    """Mean of the known values; 0 if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) / max(1, len(present))


def _line(text: object) -> str:
    return " ".join(str(text).split())
