"""The attacks by name: an objective each, the settings they share, and the protocols they were published under."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from gyrograd.attacks import loop
from gyrograd.attacks.loop import Search
from gyrograd.attacks.objectives import (
    Aim,
    Objective,
    Scene,
    away_from,
    far_from,
    margin,
    mass_on,
    mass_on_own_top,
    mean_square_to,
    minus_cross_entropy,
    overlap_with,
    toward,
    with_penalty,
)
from gyrograd.attacks.protocols import fill_in
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.runs import Job, run, transferred
from gyrograd.attacks.twin import TwinBeta, check_twin_beta
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.settings import same_settings, settings_hash
from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import REDUCTIONS, mass_center, reduce, top_k_mask
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Labels, Model, Seed

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
    "box": ("unit", "image", "batch"),
    "reduce": tuple(REDUCTIONS),
    "measure": ("cosine", "l2"),
    "mask": ("fixed", "recomputed"),
    "judged_by": ("mass", "overlap"),
    "scale": ("sum", "area", "max"),
    "loss": ("cross_entropy", "margin"),
    "fill": ("surface", "volume"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class MapSearch:
    """Settings of every attack on a map. None leaves a choice to the protocol (see `protocols`).

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

    eps: Radii = 8 / 255
    norm: str = "linf"
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

    def __eq__(self, other: object) -> bool:
        return same_settings(self, other)

    def __hash__(self) -> int:
        return settings_hash(self)


@register(
    "attack",
    "targeted_map",
    aliases=("aam",),
    paper="joo2023",
    equation="Adversarial attribution manipulation",
    order=20,
    group="map",
    about="Moves the map into a frame along the border (joo2023).",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class TargetedMap(MapSearch):
    """Move the map to a goal map: least 0.5 |h - h_t|^2, h = sizes summed over channels, over their largest.

    `goal`: "frame" (1 on a border of 5/32 of the side), a map `h w` or `b h w`, or images whose own maps are
    the goal. paper: sign steps, only images that keep the label (joo2023's problem as printed; its distance is
    not squared). reference: Adam, last iterate, label free to change, 0.5 times the mean squared change of the
    logits; pixels stay in the range of each image (the code: of the batch, `box="batch"`).
    """

    name: ClassVar[str] = "targeted_map"
    goal: str | Tensor = "frame"

    def __post_init__(self) -> None:
        check(self)

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(job_of(self), model, attribution, x, target, seed=seed))

    def aim(self, scene: Scene) -> Aim:
        return penalised(self, scene, toward(the_goal(scene), self.reduce))


@register(
    "attack",
    "untargeted_map",
    paper="joo2023",
    equation="Adversarial attribution manipulation (untargeted)",
    order=30,
    group="map",
    about="Makes the map as unlike the first one as it can.",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class UntargetedMap(MapSearch):
    """Make the map as unlike the clean one as can be: least cosine, or (`measure="l2"`) least -0.5 |h - h_0|^2.

    Starts at a random point, since at x the derivative of both is zero.
    """

    name: ClassVar[str] = "untargeted_map"
    measure: str | None = None

    def __post_init__(self) -> None:
        check(self)

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(job_of(self), model, attribution, x, target, seed=seed))

    def aim(self, scene: Scene) -> Aim:
        return penalised(self, scene, away_from(scene.map, self.reduce, str(self.measure)))


@register(
    "attack",
    "top_k",
    paper="wang2020",
    equation="Supplement, Attribution Attacks and Table 2",
    order=40,
    group="map",
    about="Takes the strongest pixels out of the map (wang2020).",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class TopK(MapSearch):
    """Drain the k pixels that mattered most: least share of the map's mass on them (Ghorbani et al. 2019).

    k: 2 % of the pixels unless given (20 of 32 x 32, 1000 of 224 x 224: wang2020). mask: "fixed" from the clean
    map, or "recomputed" from each iterate's own map (wang2020's notebooks). judged_by: "mass", or "overlap"
    with the clean k pixels, by which wang2020's CIFAR code picks its iterate.
    """

    name: ClassVar[str] = "top_k"
    k: int | None = None
    mask: str | None = None
    judged_by: str = "mass"

    def __post_init__(self) -> None:
        check(self)
        if self.k is not None and self.k < 1:
            raise UserError(f"k is {self.k}; give the number of pixels to drain, at least 1.")

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(job_of(self), model, attribution, x, target, seed=seed))

    def aim(self, scene: Scene) -> Aim:
        old = reduce(scene.map, self.reduce).abs()
        k = max(1, round(0.02 * old[0].numel())) if self.k is None else self.k
        mask = top_k_mask(old, k)
        descend = mass_on(mask, self.reduce) if self.mask == "fixed" else mass_on_own_top(k, self.reduce)
        judge = mass_on(mask, self.reduce) if self.judged_by == "mass" else overlap_with(mask, self.reduce)
        return penalised(self, scene, descend, judge)


