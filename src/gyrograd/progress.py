"""Progress of long work: a bar with the time left on a terminal, a counting line in a notebook, one line elsewhere, and
nothing for short work."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Timer
from typing import Any, TypeVar

Item = TypeVar("Item")
Effort = tuple[str, float]
"""Estimated effort of an item: its kind, and an amount. The pace of each kind is measured, so amounts need only be
comparable within a kind."""

PATIENCE_S = 2.0
"""Work that takes less time shows no bar."""
WORTH_A_LINE_S = 60.0
"""Without a terminal one line is printed if the rest takes longer than this."""
COUNTED_EVERY_S = 1.0
"""Least time between two updates of a notebook's line."""
TRIED_S = 5.0
"""Seconds of work to observe before the time left is shown."""
SEEN_SHARE = 0.05
"""Share of each kind of work to observe before that: a small first item mostly shows what it takes to begin."""
SEEN_S = 30.0
"""Seconds of a kind that are enough, too: a twentieth of a long run would take too long to wait for."""

_inside: ContextVar[bool] = ContextVar("_inside", default=False)


@dataclass
class Pace:
    """Estimates the time left: the remaining effort of each kind at the measured speed of that kind.

    `starts_slowly`: the first item is left out, since the start of the workers came before it.
    """

    efforts: list[Effort]
    clock: Callable[[], float] = time.monotonic
    starts_slowly: bool = False
    done: int = 0
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    units: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock()

    def advance(self) -> None:
        """Count one finished item."""
        kind, size = self.efforts[self.done] if self.done < len(self.efforts) else ("", 0.0)
        now = self.clock()
        if self.done or not self.starts_slowly:
            self.spent[kind] += now - self.since
            self.units[kind] += size
        self.done, self.since = self.done + 1, now

    def next_is(self, effort: Effort) -> None:
        """Set the effort of the next item, if items do not come in the planned order."""
        if effort in self.efforts[self.done :]:
            self.efforts.insert(self.done, self.efforts.pop(self.efforts.index(effort, self.done)))

    def left(self) -> float | None:
        """Seconds left, or None before anything was measured; an unseen kind gets the average speed."""
        if not sum(self.units.values()):
            return None
        rest = [size * self._speed(kind) for kind, size in self.efforts[self.done :]]
        now = min(self.clock() - self.since, rest[0]) if rest else 0.0
        return sum(rest) - now

    def known(self) -> bool:
        """True if the estimate is usable: some of every remaining kind was seen, and `TRIED_S` of work was done."""
        whole: dict[str, float] = defaultdict(float)
        for kind, size in self.efforts:
            whole[kind] += size
        kinds = {kind for kind, size in self.efforts[self.done :] if size}
        seen = all(
            self.units[kind] >= SEEN_SHARE * whole[kind] or self.spent[kind] >= SEEN_S for kind in kinds
        )
        return sum(self.spent.values()) >= TRIED_S and seen

    def share(self) -> float:
        """Share of the estimated time that has passed, from 0 to 1."""
        left, gone = self.left(), sum(self.spent.values()) + self.clock() - self.since
        return 0.0 if left is None else gone / max(gone + left, 1e-9)

    def _speed(self, kind: str) -> float:
        if self.units[kind]:
            return self.spent[kind] / self.units[kind]
        return sum(self.spent.values()) / sum(self.units.values())


