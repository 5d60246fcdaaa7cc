"""The values behind a card's means, one an example: written beside the card, read back to compare two audits in pairs.

FOLDER/records/table/METHOD.json      a Record: settings {"method": name}, a column for each key of the card
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

from gyrograd import records
from gyrograd.numerics.wording import Number
from gyrograd.reporting.wording import Stat, known

Column = Mapping[int, Number | None]
"""Example to value; None where there is none."""
Measured = dict[tuple[str, str], Column]
"""Method and column key to values."""


def write_values(folder: Path, method: str, columns: Mapping[str, Column]) -> Path:
    """Write what a method's row of the card was made of; returns the file's path."""
    examples = sorted({example for column in columns.values() for example in column})
    values = {key: [column.get(example) for example in examples] for key, column in columns.items()}
    path = _place(folder) / f"{_file_name(method)}.json"
    records.write(path, records.Record(f"table of {method}", {"method": method}, examples, values))
    return path


def read_values(folder: Path) -> Measured:
    """Every method's values beside a card; an audit that kept none gives nothing."""
    found: Measured = {}
    for path in sorted(_place(folder).glob("*.json")):
        record = records.read(path)
        for key, values in record.values.items():
            found[str(record.settings.get("method")), key] = dict(zip(record.examples, values, strict=True))
    return found


def values_behind(measured: Measured, method: str, key: str, stat: Stat | None) -> Column | None:
    """The values a mean of the card was taken of; None where there are none, or they have another mean.

    A folder may hold an older audit's values: those must not be compared under a newer card.
    """
    column = measured.get((method, key))
    if column is None or stat is None or not known(stat):
        return None
    return column if _has_mean(column, stat["value"]) else None


def _place(folder: Path) -> Path:
    return folder / "records" / "table"


def _file_name(method: str) -> str:
    """The method's name where it can name a file; else what can, and a hash that tells two such apart."""
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", method)[:60]
    return slug if slug == method else f"{slug}-{hashlib.sha256(method.encode()).hexdigest()[:8]}"


def _has_mean(column: Column, mean: Number) -> bool:
    values = [value for value in column.values() if value is not None]
    return bool(values) and math.isclose(math.fsum(values) / len(values), mean, rel_tol=1e-6, abs_tol=1e-6)