@register(
    "attack",
    "mass_center",
    paper="wang2020",
    equation="Supplement, Attribution Attacks and Table 6",
    order=50,
    group="map",
    about="Pushes the middle of the map away (wang2020).",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class MassCenter(MapSearch):
    """Push the map's centre of mass away: least minus its squared distance from the clean one, in pixels^2.

    truncated: the clean centre cut to whole pixels, as in the code of Ghorbani et al. and wang2020. Without it
    the derivative at x is zero, so `own` starts at a random point.
    """

    name: ClassVar[str] = "mass_center"
    truncated: bool | None = None

    def __post_init__(self) -> None:
        check(self)

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(job_of(self), model, attribution, x, target, seed=seed))

    def aim(self, scene: Scene) -> Aim:
        center = mass_center(reduce(scene.map, self.reduce))
        return penalised(self, scene, far_from(center.trunc() if self.truncated else center, self.reduce))


@register(
    "attack",
    "manipulate",
    paper="wang2020",
    equation="Supplement, Attribution Attacks, item 3",
    order=60,
    group="map",
    about="Moves the map into a frame and holds every probability (wang2020).",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class Manipulate(MapSearch):
    """Move the map to a goal and hold the output: least 1e11 MSE(h, h_t) + 1e6 MSE(softmax, clean softmax).

    Dombrowski et al. 2019, as wang2020 runs it. scale: h over its sum (Dombrowski), over its average pixel
    ("area", wang2020) or its largest ("max"). `goal` as in `targeted_map`; both papers use the map of another
    image: give the image. reference: Adam, 1500 steps, no label check; that code has no ball (eps=1 here).
    """

    name: ClassVar[str] = "manipulate"
    goal: str | Tensor = "frame"
    weight: float = 1e11
    scale: str | None = None

    def __post_init__(self) -> None:
        check(self)

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(job_of(self), model, attribution, x, target, seed=seed))

    def aim(self, scene: Scene) -> Aim:
        objective = mean_square_to(the_goal(scene), self.reduce, str(self.scale), self.weight)
        return penalised(self, scene, objective)


