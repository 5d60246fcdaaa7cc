"""The report card: the document, the records behind it, the pictures, and their files."""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyrograd import records as disk
from gyrograd.audit.summary import summary
from gyrograd.measurement import Table, fingerprint
from gyrograd.records import Record

PICTURES = "pictures.npz"


@dataclass(frozen=True, eq=False)
class Card:
    """What an audit found. `document` is what card.json holds; `records` the numbers of every example
    by cell, `table` the same by method, condition, eps and metric."""

    document: dict[str, Any]
    records: dict[str, Record] = field(default_factory=dict)
    pictures: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    table: Table | None = field(default=None, repr=False)

    @property
    def grade(self) -> str | None:
        """steady, shaky or unsafe; None where the attacks had nothing to follow."""
        found: str | None = self.document["verdict"]["grade"]
        return found

    def summary(self, width: int | None = None) -> str:
        """Verdict, table of methods and flags as text; without a `width` every sentence is one line."""
        return summary(self.document, width)

    def save(self, folder: Path | str) -> Path:
        """Write card.json, pictures.npz, the records that are not there yet, and the report; returns its path."""
        from gyrograd.reporting.card import write_report

        folder = Path(folder)
        for record in self.records.values():
            # An audit with a folder has its shards there already; one without writes each record whole.
            known = fingerprint([record.name, record.settings])
            if not any((folder / "records").glob(f"*-{known}")):
                disk.write(folder / "records" / f"{known}.json", record)
        self._write_pictures(folder)
        disk.write_text(folder / "card.json", json.dumps(self.document, indent=1, allow_nan=False) + "\n")
        write_report(self.document, folder)
        return folder / "report.html"

    def to_html(self, path: Path | str) -> Path:
        """Write the page alone, self-contained."""
        disk.write_text(path, self._page())
        return Path(path)

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame of its own so that its style stays there."""
        return (
            f'<iframe srcdoc="{escape(self._page())}" style="width: 100%; height: 44em; border: 0"></iframe>'
        )

    def _page(self) -> str:
        from gyrograd.reporting.card import contents, html_report
        from gyrograd.reporting.schema import checked

        with tempfile.TemporaryDirectory() as folder:
            self._write_pictures(Path(folder))
            return html_report(contents(checked(self.document), Path(folder)))

    def _write_pictures(self, folder: Path) -> None:
        if self.pictures:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **self.pictures)  # type: ignore[arg-type]
            disk.write_bytes(folder / PICTURES, buffer.getvalue())
