"""Progress of a computation, which the user can stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gyrograd.attacks.auto import coarser
from gyrograd.registry import fact
from gyrograd.types import Attribution, Model

Watch: TypeAlias = Callable[[float, str], None]
"""Called with the finished share, from 0 to 1, and a description. An exception that it raises ends the work."""

OPENING_LOOKS = 2
"""Maps with a graph before an attack's first step, which check that there is a derivative and that it is not zero."""
OPENING_LOOKS_IN_TRANSFER = 1
"""In a transfer attack the first check is left out."""


class Stopped(Exception):  # noqa: N818 - no error: the user asked for it
    """Raised to end work that the user stopped."""


def unwatched(share: float, what: str) -> None:
    """A watch that does nothing."""


def part_of(watch: Watch, first: float, last: float, name: str) -> Watch:
    """A watch for a part of the work, which covers the shares from `first` to `last` of the whole."""

    def report(share: float, what: str) -> None:
        watch(first + (last - first) * share, f"{name}: {what}")

    return report


@dataclass(eq=False)
class ProgressReporter:
    """A watch that remembers its last report and can repeat it."""

    watch: Watch
    share: float = 0.0
    what: str = ""

    def __call__(self, share: float, what: str) -> None:
        # An attack may search several times (`auto` tries challengers); a bar that falls back would look like a fault.
        self.share, self.what = max(self.share, share), what
        self.watch(self.share, what)

    def again(self) -> None:
        """Repeat the last report, so that the watch can end the work."""
        if self.what:
            self.watch(self.share, self.what)


@contextmanager
def at_every_pass(model: Model, tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` before every pass of the model in this thread, since a map can take many passes.

    This includes copies of the model, such as an attack's twin, and ends with the block.
    """
    thread: int | None = get_ident()

    def before(_: Any, __: Any) -> None:
        if thread == get_ident():
            tell()

    handle = model.register_forward_pre_hook(before)
    try:
        yield
    finally:
        thread = None
        handle.remove()


@dataclass(eq=False)
class Watched:
    """Wraps an attribution and reports an attack's progress by counting its calls. Changes no number.

    Attacks report no progress themselves. They compute the attribution with a graph once per step, so the progress is
    the number of these calls over `attack_steps`. For attacks on the prediction, `count_pass` counts passes of the
    model with a graph outside of the attribution.
    """

    attribution: Attribution
    watch: Watch
    attack_steps: int
    opening: int = OPENING_LOOKS
    looks: int = field(default=0, init=False)
    looking: bool = field(default=False, init=False)

    def __repr__(self) -> str:
        return repr(self.attribution)

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        self.looks += create_graph
        self._tell()
        self.looking = True
        try:
            return self.attribution(model, x, target, create_graph=create_graph)
        finally:
            self.looking = False

    def __getattr__(self, name: str) -> Any:
        """Settings of the attribution, and the registered facts about it that a search reads."""
        if name == "attribution":
            raise AttributeError(name)  # an object that is being copied has no fields yet
        if name in ("passes", "forward_only"):
            return fact("attribution", self.attribution, name)
        return getattr(self.attribution, name)

    def coarser(self) -> Attribution | None:
        """The attribution's own coarser map, if it has one; its calls count too."""
        coarse = coarser(self.attribution)
        if coarse is None:
            return None

        def counted(model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
            own, self.attribution = self.attribution, coarse
            try:
                return self(model, x, target, create_graph=create_graph)
            finally:
                self.attribution = own

        return counted

    def count_pass(self) -> None:
        """Count a pass of the model that is about to start."""
        self._tell()
        self.looks += torch.is_grad_enabled() and not self.looking

    def _tell(self) -> None:
        done = min(self.attack_steps, max(0, self.looks - self.opening))
        self.watch(done / self.attack_steps, f"step {done} of {self.attack_steps}")
