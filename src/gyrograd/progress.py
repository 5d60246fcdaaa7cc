"""Work that takes long: a bar with the time left on a terminal, a line that counts in a notebook, one line elsewhere;
nothing for what is soon done."""

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
"""What an item is guessed to take: its kind, and how much of that kind. Units are anyone's own: each kind's pace is
measured as it is done, so a guess need only be right within a kind."""

PATIENCE_S = 2.0
"""Work done sooner than this shows no bar."""
WORTH_A_LINE_S = 60.0
"""Where there is no terminal, one line says how long it takes if the rest takes longer than this."""
COUNTED_EVERY_S = 1.0
"""A notebook's line is written again this often at most."""
TRIED_S = 5.0
"""Nothing is said of the time left before so much work was seen."""

_inside: ContextVar[bool] = ContextVar("_inside", default=False)


@dataclass
class Pace:
    """How long the rest takes: what is left of each kind, at the speed that kind has gone so far.

    `starts_slowly`: the first item says nothing of the others, since workers were started before it.
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
        """One more item is done."""
        kind, size = self.efforts[self.done] if self.done < len(self.efforts) else ("", 0.0)
        now = self.clock()
        if self.done or not self.starts_slowly:
            self.spent[kind] += now - self.since
            self.units[kind] += size
        self.done, self.since = self.done + 1, now

    def next_is(self, effort: Effort) -> None:
        """The item that comes next is one of this effort, whatever the order it was planned in."""
        if effort in self.efforts[self.done :]:
            self.efforts.insert(self.done, self.efforts.pop(self.efforts.index(effort, self.done)))

    def left(self) -> float | None:
        """Seconds; None before there is something to go by. A kind not seen yet goes at the speed of all."""
        if not sum(self.units.values()):
            return None
        rest = [size * self._speed(kind) for kind, size in self.efforts[self.done :]]
        now = min(self.clock() - self.since, rest[0]) if rest else 0.0
        return sum(rest) - now

    def known(self) -> bool:
        """Was every kind that is left seen, and enough work to go by?"""
        kinds = {kind for kind, size in self.efforts[self.done :] if size}
        return sum(self.spent.values()) >= TRIED_S and all(self.units[kind] for kind in kinds)

    def share(self) -> float:
        """How much of the time has gone, from 0 to 1."""
        left, gone = self.left(), sum(self.spent.values()) + self.clock() - self.since
        return 0.0 if left is None else gone / max(gone + left, 1e-9)

    def _speed(self, kind: str) -> float:
        if self.units[kind]:
            return self.spent[kind] / self.units[kind]
        return sum(self.spent.values()) / sum(self.units.values())


def spoken(seconds: float) -> str:
    """A time as one says it: 40 seconds, 12 minutes, 3.5 hours."""
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
    """The items one by one; where the work takes a while, how long the rest will take.

    `effort`: what an item is guessed to take, where they may differ a hundredfold; all alike without. `planned`: the
    efforts of all items, where the items themselves arrive as they are made, in any order.
    Work within such work says nothing of its own: the time left is that of the whole. Nor does a single item, which
    ends when it ends.
    """
    if _inside.get() or total <= 1:
        return iter(items)
    arrive = planned is not None
    if effort is not None and planned is None:
        items = list(items)
        planned = [effort(item) for item in items]
    pace = Pace(list(planned) if planned is not None else [("", 1.0)] * total, starts_slowly=arrive)
    told = _with_bar if sys.stderr.isatty() else _with_count if in_notebook() else _with_line
    return _alone(told(_announced(items, pace, effort), pace, what))


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook, whose output is no terminal and yet has a reader."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _announced(items: Iterable[Item], pace: Pace, effort: Callable[[Item], Effort] | None) -> Iterator[Item]:
    for item in items:
        if effort is not None:
            pace.next_is(effort(item))
        yield item


@contextmanager
def without_bars() -> Iterator[None]:
    """Work in the block says nothing of its own: somebody else tells how long the whole takes."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _alone(told: Iterator[Item]) -> Iterator[Item]:
    """The items; until they end, bars begun by who works on them stay away."""
    _inside.set(True)
    try:
        yield from told
    finally:
        _inside.set(False)


def _with_line(items: Iterable[Item], pace: Pace, what: str) -> Iterator[Item]:
    told = False
    for item in items:
        yield item
        pace.advance()
        if not told and pace.known():
            told, left = True, pace.left() or 0.0
            if left > WORTH_A_LINE_S:
                print(f"gyrograd: {what}: about {spoken(left)} on this machine.", file=sys.stderr, flush=True)


def _with_count(items: Iterable[Item], pace: Pace, what: str) -> Iterator[Item]:
    """One line that is written over: how much is done and how long the rest takes, wiped in the end."""
    started = last = pace.clock()
    width = 0
    try:
        for item in items:
            yield item
            pace.advance()
            now = pace.clock()
            if now - started >= PATIENCE_S and now - last >= COUNTED_EVERY_S:
                left = pace.left()
                rest = "" if left is None else f", about {spoken(left)} left"
                text = f"{what}: {pace.done}/{len(pace.efforts)}{rest}"
                print(f"\r{text:<{width}}", end="", file=sys.stderr, flush=True)
                last, width = now, len(text)
    finally:
        if width:
            print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)


def _with_bar(items: Iterable[Item], pace: Pace, what: str) -> Iterator[Item]:
    shown: list[Any] = []

    def show() -> None:
        """Made only now: most work is done before, and a map in a loop should not pay for a bar each time."""
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
    """Drawn several times a second out of the pace, so that the time left also falls during a long item."""
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
            return Text("" if left is None else f"about {spoken(left)} left", style="progress.remaining")

    # Count before the bar, which draws the share that Count has brought up to date
    columns = (TextColumn("{task.description}"), Count(), BarColumn(), Left())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=1.0)
    return bar
