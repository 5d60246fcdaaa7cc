"""All audits below some folders in one ranking. Only audits of the same images, measured alike, stand in one table.

One row per pair of a model and a method. The rule: pairs are ranked by their steady radius, the largest change an
attacker may make before half of the map's top pixels are gone; accuracy stands beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gyrograd.errors import UserError
from gyrograd.numerics.wording import number
from gyrograd.records import read_json
from gyrograd.reporting.schema import CARD, HOLLOW, MASKED, read_card
from gyrograd.reporting.table import best_value
from gyrograd.reporting.templates import rendered
from gyrograd.reporting.wording import Stat, counted_images, known

STEADY = "steady_radius"
SUBMISSION = "submission.json"
"""Beside a card that was submitted: who made the model, and what its paper reports."""
UNRELIABLE = HOLLOW | MASKED | {
    "noise_beats_attack",
    "zero_derivative",
    "not_finite_map",
    "not_finite",
    "training_mode",
    "answers_change",
    "rows_depend",
}  # fmt: skip
"""Flags after which a steady radius shows nothing."""
FEWEST_ATTACKED = 10
"""Images a steady radius should rest on."""
DERIVED: dict[str, dict[str, Any]] = {
    key: {"key": key, "label": label, "detail": detail, "direction": "lower" if key == "passes" else "higher"}
    for key, label, detail in (
        ("accuracy", "Accuracy", "share of the images whose class the model gets right"),
        ("kept_4", "Kept at 4/255", "share of the top pixels that stay under an attack of 4/255"),
        ("kept_8", "Kept at 8/255", "share of the top pixels that stay under an attack of 8/255"),
        (
            "certified_pixels",
            "Certified pixels",
            "share of the pixels whose place in or out of the top half no change of Euclidean length 0.1 alters",
        ),
        (
            "certified_cosine",
            "Certified cosine",
            "no change of Euclidean length 0.05 turns the smoothed map further; 0: nothing is certain",
        ),
        (
            "soft_stability",
            "Soft stability",
            "of random additions to the top segments, the share that certainly leaves the prediction as it is",
        ),
        ("passes", "Passes", "passes of the model for one map"),
    )
}
"""Columns that are not in the table of a card."""
FIRST = (
    STEADY, "accuracy", "kept_4", "kept_8", "rps", "insertion", "certified_pixels", "certified_cosine", "passes",
)  # fmt: skip
"""The columns in sight, in this order; the others are shown on request."""


@dataclass(frozen=True)
class Audit:
    """A card and where it lies."""

    path: Path
    card: dict[str, Any]

    @cached_property
    def submission(self) -> dict[str, Any]:
        """What the submitter says of the model; empty for an audit of one's own, or if it cannot be read."""
        try:
            found = read_json(self.path.parent / SUBMISSION)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        """As the submitter calls the model, or as it was opened."""
        given = self.submission.get("name")
        return given if isinstance(given, str) and given else str(self.card["model"]["source"])


@dataclass(frozen=True)
class Place:
    """One row: a model explained by one method. `lead` marks the method its audit recommends."""

    audit: Audit
    method: str
    label: str
    lead: bool
    stats: dict[str, Stat | None]
    doubts: tuple[str, ...]
    grade: str | None

    @property
    def accuracy(self) -> Stat | None:
        """Of the model."""
        return self.stats["accuracy"]

    def reported(self, key: str) -> float | None:
        """What a paper says of this column, for this method or for the model."""
        claims = self.audit.submission.get("reported")
        own = claims.get(f"{self.method}.{key}", claims.get(key)) if isinstance(claims, Mapping) else None
        return own if isinstance(own, int | float) and not isinstance(own, bool) else None


