"""The gradient search behind every attack: step, project, evaluate, keep the best.

It does not know about maps and models: a function `ask` returns the derivative of the objective at a perturbed image,
its value, and whether the label is kept. Every line treats each example separately, so results do not depend on the
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Settings of the loop, without open choices.

    open_end: return the last iterate as `SearchResult.last`, not evaluated, for callers that evaluate it themselves.
    judge_from: iterates before this step are not evaluated, to save passes.
    """

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
        """The step size in pixel units; default 4 eps / steps for Adam (joo2023's code), else 2.5 eps / steps."""
        if self.step_size is not None:
            return self.step_size
        return PACE[self.stepper] * eps / max(1, self.steps)

    def pace(self, step: int) -> float:
        """Factor of the step size at this step: 1, or with `decay` falling linearly to zero."""
        return 1 - step / self.steps if self.decay else 1.0

    def judges(self, step: int) -> bool:
        """True if this iterate must be evaluated."""
        by_value = (self.selection, self.constraint) != ("last", "soft")
        every = by_value or self.stop_at is not None or self.trace
        return step == self.steps or (every and step >= self.judge_from)

    def leaves_out(self, active: Flags) -> bool:
        """True if some examples have reached `stop_at`: they need no further passes. Never with a trace."""
        return self.stop_at is not None and not self.trace and not bool(active.all())

    def may_end(self, active: Flags) -> bool:
        """True if every example has reached `stop_at`; never with a trace, which must be complete."""
        return self.stop_at is not None and not self.trace and not bool(active.any())


@dataclass(frozen=True)
class Verdict:
    """Value of perturbed images (lower is better for the attacker), and whether they keep the label."""

    value: PerExample
    kept: Flags


@dataclass(frozen=True)
class Answer:
    """Derivative at perturbed images, verdict on them, or both.

    `objective`: the value of the differentiated function, infinite if the label is lost.
    """

    gradient: Images | None
    verdict: Verdict | None
    objective: PerExample | None = None

    @classmethod
    def joined(cls, parts: Sequence[Answer]) -> Answer:
        """The answer for all examples, from those for consecutive parts of them."""

        def column(of_parts: Iterable[Tensor | None]) -> Tensor | None:
            known = [each for each in of_parts if each is not None]
            return torch.cat(known) if known else None

        verdicts = [part.verdict for part in parts if part.verdict is not None]
        verdict = None
        if verdicts:
            verdict = Verdict(torch.cat([v.value for v in verdicts]), torch.cat([v.kept for v in verdicts]))
        return cls(column(part.gradient for part in parts), verdict, column(part.objective for part in parts))

    def spread(self, rows: Tensor, among: Flags) -> Answer:
        """The answer for all examples, from one for these rows: no derivative and infinite values elsewhere."""

        def everywhere(column: Tensor | None, fill: float) -> Tensor | None:
            if column is None:
                return None
            return column.new_full((len(among), *column.shape[1:]), fill).index_copy(0, rows, column)

        verdict = None
        if self.verdict is not None:
            value = among.new_full(among.shape, torch.inf, dtype=self.verdict.value.dtype)
            kept = among.index_copy(0, rows, self.verdict.kept)
            verdict = Verdict(value.index_copy(0, rows, self.verdict.value), kept)
        return Answer(everywhere(self.gradient, 0.0), verdict, everywhere(self.objective, torch.inf))


@runtime_checkable
class Ask(Protocol):
    """Evaluates perturbed images at a step: the derivative if `slope`, the verdict if `verdict`.

    `among`: the examples to evaluate, if not all; answers for the others are ignored. Only a search with `stop_at`
    passes it.
    """

    def __call__(
        self, perturbed: Tensor, step: int, *, slope: bool, verdict: bool, among: Flags | None = None
    ) -> Answer: ...


