"""What attacks are declared with: the settings they share, the protocols they were published under, and the checks.

A protocol gives values to settings that were left open (None). `own` is this package's choice and the default; `paper`
the text; `reference` public code where it differs from the text. A setting that is given wins over its protocol, and
the attack's `repr` shows all that was decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from gyrograd.attacks import loop
from gyrograd.attacks.loop import Search
from gyrograd.attacks.objectives import Aim, Objective, Scene, with_penalty
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.runs import AttackPlan, run
from gyrograd.attacks.twin import TwinBeta, check_twin_beta
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.settings import same_settings, settings_hash
from gyrograd.errors import UserError, check_counts, check_name, did_you_mean
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import REDUCTIONS
from gyrograd.records import JsonObject
from gyrograd.registry import Settings, name_of
from gyrograd.types import Attribution, Inputs, Labels, Model, Seed

Radii = float | int | tuple[float, ...] | list[float]
"""One radius, or several: then the attack returns one result for each."""
Results = AttackResult | tuple[AttackResult, ...]

CHOICES: dict[str, tuple[str, ...]] = {
    "stepper": tuple(loop.STEPPERS),
    "projection": tuple(loop.PROJECTIONS),
    "start": loop.STARTS,
    "selection": loop.SELECTIONS,
    "constraint": loop.CONSTRAINTS,
    "penalty_on": ("logits", "probabilities"),
    "explained": ("target", "prediction"),
    "box": ("unit", "image", "batch", "none"),
    "reduce": tuple(REDUCTIONS),
}
"""Settings that are one of a few words. An attack adds those of its own in `choices`."""
LEFT_OPEN: Settings = {
    "steps": 50,
    "stepper": "steepest",
    "projection": "clip",
    "start": "clean",
    "selection": "best",
    "constraint": "hard",
    "restore": False,
    "penalty": 0.0,
    "penalty_on": "logits",
    "explained": "target",
    "box": "unit",
}
"""Values of the settings of `MapSearch` that neither the caller nor the protocol decides."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BallAttack:
    """What every attack here has: the radii of a ball, a plan, and one way to be run."""

    eps: Radii = 8 / 255
    norm: str = "linf"

    def __post_init__(self) -> None:
        if isinstance(self.eps, list):
            object.__setattr__(self, "eps", tuple(self.eps))
        self.check()
        if not radii(self.eps):
            raise UserError("eps is an empty list; give at least one radius, such as 8 / 255.")
        for eps in radii(self.eps):
            ball(self.norm, eps)

    def __call__(
        self, model: Model, attribution: Attribution, x: Inputs, target: Labels, *, seed: Seed = 0
    ) -> Results:
        """The result of one radius, or all of several."""
        results = self.every_radius(model, attribution, x, target, seed=seed)
        return results if isinstance(self.eps, tuple) else results[0]

    def every_radius(
        self, model: Model, attribution: Attribution, x: Inputs, target: Labels, *, seed: Seed = 0
    ) -> tuple[AttackResult, ...]:
        """One result for each radius, also if there is only one."""
        return run(self.plan(), model, attribution, x, target, seed=seed)

    def plan(self) -> AttackPlan:
        """The search and the objective."""
        raise UserError(f"The attack {self.name} has no plan; derive it from MapSearch, or write plan(self).")

    def check(self) -> None:
        """Refuse settings that cannot be meant."""

    @property
    def name(self) -> str:
        """As registered."""
        return name_of("attack", self)

    __eq__ = same_settings
    __hash__ = settings_hash


