"""Results on disk: one JSON document per record, with a schema and a checksum. Needs no torch.

A record is written atomically (a temporary file next to it, then a rename). Reading checks schema and checksum. Shards
of one run can be merged.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from gyrograd.errors import UserError, check_schema

SCHEMA = 2
UNSIGNED = 1
"""Schema of records without a checksum, from earlier versions."""
COLUMNAR = ".npz"
"""Suffix of records that hold their columns as arrays."""
MAX_DEPTH = 100
"""Most levels of lists and objects in a JSON file; gyrograd writes about a dozen."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object; its reader knows the types inside."""


@dataclass(frozen=True)
class Record:
    """One result. `values` holds one number per example, by metric.

    `examples` are their indices in the data set, `settings` everything needed to run it again, and `facts` describe the
    whole run (versions, hardware, seconds).
    """

    name: str
    settings: JsonObject = field(default_factory=dict)
    examples: list[int] = field(default_factory=list)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    facts: JsonObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(set(self.examples)) != len(self.examples):
            raise UserError(f"Record '{self.name}' lists an example twice; list each once.")
        for key, column in self.values.items():
            if len(column) != len(self.examples):
                raise UserError(
                    f"Record '{self.name}': '{key}' has {len(column)} values for {len(self.examples)} examples; "
                    "give one value for each example."
                )


def write_bytes(path: Path | str, content: bytes) -> None:
    """Write a file atomically: a full disk or a kill leaves the old file unchanged."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only within a file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            # Otherwise a power failure could leave the new name with an empty file.
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner can read.
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes) -> None:
    """As `write_bytes`; a full or read-only disk is a `UserError`."""
    with os_error_as_user_error(path):
        write_bytes(path, content)


@contextmanager
def os_error_as_user_error(path: Path) -> Iterator[None]:
    """Turn OS errors (full or read-only disk) of the block into one sentence about this file."""
    try:
        yield
    except OSError as trouble:
        reason = "the disk is full" if trouble.errno == errno.ENOSPC else (trouble.strerror or str(trouble))
        kept = "the one before is kept; " if path.exists() else ""
        raise UserError(
            f"{path} cannot be written ({reason}); {kept}make room or give another folder, and run again to go on."
        ) from trouble


def write_text(path: Path | str, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode("utf-8"))


def write(path: Path | str, record: Record) -> None:
    """Write a record atomically. JSON has no NaN, so numbers that are not finite are written as null.

    A path that ends in .npz is written as arrays, eight bytes per number: for thousands of examples.
    """
    if Path(path).suffix == COLUMNAR:
        write_bytes(path, _columns_as_bytes(record))
        return
    document = _plain({"schema": SCHEMA, **vars(record)})
    document["sha256"] = _digest(document)
    write_text(path, json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read(path: Path | str) -> Record:
    """Read a record; a damaged or edited file, or a newer schema, is an error."""
    path = Path(path)
    if path.suffix == COLUMNAR:
        return _read_columns(path)
    try:
        document = read_json(path)
    except FileNotFoundError:
        raise UserError(f"There is no record at {path}; check the path.") from None
    except ValueError:
        raise UserError(f"{path} is not a record (no valid JSON in it); write it again.") from None
    schema = document.pop("schema", None) if isinstance(document, dict) else None
    if type(schema) is not int or schema < 1:
        raise UserError(f"{path} is not a gyrograd record (it names no schema); give a file gyrograd wrote.")
    check_schema(path, schema, SCHEMA)
    checksum = document.pop("sha256", None)
    if (checksum is not None or schema != UNSIGNED) and checksum != _digest({"schema": schema, **document}):
        raise UserError(_damage_sentence(path))
    misfit = _misfit(document)
    if misfit is not None:
        raise UserError(f"{path} is not a record ({misfit}); write it again.")
    try:
        return Record(**document)
    except TypeError:
        raise UserError(f"{path} lacks or adds fields of schema {schema}; write it again.") from None


def _columns_as_bytes(record: Record) -> bytes:
    """The record as a numpy archive: a JSON header, the examples, and one row of numbers per column."""
    import numpy as np

    head = _plain({"schema": SCHEMA, **{key: getattr(record, key) for key in ("name", "settings", "facts")}})
    head["columns"] = list(record.values)
    examples = np.array(record.examples, dtype=np.int64)
    # None becomes NaN. This is unambiguous, because a value that is not finite counts as missing.
    rows = [np.array(values, dtype=np.float64) for values in record.values.values()]
    numbers = np.stack(rows) if rows else np.zeros((0, len(examples)))
    numbers[~np.isfinite(numbers)] = np.nan
    head["sha256"] = _digest_of_columns(head, examples, numbers)
    buffer = io.BytesIO()
    np.savez(buffer, head=np.array(json.dumps(head, sort_keys=True)), examples=examples, numbers=numbers)
    return buffer.getvalue()


def _damage_sentence(path: Path) -> str:
    return (
        f"{path} was damaged or edited after gyrograd wrote it (its contents do not match its checksum); "
        "write it again."
    )


def _read_columns(path: Path) -> Record:
    import numpy as np

    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            head, examples, numbers = json.loads(str(file["head"])), file["examples"], file["numbers"]
        checksum = head.pop("sha256")
        if checksum != _digest_of_columns(head, examples, numbers):
            raise ValueError
        values = {
            name: [None if value != value else value for value in row.tolist()]
            for name, row in zip(head["columns"], numbers, strict=True)
        }
        return Record(head["name"], head["settings"], examples.tolist(), values, head["facts"])
    except FileNotFoundError:
        raise UserError(f"There is no record at {path}; check the path.") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError, EOFError, zipfile.BadZipFile):
        raise UserError(_damage_sentence(path)) from None


def _digest_of_columns(head: Mapping[str, Any], examples: Any, numbers: Any) -> str:
    total = hashlib.sha256(json.dumps(head, sort_keys=True, separators=(",", ":")).encode())
    for array in (examples, numbers):
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def read_json(path: Path, **options: Any) -> Any:
    """The value in a JSON file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It cannot be read, or is not JSON, or is nested deeper than anything gyrograd writes.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"), **options)
    except FileNotFoundError:
        raise
    except OSError as wrong:
        raise ValueError(wrong.strerror or str(wrong)) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if sum(1 for _ in islice(levels_below(value), MAX_DEPTH)) == MAX_DEPTH:
        raise ValueError("it is nested too deep")
    return value


def levels_below(tree: Any) -> Iterator[list[Any]]:
    """The values inside a tree of dicts and lists, level by level from the outside."""
    level = [tree]
    while level := [
        inner
        for item in level
        if isinstance(item, dict | list | tuple | set)
        for inner in (item.values() if isinstance(item, dict) else item)
    ]:
        yield level


def merge(shards: Iterable[Record]) -> Record:
    """Merge the shards of one run, in the order of the examples; their facts become a list."""
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


def _digest(document: Mapping[str, Any]) -> str:
    """sha256 of a document in canonical JSON: sorted keys, no spaces."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _misfit(document: Mapping[str, Any]) -> str | None:
    """The first field of the wrong type, or None; numbers too large for a float count as wrong."""
    for key, kind in {"name": str, "settings": dict, "examples": list, "values": dict, "facts": dict}.items():
        if not isinstance(document.get(key, kind()), kind):
            return f"'{key}' is of another kind"
    if not all(type(example) is int for example in document.get("examples", ())):
        return "'examples' are not all whole numbers"
    for key, column in document.get("values", {}).items():
        if not isinstance(column, list) or not all(value is None or _is_finite(value) for value in column):
            return f"'{key}' holds more than finite numbers"
    return None


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
