"""Work that is watched: its user sees how far it is and can stop it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gyrograd.types import Attribution, Model

Watch: TypeAlias = Callable[[float, str], None]
"""Told the share that is done, from 0 to 1, and what is being done. What it raises ends the work."""

OPENING_LOOKS = 2
"""Differentiable looks before the first step: whether the map has a derivative at all, and whether it is zero."""
OPENING_LOOKS_IN_TRANSFER = 1
"""A map that stands in for another is taken to have a derivative."""


class Stopped(Exception):  # noqa: N818 - no error: the user asked for it
    """The user wants no more of it."""


def unwatched(share: float, what: str) -> None:
    """Nobody is watching."""


def part_of(watch: Watch, first: float, last: float, name: str) -> Watch:
    """A watch for one part of a longer work, between two shares of the whole."""

    def told(share: float, what: str) -> None:
        watch(first + (last - first) * share, f"{name}: {what}")

    return told


@dataclass(eq=False)
class Place:
    """A watch that knows what it was told last, and can tell it again."""

    watch: Watch
    share: float = 0.0
    what: str = ""

    def __call__(self, share: float, what: str) -> None:
        self.share, self.what = share, what
        self.watch(share, what)

    def again(self) -> None:
        """Where the work still is: the moment to end it, if its user wants no more of it."""
        if self.what:
            self.watch(self.share, self.what)


@contextmanager
def at_every_pass(model: Model, tell: Callable[[], None]) -> Iterator[None]:
    """`tell` before every pass of the model in this thread: a map or an attack may take many between two looks.

    Copies of the model, such as an attack's twin, have it too, and forget it with the block.
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
    """An attribution that tells of every look an attack takes through it. It changes no number.

    An attack has no say in what watches it: it looks through the attribution once a step with a graph, so those
    looks over `steps` are how far it is. An attack on the prediction does not: its steps are passes of the model with
    a graph, `passed`, outside of any look.
    """

    attribution: Attribution
    watch: Watch
    steps: int
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

    def passed(self) -> None:
        """The model is about to be run."""
        self._tell()
        self.looks += torch.is_grad_enabled() and not self.looking

    def _tell(self) -> None:
        done = min(self.steps, max(0, self.looks - self.opening))
        self.watch(done / self.steps, f"step {done} of {self.steps}")
