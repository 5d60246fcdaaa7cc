"""Writing a run's files: whole or not at all, and a sentence where the disk says no."""

from __future__ import annotations

import errno
from pathlib import Path

from gyrograd.errors import UserError
from gyrograd.records import write_bytes


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file whole; a disk that is full or read-only leaves the old one as it was."""
    try:
        write_bytes(path, content)
    except OSError as trouble:
        reason = "the disk is full" if trouble.errno == errno.ENOSPC else (trouble.strerror or str(trouble))
        kept = "the one before is kept; " if path.exists() else ""
        raise UserError(
            f"{path} cannot be written ({reason}); {kept}make room or give another folder, and run again to go on."
        ) from trouble


def remove_leftovers(folder: Path) -> None:
    """Take away the half-written files that a kill in the middle of a write leaves beside the whole ones."""
    for pattern in (".*.safetensors.*", ".*.jsonl.*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
