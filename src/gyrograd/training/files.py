"""Writing a run's files: when, whole or not at all, and a sentence where the disk says no."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gyrograd.errors import UserError
from gyrograd.records import write_bytes

PAUSE = 50
"""After a writing passes at least so many times the seconds it took: files cost a run a fiftieth of its time."""


@dataclass
class Written:
    """What of a run is on disk, and whether now is a time to write more: one answer for all of its files."""

    epoch: int = 0
    """Epochs in the last checkpoint."""
    saved: float = -math.inf
    """When it was written."""
    lines: int | None = 0
    """Lines of the log; None: there is a log, but of what is not known."""
    ended: float = -math.inf
    """When anything was written last."""
    cost: float = 0.0
    """The seconds that took."""

    def may_write(self) -> bool:
        """Whether the last writing is long enough ago. Epochs of minutes always find it so."""
        return time.monotonic() - self.ended >= PAUSE * self.cost

    @contextmanager
    def measured(self) -> Iterator[None]:
        """The block writes: how long it takes decides how soon the next may come."""
        begun = time.monotonic()
        yield
        self.ended = time.monotonic()
        self.cost = self.ended - begun


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file whole; a disk that is full or read-only leaves the old one as it was."""
    with told_of_trouble(path):
        write_bytes(path, content)


@contextmanager
def told_of_trouble(path: Path) -> Iterator[None]:
    """A disk that is full or read-only is one sentence about the file the block replaces."""
    try:
        yield
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
