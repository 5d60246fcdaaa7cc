"""The leaderboard: all audits below some folders, ranked. A table holds only audits of the same images and settings.

One row per pair of a model and a method. Pairs are ranked by their steady radius, the largest change an attacker may
make before half of the map's top pixels are gone; accuracy is shown next to it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import string
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gyrograd.errors import UserError
from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI
from gyrograd.numerics.wording import number
from gyrograd.records import JsonObject, read_json
from gyrograd.reporting.charts import labels_of
from gyrograd.reporting.page import render_template
from gyrograd.reporting.palette import COLOURS, MARKER_REACH, MARKERS
from gyrograd.reporting.schema import (
    CARD,
    HOLLOW,
    MASKED,
    AuditCard,
    CardColumn,
    MethodRow,
    attack_radii,
    read_card,
)
from gyrograd.reporting.table import best_value
from gyrograd.reporting.wording import Stat, counted_images, is_known, notes_of

STEADY = "steady_radius"
SUBMISSION = "submission.json"
"""File next to a submitted card: authors of the model, and the values that its paper reports."""
UNRELIABLE = HOLLOW | MASKED | {
    "noise_beats_attack",
    "zero_derivative",
    "not_finite_map",
    "not_finite",
    "training_mode",
    "answers_change",
    "rows_depend",
}  # fmt: skip
"""Flags that make a steady radius meaningless."""
NO_WEIGHTS = "The model has no trained weights"
"""Start of the note on the card of an untrained model."""
DERIVED: dict[str, CardColumn] = {
    key: CardColumn(
        key=key,
        label=label,
        detail=detail,
        group="other",
        direction="lower" if key == "passes" else "higher",
        range=None,
    )
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
"""Columns that the leaderboard adds to those of a card."""
FIRST = (
    STEADY, "accuracy", "kept_4", "kept_8", "rps", "insertion", "certified_pixels", "certified_cosine", "passes",
)  # fmt: skip
"""The visible columns, in this order; the others are hidden at first."""


@dataclass(frozen=True)
class Audit:
    """A card and its path."""

    path: Path
    card: AuditCard

    @cached_property
    def submission(self) -> JsonObject:
        """The facts that the submitter gave; empty without a submission, or if it cannot be read."""
        try:
            found = read_json(self.path.parent / SUBMISSION)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        """The submitter's name of the model, or the text that opened it."""
        given = self.submission.get("name")
        return given if isinstance(given, str) and given else str(self.card["model"]["source"])


@dataclass(frozen=True)
class LeaderboardRow:
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
        """Accuracy of the model."""
        return self.stats["accuracy"]

    def reported(self, key: str) -> float | None:
        """The reported value of this column, for this method or for the model."""
        claims = self.audit.submission.get("reported")
        own = claims.get(f"{self.method}.{key}", claims.get(key)) if isinstance(claims, Mapping) else None
        return own if isinstance(own, int | float) and not isinstance(own, bool) else None


