"""The pictures next to a verdict: image, map, and map after the worst attack, for one or two explanations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gyrograd.numerics.wording import eps_text, number
from gyrograd.reporting.figures import Array
from gyrograd.reporting.pictures import Views, attack_pictures, scale_bar, sign_bar

Arrays = Mapping[str, Array]

VIEWS = {"overlay": "over the image", "map": "the map alone", "sign": "with its sign"}
"""Labels of the views that can be switched."""


@dataclass(frozen=True)
class ShowcaseRow:
    """One explanation: a picture with its caption at the left, then the map before and after with their captions."""

    picture: str
    alt: str
    caption: tuple[str, ...]
    title: str
    views: Views
    after: str


@dataclass(frozen=True)
class Showcase:
    """Rows with one switch between views, and a colour bar per view."""

    heading: str
    rows: tuple[ShowcaseRow, ...]
    scale: str = field(default_factory=scale_bar)
    signs: str = field(default_factory=sign_bar)

    @property
    def available_views(self) -> dict[str, str]:
        """The views that at least one row has."""
        return {name: words for name, words in VIEWS.items() if any(name in row.views for row in self.rows)}


def showcase(heading: str, rows: Sequence[ShowcaseRow]) -> Showcase | None:
    """A showcase of the rows; None if there are none."""
    return Showcase(heading, tuple(rows)) if rows else None


def stays(kept: float | None) -> str:
    """The effect of an attack in words: `3 % of its top pixels stay`."""
    return "attacked" if kept is None else f"{kept * 100:.0f} % of its top pixels stay"


def change_words(eps: float | None) -> str:
    """The caption of a picture of a difference."""
    if eps is None:
        return "black and white are the largest change"
    return f"at most {eps_text(eps)} per pixel, drawn {0.5 / eps:.0f} times as strong"


def image_name(facts: Mapping[str, Any]) -> str:
    """The name of an attacked image, or its number if it has none."""
    return str(facts.get("name") or f"image {facts['example']}")


def prediction_words(found: Mapping[str, Any] | None) -> str:
    """`tabby, 0.912`."""
    return f"{found['label']}, {number(found['probability'])}" if found else "class not known"


def two_models(
    names: Sequence[str], cards: Sequence[Mapping[str, Any]], arrays: Sequence[Arrays | str], alike: bool
) -> Showcase | None:
    """Each model's recommended explanation under its worst attack, on the same image if both audits show one.

    `alike`: both audits used the same images. An audit without pictures has no row.
    """
    found = [
        _recommended_attacks(card) if not isinstance(own, str) else {}
        for card, own in zip(cards, arrays, strict=True)
    ]
    shared = [example for example in found[0] if alike and example in found[1]]
    rows = []
    for name, own, held in zip(names, arrays, found, strict=True):
        if not held or isinstance(own, str):
            continue
        shown = held[shared[0] if shared else next(iter(held))]
        facts, image = shown.facts, image_name(shown.facts)
        pictures = attack_pictures(dict(own), facts["row"], facts["eps"])
        if pictures is not None:
            views = pictures.best if shown.is_beside and pictures.best is not None else pictures.views
            caption = (Path(image).name, prediction_words(facts["before"]))
            title = f"{shown.label} on {name}"
            rows.append(
                ShowcaseRow(pictures.image, f"The image {image}", caption, title, views, stays(shown.kept))
            )
    same = "The same image" if shared else "The worst attacks found"
    return showcase(f"{same}: the recommended map before and after an attack that keeps the class", rows)


class _AttackedMethod(NamedTuple):
    """An attack on the recommended method: its facts on the card, the method's label, and the share kept."""

    facts: Mapping[str, Any]
    label: str
    kept: float | None
    is_beside: bool
    """True if the attack is on another method, with the recommended one beside it."""


def _recommended_attacks(card: Mapping[str, Any]) -> dict[int, _AttackedMethod]:
    """The attacks on the recommended method, by example."""
    labels = {method["name"]: method["label"] or method["name"] for method in card["methods"]}
    chosen = next((method["name"] for method in card["methods"] if method["recommended"]), None)
    found = {}
    for facts in card["worst"] or ():
        best = facts.get("best")
        if best is not None or chosen is None or facts["method"] == chosen:
            shown = facts if best is None else best
            label = labels.get(shown["method"], shown["method"])
            found[facts["example"]] = _AttackedMethod(facts, label, shown.get("kept"), best is not None)
    return found
