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
from gyrograd.attributions.settings import text_of
from gyrograd.errors import UserError
from gyrograd.metrics.localization import looks_at_masks
from gyrograd.metrics.response import looks_at_attacked
from gyrograd.progress import Effort
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Inputs, Labels, Model


@dataclass(frozen=True)
class Condition:
    """The state of the images: clean (`CLEAN`), or attacked at each of the radii.

    images: measure only the first `images` of the plan's. effort: estimate per image, for the progress bar.
    then: attacks at one of the radii, each of which starts from the images that the one before it found there. They
    are measured in the same cell, since to find those images again would cost another attack.
    """

    name: str
    attack: Any = None
    radii: tuple[float, ...] = ()
    images: int | None = None
    effort: Effort = ("", 1.0)
    then: tuple[Condition, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The attack's settings, without the batch size, which does not affect the result."""
        if self.attack is None:
            return {"condition": self.name}
        own = {key: described(value) for key, value in settings_of(self.attack).items() if key != "max_batch"}
        later = {"then": [each.settings for each in self.then]} if self.then else {}
        return {"condition": self.name, "attack": {**own, "name": self.attack.name}, **later}

    def attack_all(
        self, model: Model, attribution: Attribution, x: Inputs, target: Labels, seed: Tensor
    ) -> dict[str, tuple[AttackResult, ...]]:
        """The results of its attack and of those in `then` by the names of their conditions, one per radius."""
        hits = self.attack(model, attribution, x, target, seed=seed)
        found = {self.name: hits}
        for later in self.then:
            # Exactly one of the radii: this fails for a plan that names none of them, or two.
            (begin,) = (hit for hit in hits if hit.eps in later.radii)
            hits = later.attack.every_radius(model, attribution, x, target, seed=seed, begin=begin)
            found[later.name] = hits
        return found


CLEAN = Condition("clean")


def noise(radii: tuple[float, ...], *, images: int | None = None, effort: Effort = ("", 1.0)) -> Condition:
    """Random noise of these radii, the baseline for attacks of the same budget."""
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
    """A registered attack at these radii; `name` distinguishes it from the same attack with other settings."""
    made = make("attack", attack, eps=radii, **settings)
    return Condition(name or lookup("attack", attack).name, made, radii, images, effort)


@dataclass(frozen=True, eq=False)
class Look:
    """The argument of a metric: a method on some images, clean or (`hit`) attacked; `seed` has one stream per image.

    On clean images `attribution` computes the map once and returns it to every metric.
    """

    model: Model
    attribution: Attribution
    x: Inputs
    target: Labels
    seed: Tensor
    hit: AttackResult | None = None

    @cached_property
    def map(self) -> Inputs:
        """The map of these images; for attacked ones, after the attack."""
        if self.hit is not None:
            return self.hit.map
        return self.attribution(self.model, self.x, self.target).detach()

    @property
    def attack(self) -> AttackResult:
        """The attack's result, for metrics of attacked images."""
        assert self.hit is not None
        return self.hit


@dataclass(frozen=True)
class Metric:
    """One value or one curve per image: `values` returns one column, or several by name.

    `settings` (JSON) holds everything that determines them. `of`: whether it is computed on clean or on attacked
    images.
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
    """A registered metric; settings that it does not have are ignored."""
    entry = lookup("metric", name)
    metric = make("metric", name, **having("metric", name, settings))
    own = {"settings": described(metric)}
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
    """The settings that this registry entry has; others are dropped."""
    parameters = inspect.signature(lookup(kind, name).factory).parameters
    return {key: value for key, value in settings.items() if key in parameters}


RECORDED_NAMES = {"InsertionCurve(": "PixelGame("}
"""Records keep the old name of a renamed class, so that measurements of earlier versions are still found."""


def described(value: Any) -> Any:
    """A setting or a method as it is recorded: texts without the batch size, which does not affect the values."""
    if isinstance(value, int | float | tuple | list | None):
        return value
    value = value if isinstance(value, str) else text_of(value)
    for now, recorded in RECORDED_NAMES.items():
        value = value.replace(now, recorded)
    return re.sub(r",? ?max_batch=\d+", "", value)


@dataclass(frozen=True, eq=False)
class Plan:
    """What to measure: every method in every condition, by every metric that applies there.

    Args:
        methods: attributions by their name in the table; None instead of one measures the model alone.
        conditions: `CLEAN`, `noise(...)`, `attacked(...)`.
        metrics: `registered(...)` or `Metric(...)`.
        images: number of images to measure, the first of the data.
        seed: seed of every random draw.
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
