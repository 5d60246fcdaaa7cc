"""The kind of a model file, found from its bytes: nothing is unpickled, and the suffix is not trusted."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError, safe_open

from gyrograd.errors import UserError, in_one_sentence
from gyrograd.models.weights import is_pickled
from gyrograd.records import JsonObject

Content = Literal["checkpoint", "safetensors", "torchscript", "export", "pickle", "other"]

_EXPORT_MARKS = ("archive_format", "serialized_exported_program.json")
_MEMBER = re.compile(r"[\w.+@ -]+(/[\w.+@ -]+)*")
LARGEST_GROWTH = 16
LARGEST_UNPACKED = 256 * 2**20
"""Bytes that any zip may unpack to; a larger one may unpack to `LARGEST_GROWTH` times its size."""


def content_of(path: Path) -> Content:
    """The kind of file: a gyrograd checkpoint, other safetensors, a torch program, a pickle, or none of these."""
    if not is_pickled(path):
        try:
            with safe_open(path, framework="pt") as tensors:
                return "checkpoint" if "gyrograd" in (tensors.metadata() or {}) else "safetensors"
        except (SafetensorError, ValueError, RuntimeError):
            return "other"
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return "pickle"
    names = [name.partition("/")[2] or name for name in member_names(path)]
    if any(name.endswith(mark) for name in names for mark in _EXPORT_MARKS):
        return "export"
    # A scripted module has code and constants beside its data; a state dict has only data.pkl.
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "torchscript"
    return "pickle" if "data.pkl" in names else "other"


def member_names(path: Path) -> list[str]:
    """Names of the files in a zip that is no zip bomb and whose files are whole."""
    with in_one_sentence(partial(_damaged_zip, path)), zipfile.ZipFile(path) as archive:
        _check_sizes(path, archive)
        broken = archive.testzip()
        if broken is not None:
            raise zipfile.BadZipFile(f"{broken} is broken")
        return archive.namelist()


def members(path: Path) -> dict[str, bytes]:
    """The files of a torch archive by their name below its one folder, each whole and there once."""
    # torch has its own zip reader, which may find other bytes in the same file (it ignores case in names, for example).
    # So the checked files are packed again by `repack`, and torch gets only that.
    with in_one_sentence(partial(_damaged_zip, path)), zipfile.ZipFile(path) as archive:
        _check_sizes(path, archive)
        names = [name for name in archive.namelist() if not name.endswith("/")]
        inner = {name.partition("/")[2]: name for name in names}
        if (
            not all(_MEMBER.fullmatch(name) and ".." not in name.split("/") for name in inner)
            or len({name.partition("/")[0] for name in names}) != 1
            or len({name.lower() for name in inner}) != len(names)
        ):
            raise UserError(
                f"{path} is not an archive that torch wrote (its files are not in one folder, or one is there twice); "
                "save the model again."
            )
        return {short: archive.read(name) for short, name in inner.items()}


def repack(contents: Mapping[str, bytes]) -> io.BytesIO:
    """A new archive of these files, for torch to read."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in contents.items():
            archive.writestr(f"archive/{name}", content)
    buffer.seek(0)
    return buffer


def json_object(path: Path, content: bytes) -> JsonObject:
    """The JSON object in a file of an archive."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UserError(f"{path} is damaged (its program is not JSON); export the model again.")
    return document


def _damaged_zip(path: Path, reason: str) -> str:
    return f"{path} is a damaged zip ({reason}); copy it again or save the model again."


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(LARGEST_UNPACKED, LARGEST_GROWTH * path.stat().st_size):
        raise UserError(
            f"{path} says it unpacks to {unpacked:,} bytes, far more than a model of its size; save the model again."
        )