@dataclass(frozen=True)
class Box:
    """The allowed range of pixels: [0, 1], a narrower range that contains x, or (`open`) any value."""

    low: Float[Tensor, "#b 1 1 1"] | None = None
    high: Float[Tensor, "#b 1 1 1"] | None = None
    open: bool = False

    @classmethod
    def of(cls, name: str, x: Images) -> Box:
        """The box by name: "unit" is [0, 1], "image" the range of each, "batch" that of the batch (joo2023's code);
        "none" is for inputs that are not pixels."""
        if name in {"unit", "none"}:
            return cls(open=name == "none")
        flat = x.flatten(1) if name == "image" else x.reshape(1, -1)
        return cls(flat.amin(1).view(-1, 1, 1, 1), flat.amax(1).view(-1, 1, 1, 1))

    def rows(self, part: slice | Tensor, b: int) -> Box:
        """The box of these rows of a batch of b."""
        low, high = (
            None if edge is None else edge.expand(b, 1, 1, 1)[part] for edge in (self.low, self.high)
        )
        return Box(low, high, self.open)

    def cut(self, x: Images, delta: Images) -> Images:
        """delta shortened so that x + delta lies in the box."""
        if self.open:
            return delta
        if self.low is not None and self.high is not None:
            delta = torch.minimum(torch.maximum(delta, self.low - x), self.high - x)
        return into_box(x, delta)


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    value: the verdict's value at x + delta. stuck: every derivative was zero. broken: a derivative was not finite.
    fall: decrease of the objective since the start of the search, relative to it if it was above 1.

    Only from `auto`: beaten_by: images on which a challenger beat the main search. misled: images on which the
    objective fell and the column did not. start: the value at x. map, logits: at x + delta, so that they need not be
    computed again.
    """

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

    def rows(self, part: slice) -> SearchResult:
        """The result of these rows, without the trace, whose rows are steps."""
        fall, last = (None if column is None else column[part] for column in (self.fall, self.last))
        return SearchResult(
            self.delta[part],
            self.value[part],
            self.steps[part],
            self.stuck[part],
            self.broken[part],
            fall=fall,
            last=last,
        )

    def updated(self, rows: Tensor, **columns: Tensor) -> SearchResult:
        """A copy with new values in these columns for these rows."""
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
) -> SearchResult:
    """Search for a perturbation; x itself is the first candidate.

    "best" selects the lowest value, "last" the last iterate; under a hard constraint only iterates that keep the label
    count. Every restart has its own start, chosen by `start`; restarts of a clean start are random. `begin` replaces
    the start of the first run.
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
            among = {"among": active} if how.leaves_out(active) else {}
            here = ask(x + delta, step, slope=not end, verdict=how.judges(step), **among)
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
    return SearchResult(found, value, taken, stuck, broken, trace, fall, last)


def first_delta(x: Images, start: str, ball: Ball, keys: Keys, restart: int = 0) -> Images:
    """Where a run begins: at x ("clean"), anywhere in the ball ("random"), or on its surface ("surface")."""
    if start == "clean":
        return torch.zeros_like(x)
    if start == "random":
        return ball.sample(x, keys, stream=restart)
    return ball.steepest(normal(keys, tuple(x.shape[1:]), stream=restart, dtype=x.dtype)) * _radius(ball, x)


def _radius(ball: Ball, x: Images) -> float | Tensor:
    """The radius as a number, or one per example as a column."""
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
    """The steepest step along a decaying sum of normalised gradients (Dong et al. 2018)."""
    size = gradient.abs().flatten(1).sum(1).view(-1, *[1] * (gradient.dim() - 1))
    even = gradient / torch.where(size > 0, size, 1)
    total = even if memory is None else MOMENTUM * memory[0] + even
    return ball.steepest(total), (total, total)


def _along(gradient: Tensor, ball: Ball, memory: Memory, t: int) -> tuple[Tensor, Memory]:  # noqa: ARG001
    """The gradient scaled to a largest entry of one; unlike the steepest step it keeps the direction in any ball."""
    largest = gradient.abs().flatten(1).amax(1).view(-1, *[1] * (gradient.dim() - 1))
    return gradient / torch.where(largest > 0, largest, 1), None


MOMENTUM = 0.5
"""Decay of the sum of earlier gradients."""
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
