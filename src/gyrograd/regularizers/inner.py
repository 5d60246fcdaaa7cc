"""The inner maximisation: the images near x at which a number is largest, for objectives that train against them."""

from __future__ import annotations

from torch import Tensor

from gyrograd.attacks.loop import Answer, Box, Search, Verdict, first_delta, search
from gyrograd.attacks.runs import check_attackable
from gyrograd.errors import UserError
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.balls import Linf, ball
from gyrograd.numerics.random import Keys
from gyrograd.types import Images, ScalarField


def ascend(
    value: ScalarField,
    x: Images,
    *,
    eps: float,
    steps: int,
    step_size: float,
    keys: Keys,
    norm: str = "linf",
    start: str = "random",
) -> Images:
    """Where projected steepest ascent on `value` ends: in the ball around x and in [0, 1].

    It takes the last iterate and looks at nothing else, so n steps cost n forward and backward passes.
    """
    check_attackable(x)
    nothing = Verdict(x.new_zeros(len(x)), x.new_ones(len(x)).bool())

    def ask(perturbed: Tensor, step: int, *, slope: bool, verdict: bool) -> Answer:  # noqa: ARG001
        uphill = input_gradient(value, perturbed) if slope else None
        return Answer(None if uphill is None else -uphill, nothing if verdict else None)

    how = Search(steps, step_size, start=start, selection="last", constraint="soft")
    return x.detach() + search(x.detach(), how, ball(norm, eps), Box(), ask, nothing, keys).delta


def random_start(x: Images, eps: float, keys: Keys) -> Images:
    """Where `ascend` begins with these keys."""
    return x + Box().cut(x, first_delta(x, "random", Linf(eps), keys))


def check_inner(eps: float, steps: int, step_size: float | None) -> None:
    """A ball to search in, at least one step, and a step that moves."""
    if not 0 < eps < float("inf"):
        raise UserError(f"eps is {eps}; give a finite radius above 0, such as 8 / 255.")
    if steps < 1:
        raise UserError(f"steps is {steps}; give at least 1.")
    if step_size is not None and not 0 < step_size < float("inf"):
        raise UserError(f"step_size is {step_size}; give a length above 0 in pixel units, such as 2 / 255.")


def check_weight(weight: float) -> None:
    """Of a term inside a regulariser: zero would leave it out in silence."""
    if not 0 < weight < float("inf"):
        raise UserError(f"weight is {weight}; give a finite weight above 0.")