@dataclass
class Board:
    """Audits that may be ranked against each other: same images, columns that mean the same."""

    source: str
    images: int
    sha256: str | None
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    audits: list[Audit] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The data set, how many images, and the hash that tells two such sets apart."""
        return f"{self.source}, {counted_images(self.images)}" + (
            f" ({self.sha256[:8]})" if self.sha256 else ""
        )

    @property
    def ranked_by(self) -> dict[str, Any] | None:
        """The steady radius; of audits without it the first attack column, or the first there is."""
        columns = list(self.columns.values())
        attacked = [column for column in columns if column["group"] == "attack"]
        return self.columns.get(STEADY) or next(iter(attacked or columns), None)

    @property
    def ordered(self) -> list[dict[str, Any]]:
        """The columns that hold a value, the one that ranks first, then those of `FIRST`."""
        first = self.ranked_by
        every = {**DERIVED, **self.columns}
        held = {key for place in self.places() for key, stat in place.stats.items() if known(stat)}
        keys = [*([first["key"]] if first else []), *FIRST, *every]
        return [every[key] for key in dict.fromkeys(keys) if key in every and (key in held or key == keys[0])]

    def is_first(self, column: Mapping[str, Any]) -> bool:
        """Is the column in sight before others are asked for?"""
        return column["key"] in FIRST or column is self.ranked_by

    def places(self) -> list[Place]:
        """Every model and method, best first; what was not measured comes last."""
        found = [place for audit in self.audits for place in _places(audit, self.ranked_by)]
        return sorted(found, key=lambda place: _rank(place, self.ranked_by))

    def plane(self) -> Plane | None:
        """Accuracy against the column that ranks; None if no pair has both."""
        column = self.ranked_by
        drawn = [] if column is None else [
            (row, place, place.accuracy["value"], stat["value"])
            for row, place in enumerate(self.places())
            if place.accuracy is not None and known(place.accuracy)
            and (stat := place.stats.get(column["key"])) is not None and known(stat)
        ]  # fmt: skip
        if column is None or not drawn:
            return None
        sure = [(x, y) for _, place, x, y in drawn if not place.doubts]
        return Plane(
            column,
            [
                PlanePoint(
                    row,
                    place,
                    x,
                    y,
                    not place.doubts and not any(_beats(other, (x, y), column) for other in sure),
                )
                for row, place, x, y in drawn
            ],
        )


@dataclass(frozen=True)
class PlanePoint:
    """A pair on the plane; `row` is its place in the table, `frontier` whether no other pair beats it in both."""

    row: int
    place: Place
    x: float
    y: float
    frontier: bool


@dataclass(frozen=True)
class Plane:
    """Accuracy (x) against the column that ranks (y), in a box of 100 by 60 units."""

    column: dict[str, Any]
    points: list[PlanePoint]

    WIDTH, HEIGHT = 100.0, 60.0

    @cached_property
    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """From and to of both axes, with some room around the points."""
        return _span([point.x for point in self.points]), _span([point.y for point in self.points])

    def left(self, x: float) -> float:
        """Where a value of accuracy stands."""
        (low, high), _ = self.spans
        return round(self.WIDTH * (x - low) / (high - low), 2)

    def top(self, y: float) -> float:
        """Where a value of the column stands, from above."""
        _, (low, high) = self.spans
        return round(self.HEIGHT * (1 - (y - low) / (high - low)), 2)

    @property
    def frontier(self) -> str:
        """The line through the pairs that no other beats in both, as points of an SVG."""
        line = sorted({(point.x, point.y) for point in self.points if point.frontier})
        return " ".join(f"{self.left(x)},{self.top(y)}" for x, y in line)

    @property
    def models(self) -> list[str]:
        """The models, in the order of their colours."""
        return list(dict.fromkeys(point.place.audit.name for point in self.points))


def found_audits(*folders: Path) -> tuple[list[Audit], list[str]]:
    """Every card below the folders, and a sentence for each that cannot be read."""
    audits, troubles = [], []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"There is no folder {folder}; give one that holds audits.")
    for path in dict.fromkeys(path for folder in folders for path in sorted(folder.rglob(CARD))):
        try:
            audits.append(Audit(path, read_card(path)))
        except UserError as trouble:
            troubles.append(str(trouble))
    if not audits:
        why = f" that can be read ({troubles[0]})" if troubles else ""
        raise UserError(
            f"There is no audit below {folders[0]}{why}; "
            f"run one: gyrograd audit MODEL DATA --out {folders[0]}/NAME."
        )
    return audits, troubles


def boards(audits: Iterable[Audit]) -> list[Board]:
    """The audits in tables: an audit joins the first table with its images whose columns mean the same."""
    made: list[Board] = []
    for audit in audits:
        data, columns = audit.card["data"], {column["key"]: column for column in audit.card["columns"]}
        board = next((board for board in made if _fits(board, data, columns)), None)
        if board is None:
            board = Board(data["source"], data["images"], data["sha256"])
            made.append(board)
        board.audits.append(audit)
        board.columns.update({key: column for key, column in columns.items() if key not in board.columns})
    return sorted(made, key=lambda board: (board.source, -len(board.audits)))


def leaderboard_page(
    tables: list[Board], troubles: list[str], home: Path, pages: Mapping[Path, str] | None = None
) -> str:
    """The page; `home` is the folder it will lie in, `pages` a site's own page of each card.

    Without `pages` models lead to their audits' reports.
    """
    methods = {place.method: place.label for board in tables for place in board.places()}
    return rendered(
        "leaderboard",
        boards=tables,
        troubles=troubles,
        methods=methods,
        sources=list(dict.fromkeys(board.source for board in tables)),
        link=lambda audit: report_link(audit, home) if pages is None else pages[audit.path],
    )


def model_page(audit: Audit, board: Board, *, report: bool) -> str:
    """A model's page of a site: what it is, every number of its card, what its paper reports, reasons for doubt."""
    ranks = [(rank, place) for rank, place in enumerate(board.places(), 1) if place.audit is audit]
    return rendered("model", audit=audit, card=audit.card, board=board, ranks=ranks, report=report)