@register(
    "attack",
    "random",
    paper="wang2020",
    equation="Supplement, Attribution Attacks (after Ghorbani et al.)",
    order=70,
    group="noise",
    about="No attack: noise of the same size, the yardstick for the others.",
)
@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise of the same budget, no gradient: the yardstick every attack must beat.

    like: the attack whose objective judges it. fill: "surface" (full budget: the sign of normal noise in the
    l-inf ball, a random direction in the l2 ball) or "volume" (uniform in the ball). draws=1 takes the noise as
    it comes, whatever it does to the label; n > 1 the best of n that keep it, and x itself if none does better.
    """

    name: ClassVar[str] = "random"
    eps: Radii = 8 / 255
    norm: str = "linf"
    draws: int = 1
    fill: str = "surface"
    like: MapSearch | str = "untargeted_map"

    def __post_init__(self) -> None:
        check_radii(self)
        check_choices(self)
        if self.draws < 1:
            raise UserError(f"draws is {self.draws}; give the number of noises to try, at least 1.")
        if isinstance(self.like, str) and self.like not in MAP_ATTACKS:
            raise UserError(
                f"There is no attack '{self.like}' on maps: {did_you_mean(self.like, MAP_ATTACKS)}"
            )

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(self.job(), model, attribution, x, target, seed=seed))

    def job(self) -> Job:
        """The job of the attack it is judged by, with the search replaced."""
        like = MAP_ATTACKS[self.like]() if isinstance(self.like, str) else self.like
        return job_of(like, by=self)

    @property
    def search(self) -> Search:
        """Starting points alone; one is taken as it comes, of several the best."""
        start = "surface" if self.fill == "surface" else "random"
        selection, constraint = ("last", "soft") if self.draws == 1 else ("best", "hard")
        return Search(0, start=start, restarts=self.draws, selection=selection, constraint=constraint)


@register(
    "attack",
    "pgd",
    paper="tan2023",
    equation="Section 5 (adversarial training, after Madry et al. 2018)",
    order=80,
    group="prediction",
    label="PGD",
    about="Attacks the prediction, not the map; the map is only looked at.",
)
@dataclass(frozen=True, kw_only=True)
class Pgd:
    """Change the prediction, not the map: projected gradient ascent on the loss of the target.

    loss: "cross_entropy", or "margin" (the class's logit over the best other one, below zero when changed).
    steps 7 and the best iterate as in Madry et al.'s code; tan2023 has eps 8/255 and step_size 2/255. The maps
    of the result are for show. `images` gives the attacked images alone, for training.
    """

    name: ClassVar[str] = "pgd"
    eps: Radii = 8 / 255
    norm: str = "linf"
    loss: str = "cross_entropy"
    steps: int = 7
    step_size: float | None = None
    stepper: str = "steepest"
    projection: str = "clip"
    start: str = "clean"
    restarts: int = 1
    selection: str = "best"
    stop_at: float | None = None
    trace: bool = False
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_radii(self)
        check_choices(self)
        check_search(self)

    def __call__(
        self, model: Model, attribution: Attribution, x: Images, target: Labels, *, seed: Seed = 0
    ) -> Results:
        return one_or_all(self.eps, run(self.job(), model, attribution, x, target, seed=seed))

    def images(self, model: Model, x: Images, target: Labels, *, seed: Seed = 0) -> Images:
        """The attacked images of one eps, without a map."""
        result = one_or_all(self.eps, run(self.job(), model, _no_map, x, target, seed=seed))
        if not isinstance(result, AttackResult):
            raise UserError("Images were asked for several eps; give one.")
        return result.x

    def job(self) -> Job:
        """On the model itself: its logits have a derivative, with or without kinks."""
        search = Search(**_search_settings(self), constraint="soft")
        settings = settings_of(self)
        return Job(
            self.name,
            settings,
            radii(self.eps),
            self.norm,
            search,
            self.aim,
            sees_maps=False,
            max_batch=self.max_batch,
        )

    def aim(self, scene: Scene) -> Aim:
        objective = (
            minus_cross_entropy(scene.target) if self.loss == "cross_entropy" else margin(scene.target)
        )
        return Aim(objective, objective)


MAP_ATTACKS: dict[str, type[MapSearch]] = {
    "targeted_map": TargetedMap,
    "untargeted_map": UntargetedMap,
    "top_k": TopK,
    "mass_center": MassCenter,
    "manipulate": Manipulate,
}


def transfer(
    model: Model,
    attack: MapSearch | Noise | Pgd,
    source: Attribution,
    targets: Mapping[str, Attribution],
    x: Images,
    target: Labels,
    *,
    seed: Seed = 0,
) -> dict[str, AttackResult]:
    """Attack one attribution and see what it does to others (wang2020 Table 6): a result for each by name.

    start and value are the attack's objective as each attribution sees it, with its own clean map.
    """
    hit = attack(model, source, x, target, seed=seed)  # type: ignore[operator]
    if not isinstance(hit, AttackResult):
        raise UserError("transfer takes one eps at a time; give the attack one radius.")
    job = job_of(attack) if isinstance(attack, MapSearch) else attack.job()
    return transferred(job, hit, model, targets)


def job_of(attack: MapSearch, by: Noise | None = None) -> Job:
    """An attack on maps taken apart for a run; `by` noise, the search and the budget are the noise's."""
    outer: Any = by or attack
    return Job(
        name=outer.name,
        settings=settings_of(outer),
        eps=radii(outer.eps),
        norm=outer.norm,
        search=by.search if by else Search(**_search_settings(attack), constraint=str(attack.constraint)),
        aim=attack.aim,  # type: ignore[attr-defined]
        goal=getattr(attack, "goal", None),
        scale=str(getattr(attack, "scale", "max")),
        reduce=attack.reduce,
        explained=str(attack.explained),
        box=str(attack.box),
        restore=bool(attack.restore),
        twin_beta=None if by else attack.twin_beta,
        transfer_from=None if by else attack.transfer_from,
        max_batch=attack.max_batch,
    )


def penalised(attack: MapSearch, scene: Scene, descend: Objective, judge: Objective | None = None) -> Aim:
    """The aim with the attack's penalty on both sides, or on neither."""
    weight, on = float(attack.penalty or 0), str(attack.penalty_on)
    both = with_penalty(descend, weight, scene.logits, on)
    return Aim(both, both if judge is None else with_penalty(judge, weight, scene.logits, on))


def the_goal(scene: Scene) -> Tensor:
    """The scene's goal map; a scene of an attack that has a goal always holds one."""
    if scene.goal is None:
        raise UserError("This attack needs a goal map in its scene; run it through its own call.")
    return scene.goal


def one_or_all(eps: Radii, results: tuple[AttackResult, ...]) -> Results:
    """The result of one radius, or all of several."""
    return results if isinstance(eps, tuple | list) else results[0]


def radii(eps: Radii) -> tuple[float, ...]:
    """Every radius, in order."""
    return tuple(float(e) for e in eps) if isinstance(eps, tuple | list) else (float(eps),)


def settings_of(attack: Any) -> dict[str, Any]:
    """The attack's settings in types a record can hold."""
    return {f.name: _plain(getattr(attack, f.name)) for f in fields(attack)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return f"tensor of shape {tuple(value.shape)}"
    return value if isinstance(value, str | int | float | tuple | list | None) else repr(value)


def _search_settings(attack: Any) -> dict[str, Any]:
    names = ({f.name for f in fields(Search)} & {f.name for f in fields(attack)}) - {"constraint"}
    return {name: getattr(attack, name) for name in names}


def _no_map(model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:  # noqa: ARG001
    """Stands where an attribution is asked for and none is wanted."""
    return x * 0


def check(attack: Any) -> None:
    """Fill in the protocol, then refuse what cannot be meant."""
    if isinstance(attack.eps, list):
        object.__setattr__(attack, "eps", tuple(attack.eps))
    fill_in(attack, attack.name, attack.protocol)
    check_radii(attack)
    check_choices(attack)
    check_search(attack)
    check_twin_beta(attack.twin_beta)
    if attack.restore and attack.constraint == "soft":
        raise UserError("restore brings labels back and constraint='soft' lets them go; set restore=False.")
    if attack.penalty < 0:
        raise UserError(f"penalty is {attack.penalty}; give a weight of at least 0.")
    goal = getattr(attack, "goal", "frame")
    if isinstance(goal, str):
        check_name("goal", goal, ("frame",))


def check_radii(attack: Any) -> None:
    """Each a finite number of at least 0, in a norm that exists; at least one."""
    if not radii(attack.eps):
        raise UserError("eps is an empty list; give at least one radius, such as 8 / 255.")
    for eps in radii(attack.eps):
        ball(attack.norm, eps)


def check_choices(attack: Any) -> None:
    """Every setting that is a name must be one that exists."""
    for setting in fields(attack):
        value, known = getattr(attack, setting.name), CHOICES.get(setting.name)
        if known is not None and value not in known:
            raise UserError(
                f"{attack.name} has no {setting.name} '{value}': {did_you_mean(str(value), known)}"
            )


def check_search(attack: Any) -> None:
    """Counts of at least one, a step that moves, restarts only where the best is kept."""
    for name in ("steps", "restarts", "max_batch"):
        if getattr(attack, name) < 1:
            raise UserError(f"{name} is {getattr(attack, name)}; give at least 1.")
    if attack.step_size is not None and not attack.step_size > 0:
        raise UserError(
            f"step_size is {attack.step_size}; give a length above 0 in pixel units, such as 1 / 255."
        )
    if attack.restarts > 1 and attack.selection == "last":
        raise UserError("selection='last' keeps only the last restart; set selection='best' or restarts=1.")
