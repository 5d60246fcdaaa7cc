"""Everything written to disk as a result: one JSON document a record, one schema, no torch.

A record is written whole or not at all (a temporary file beside it, then a rename), read back with its schema
checked, and merged with the other shards of the same run.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gyrograd.errors import UserError

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """One result. `values` holds one number for each example, keyed by what was measured.

    `examples` names the examples (their index in the data set), `settings` all that is needed to run it
    again, `facts` what is true of the whole run (versions, hardware, seconds).
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    examples: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.examples)) != len(self.examples):
            raise UserError(f"Record '{self.name}' lists an example twice; each example belongs in it once.")
        for key, column in self.values.items():
            if len(column) != len(self.examples):
                raise UserError(
                    f"Record '{self.name}': '{key}' has {len(column)} values for {len(self.examples)} examples; "
                    "give one value for each example."
                )


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file whole or not at all: a full disk or a kill leaves the old file as it was."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path | str, text: str) -> None:
    """Write text whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write(path: Path | str, record: Record) -> None:
    """Write a record atomically. A number that is not finite is written as null, since JSON has no other."""
    document = {"schema": SCHEMA, **asdict(record)}
    write_text(path, json.dumps(_plain(document), indent=1, sort_keys=True, allow_nan=False) + "\n")


def read(path: Path | str) -> Record:
    """Read a record; a damaged file or a newer schema gives one sentence."""
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no record at {path}; check the path.") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path} is not a record (no valid JSON in it); write it again.") from None
    if not isinstance(document, dict) or not isinstance(document.get("schema"), int):
        raise UserError(f"{path} is not a gyrograd record (it names no schema); give a file gyrograd wrote.")
    schema = document.pop("schema")
    if schema > SCHEMA:
        raise UserError(
            f"{path} has schema {schema} and this gyrograd reads up to {SCHEMA}; "
            "upgrade it: pip install -U gyrograd."
        )
    try:
        return Record(**document)
    except TypeError:
        raise UserError(f"{path} lacks or adds fields of schema {schema}; write it again.") from None


def merge(shards: Iterable[Record]) -> Record:
    """One record of the shards of one run, in the order of the examples. Facts of the shards are kept in a list."""
    parts = list(shards)
    if not parts:
        raise UserError("There are no records to merge; give at least one.")
    first = parts[0]
    for part in parts[1:]:
        if (part.name, part.settings) != (first.name, first.settings):
            raise UserError(
                f"Records '{first.name}' and '{part.name}' differ in name or settings; merge shards of one run only."
            )
        if set(part.values) != set(first.values):
            raise UserError(f"Shards of '{first.name}' measure different things; run the missing ones again.")
    rows = sorted(
        (index, shard, row) for shard, part in enumerate(parts) for row, index in enumerate(part.examples)
    )
    values = {key: [parts[shard].values[key][row] for _, shard, row in rows] for key in first.values}
    facts = dict(first.facts) if len(parts) == 1 else {"shards": [part.facts for part in parts]}
    return Record(first.name, first.settings, [index for index, _, _ in rows], values, facts)


def _plain(value: Any) -> Any:
    """JSON types only; a float that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