def site(tables: list[Board], troubles: list[str]) -> tuple[dict[str, str], dict[str, Path]]:
    """The files of a static site: texts by their path, and reports to copy by theirs."""
    names: dict[Path, str] = {}
    for board in tables:
        for audit in board.audits:
            slug = re.sub(r"[^a-z0-9]+", "-", audit.name.lower()).strip("-")[:60] or "model"
            taken = set(names.values())
            names[audit.path] = next(
                one
                for n in range(1, len(names) + 2)
                if (one := slug if n == 1 else f"{slug}-{n}") not in taken
            )
    texts, copies = {}, {}
    for board in tables:
        for audit in board.audits:
            place, report = f"models/{names[audit.path]}", audit.path.parent / "report.html"
            texts[f"{place}/index.html"] = model_page(audit, board, report=report.exists())
            # Not card.json: a site inside a folder of audits would then add each of them a second time.
            copies[f"{place}/audit.json"] = audit.path
            if report.exists():
                copies[f"{place}/report.html"] = report
    links = {path: f"./models/{name}/index.html" for path, name in names.items()}
    texts["index.html"] = leaderboard_page(tables, troubles, Path(), links)
    return texts, copies


def report_link(audit: Audit, home: Path) -> str | None:
    """The way from the page to an audit's report, if it has one."""
    report = audit.path.parent / "report.html"
    if not report.exists():
        return None
    way = Path(os.path.relpath(report.resolve(), home.resolve())).as_posix()
    # "./" keeps a folder named like an address (a colon in it) from being read as one.
    return "./" + quote(way)


def terminal_rows(board: Board) -> list[tuple[str, ...]]:
    """Rank, model, method, the board's columns and reasons for doubt of every pair, as the terminal shows them."""
    return [
        (
            str(rank),
            place.audit.name,
            place.label,
            *(number((place.stats.get(column["key"]) or {}).get("value")) for column in board.ordered),
            "unreliable" if place.doubts else "",
        )
        for rank, place in enumerate(board.places(), 1)
    ]


def document(tables: list[Board]) -> list[dict[str, Any]]:
    """The tables as plain JSON values."""
    return [
        {
            "data": {"source": board.source, "images": board.images, "sha256": board.sha256},
            "ranked_by": (board.ranked_by or {}).get("key"),
            "columns": list(board.columns.values()),
            "rows": [_plain(place) for place in board.places()],
        }
        for board in tables
    ]


