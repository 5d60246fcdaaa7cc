"""A checksum in the metadata of every safetensors file that gyrograd writes.

The metadata has one entry (safetensors would write several in random order): a JSON object, the note. Its `sha256`
covers the rest of the note and each tensor's name, type, shape and bytes, so a flipped bit is found when the file is
read. Files of others, and older ones, have no checksum and are read without a check.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.records import JsonObject


def signed_bytes(entry: str, note: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file of these tensors, with the note and its checksum under this entry of the metadata."""
    signed = json.dumps({**note, "sha256": digest(note, tensors)}, sort_keys=True)
    return to_bytes(dict(tensors), {entry: signed})


def check_tensors(path: Path | str, words: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that do not match the checksum, if the file has one."""
    for entry, text in words.items():
        if not entry.startswith("gyrograd"):
            continue
        note = read_note(path, text)
        if "sha256" in note:
            check_digest(path, note, tensors)


def read_note(path: Path | str, text: str) -> JsonObject:
    """The note of a file, which must be a JSON object."""
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        note = None
    if not isinstance(note, dict):
        raise UserError(damage_sentence(path))
    return note


def check_digest(path: Path | str, note: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a note and tensors that were not written together."""
    rest = {key: value for key, value in note.items() if key != "sha256"}
    if note.get("sha256") != digest(rest, tensors):
        raise UserError(damage_sentence(path))


def damage_sentence(path: Path | str) -> str:
    """The error message for a file that changed after it was written."""
    return f"{path} is damaged (its contents do not match its checksum); copy it again or train again."


def digest(note: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """sha256 of the note and, by sorted name, of each tensor's name, type, shape and bytes."""
    found = hashlib.sha256(json.dumps(dict(note), sort_keys=True).encode())
    for key in sorted(tensors):
        tensor = tensors[key]
        found.update(json.dumps([key, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
