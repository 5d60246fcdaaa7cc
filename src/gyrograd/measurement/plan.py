"""What to measure: methods x conditions x metrics, as typed values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.attacks.settings import settings_of
from gyrograd.errors import UserError
from gyrograd.metrics.localization import looks_at_masks
from gyrograd.metrics.response import looks_at_attacked
from gyrograd.progress import Effort
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Inputs, Labels, Model


@dataclass(frozen=True)
class Condition:
    """Under what images are looked at: as they are (`CLEAN`), or as an attack leaves them at each of its radii.

    `images`: number of images to measure, the first of the plan's. `effort`: estimate per image, for the progress bar.
    """

    name: str
    attack: Any = None
    radii: tuple[float, ...] = ()
    images: int | None = None
    effort: Effort = ("", 1.0)

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides what the attack finds; the size of a batch decides nothing."""
        if self.attack is None:
            return {"condition": self.name}
        own = {key: described(value) for key, value in settings_of(self.attack).items() if key != "max_batch"}
        return {"condition": self.name, "attack": {**own, "name": self.attack.name}}


CLEAN = Condition("clean")


def noise(radii: tuple[float, ...], *, images: int | None = None, effort: Effort = ("", 1.0)) -> Condition:
    """Random noise of these sizes: the yardstick for attackers of the same budget."""
    return Condition("noise", make("attack", "random", eps=radii), radii, images, effort)


def attacked(
    attack: str,
    radii: tuple[float, ...],
    *,
    name: str | None = None,
    images: int | None = None,
    effort: Effort = ("", 1.0),
    **settings: Any,
) -> Condition:
    """An attack of the registry at these radii; `name` tells it from the same attack with other settings."""
    made = make("attack", attack, eps=radii, **settings)
    return Condition(name or lookup("attack", attack).name, made, radii, images, effort)


@dataclass(frozen=True, eq=False)
class Look:
    """What a metric sees: a method on some images, clean or (`hit`) attacked. `seed` has a stream for each image.

    On clean images `attribution` makes the map once, for whoever asks.
    """

    model: Model
    attribution: Attribution
    x: Inputs
    target: Labels
    seed: Tensor
    hit: AttackResult | None = None

    @cached_property
    def map(self) -> Inputs:
        """The map of these images; of attacked ones, after the attack."""
        if self.hit is not None:
            return self.hit.map
        return self.attribution(self.model, self.x, self.target).detach()

    @property
    def attack(self) -> AttackResult:
        """The attack, for metrics that look at attacked images alone."""
        assert self.hit is not None
        return self.hit


@dataclass(frozen=True)
class Metric:
    """One value, or one curve, for each image: `values` returns one column, or several by name.

    `settings` (JSON) is all that decides them. `of`: whether it looks at clean images or at attacked ones.
    """

    name: str
    values: Callable[[Look], Tensor | Mapping[str, Tensor]]
    of: Literal["clean", "attacked"] = "clean"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def columns(self, look: Look) -> Mapping[str, Tensor]:
        """The columns by name."""
        found = self.values(look)
        return {self.name: found} if isinstance(found, Tensor) else found


def registered(name: str, **settings: Any) -> Metric:
    """A metric of the registry, with those of the settings that it has."""
    entry = lookup("metric", name)
    metric = make("metric", name, **having("metric", name, settings))
    own = {"settings": described(repr(metric))}
    if looks_at_masks(metric):
        raise UserError(
            f"{entry.name} needs masks of the objects, which a plan does not have; leave it out, "
            f"and call gg.metric('{entry.name}')(model, attribution, x, target, mask=masks)."
        )
    if looks_at_attacked(metric):
        return Metric(
            entry.name,
            lambda at: metric(at.model, at.attribution, at.x, at.target, perturbed=at.attack.x),
            "attacked",
            own,
        )
    return Metric(
        entry.name, lambda at: metric(at.model, at.attribution, at.x, at.target, seed=at.seed), "clean", own
    )


def having(kind: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that this entry of the registry has."""
    parameters = inspect.signature(lookup(kind, name).factory).parameters
    return {key: value for key, value in settings.items() if key in parameters}


def described(value: Any) -> Any:
    """A setting for the record. The size of a batch decides no value and is left out of texts."""
    return re.sub(r",? ?max_batch=\d+", "", value) if isinstance(value, str) else value


@dataclass(frozen=True, eq=False)
class Plan:
    """Every method in every condition, by every metric that looks at such images.

    Args:
        methods: attributions by the name they have in the table; None in place of one: the model alone is measured.
        conditions: `CLEAN`, `noise(...)`, `attacked(...)`.
        metrics: `registered(...)` or `Metric(...)`.
        images: number of images to measure, the first of the data.
        seed: of every random draw.
    """

    methods: Mapping[str, Attribution | None]
    conditions: tuple[Condition, ...]
    metrics: tuple[Metric, ...]
    images: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for what in ("methods", "conditions", "metrics"):
            if not getattr(self, what):
                raise UserError(f"A plan without {what} measures nothing; give at least one.")
        for condition in self.conditions:
            if not self.metrics_of(condition):
                raise UserError(f"No metric of the plan looks at images under '{condition.name}'; add one.")

    def metrics_of(self, condition: Condition) -> tuple[Metric, ...]:
        """The metrics that apply under a condition."""
        kind = "clean" if condition.attack is None else "attacked"
        return tuple(metric for metric in self.metrics if metric.of == kind)