@dataclass
class Board:
    """Audits that can be ranked against each other: same images, same meaning of columns."""

    source: str
    images: int
    sha256: str | None
    columns: dict[str, CardColumn] = field(default_factory=dict)
    audits: list[Audit] = field(default_factory=list)
    meanings: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The data set, its number of images, and the start of its hash."""
        return f"{self.source}, {counted_images(self.images)}" + (
            f" ({self.sha256[:8]})" if self.sha256 else ""
        )

    @property
    def ranked_by(self) -> CardColumn | None:
        """The ranking column: the steady radius, else the first attack column, else the first column."""
        columns = list(self.columns.values())
        attacked = [column for column in columns if column["group"] == "attack"]
        return self.columns.get(STEADY) or next(iter(attacked or columns), None)

    @property
    def ordered(self) -> list[CardColumn]:
        """The columns with a value: the ranking one first, then those of `FIRST`."""
        first = self.ranked_by
        every = {**DERIVED, **self.columns}
        held = {key for place in self.places() for key, stat in place.stats.items() if is_known(stat)}
        keys = [*([first["key"]] if first else []), *FIRST, *every]
        return [every[key] for key in dict.fromkeys(keys) if key in every and (key in held or key == keys[0])]

    def is_first(self, column: CardColumn) -> bool:
        """True if the column is visible at first."""
        return column["key"] in FIRST or column is self.ranked_by

    def places(self) -> list[LeaderboardRow]:
        """All pairs of model and method, best first; pairs without a value last."""
        found = [place for audit in self.audits for place in _places(audit, self.ranked_by)]
        return sorted(found, key=lambda place: _rank(place, self.ranked_by))

    def plane(self) -> Plane | None:
        """Accuracy against the ranking column; None if no pair has both."""
        column = self.ranked_by
        drawn = [] if column is None else [
            (row, place, place.accuracy["value"], stat["value"])
            for row, place in enumerate(self.places())
            if place.accuracy is not None and is_known(place.accuracy)
            and (stat := place.stats.get(column["key"])) is not None and is_known(stat)
        ]  # fmt: skip
        if column is None or not drawn:
            return None
        sure = [(x, y) for _, place, x, y in drawn if not place.doubts]
        points = []
        for row, place, x, y in drawn:
            frontier = not place.doubts and not any(_beats(other, (x, y), column) for other in sure)
            points.append(PlanePoint(row, place, x, y, frontier))
        return Plane(column, points)


@dataclass(frozen=True)
class PlanePoint:
    """A pair on the plane; `row` is its rank in the table, `frontier` is True if no other pair beats it in both."""

    row: int
    place: LeaderboardRow
    x: float
    y: float
    frontier: bool


@dataclass(frozen=True)
class FrontierLetter:
    """The letter that names a pair of the frontier, with its position on the plane."""

    text: str
    point: PlanePoint
    left: float
    top: float


@dataclass(frozen=True)
class Plane:
    """Accuracy (x) against the ranking column (y), in a box of 100 by 66 units."""

    column: CardColumn
    points: list[PlanePoint]

    WIDTH, HEIGHT = 100.0, 66.0
    TEXT, MARKER, FRONTIER_MARKER = 3.8, 1.3, 1.7
    """Sizes on a telephone, in units. On a wide screen all are smaller, so that what is apart here is apart there."""

    @cached_property
    def spans(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Limits of both axes, with some margin around the points."""
        return _span([point.x for point in self.points]), _span([point.y for point in self.points])

    def left(self, x: float) -> float:
        """Horizontal position of an accuracy."""
        (low, high), _ = self.spans
        return round(self.WIDTH * (x - low) / (high - low), 2)

    def top(self, y: float) -> float:
        """Vertical position of a value of the column, from the top."""
        _, (low, high) = self.spans
        return round(self.HEIGHT * (1 - (y - low) / (high - low)), 2)

    @property
    def frontier(self) -> str:
        """The line through the frontier, as points of an SVG polyline."""
        line = sorted({(point.x, point.y) for point in self.points if point.frontier})
        return " ".join(f"{self.left(x)},{self.top(y)}" for x, y in line)

    @cached_property
    def models(self) -> dict[str, tuple[str, str]]:
        """Colour and marker of each model, from left to right; no two of 56 models share both."""
        names = dict.fromkeys(
            point.place.audit.name for point in sorted(self.points, key=lambda point: point.x)
        )
        shapes = [*MARKERS.values()]
        return {name: (f"s{i % COLOURS}", shapes[i % len(shapes)]) for i, name in enumerate(names)}

    @cached_property
    def letters(self) -> list[FrontierLetter]:
        """A letter next to each pair of the frontier, on no marker and no other letter; none if there is no room."""
        taken = []
        for point in self.points:
            half = MARKER_REACH * (self.FRONTIER_MARKER if point.frontier else self.MARKER)
            taken.append(_Box(self.left(point.x), self.top(point.y), half, half))
        # Nothing reliable is better in both, so the corner beyond the frontier is free: it is tried first.
        outward = math.radians(-45 if self.column["direction"] == "higher" else 45)
        turns = sorted((math.tau * n / 16 for n in range(-8, 8)), key=abs)
        capitals = string.ascii_uppercase
        texts = itertools.chain(capitals, map("".join, itertools.product(capitals, repeat=2)))
        letters = []
        frontier = sorted((point for point in self.points if point.frontier), key=lambda point: point.x)
        for point, text in zip(frontier, texts, strict=False):
            for distance, turn in itertools.product((4.4, 5.5, 7, 9, 12, 16), turns):
                left = self.left(point.x) + distance * math.cos(outward + turn)
                top = self.top(point.y) + distance * math.sin(outward + turn)
                box = _Box(left, top, 0.5 * self.TEXT * len(text), 0.45 * self.TEXT)
                if box.within(self.WIDTH, self.HEIGHT) and not any(box.meets(other) for other in taken):
                    taken.append(box)
                    letters.append(FrontierLetter(text, point, round(left, 2), round(top, 2)))
                    break
        return letters


