"""Base classes of attacks: shared settings, published protocols, and checks.

A protocol fills in settings that are None. `own` is this package's choice and the default; `paper` follows the text;
`reference` public code where it differs from the text. A given setting overrides the protocol, and the attack's `repr`
shows the resulting values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from gyrograd.attacks import loop
from gyrograd.attacks.engine import AttackPlan, run
from gyrograd.attacks.loop import Search
from gyrograd.attacks.objectives import Aim, Objective, Scene, with_penalty
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.twin import TwinBeta, check_twin_beta
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.settings import same_settings, settings_hash, text_of
from gyrograd.errors import UserError, check_counts, check_name, did_you_mean
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import REDUCTIONS
from gyrograd.records import JsonObject
from gyrograd.registry import Settings, name_of
from gyrograd.types import Attribution, Inputs, Labels, Model, Seed

Radii = float | int | tuple[float, ...] | list[float]
"""One radius, or several; the attack returns one result per radius."""
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
"""Allowed words of settings; an attack adds those of its own in `choices`."""
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
"""Values of `MapSearch` settings that neither the caller nor the protocol sets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BallAttack:
    """Base of every attack: the radii of a ball, a plan, and the call that runs it."""

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
        """The result, or a tuple of results if there are several radii."""
        results = self.every_radius(model, attribution, x, target, seed=seed)
        return results if isinstance(self.eps, tuple) else results[0]

    def every_radius(
        self, model: Model, attribution: Attribution, x: Inputs, target: Labels, *, seed: Seed = 0
    ) -> tuple[AttackResult, ...]:
        """A tuple with one result per radius, even if there is only one."""
        return run(self.plan(), model, attribution, x, target, seed=seed)

    def plan(self) -> AttackPlan:
        """The search and the objective."""
        raise UserError(f"The attack {self.name} has no plan; derive it from MapSearch, or write plan(self).")

    def check(self) -> None:
        """Refuse invalid settings."""

    @property
    def name(self) -> str:
        """The registered name."""
        return name_of("attack", self)

    __eq__ = same_settings
    __hash__ = settings_hash


@dataclass(frozen=True, kw_only=True, eq=False)
class MapSearch(BallAttack):
    """Base of attacks on maps, which add an `objective`. A setting of None is filled in by the protocol.

    eps: radius in pixel units (8 / 255), or several. norm: "linf" or "l2". steps, step_size: in pixel units; default
    2.5 eps / steps, for Adam 4 eps / steps. stepper: "sign", "steepest" or "adam". projection: "clip" or "rescale".
    start: "clean", "random" or "surface". restarts: number of runs. selection: "best" or "last". constraint: "hard",
    only images that keep the label count, or "soft", all count. restore: an image that lost its label first steps back
    towards it (off in the papers). penalty: weight of the mean squared change of `penalty_on`, "logits" or
    "probabilities". explained: "target", or the model's "prediction". box: "unit", or the range of each "image" or of
    the "batch". stop_at: an example that reaches this value stops (off). trace: keep the value of every iterate.
    twin_beta: see `twin`. transfer_from: the attribution to search through. reduce: how channels are merged. max_batch:
    rows of the model per pass.
    """

    protocols: ClassVar[Mapping[str, Mapping[str, Any]]] = {"own": {"restore": True}}
    """By name, the settings that differ from `LEFT_OPEN` and from the first of `choices`."""
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Allowed words of the attack's own settings; the first is the default."""

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
        """The function of the map to minimise."""
        raise UserError(f"The attack {self.name} has no objective; write objective(self, scene).")

    def judge(self, scene: Scene) -> Objective | None:
        """The function that selects the iterate and is reported, if it is not the objective."""

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
        """Fill in settings that are None from the protocol."""
        if self.protocol not in self.protocols:
            raise UserError(
                f"{self.name} has no protocol '{self.protocol}': {did_you_mean(self.protocol, self.protocols)}"
            )
        first = {setting: words[0] for setting, words in self.choices.items()}
        for setting, value in {**LEFT_OPEN, **first, **self.protocols[self.protocol]}.items():
            if getattr(self, setting) is None:
                # The only write to a frozen attack, during its construction.
                object.__setattr__(self, setting, value)


def plan_of(attack: Any, search: Search, aim: Any, **further: Any) -> AttackPlan:
    """A plan whose fields are taken from the attack's settings of the same name."""
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
    """A `Search` whose fields are taken from the attack's settings of the same name."""
    own = {f.name: getattr(attack, f.name) for f in fields(attack)}
    return Search(**({f.name: own[f.name] for f in fields(Search) if f.name in own} | further))


def radii(eps: Radii) -> tuple[float, ...]:
    """Every radius, in order."""
    return tuple(float(e) for e in eps) if isinstance(eps, tuple | list) else (float(eps),)


def settings_of(attack: Any) -> JsonObject:
    """The attack's settings in types a record can hold."""
    return {f.name: _plain(getattr(attack, f.name)) for f in fields(attack)}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | tuple | list | None) else text_of(value)


def check_words(attack: BallAttack, own: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse words that a setting does not allow."""
    for setting, known in {**CHOICES, **own}.items():
        value = getattr(attack, setting, known[0])
        if value not in known:
            raise UserError(f"{attack.name} has no {setting} '{value}': {did_you_mean(str(value), known)}")


def check_search(attack: Any) -> None:
    """Refuse counts below one, a step size of zero, and restarts without selection='best'."""
    check_counts(steps=attack.steps, restarts=attack.restarts, max_batch=attack.max_batch)
    if attack.step_size is not None and not attack.step_size > 0:
        raise UserError(
            f"step_size is {attack.step_size}; give a length above 0 in pixel units, such as 1 / 255."
        )
    if attack.restarts > 1 and attack.selection == "last":
        raise UserError("selection='last' keeps only the last restart; set selection='best' or restarts=1.")


def check_goal(goal: str | Tensor) -> None:
    """Refuse an unknown name of a goal; tensors are checked against the images later."""
    if isinstance(goal, str):
        check_name("goal", goal, ("frame",))
