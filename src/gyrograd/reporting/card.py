"""An audit's card as a report: report.html, report.md, figures/; pure functions of card.json and pictures.npz."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from gyrograd.numerics.wording import eps_text
from gyrograd.records import write_bytes, write_text
from gyrograd.reporting import table
from gyrograd.reporting.charts import Chart, eps_charts, game_chart, labels_of, plane_chart
from gyrograd.reporting.figures import Array
from gyrograd.reporting.markdown import markdown_report
from gyrograd.reporting.page import render_template
from gyrograd.reporting.pictures import (
    AttackPictures,
    attack_pictures,
    attack_sheet,
    data_address,
    load_arrays,
)
from gyrograd.reporting.schema import (
    AuditCard,
    CardColumn,
    Certificates,
    CertifiedRow,
    WorstAttack,
    check_card,
)
from gyrograd.reporting.showcase import (
    Showcase,
    ShowcaseRow,
    change_words,
    image_name,
    prediction_words,
    showcase,
    stays,
)
from gyrograd.reporting.wording import Stat, counted_images

PICTURED = 4
"""Most attacks to show."""
LONGEST_TITLE = 24
"""Letters of a name that fit beside a row of the attack sheet."""


@dataclass(frozen=True)
class Attack:
    """One of the most damaging attacks: its facts on the card, and its pictures if there are any."""

    title: str
    facts: WorstAttack
    pictures: AttackPictures | None


@dataclass(frozen=True)
class Contents:
    """Everything that the page and the Markdown show, prepared from one card."""

    card: AuditCard
    rows: list[table.Row]
    groups: list[tuple[str, list[CardColumn]]]
    attacks: list[Attack]
    no_pictures: str | None
    eps_panels: list[Chart]
    eps: Chart | None
    games: list[Chart]
    plane: Chart | None
    sheet: bytes | None
    showcase: Showcase | None

    @property
    def absent(self) -> list[str]:
        """Sections that the page leaves out, since the audit did not measure them."""
        there = {
            "growing eps": self.eps,
            "insertion and deletion": self.games,
            "robustness against faithfulness": self.plane,
            "bounds": self.card["bounds"],
        }
        return [name for name, found in there.items() if not found]

    @property
    def charts(self) -> list[Chart]:
        """The charts that are also written as files."""
        return [each for each in (self.eps, *self.games, self.plane) if each is not None]


def write_report(card: Mapping[str, Any], folder: Path) -> Path:
    """Write report.html, report.md and figures/ into the audit's folder; returns the page's path."""
    shown = contents(check_card(card), folder)
    for chart in shown.charts:
        write_text(folder / "figures" / f"{chart.name}.svg", chart.svg_file)
        write_bytes(folder / "figures" / f"{chart.name}.png", chart.png)
    if shown.sheet is not None:
        write_bytes(folder / "figures" / "attacks.png", shown.sheet)
    write_text(folder / "report.md", markdown_report(shown))
    write_text(folder / "report.html", html_report(shown))
    return folder / "report.html"


def contents(card: AuditCard, folder: Path) -> Contents:
    """The contents of a report from a checked card and its pictures."""
    card = _fill_missing(card)
    arrays = load_arrays(card["pictures"], folder)
    labels, attacks = labels_of(card), []
    for facts in (card["worst"] or ())[:PICTURED]:
        attack = f" under {facts['attack']} at {eps_text(facts['eps'])}" if facts["attack"] else ""
        title = f"{image_title(facts)}: {labels.get(facts['method'], facts['method'])}{attack}"
        drawn = None if isinstance(arrays, str) else attack_pictures(arrays, facts["row"], facts["eps"])
        attacks.append(Attack(title, facts, drawn))
    panels, sheet = eps_charts(card) or ([], None)
    games = [chart for name in ("insertion", "deletion") if (chart := game_chart(card, name))]
    missing = arrays if isinstance(arrays, str) else None
    if missing is None and any(attack.pictures is None for attack in attacks):
        missing = (
            "Some pictures are not here: the arrays hold fewer rows than the card names; run the audit again."
        )
    return Contents(
        card,
        table.rows(card),
        table.grouped_columns(card),
        attacks,
        missing,
        panels,
        sheet,
        games,
        plane_chart(card),
        _sheet(attacks, arrays),
        _showcase(attacks, card),
    )


def html_report(shown: Contents) -> str:
    """The report as one HTML file that opens offline."""
    return render_template(
        "card",
        shown=shown,
        card=shown.card,
        labels=labels_of(shown.card),
        counts=table.counts(shown.card),
        kinds=table.GROUPS,
        certified=certified_section(shown.card),
        settings=json.dumps(shown.card["settings"], indent=1, sort_keys=True),
    )


def _fill_missing(card: AuditCard) -> AuditCard:
    """The card with empty lists and objects in place of missing ones."""
    fields = ("command", "versions", "hardware", "seconds", "peak_memory_mb", "seed")
    empty = {"settings": {}, "bounds": [], "worst": [], "flags": [], "complete": True}
    empty["rerun"] = dict.fromkeys(fields)
    given = {key: value for key, value in card.items() if value is not None or key not in empty}
    return cast(AuditCard, empty | given)


def image_title(facts: Mapping[str, Any]) -> str:
    """Name and class of an attacked image: `photos/cat.png (tabby)`."""
    name = image_name(facts)
    return f"{name} ({facts['before']['label']})" if facts["before"] else name


def _showcase(attacks: list[Attack], card: AuditCard) -> Showcase | None:
    """The worst attack, and the recommended method on the same image."""
    first = next((attack for attack in attacks if attack.pictures is not None), None)
    if first is None or first.pictures is None:
        return None
    facts, pictures, labels = first.facts, first.pictures, labels_of(card)
    name = image_name(facts)
    rows = [
        ShowcaseRow(
            pictures.image,
            f"The image {name}",
            (Path(name).name, prediction_words(facts["before"])),
            labels.get(facts["method"], facts["method"]),
            pictures.views,
            stays(facts["kept"]) + _on_average(card, facts["method"]),
        )
    ]
    best = facts["best"]
    if best is not None and pictures.best is not None:
        mark = next((table.standing(m) for m in card["methods"] if m["name"] == best["method"]), "")
        rows.append(
            ShowcaseRow(
                pictures.difference,
                "What the attack changed",
                (
                    "what it changed",
                    change_words(facts["eps"]),
                    f"class after: {prediction_words(facts['after'])}",
                ),
                labels.get(best["method"], best["method"]) + (f" ({mark})" if mark else ""),
                pictures.best,
                f"{stays(best['kept'])} under an attack of its own{_on_average(card, best['method'])}",
            )
        )
    return showcase("The worst attack found, which leaves the predicted class as it was", rows)


def _on_average(card: AuditCard, method: str) -> str:
    """What stays of a method's top pixels on average, since the picture shows the worst image."""
    columns: Mapping[str, Stat | None] = next(
        (each["columns"] for each in card["methods"] if each["name"] == method), {}
    )
    stat = columns.get("top_k_kept")
    if stat is None or stat["value"] is None or stat["n"] == 1:
        return ""
    return f"; {stat['value'] * 100:.0f} % on average over {counted_images(stat['n'])}"


