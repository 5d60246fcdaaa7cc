"""The per-example values behind a card's means, stored next to the card so that two audits can be compared in pairs.

FOLDER/records/table/METHOD.json      a Record: settings {"method": name}, one column per key of the card
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

from gyrograd import records
from gyrograd.numerics.wording import Number
from gyrograd.reporting.wording import Stat, is_known

Column = Mapping[int, Number | None]
"""Values by example; None if there is none."""
OF_MODEL = "(model)"
"""Stands for a method where the values are the model's own: "accuracy", whether it is right."""
StoredValues = dict[tuple[str, str], Column]
"""Columns by method and column key."""


def write_values(folder: Path, method: str, columns: Mapping[str, Column]) -> Path:
    """Write the values behind a method's row of the card; returns the file's path."""
    examples = sorted({example for column in columns.values() for example in column})
    values = {key: [column.get(example) for example in examples] for key, column in columns.items()}
    path = _place(folder) / f"{_file_name(method)}.json"
    records.write(path, records.Record(f"table of {method}", {"method": method}, examples, values))
    return path


def read_values(folder: Path) -> StoredValues:
    """The stored values of all methods; empty if there are none."""
    found: StoredValues = {}
    for path in sorted(_place(folder).glob("*.json")):
        record = records.read(path)
        for key, values in record.values.items():
            found[str(record.settings.get("method")), key] = dict(zip(record.examples, values, strict=True))
    return found


def values_behind(measured: StoredValues, method: str, key: str, stat: Stat | None) -> Column | None:
    """The values behind a mean of the card; None if there are none, or if their mean differs.

    A folder may hold values of an older audit, which must not be used with a newer card.
    """
    column = measured.get((method, key))
    if column is None or stat is None or not is_known(stat):
        return None
    return column if _has_mean(column, stat["value"]) else None


def _place(folder: Path) -> Path:
    return folder / "records" / "table"


def _file_name(method: str) -> str:
    """The method's name if it is a valid file name, else a shortened one with a hash."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", method)[:60]
    return slug if slug == method else f"{slug}-{hashlib.sha256(method.encode()).hexdigest()[:8]}"


def _has_mean(column: Column, mean: Number) -> bool:
    values = [value for value in column.values() if value is not None]
    return bool(values) and math.isclose(math.fsum(values) / len(values), mean, rel_tol=1e-6, abs_tol=1e-6)