def duration_in_words(seconds: float) -> str:
    """A duration in words: 40 seconds, 12 minutes, 3.5 hours."""
    if seconds < 90:
        return f"{max(1, round(seconds))} second{'s' if round(seconds) > 1 else ''}"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def track(
    items: Iterable[Item],
    total: int,
    what: str,
    effort: Callable[[Item], Effort] | None = None,
    planned: Sequence[Effort] | None = None,
) -> Iterator[Item]:
    """Yield the items, and show the time left if the work takes a while; nested work and single items show nothing.

    Args:
        items: the work.
        total: the number of items.
        what: the label of the bar.
        effort: estimated effort of an item, if they differ; default: all alike.
        planned: efforts of all items, if these arrive in any order.
    """
    if _inside.get() or total <= 1:
        return iter(items)
    arrive = planned is not None
    if effort is not None and planned is None:
        items = list(items)
        planned = [effort(item) for item in items]
    pace = Pace(list(planned) if planned is not None else [("", 1.0)] * total, starts_slowly=arrive)
    show = _with_bar if sys.stderr.isatty() else _with_count if in_notebook() else _with_line
    return _hiding_nested(show(_announce(items, pace, effort), pace, what))


def in_notebook() -> bool:
    """True in a notebook, whose output is not a terminal but has a reader."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _announce(items: Iterable[Item], pace: Pace, effort: Callable[[Item], Effort] | None) -> Iterator[Item]:
    """Yield the items, telling the pace the effort of each before it starts."""
    for item in items:
        if effort is not None:
            pace.next_is(effort(item))
        yield item


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no progress of work in the block, because the caller shows that of the whole."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _hiding_nested(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items; until they end, nested work shows no bars."""
    _inside.set(True)
    try:
        yield from items
    finally:
        _inside.set(False)


def _with_line(items: Iterable[Item], pace: Pace, what: str) -> Iterator[Item]:
    """Print the time left once, as soon as it is known, if it is long."""
    printed = False
    for item in items:
        yield item
        pace.advance()
        if not printed and pace.known():
            printed, left = True, pace.left() or 0.0
            if left > WORTH_A_LINE_S:
                time_left = duration_in_words(left)
                print(f"gyrograd: {what}: about {time_left} on this machine.", file=sys.stderr, flush=True)


def _with_count(items: Iterable[Item], pace: Pace, what: str) -> Iterator[Item]:
    """One line with count and time left, replaced at each update and empty at the end.

    Lines printed with a carriage return would all stay in a saved notebook, one below the other.
    """
    from IPython.display import display

    started = last = pace.clock()
    line: Any = None

    def say(text: str) -> None:
        nonlocal line
        shown = {"text/plain": text}
        if line is None:
            line = display(shown, raw=True, display_id=True)
        else:
            line.update(shown, raw=True)

    try:
        for item in items:
            yield item
            pace.advance()
            now = pace.clock()
            if now - started >= PATIENCE_S and now - last >= COUNTED_EVERY_S:
                left = pace.left()
                rest = "" if left is None else f", about {duration_in_words(left)} left"
                say(f"{what}: {pace.done}/{len(pace.efforts)}{rest}")
                last = now
    finally:
        if line is not None:
            say("")


def _with_bar(items: Iterable[Item], pace: Pace, what: str) -> Iterator[Item]:
    shown: list[Any] = []

    def show() -> None:
        """Create the bar only now: most work ends earlier, and a map in a loop should not pay for it."""
        shown.append(_bar(pace, what))
        shown[0].start()

    patience = Timer(PATIENCE_S, show)
    patience.daemon = True
    patience.start()
    try:
        for item in items:
            yield item
            pace.advance()
    finally:
        patience.cancel()
        patience.join()
        for bar in shown:
            bar.stop()


def _bar(pace: Pace, what: str) -> Any:
    """A bar that is redrawn several times a second, so that the time left also falls during a long item."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    class Count(ProgressColumn):
        def render(self, task: Any) -> Text:
            task.completed = pace.share()
            return Text(f"{pace.done}/{len(pace.efforts)}", style="progress.download")

    class Left(ProgressColumn):
        def render(self, task: Any) -> Text:  # noqa: ARG002
            left = pace.left()
            return Text(
                "" if left is None else f"about {duration_in_words(left)} left", style="progress.remaining"
            )

    # Count comes before the bar, because it updates the share that the bar draws.
    columns = (TextColumn("{task.description}"), Count(), BarColumn(), Left())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=1.0)
    return bar