def _sheet(attacks: list[Attack], arrays: dict[str, Array] | str) -> bytes | None:
    drawn = [attack.facts for attack in attacks if attack.pictures is not None]
    if isinstance(arrays, str) or not drawn:
        return None
    names = [Path(image_title(facts)).name for facts in drawn]
    titles = [name if len(name) <= LONGEST_TITLE else f"...{name[-LONGEST_TITLE:]}" for name in names]
    return attack_sheet(arrays, [facts["row"] for facts in drawn], titles, drawn[0]["eps"])


COLOURS = {"+": (0.0, 0.45, 0.70), "-": (0.62, 0.80, 0.92), ".": (0.93, 0.93, 0.93), "x": (0.84, 0.37, 0.0)}
"""Colour of each pixel state, chosen for colour-blind readers, too."""


@dataclass(frozen=True)
class CertifiedDrawing:
    """A picture of the pixel states of an image, and the share of each state."""

    title: str
    address: str
    shares: dict[str, float]


class CertifiedLine(CertifiedRow):
    """A row of the card, with the share of the method's top pixels that attacks left."""

    kept: Stat | None


@dataclass(frozen=True)
class CertifiedSection:
    """Everything that the section shows."""

    facts: Certificates
    rows: list[CertifiedLine]
    drawings: list[CertifiedDrawing]

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each pixel state for a style sheet."""
        return {
            state: f"rgb({', '.join(f'{255 * part:.0f}' for part in rgb)})" for state, rgb in COLOURS.items()
        }

    @property
    def with_stability(self) -> bool:
        """True if a method was certified by its segments."""
        return any(row["stability"] is not None for row in self.rows)


def certified_section(card: AuditCard) -> CertifiedSection | None:
    """The section of a checked card; None if nothing was certified."""
    facts = card["certificates"]
    if facts is None:
        return None
    kept = {method["name"]: method["columns"].get("top_k_kept") for method in card["methods"]}
    rows: list[CertifiedLine] = [{**row, "kept": kept.get(row["method"])} for row in facts["rows"]]
    drawings = []
    for picture in facts["pictures"] or ():
        states = "".join(picture["rows"])
        colours = np.array([[COLOURS[state] for state in row] for row in picture["rows"]])
        shares = {state: states.count(state) / len(states) for state in COLOURS}
        drawings.append(CertifiedDrawing(picture["label"], data_address(colours), shares))
    return CertifiedSection(facts, rows, drawings)