class _Box(NamedTuple):
    """A box around x, y; width and height are half of its sides."""

    x: float
    y: float
    width: float
    height: float

    def within(self, width: float, height: float) -> bool:
        """True if the box lies in a plane with these sides."""
        return self.width < self.x < width - self.width and self.height < self.y < height - self.height

    def meets(self, other: _Box) -> bool:
        """True if the boxes overlap."""
        return (
            abs(self.x - other.x) < self.width + other.width
            and abs(self.y - other.y) < self.height + other.height
        )


def find_audits(*folders: Path) -> tuple[list[Audit], list[str]]:
    """All cards below the folders, and one sentence per unreadable card."""
    audits, troubles = [], []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"There is no folder {folder}; give one that holds audits.")
    for path in dict.fromkeys(path for folder in folders for path in sorted(folder.rglob(CARD))):
        try:
            card = read_card(path)
        except UserError as trouble:
            troubles.append(str(trouble))
            continue
        if any(note.startswith(NO_WEIGHTS) for note in notes_of(card)):
            troubles.append(f"{path}: {NO_WEIGHTS}, so there is nothing to rank; audit it with trained ones.")
        else:
            audits.append(Audit(path, card))
    if not audits:
        why = f" that can be read ({troubles[0]})" if troubles else ""
        raise UserError(
            f"There is no audit below {folders[0]}{why}; "
            f"run one: gyrograd audit MODEL DATA --out {folders[0]}/NAME."
        )
    return audits, troubles


def boards(audits: Iterable[Audit]) -> list[Board]:
    """Group the audits into tables: an audit joins the first table with its images and the same meaning of columns."""
    made: list[Board] = []
    for audit in audits:
        data, columns = audit.card["data"], {column["key"]: column for column in audit.card["columns"]}
        board = next((board for board in made if _fits(board, audit.card)), None)
        if board is None:
            board = Board(data["source"], data["images"], data["sha256"])
            made.append(board)
        board.audits.append(audit)
        board.columns.update({key: column for key, column in columns.items() if key not in board.columns})
        board.meanings |= _meanings(audit.card)
    return sorted(made, key=lambda board: (board.source, -len(board.audits)))


def leaderboard_page(
    tables: list[Board], troubles: list[str], home: Path, pages: Mapping[Path, str] | None = None
) -> str:
    """The page. `home` is its folder; `pages` are a site's pages by card.

    Without `pages` models link to their audits' reports.
    """
    methods = {place.method: place.label for board in tables for place in board.places()}
    return render_template(
        "leaderboard",
        boards=tables,
        troubles=troubles,
        methods=methods,
        Plane=Plane,
        sources=list(dict.fromkeys(board.source for board in tables)),
        link=lambda audit: report_link(audit, home) if pages is None else pages[audit.path],
    )


def model_page(audit: Audit, board: Board, *, report: bool) -> str:
    """The page of a model on a site: description, all numbers of its card, reported values, reasons for doubt."""
    ranks = [(rank, place) for rank, place in enumerate(board.places(), 1) if place.audit is audit]
    facts = {"card": audit.card, "labels": labels_of(audit.card)}
    return render_template("model", audit=audit, board=board, ranks=ranks, report=report, **facts)


def site(tables: list[Board], troubles: list[str]) -> tuple[dict[str, str], dict[str, Path]]:
    """The files of a static site: texts by path, and reports to copy by path."""
    texts, copies, links, taken = {}, {}, {}, set()
    for board in tables:
        for audit in board.audits:
            slug = re.sub(r"[^a-z0-9]+", "-", audit.name.lower()).strip("-")[:60] or "model"
            numbered = (slug if n == 1 else f"{slug}-{n}" for n in itertools.count(1))
            name = next(name for name in numbered if name not in taken)
            taken.add(name)
            place, report = f"models/{name}", audit.path.parent / "report.html"
            links[audit.path] = f"./{place}/index.html"
            texts[f"{place}/index.html"] = model_page(audit, board, report=report.exists())
            # Not named card.json: a site inside a folder of audits would otherwise list each of them twice.
            copies[f"{place}/audit.json"] = audit.path
            if report.exists():
                copies[f"{place}/report.html"] = report
    texts["index.html"] = leaderboard_page(tables, troubles, Path(), links)
    return texts, copies


def report_link(audit: Audit, home: Path) -> str | None:
    """The relative link from the page to an audit's report, if there is one."""
    report = audit.path.parent / "report.html"
    if not report.exists():
        return None
    way = Path(os.path.relpath(report.resolve(), home.resolve())).as_posix()
    # "./" keeps a folder name with a colon from being read as a URL scheme.
    return "./" + quote(way)


def terminal_rows(board: Board) -> list[tuple[str, ...]]:
    """Rows for the terminal: rank, model, method, the board's columns and reasons for doubt."""
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