def _plain(place: Place) -> dict[str, Any]:
    card = place.audit.card
    return {
        "model": place.audit.name,
        "method": place.method,
        "recommended": place.lead,
        "grade": place.grade,
        "complete": card["complete"] is not False,
        "accuracy": place.accuracy,
        "columns": place.stats,
        "unreliable": list(place.doubts),
        "card": str(place.audit.path),
    }


def _fits(board: Board, data: dict[str, Any], columns: dict[str, dict[str, Any]]) -> bool:
    """Same images by their hash (unknown fits nothing), and no column that means something else."""
    same = data["sha256"] is not None and data["sha256"] == board.sha256 and data["images"] == board.images
    shared = [key for key in columns if key in board.columns]
    meaning = itemgetter("detail", "direction")
    return same and all(meaning(columns[key]) == meaning(board.columns[key]) for key in shared)


def _places(audit: Audit, column: dict[str, Any] | None) -> list[Place]:
    lead = _leading_method(audit.card, column)
    return [
        Place(
            audit,
            method["name"],
            method["label"] or method["name"],
            method["name"] == lead,
            _stats(audit.card, method),
            tuple(_doubts(audit.card, method, column)),
            method["grade"] or audit.card["verdict"]["grade"],
        )
        for method in audit.card["methods"]
    ]


def _stats(card: dict[str, Any], method: dict[str, Any]) -> dict[str, Stat | None]:
    """The card's columns of a method, and those that a leaderboard adds."""
    lines = ((card["curves"] or {}).get("eps") or {}).get("lines") or ()
    attacked = [line for line in lines if line["method"] == method["name"] and line["label"] == "attack"]
    kept = {round(x, 3): y for line in attacked for x, y in zip(line["x"], line["y"], strict=True)}
    passes = method["passes"]
    return {
        **method["columns"],
        "accuracy": card["accuracy"],
        "kept_4": kept.get(4.0),
        "kept_8": kept.get(8.0),
        "passes": None if passes is None else {"value": passes, "low": None, "high": None, "n": 1},
    }


def _doubts(card: dict[str, Any], method: dict[str, Any], column: dict[str, Any] | None) -> Iterable[str]:
    """Why the pair's number should not be relied on."""
    for flag in card["flags"] or ():
        if flag["name"] in UNRELIABLE and flag["where"] in (method["name"], "model"):
            yield f"{flag['name'].replace('_', ' ')}: {flag['explanation']}"
    if card["complete"] is False:
        yield "The audit was interrupted."
    stat = None if column is None else method["columns"].get(column["key"])
    if stat is not None and stat.get("n") is not None and stat["n"] < FEWEST_ATTACKED:
        yield f"It rests on {counted_images(stat['n'])}."


def _leading_method(card: dict[str, Any], column: dict[str, Any] | None) -> str | None:
    """The recommended method; else the best in the column that ranks; else the first."""
    for method in card["methods"]:
        if method["recommended"]:
            return str(method["name"])
    found = [(method["name"], method["columns"].get((column or {}).get("key"))) for method in card["methods"]]
    best = best_value([stat for _, stat in found], (column or {}).get("direction", "higher"))
    at_best = [name for name, stat in found if best is not None and (stat or {}).get("value") == best]
    return next(iter([*at_best, *(name for name, _ in found)]), None)


def _rank(place: Place, column: dict[str, Any] | None) -> tuple[bool, float, float, str, str]:
    """Best first; pairs that are level go by accuracy."""
    stat = None if column is None else place.stats.get(column["key"])
    right = -float((place.accuracy or {}).get("value") or 0.0)
    if column is None or stat is None or not known(stat):
        return True, 0.0, right, place.audit.name, place.method
    value = -stat["value"] if column["direction"] == "higher" else stat["value"]
    return False, value, right, place.audit.name, place.method


def _beats(one: tuple[float, float], other: tuple[float, float], column: Mapping[str, Any]) -> bool:
    """At least as good in both, and better in one."""
    sign = 1 if column["direction"] == "higher" else -1
    a, b = (one[0], sign * one[1]), (other[0], sign * other[1])
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def _span(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or max(0.05, abs(high) / 10)
    return low - room, high + room
