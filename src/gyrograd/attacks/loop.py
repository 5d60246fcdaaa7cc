"""The one loop behind every attack: step, project, judge, keep.

It knows no maps and no models. It asks for the derivative of what is minimised at a perturbed image, and for
what the image is worth and whether the label held. Every line treats each example alone, so results do not
depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gyrograd.numerics.balls import Ball, column, into_box
from gyrograd.numerics.random import Keys, normal
from gyrograd.progress import track
from gyrograd.types import Flags, Images, Logits, PerExample

Memory: TypeAlias = tuple[Tensor, Tensor] | None
Stepper: TypeAlias = Callable[[Tensor, Ball, Memory, int], tuple[Tensor, Memory]]


@dataclass(frozen=True)
class Search:
    """How to search: the settings of the loop, all of them decided. `open_end`: the last iterate is handed back as
    `Found.last`, unjudged, for a caller who looks at it anyway. `judge_from`: steps before this one are not judged if
    that would take a pass of its own."""

    steps: int
    step_size: float | None = None
    stepper: str = "steepest"
    projection: str = "clip"
    start: str = "clean"
    restarts: int = 1
    selection: str = "best"
    constraint: str = "hard"
    stop_at: float | None = None
    trace: bool = False
    decay: bool = False
    open_end: bool = False
    judge_from: int = 0

    def length(self, eps: float | Tensor) -> float | Tensor:
        """The step size in pixel units: as set, or 4 eps / steps for Adam (joo2023's code) and 2.5 eps / steps."""
        if self.step_size is not None:
            return self.step_size
        return PACE[self.stepper] * eps / max(1, self.steps)

    def pace(self, step: int) -> float:
        """The share of the step size that this step takes: all of it, or with `decay` less and less to zero."""
        return 1 - step / self.steps if self.decay else 1.0

    def judges(self, step: int) -> bool:
        """Whether anything depends on this iterate."""
        by_value = (self.selection, self.constraint) != ("last", "soft")
        every = by_value or self.stop_at is not None or self.trace
        return step == self.steps or (every and step >= self.judge_from)

    def may_end(self, active: Flags) -> bool:
        """Early exit: every example has reached `stop_at` (a trace is kept whole, whatever the batch holds)."""
        return self.stop_at is not None and not self.trace and not bool(active.any())


@dataclass(frozen=True)
class Verdict:
    """What perturbed images are worth (lower is better for the attacker) and whether the label held."""

    value: PerExample
    kept: Flags


@dataclass(frozen=True)
class Answer:
    """What was asked about perturbed images: the derivative to them, the verdict on them, or both.

    `objective`: the value of what was differentiated, infinite where the label is lost."""

    gradient: Images | None
    verdict: Verdict | None
    objective: PerExample | None = None


@runtime_checkable
class Ask(Protocol):
    """At these perturbed images, at this step: the derivative if `slope`, the verdict if `verdict`."""

    def __call__(self, perturbed: Tensor, step: int, *, slope: bool, verdict: bool) -> Answer: ...


@dataclass(frozen=True)
class Box:
    """The pixels an image may take: [0, 1], a narrower range that holds x, or (`open`) any."""

    low: Float[Tensor, "#b 1 1 1"] | None = None
    high: Float[Tensor, "#b 1 1 1"] | None = None
    open: bool = False

    @classmethod
    def of(cls, name: str, x: Images) -> Box:
        """[0, 1] ("unit"), or the range of the pixels of each "image" or (joo2023's code) of the whole "batch"; or
        "none", for inputs that are no pixels."""
        if name in {"unit", "none"}:
            return cls(open=name == "none")
        flat = x.flatten(1) if name == "image" else x.reshape(1, -1)
        return cls(flat.amin(1).view(-1, 1, 1, 1), flat.amax(1).view(-1, 1, 1, 1))

    def rows(self, part: slice | Tensor, b: int) -> Box:
        """The box of these rows of b."""
        low, high = (
            None if edge is None else edge.expand(b, 1, 1, 1)[part] for edge in (self.low, self.high)
        )
        return Box(low, high, self.open)

    def cut(self, x: Images, delta: Images) -> Images:
        """delta cut so that x + delta lies in the box; no entry gets longer."""
        if self.open:
            return delta
        if self.low is not None and self.high is not None:
            delta = torch.minimum(torch.maximum(delta, self.low - x), self.high - x)
        return into_box(x, delta)


@dataclass(frozen=True)
class Found:
    """What a search came back with. `value`: the verdict on x + delta; `stuck`: every derivative was zero; `broken`:
    one was not finite; `fall`: by how much what was differentiated fell from where the search began, as a
    share of it if it was above 1 there.

    Of `auto` also: `beaten_by`, where a challenger did better than the main search; `misled`, where the objective fell
    and the column did not; `start`, the verdict's value at x, and `map` and `logits` at x + delta, so that nobody looks
    again."""

    delta: Images
    value: PerExample
    steps: Int[Tensor, " b"]
    stuck: Flags
    broken: Flags
    trace: Float[Tensor, "n b"] | None = None
    fall: PerExample | None = None
    last: Images | None = None
    beaten_by: Mapping[str, Flags] = field(default_factory=dict)
    misled: Flags | None = None
    start: PerExample | None = None
    map: Images | None = None
    logits: Logits | None = None

    def rows(self, part: slice) -> Found:
        """What was found for these rows; a trace, which has a row for each step, is not taken along."""
        fall, last = (None if column is None else column[part] for column in (self.fall, self.last))
        return Found(
            self.delta[part],
            self.value[part],
            self.steps[part],
            self.stuck[part],
            self.broken[part],
            fall=fall,
            last=last,
        )

    def updated(self, rows: Tensor, **columns: Tensor) -> Found:
        """The same, with other values in these columns for these rows."""
        return replace(
            self, **{name: getattr(self, name).index_copy(0, rows, new) for name, new in columns.items()}
        )


def search(
    x: Images,
    how: Search,
    ball: Ball,
    box: Box,
    ask: Ask,
    clean: Verdict,
    keys: Keys,
    begin: Images | None = None,
) -> Found:
    """The perturbation the selection rule picks, x itself being the first candidate.

    "best" takes the lowest value, "last" the last iterate; under a hard constraint only iterates that keep the
    label count. Every restart begins as `start` says, at a point of its own; after a clean start, at random. `begin`
    is the perturbation at which the first one begins instead.
    """
    found, value = torch.zeros_like(x), clean.value
    eps = _radius(ball, x)
    taken = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    moved, broken = torch.zeros_like(clean.kept), torch.zeros_like(clean.kept)
    rows: list[Tensor] = []
    delta = found
    objectives: list[Tensor] = []
    for restart in range(how.restarts):
        start = "random" if restart > 0 and how.start == "clean" else how.start
        first = (
            first_delta(x, start, ball, keys, restart)
            if begin is None or restart > 0
            else ball.project(begin)
        )
        delta = box.cut(x, first)
        active, memory = torch.ones_like(clean.kept), None
        for step in track(range(how.steps + 1), how.steps + 1, "attacking"):
            end = step == how.steps
            if end and how.open_end:
                break
            here = ask(x + delta, step, slope=not end, verdict=how.judges(step))
            verdict = here.verdict
            if verdict is not None:
                counts = verdict.kept | (how.constraint == "soft")
                chosen = counts & active & ((verdict.value < value) | (how.selection == "last"))
                found, value = where_rows(chosen, delta, found), torch.where(chosen, verdict.value, value)
                rows.append(verdict.value)
                if how.stop_at is not None:
                    active = active & ~(counts & (verdict.value <= how.stop_at))
            if here.objective is not None:
                objectives.append(here.objective)
            if here.gradient is None or how.may_end(active):
                break
            finite = here.gradient.isfinite().flatten(1).all(1)
            gradient = where_rows(finite, here.gradient, torch.zeros_like(x))
            broken, moved = broken | ~finite, moved | (gradient != 0).flatten(1).any(1)
            direction, memory = STEPPERS[how.stepper](gradient, ball, memory, step + 1)
            direction = direction * how.pace(step) if how.decay else direction
            further = PROJECTIONS[how.projection](ball, delta - how.length(eps) * direction)
            delta = where_rows(active, box.cut(x, further), delta)
            taken = taken + active
    stuck = ~moved & (how.steps > 0) & (ball.eps > 0)
    fall = None
    if objectives:
        first = objectives[0]
        fall = (first - torch.stack(objectives).amin(0)) / first.abs().clamp_min(1)
    trace, last = torch.stack(rows) if how.trace else None, delta if how.open_end else None
    return Found(found, value, taken, stuck, broken, trace, fall, last)


def first_delta(x: Images, start: str, ball: Ball, keys: Keys, restart: int = 0) -> Images:
    """Where a run begins: at x ("clean"), anywhere in the ball ("random"), or on its surface ("surface")."""
    if start == "clean":
        return torch.zeros_like(x)
    if start == "random":
        return ball.sample(x, keys, stream=restart)
    return ball.steepest(normal(keys, tuple(x.shape[1:]), stream=restart, dtype=x.dtype)) * _radius(ball, x)


def _radius(ball: Ball, x: Images) -> float | Tensor:
    """The radius as a number, or one for each example as a column."""
    return column(ball.eps, x) if isinstance(ball.eps, Tensor) else float(ball.eps)


def _sign(gradient: Tensor, ball: Ball, memory: Memory, t: int) -> tuple[Tensor, Memory]:  # noqa: ARG001
    return gradient.sign(), None


def _steepest(gradient: Tensor, ball: Ball, memory: Memory, t: int) -> tuple[Tensor, Memory]:  # noqa: ARG001
    """The sign in the l-inf ball, the unit gradient in the l2 ball."""
    return ball.steepest(gradient), None


def _adam(gradient: Tensor, ball: Ball, memory: Memory, t: int) -> tuple[Tensor, Memory]:  # noqa: ARG001
    """Adam (Kingma and Ba 2015) with its usual constants, on each pixel."""
    mean, square = memory if memory is not None else (torch.zeros_like(gradient), torch.zeros_like(gradient))
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.999 * square + 0.001 * gradient.square()
    return (mean / (1 - 0.9**t)) / ((square / (1 - 0.999**t)).sqrt() + 1e-8), (mean, square)


def _momentum(gradient: Tensor, ball: Ball, memory: Memory, t: int) -> tuple[Tensor, Memory]:  # noqa: ARG001
    """The steepest step along a sum of gradients of size one, older ones counting less (Dong et al. 2018)."""
    size = gradient.abs().flatten(1).sum(1).view(-1, *[1] * (gradient.dim() - 1))
    even = gradient / torch.where(size > 0, size, 1)
    total = even if memory is None else MOMENTUM * memory[0] + even
    return ball.steepest(total), (total, total)


def _along(gradient: Tensor, ball: Ball, memory: Memory, t: int) -> tuple[Tensor, Memory]:  # noqa: ARG001
    """The gradient itself, its largest entry one: unlike the steepest step it keeps the direction in any ball."""
    largest = gradient.abs().flatten(1).amax(1).view(-1, *[1] * (gradient.dim() - 1))
    return gradient / torch.where(largest > 0, largest, 1), None


MOMENTUM = 0.5
"""How much of the sum of earlier gradients a step keeps."""
STEPPERS: dict[str, Stepper] = {
    "sign": _sign,
    "steepest": _steepest,
    "adam": _adam,
    "momentum": _momentum,
    "along": _along,
}
PACE = {"sign": 2.5, "steepest": 2.5, "adam": 4.0, "momentum": 2.5, "along": 2.5}


PROJECTIONS: dict[str, Callable[[Ball, Tensor], Tensor]] = {
    "clip": lambda ball, delta: ball.project(delta),
    "rescale": lambda ball, delta: ball.rescale(delta),
}
STARTS = ("clean", "random", "surface")
SELECTIONS = ("best", "last")
CONSTRAINTS = ("hard", "soft")


def where_rows(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`one` for these examples, `other` for the rest."""
    return torch.where(rows.view(-1, *[1] * (one.dim() - 1)), one, other)
