"""Sessions: which pages are still open in a browser, and which files belong to each."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

GRACE_S = 2.0
"""Seconds in which a browser may reconnect: it closes one stream before it opens the next."""
KEPT_S = 60.0
"""Seconds until files of closed pages, and files of no page, are removed."""
LAST_FILES = 3
"""Files kept per page and purpose, since queued work may still need an earlier image."""


class Sessions:
    """The open pages by session name, and the files in `folder` that belong to each."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        self._lock = threading.Lock()
        self._streams: dict[str, int] = defaultdict(int)
        self._closed: dict[str, float] = {}
        self._files: dict[str, dict[str, deque[Path]]] = defaultdict(dict)
        self._shared: set[Path] = set()

    def record_opened(self, session: str) -> None:
        """Record that the browser opened a stream."""
        with self._lock:
            self._streams[session] += 1

    def record_closed(self, session: str) -> None:
        """Record that one of the session's streams ended."""
        with self._lock:
            self._streams[session] -= 1
            self._closed[session] = self.clock()

    def is_gone(self, session: str, since: float) -> bool:
        """Whether the page of work that began at `since` has been closed for a while."""
        with self._lock:
            quiet = self.clock() - max(since, self._closed.get(session, since))
            return self._streams.get(session, 0) == 0 and quiet > GRACE_S

    def share_present_files(self) -> None:
        """Let all pages share the files that are in the folder now."""
        self._shared = set(_files_in(self.folder))

    def keep(self, session: str, purpose: str, path: Path) -> None:
        """Assign the file to this page, which keeps its last few for each purpose."""
        with self._lock:
            files = self._files[session].setdefault(purpose, deque(maxlen=LAST_FILES))
            if path not in files:
                files.append(path)

    def sweep(self) -> None:
        """Remove the files of closed pages, and files of no page."""
        with self._lock:
            now = self.clock()
            for session, closed in list(self._closed.items()):
                if self._streams[session] <= 0 and now - closed >= KEPT_S:
                    for known in (self._closed, self._streams, self._files):
                        known.pop(session, None)
            claimed = {path for files in self._files.values() for each in files.values() for path in each}
            claimed |= self._shared
        for path in _files_in(self.folder):
            if path not in claimed:
                _remove_if_old(path)


def _files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _remove_if_old(path: Path) -> None:
    """Remove the file unless it was just written and may not be assigned to a page yet."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime >= KEPT_S:
            path.unlink()
            path.parent.rmdir()
