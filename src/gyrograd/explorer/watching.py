"""Work that is watched: its user sees how far it is and can stop it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

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
class Watched:
    """An attribution that tells of every look an attack takes through it. It changes no number.

    An attack has no say in what watches it: it looks through the attribution once a step with a graph, so those
    looks over `steps` are how far it is.
    """

    attribution: Attribution
    watch: Watch
    steps: int
    opening: int = OPENING_LOOKS
    looks: int = field(default=0, init=False)

    def __repr__(self) -> str:
        return repr(self.attribution)

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        self.looks += create_graph
        done = min(self.steps, max(0, self.looks - self.opening))
        self.watch(done / self.steps, f"step {done} of {self.steps}")
        return self.attribution(model, x, target, create_graph=create_graph)
