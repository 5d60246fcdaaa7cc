"""Which strength of the objective to try next, so that the loss of accuracy stays within its limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gyrograd.errors import UserError, check_name
from gyrograd.registry import Settings, lookup
from gyrograd.regularizers import Adversarial
from gyrograd.training.steady import steady_settings

Terms: TypeAlias = Mapping[str, Settings]
"""Regularisers of an objective by name."""
OBJECTIVES = ("steady", "l2_cosine")
NEAR = 1.2
"""If the smallest failing strength is at most this many times the best one that holds, the search ends."""


@dataclass(frozen=True)
class Try:
    """One fine-tuned net. `holds` is True if its accuracy is within the limit."""

    strength: float
    accuracy: float
    holds: bool


def next_strength(tried: Sequence[Try], first: float, most: int, limit: float = math.inf) -> float | None:
    """The strength to try next, or None if the search is over.

    Doubles while tries hold, up to below `limit`, halves while they fail, then bisects: a stronger objective should
    cost more accuracy.

    >>> next_strength([Try(1.0, 0.93, True), Try(2.0, 0.90, False)], first=1.0, most=4)
    1.5
    """
    if len(tried) >= most:
        return None
    if not tried:
        return first
    best = best_of(tried)
    held = 0.0 if best is None else best.strength
    failed = min((t.strength for t in tried if not t.holds and t.strength > held), default=math.inf)
    if best is None:
        return failed / 2
    if failed == math.inf:
        return 2 * held if 2 * held < limit else None
    return None if failed <= NEAR * held else (held + failed) / 2


def best_of(tried: Sequence[Try]) -> Try | None:
    """The strongest try that holds, or None."""
    return max((t for t in tried if t.holds), key=lambda t: t.strength, default=None)


def first_strength(terms: Terms) -> float:
    """Where the search begins: 255 * eps of an adversarial term, or 1 (the given weights) without one."""
    name = _adversarial(terms)
    return 1.0 if name is None else 255 * float(terms[name].get("eps", Adversarial.eps))


def strength_limit(terms: Terms) -> float:
    """What strengths stay below: the whole range of pixels for a radius in linf, else infinity."""
    name = _adversarial(terms)
    linf = name is not None and terms[name].get("norm", Adversarial.norm) == "linf"
    return 255.0 if linf else math.inf


def with_strength(terms: Terms, strength: float) -> dict[str, Settings]:
    """The terms with the adversarial radius set to the strength, or, without one, every weight multiplied by it."""
    if (name := _adversarial(terms)) is not None:
        return {**terms, name: {**terms[name], "eps": strength / 255}}
    return {name: {**term, "weight": strength * term.get("weight", 1.0)} for name, term in terms.items()}


def strength_in_words(terms: Terms, strength: float) -> str:
    """A strength in words: `radius 0.5/255`, `0.5 times the weights`."""
    return (
        f"{strength:.3g} times the weights" if _adversarial(terms) is None else f"radius {strength:.3g}/255"
    )


def _adversarial(terms: Terms) -> str | None:
    """The name of the adversarial term, which has an alias, or None."""
    return next((name for name in terms if lookup("regularizer", name).name == "adversarial"), None)


def objective_settings(
    objective: str,
    *,
    eps: float | None = None,
    curvature: float | None = None,
    l2: float | None = None,
    cosine: float | None = None,
    regularized_fraction: float | None = None,
) -> Settings:
    """Training settings of a named objective; arguments that are not None replace its defaults.

    steady: one signed step of size eps (1/255), a curvature penalty, averaged weights. l2_cosine: joo2023 Eq. 5, with
    the weights it uses for LeNet and ResNet18 on CIFAR-10.
    """
    check_name("objective", objective, OBJECTIVES)
    aligning = {"l2": l2, "cosine": cosine, "regularized_fraction": regularized_fraction}
    foreign = aligning if objective == "steady" else {"curvature": curvature}
    other = next(name for name in OBJECTIVES if name != objective)
    for name, value in foreign.items():
        if value is not None:
            raise UserError(
                f"{name} belongs to the objective {other}; leave it out or give --objective {other}."
            )
    if objective == "steady":
        given = {"eps": eps, "curvature": curvature}
        return steady_settings(**{name: value for name, value in given.items() if value is not None})
    term = {"l2": 0.1 if l2 is None else l2, "cosine": 1.0 if cosine is None else cosine}
    term["eps"] = 4 / 255 if eps is None else eps
    return {
        "terms": {"l2_cosine": term},
        "regularized_fraction": 1.0 if regularized_fraction is None else regularized_fraction,
    }
