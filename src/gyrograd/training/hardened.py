"""The before/after card of `harden`: a document of plain values, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gyrograd.numerics.statistics import Interval
from gyrograd.records import Record
from gyrograd.training.splits import Split
from gyrograd.training.tables import Table, difference, interval, plain, shown, signed

CARD = "card.json"
SCHEMA = 1

COLUMNS = {
    "accuracy": "accuracy",
    "rps": "Grad RPS",
    "insertion": "Insertion",
    "pixels_kept": "pixels kept, attacked",
    "cosine_kept": "cosine kept, attacked",
}
"""What is measured, higher is better in all of them."""

PIECEWISE_LINEAR = (
    "The net is piecewise linear (ReLU): its gradient is constant between kinks and its second derivative to the "
    "input is zero. l2 and cosine train it all the same, since the gradient's derivative to the weights is not "
    "(joo2023, Second order derivatives); `hessian` could not."
)


def card_of(
    source: str,
    split: Split,
    settings: dict[str, Any],
    before: Record,
    after: Record,
    history: Sequence[Mapping[str, Any]],
    chosen: int,
    limit: float,
    remarks: Sequence[str],
) -> dict[str, Any]:
    """The card as JSON: columns before and after with intervals and paired differences, epochs, verdict, notes."""
    changes = {key: difference(after.values[key], before.values[key]) for key in COLUMNS}
    columns = {
        key: {
            "label": label,
            "before": plain(interval(before.values[key])),
            "after": plain(interval(after.values[key])),
            "difference": plain(changes[key]),
        }
        for key, label in COLUMNS.items()
    }
    epochs = [{key: entry[key] for key in ("epoch", "accuracy", "rps", "seconds")} for entry in history]
    return {
        "schema": SCHEMA,
        "kind": "harden",
        "model": source,
        "data": split.train.name,
        "judged_on": split.how,
        "images": {"learnt": len(split.train), "judged": len(split.test)},
        "max_accuracy_loss": limit,
        "chosen_epoch": chosen,
        "verdict": _verdict(columns, changes, epochs, chosen, limit),
        "columns": columns,
        "epochs": epochs,
        "notes": _notes(remarks),
        "settings": settings,
    }


def card_table(card: Mapping[str, Any]) -> Table:
    """Before, after and the difference, a row for each column."""
    rows = [
        (c["label"], shown(_found(c["before"])), shown(_found(c["after"])), signed(_found(c["difference"])))
        for c in card["columns"].values()
    ]
    return Table(("", "before", "after", "difference"), tuple(rows))


def card_text(card: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    epochs = Table(
        ("epoch", "accuracy", "Grad RPS", ""),
        tuple(
            (
                str(e["epoch"]),
                f"{e['accuracy']:.3f}",
                f"{e['rps']:.3f}",
                _mark(e["epoch"], card["chosen_epoch"]),
            )
            for e in card["epochs"]
        ),
    )
    counts = card["images"]
    blocks = [
        f"# {_line(card['model'])}, hardened",
        "\n".join(f"- {sentence}" for sentence in card["verdict"]),
        f"Learnt from {counts['learnt']:,} images of {_line(card['data'])}; judged on {counts['judged']:,}: "
        f"{_line(card['judged_on'])}. Means over images with 95 % bootstrap intervals; differences are "
        "paired, image by image. The explanation is the gradient of the label's logit; Grad RPS is its cosine under "
        "noise, the last rows are the share of its largest tenth of pixels and the cosine that an attack leaves of it.",
        card_table(card).markdown(),
        "## Epochs",
        epochs.markdown(),
        "\n".join(["## Notes", "", *(f"- {_line(note)}" for note in card["notes"])]) if card["notes"] else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _verdict(
    columns: Mapping[str, Any],
    changes: Mapping[str, Interval | None],
    epochs: Sequence[Mapping[str, Any]],
    chosen: int,
    limit: float,
) -> list[str]:
    start = columns["accuracy"]["before"]["value"]
    beyond = [entry for entry in epochs if start - entry["accuracy"] > limit + 1e-9]
    sentences = [
        _change("Explanations under noise", changes["rps"]),
        _change("Under attack", changes["cosine_kept"]),
    ]
    if chosen == 0:
        sentences = [
            "No epoch within the limit held stiller than the model as it came, which is kept; try more epochs, another "
            "lr, larger weights of l2 and cosine, or a larger max_accuracy_loss."
        ]
    else:
        sentences.append(f"Accuracy {signed(changes['accuracy'])}; the limit of its loss is {limit:g}.")
    if beyond:
        lost = start - beyond[0]["accuracy"]
        sentences.append(
            f"Stopped after epoch {beyond[0]['epoch']}, which lost {lost:.3f} of accuracy, more than the {limit:g} "
            "allowed."
        )
    return sentences


def _change(what: str, change: Interval | None) -> str:
    if change is None:
        return f"{what} nothing could be measured."
    word = "hold stiller" if change.value > 0 else "move more"
    if not change.excludes_zero:
        word = "hold no stiller for certain"
    return (
        f"{what} they {word}: {signed(change)}."
        if what == "Under attack"
        else f"{what} {word}: {signed(change)}."
    )


def _notes(remarks: Sequence[str]) -> list[str]:
    flat = any(remark.startswith("piecewise linear") for remark in remarks)
    return [*([PIECEWISE_LINEAR] if flat else []), *remarks]


def _found(stat: Mapping[str, Any] | None) -> Interval | None:
    if stat is None:
        return None
    low, high = (float("nan") if stat[key] is None else stat[key] for key in ("low", "high"))
    return Interval(low, stat["value"], high, stat["n"])


def _mark(epoch: int, chosen: int) -> str:
    return "chosen" if epoch == chosen else ""


def _line(text: object) -> str:
    return " ".join(str(text).split())
