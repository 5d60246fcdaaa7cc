"""A bar for work that takes long, on a terminal only: nothing in logs, pipes, notebooks' stderr or tests."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

PATIENCE_S = 2.0
"""Work done sooner than this shows no bar."""


def track(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items one by one; once the work has taken a while, a bar with the time left."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=total)
    started = time.monotonic()
    shown = False
    try:
        for item in items:
            yield item
            bar.advance(task)
            if not shown and time.monotonic() - started > PATIENCE_S:
                bar.start()
                shown = True
    finally:
        if shown:
            bar.stop()