@dataclass(frozen=True, kw_only=True, eq=False)
class MapSearch(BallAttack):
    """An attack on a map is this and an `objective`. None leaves a choice to the protocol.

    eps: radius in pixel units (8 / 255), or several. norm: "linf" or "l2". steps, step_size (pixel units; open:
    2.5 eps / steps, for Adam 4 eps / steps), stepper ("sign", "steepest", "adam"), projection ("clip",
    "rescale"), start ("clean", "random", "surface"), restarts, selection ("best", "last"), constraint ("hard":
    only images that keep the label count; "soft": all count), restore (an image that has lost its label steps back
    towards it before it goes on; off in the papers), penalty (weight of the mean squared change of
    `penalty_on`: "logits" or "probabilities"), explained ("target", or the model's "prediction"), box ("unit",
    or the range of each "image" or of the "batch"), stop_at (an example that reaches this value stops; off),
    trace (keep every iterate's value), twin_beta (see `twin`), transfer_from (attribution to search through),
    reduce (how channels become one number), max_batch (rows of the model in one pass).
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = {"own": {"restore": True}}
    """By name, the settings that differ from `LEFT_OPEN` and from the first of `choices`."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The words that the attack's own settings may be, first the one that is taken if nobody decides."""

    protocol: str = "own"
    steps: int | None = None
    step_size: float | None = None
    stepper: str | None = None
    projection: str | None = None
    start: str | None = None
    restarts: int = 1
    selection: str | None = None
    constraint: str | None = None
    restore: bool | None = None
    penalty: float | None = None
    penalty_on: str | None = None
    explained: str | None = None
    box: str | None = None
    stop_at: float | None = None
    trace: bool = False
    twin_beta: TwinBeta = "auto"
    transfer_from: str | Attribution | None = None
    reduce: str = "abs_sum"
    max_batch: int = MAX_BATCH

    def objective(self, scene: Scene) -> Objective:  # noqa: ARG002
        """What is made small, as a function of the map."""
        raise UserError(f"The attack {self.name} has no objective; write objective(self, scene).")

    def judge(self, scene: Scene) -> Objective | None:
        """What picks the iterate and is reported, if that is not the objective."""

    def aim(self, scene: Scene) -> Aim:
        """Objective and judge, both with the penalty."""
        weight, on = float(self.penalty or 0), str(self.penalty_on)
        descend = with_penalty(self.objective(scene), weight, scene.logits, on)
        judge = self.judge(scene)
        return Aim(descend, descend if judge is None else with_penalty(judge, weight, scene.logits, on))

    def plan(self) -> AttackPlan:
        return plan_of(self, search_of(self), self.aim)

    def check(self) -> None:
        self._fill_in()
        check_words(self, self.choices)
        check_search(self)
        check_twin_beta(self.twin_beta)
        if self.restore and self.constraint == "soft":
            raise UserError(
                "restore=True brings back the predicted class, which constraint='soft' lets change; set restore=False."
            )
        if self.penalty is not None and self.penalty < 0:
            raise UserError(f"penalty is {self.penalty}; give a weight of at least 0.")
        check_goal(getattr(self, "goal", "frame"))

    def _fill_in(self) -> None:
        """Give every setting that was left open the value of the protocol."""
        if self.protocol not in self.protocols:
            raise UserError(
                f"{self.name} has no protocol '{self.protocol}': {did_you_mean(self.protocol, self.protocols)}"
            )
        first = {setting: words[0] for setting, words in self.choices.items()}
        for setting, value in {**LEFT_OPEN, **first, **self.protocols[self.protocol]}.items():
            if getattr(self, setting) is None:
                # The one place where a frozen attack is written to: while it is being made.
                object.__setattr__(self, setting, value)


def plan_of(attack: Any, search: Search, aim: Any, **further: Any) -> AttackPlan:
    """A plan with the attack's own settings wherever the two share a name."""
    own = {f.name: getattr(attack, f.name) for f in fields(attack)}
    shared = {f.name: own[f.name] for f in fields(AttackPlan) if f.name in own}
    decided = {
        "name": attack.name,
        "settings": settings_of(attack),
        "eps": radii(attack.eps),
        "search": search,
        "aim": aim,
    }
    return AttackPlan(**(shared | decided | further))


def search_of(attack: Any, **further: Any) -> Search:
    """The search with the attack's own settings."""
    own = {f.name: getattr(attack, f.name) for f in fields(attack)}
    return Search(**({f.name: own[f.name] for f in fields(Search) if f.name in own} | further))


def radii(eps: Radii) -> tuple[float, ...]:
    """Every radius, in order."""
    return tuple(float(e) for e in eps) if isinstance(eps, tuple | list) else (float(eps),)


def settings_of(attack: Any) -> JsonObject:
    """The attack's settings in types a record can hold."""
    return {f.name: _plain(getattr(attack, f.name)) for f in fields(attack)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)}"
    return value if isinstance(value, str | int | float | tuple | list | None) else repr(value)


def check_words(attack: BallAttack, own: Mapping[str, tuple[str, ...]]) -> None:
    """Every setting that is a name must be one that exists."""
    for setting, known in {**CHOICES, **own}.items():
        value = getattr(attack, setting, known[0])
        if value not in known:
            raise UserError(f"{attack.name} has no {setting} '{value}': {did_you_mean(str(value), known)}")


def check_search(attack: Any) -> None:
    """Counts of at least one, a step that moves, restarts only where the best is kept."""
    check_counts(steps=attack.steps, restarts=attack.restarts, max_batch=attack.max_batch)
    if attack.step_size is not None and not attack.step_size > 0:
        raise UserError(
            f"step_size is {attack.step_size}; give a length above 0 in pixel units, such as 1 / 255."
        )
    if attack.restarts > 1 and attack.selection == "last":
        raise UserError("selection='last' keeps only the last restart; set selection='best' or restarts=1.")


def check_goal(goal: str | Tensor) -> None:
    """A goal by name is the frame; a tensor is compared with the images when they are there."""
    if isinstance(goal, str):
        check_name("goal", goal, ("frame",))
