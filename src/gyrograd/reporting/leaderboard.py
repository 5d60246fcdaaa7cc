"""All audits below a folder on one page. Only audits of the same images, measured alike, stand in one table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gyrograd.errors import UserError
from gyrograd.numerics.wording import number
from gyrograd.reporting.schema import CARD, read_card
from gyrograd.reporting.table import best_value
from gyrograd.reporting.templates import rendered
from gyrograd.reporting.wording import Stat, counted_images, known


@dataclass(frozen=True)
class Audit:
    """A card and where it lies."""

    path: Path
    card: dict[str, Any]


@dataclass(frozen=True)
class Place:
    """One line: a model explained by one method. `lead` marks the method its audit recommends."""

    audit: Audit
    method: str
    label: str
    lead: bool
    stats: dict[str, Stat | None]

    @property
    def accuracy(self) -> Stat | None:
        """Of the model."""
        found: Stat | None = self.audit.card["accuracy"]
        return found


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
        """The first attack column, or the first there is."""
        columns = list(self.columns.values())
        attacked = [column for column in columns if column["group"] == "attack"]
        return next(iter(attacked or columns), None)

    @property
    def ordered(self) -> list[dict[str, Any]]:
        """The columns, the one that ranks first: on a phone it is the one in sight."""
        first = self.ranked_by
        return [column for column in [first] if column is not None] + [
            column for column in self.columns.values() if column is not first
        ]

    def places(self) -> list[Place]:
        """Every model and method, best first; what was not measured comes last."""
        found = [place for audit in self.audits for place in _places(audit, self.ranked_by)]
        return sorted(found, key=lambda place: _rank(place, self.ranked_by))


def found_audits(folder: Path) -> tuple[list[Audit], list[str]]:
    """Every card below the folder, and a sentence for each that cannot be read."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}; give one that holds audits.")
    audits, troubles = [], []
    for path in sorted(folder.rglob(CARD)):
        try:
            audits.append(Audit(path, read_card(path)))
        except UserError as trouble:
            troubles.append(str(trouble))
    if not audits:
        why = f" that can be read ({troubles[0]})" if troubles else ""
        raise UserError(
            f"There is no audit below {folder}{why}; run one: gyrograd audit MODEL DATA --out {folder}/NAME."
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


def leaderboard_page(tables: list[Board], troubles: list[str], home: Path) -> str:
    """The page; `home` is the folder it will lie in, for links to the reports."""
    methods = {place.method: place.label for board in tables for place in board.places()}
    return rendered(
        "leaderboard",
        boards=tables,
        troubles=troubles,
        methods=methods,
        sources=list(dict.fromkeys(board.source for board in tables)),
        report=lambda audit: report_link(audit, home),
    )


def report_link(audit: Audit, home: Path) -> str | None:
    """The way from the page to an audit's report, if it has one."""
    report = audit.path.parent / "report.html"
    if not report.exists():
        return None
    way = Path(os.path.relpath(report.resolve(), home.resolve())).as_posix()
    # "./" keeps a folder named like an address (a colon in it) from being read as one.
    return "./" + quote(way)


def terminal_rows(board: Board) -> list[tuple[str, ...]]:
    """Rank, model, method and columns of each audit's leading method, as the terminal shows them."""
    leading = [place for place in board.places() if place.lead]
    return [
        (
            str(rank),
            place.audit.card["model"]["source"],
            place.label,
            number((place.accuracy or {}).get("value")),
            *(number((place.stats.get(column["key"]) or {}).get("value")) for column in board.ordered),
        )
        for rank, place in enumerate(leading, 1)
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
        "model": card["model"]["source"],
        "method": place.method,
        "recommended": place.lead,
        "grade": card["verdict"]["grade"],
        "complete": card["complete"] is not False,
        "accuracy": place.accuracy,
        "columns": place.stats,
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
            method["columns"],
        )
        for method in audit.card["methods"]
    ]


def _leading_method(card: dict[str, Any], column: dict[str, Any] | None) -> str | None:
    """The recommended method; else the best in the column that ranks; else the first, so that no model is hidden."""
    for method in card["methods"]:
        if method["recommended"]:
            return str(method["name"])
    found = [(method["name"], method["columns"].get((column or {}).get("key"))) for method in card["methods"]]
    best = best_value([stat for _, stat in found], (column or {}).get("direction", "higher"))
    at_best = [name for name, stat in found if best is not None and (stat or {}).get("value") == best]
    return next(iter([*at_best, *(name for name, _ in found)]), None)


def _rank(place: Place, column: dict[str, Any] | None) -> tuple[bool, float, str, str]:
    stat = None if column is None else place.stats.get(column["key"])
    name = place.audit.card["model"]["source"]
    if column is None or stat is None or not known(stat):
        return True, 0.0, name, place.method
    return False, -stat["value"] if column["direction"] == "higher" else stat["value"], name, place.method
