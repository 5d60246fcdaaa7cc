"""The inner maximisation: images near x at which a value is largest, to train on."""

from __future__ import annotations

from torch import Tensor

from gyrograd.attacks.engine import check_attackable
from gyrograd.attacks.loop import Answer, Box, Search, Verdict, first_delta, search
from gyrograd.errors import UserError, check_counts
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.balls import Linf, ball
from gyrograd.numerics.checks import in_grey_levels
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
    """The last iterate of projected steepest ascent on `value`, in the ball around x and in [0, 1].

    No iterate is evaluated, so n steps cost n forward and backward passes.
    """
    check_attackable(x)
    # `search` wants a verdict on x and one at the end; with selection "last" no value decides anything.
    nothing = Verdict(x.new_zeros(len(x)), x.new_ones(len(x)).bool())

    def ask(
        perturbed: Tensor,
        step: int,  # noqa: ARG001
        *,
        slope: bool,
        verdict: bool,
        among: Tensor | None = None,  # noqa: ARG001
    ) -> Answer:
        uphill = input_gradient(value, perturbed) if slope else None
        # `search` minimises.
        return Answer(None if uphill is None else -uphill, nothing if verdict else None)

    how = Search(steps, step_size, start=start, selection="last", constraint="soft")
    return x.detach() + search(x.detach(), how, ball(norm, eps), Box(), ask, nothing, keys).delta


def random_start(x: Images, eps: float, keys: Keys) -> Images:
    """The start of `ascend` for these keys."""
    return x + Box().cut(x, first_delta(x, "random", Linf(eps), keys))


def check_radius(eps: float, norm: str = "linf") -> None:
    """Refuse a radius of 0, and one as large as the range of pixels, such as 8 for 8 / 255."""
    if not 0 < eps < float("inf"):
        raise UserError(f"eps is {eps}; give a finite radius above 0, such as 8 / 255.")
    if eps >= 1 and norm == "linf":
        raise in_grey_levels("eps", eps)


def check_inner(eps: float, steps: int, step_size: float | None) -> None:
    """Refuse a wrong radius, a step size of 0, and less than one step."""
    check_radius(eps)
    check_counts(steps=steps)
    if step_size is not None and not 0 < step_size < float("inf"):
        raise UserError(f"step_size is {step_size}; give a length above 0 in pixel units, such as 2 / 255.")


def check_weight(weight: float) -> None:
    """Refuse a weight of 0, which would silently remove the term."""
    if not 0 < weight < float("inf"):
        raise UserError(f"weight is {weight}; give a finite weight above 0.")