def document(tables: list[Board]) -> list[JsonObject]:
    """The tables as plain JSON values."""
    return [
        {
            "data": {"source": board.source, "images": board.images, "sha256": board.sha256},
            "ranked_by": board.ranked_by and board.ranked_by["key"],
            "columns": list(board.columns.values()),
            "rows": [
                {
                    "model": place.audit.name,
                    "method": place.method,
                    "recommended": place.lead,
                    "grade": place.grade,
                    "complete": place.audit.card["complete"] is not False,
                    "accuracy": place.accuracy,
                    "columns": place.stats,
                    "unreliable": list(place.doubts),
                    "card": str(place.audit.path),
                }
                for place in board.places()
            ],
        }
        for board in tables
    ]


def _fits(board: Board, card: AuditCard) -> bool:
    """True for the same images by their hash (an unknown hash never matches) and no column with another meaning."""
    data = card["data"]
    same = data["sha256"] is not None and data["sha256"] == board.sha256 and data["images"] == board.images
    return same and all(
        board.meanings.get(key, meaning) == meaning for key, meaning in _meanings(card).items()
    )


def _meanings(card: AuditCard) -> dict[str, tuple[Any, ...]]:
    """What the numbers of each column mean: only numbers that mean the same are ranked."""
    return {
        column["key"]: (column["detail"], column["direction"], attack_radii(card, column))
        for column in card["columns"]
    }


def _places(audit: Audit, column: CardColumn | None) -> list[LeaderboardRow]:
    lead = _leading_method(audit.card, column)
    return [
        LeaderboardRow(
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


def _stats(card: AuditCard, method: MethodRow) -> dict[str, Stat | None]:
    """A method's columns: those of the card and those that the leaderboard adds."""
    curve = card["curves"] and card["curves"]["eps"]
    lines = curve["lines"] if curve else []
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


def _doubts(card: AuditCard, method: MethodRow, column: CardColumn | None) -> Iterable[str]:
    """Reasons not to rely on the pair's number."""
    for flag in card["flags"] or ():
        if flag["name"] in UNRELIABLE and flag["where"] in (method["name"], "model"):
            yield f"{flag['name'].replace('_', ' ')}: {flag['explanation']}"
    if card["complete"] is False:
        yield "The audit was interrupted."
    stat = None if column is None else method["columns"].get(column["key"])
    n = None if stat is None else stat["n"]
    if n is not None and n < MIN_IMAGES_FOR_CI:
        yield f"It rests on {counted_images(n)}."


def _leading_method(card: AuditCard, column: CardColumn | None) -> str | None:
    """The recommended method, else the best in the ranking column, else the first."""
    methods = card["methods"]
    names = [method["name"] for method in methods if method["recommended"]]
    if not names and column is not None:
        stats = {method["name"]: method["columns"].get(column["key"]) for method in methods}
        best = best_value(list(stats.values()), column["direction"])
        names = [name for name, stat in stats.items() if is_known(stat) and stat["value"] == best]
    return next(iter([*names, *(method["name"] for method in methods)]), None)


def _rank(place: LeaderboardRow, column: CardColumn | None) -> tuple[bool, float, float, float, str, str]:
    """Sort key: best first; ties (at the largest radius tried) by the worse end of the interval, then by accuracy."""
    stat = None if column is None else place.stats.get(column["key"])
    right = -float((place.accuracy or {}).get("value") or 0.0)
    if column is None or stat is None or not is_known(stat):
        return True, 0.0, 0.0, right, place.audit.name, place.method
    sign, end = (-1, "low") if column["direction"] == "higher" else (1, "high")
    worse = stat["value"] if stat.get(end) is None else stat[end]
    return False, sign * stat["value"], sign * worse, right, place.audit.name, place.method


def _beats(one: tuple[float, float], other: tuple[float, float], column: CardColumn) -> bool:
    """True if `one` is at least as good in both and better in one."""
    sign = 1 if column["direction"] == "higher" else -1
    a, b = (one[0], sign * one[1]), (other[0], sign * other[1])
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def _span(values: list[float]) -> tuple[float, float]:
    """Round numbers around the values, with some room at both ends; the middle is round, too."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or max(0.05, abs(high) / 10)
    step = 10 ** math.floor(math.log10(high - low + 2 * room))
    step = next(
        step * part for part in (0.1, 0.2, 0.5, 1.0, 2.0) if high - low + 2 * room <= 10 * step * part
    )
    first, last = math.floor((low - room) / step), math.ceil((high + room) / step)
    first = max(first, 0) if low > 0 else first  # a radius or a share below 0 does not exist
    return first * step, (last + (last - first) % 2) * step
