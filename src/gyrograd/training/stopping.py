"""Being asked to stop: the step is finished, a checkpoint written, and only then the run ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A run that ended early because a signal asked for it. Its checkpoint is written; running again goes on."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The shell's 128 + signal: 130 for Ctrl-C, 143 for SIGTERM. Not 0, since the work is not done."""
        return 128 + self.number


@dataclass
class Request:
    """The signal that asked to stop, if one did."""

    number: int | None = None


@contextmanager
def stop_requests() -> Iterator[Request]:
    """Signals are noted instead of obeyed; the second one is obeyed at once. Handlers are put back.

    Only a main thread may handle signals: elsewhere (a sweep's worker) they are left as they are.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _: FrameType | None) -> None:
        request.number = number
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()
