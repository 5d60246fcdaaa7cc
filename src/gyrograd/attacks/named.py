"""The attacks by name. An attack on maps is a search and an objective: each class declares its own settings, their
allowed words, the published protocols, and the objective to minimise; `MapSearch` has the rest.

joo2023's `reference` protocol is its AAM code. wang2020's `paper` is its supplement and CIFAR code, which agree; its
`reference` is the code for ImageNet. `reference` of `manipulate` is the code of Dombrowski et al. 2019, whose learning
rate of 2e-4 in normalised units is 4.5e-5 here, at a standard deviation of 0.225.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gyrograd.attacks.engine import AttackPlan, transferred
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
    the_goal,
    toward,
)
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.settings import (
    BallAttack,
    MapSearch,
    check_search,
    check_words,
    plan_of,
    radii,
    search_of,
    settings_of,
)
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.errors import UserError, did_you_mean
from gyrograd.numerics.maps import mass_center, reduce, top_k_mask
from gyrograd.numerics.quantities import loss_to_climb
from gyrograd.registry import available, register
from gyrograd.types import Attribution, Images, Inputs, Labels, Model, Seed

_KEEPING = {"restore": True}
_WANG = {"stepper": "sign", "projection": "rescale", "step_size": 0.5 / 255, "explained": "prediction"}
_WANG_NOTEBOOKS = {"stepper": "sign", "step_size": 0.005, "selection": "last"}
_ADAM_CODE = {"stepper": "adam", "selection": "last", "constraint": "soft"}
_HELD_OUTPUT = {"penalty": 1e6, "penalty_on": "probabilities"}


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
    """Move the map to a goal map: minimise 0.5 |h - h_t|^2, h the map's magnitude per pixel over its largest.

    `goal`: "frame" (1 on a border of 5/32 of the side), a map `h w` or `b h w`, or images whose own maps are
    the goal. paper: sign steps, only images that keep the label (joo2023's problem as printed; its distance is
    not squared). reference: Adam, last iterate, label free to change, 0.5 times the mean squared change of the
    logits; pixels stay in the range of each image (the code: of the batch, `box="batch"`).

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> attack = gg.attack("targeted_map", eps=4 / 255, steps=3)
    >>> hit = attack(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((hit.value < hit.start).all())      # nearer to the frame than before
    True
    """

    protocols: ClassVar = {
        "own": {"steps": 100, **_KEEPING},
        "paper": {"steps": 100, "stepper": "sign"},
        "reference": {"steps": 100, **_ADAM_CODE, "penalty": 0.5, "box": "image"},
    }
    goal: str | Tensor = "frame"

    def objective(self, scene: Scene) -> Objective:
        return toward(the_goal(scene), self.reduce)


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
    """Move the map away from the clean one: minimise the cosine, or (`measure="l2"`) -0.5 |h - h_0|^2.

    Starts at a random point, because the derivative of both is zero at x.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> attack = gg.attack("untargeted_map", eps=4 / 255, steps=3)
    >>> hit = attack(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((hit.value < 1).all())      # cosine to the clean map
    True
    """

    protocols: ClassVar = {
        "own": {"start": "random", **_KEEPING},
        "paper": {"steps": 100, "stepper": "sign", "start": "random", "measure": "l2"},
    }
    choices: ClassVar = {"measure": ("cosine", "l2")}
    measure: str | None = None

    def objective(self, scene: Scene) -> Objective:
        return away_from(scene.map, self.reduce, str(self.measure))


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
    """Drain the top k pixels: minimise the share of the map's mass on them (Ghorbani et al. 2019).

    k: 2 % of the pixels unless given (20 of 32 x 32, 1000 of 224 x 224: wang2020). mask: "fixed" from the clean
    map, or "recomputed" from each iterate's own map (wang2020's notebooks). judged_by: "mass", or "overlap"
    with the clean k pixels, by which wang2020's CIFAR code picks its iterate.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> attack = gg.attack("top_k", eps=4 / 255, k=102, steps=3)
    >>> hit = attack(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((hit.value < hit.start).all()), hit.prediction_kept.tolist()
    (True, [True, True])
    """

    protocols: ClassVar = {
        "own": _KEEPING,
        "paper": _WANG,
        "reference": {**_WANG_NOTEBOOKS, "mask": "recomputed"},
    }
    choices: ClassVar = {"mask": ("fixed", "recomputed"), "judged_by": ("mass", "overlap")}
    k: int | None = None
    mask: str | None = None
    judged_by: str = "mass"

    def check(self) -> None:
        MapSearch.check(self)
        if self.k is not None and self.k < 1:
            raise UserError(f"k is {self.k}; give the number of pixels to drain, at least 1.")

    def objective(self, scene: Scene) -> Objective:
        k, top = self._top(scene)
        return mass_on(top, self.reduce) if self.mask == "fixed" else mass_on_own_top(k, self.reduce)

    def judge(self, scene: Scene) -> Objective:
        _, top = self._top(scene)
        return mass_on(top, self.reduce) if self.judged_by == "mass" else overlap_with(top, self.reduce)

    def _top(self, scene: Scene) -> tuple[int, Tensor]:
        """k, and the k pixels of the clean map as a mask."""
        old = reduce(scene.map, self.reduce).abs()
        k = max(1, round(0.02 * old[0].numel())) if self.k is None else self.k
        return k, top_k_mask(old, k)


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
    """Push the map's centre of mass away: minimise minus its squared distance from the clean one, in pixels^2.

    truncated: round the clean centre down to whole pixels, as the code of Ghorbani et al. and wang2020 does. Without it
    the derivative at x is zero, so `own` starts at a random point.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> attack = gg.attack("mass_center", eps=4 / 255, steps=3)
    >>> hit = attack(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((hit.value < 0).all())      # minus the squared distance in pixels
    True
    """

    protocols: ClassVar = {
        "own": {"start": "random", "truncated": False, **_KEEPING},
        "paper": {**_WANG, "truncated": True},
        "reference": {**_WANG_NOTEBOOKS, "truncated": True},
    }
    truncated: bool | None = None

    def objective(self, scene: Scene) -> Objective:
        center = mass_center(reduce(scene.map, self.reduce))
        return far_from(center.trunc() if self.truncated else center, self.reduce)


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
    """Move the map to a goal and keep the output: minimise 1e11 MSE(h, h_t) + 1e6 MSE(softmax, clean softmax).

    Dombrowski et al. 2019, as wang2020 runs it. scale: h over its sum (Dombrowski), over its average pixel
    ("area", wang2020) or its largest ("max"). `goal` as in `targeted_map`; both papers use the map of another
    image: give the image. reference: Adam, 1500 steps, no label check; that code has no ball (eps=1 here).

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> attack = gg.attack("manipulate", eps=4 / 255, steps=3)
    >>> hit = attack(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> bool((hit.value < hit.start).all())
    True
    """

    protocols: ClassVar = {
        "own": {**_HELD_OUTPUT, **_KEEPING},
        "paper": {**_WANG, **_HELD_OUTPUT, "scale": "area"},
        "reference": {
            "steps": 1500,
            **_ADAM_CODE,
            "step_size": 0.225 * 2e-4,
            **_HELD_OUTPUT,
            "explained": "prediction",
        },
    }
    choices: ClassVar = {"scale": ("sum", "area", "max")}
    goal: str | Tensor = "frame"
    weight: float = 1e11
    scale: str | None = None

    def objective(self, scene: Scene) -> Objective:
        return mean_square_to(the_goal(scene), self.reduce, str(self.scale), self.weight)


@register(
    "attack",
    "random",
    paper="wang2020",
    equation="Supplement, Attribution Attacks (after Ghorbani et al.)",
    order=70,
    group="noise",
    about="No attack: noise of the same size, the yardstick for the others.",
)
@dataclass(frozen=True, kw_only=True, eq=False)
class Noise(BallAttack):
    """Random noise of the same budget: the baseline that every attack must beat.

    like: the attack whose objective evaluates it. fill: "surface" (full budget: the sign of normal noise in the l-inf
    ball, a random direction in the l2 ball) or "volume" (uniform in the ball). draws=1 returns the noise even if the
    label changes; n > 1 returns the best of n that keep it, or x if none is better.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> hit = gg.attack("random", eps=4 / 255)(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> round(float((hit.x - x).abs().max()) * 255)
    4
    """

    draws: int = 1
    fill: str = "surface"
    like: MapSearch | str = "untargeted_map"

    def check(self) -> None:
        check_words(self, {"fill": ("surface", "volume")})
        if self.draws < 1:
            raise UserError(
                f"draws is {self.draws}; give the number of random perturbations to try, at least 1."
            )
        self.judging_attack()

    def judging_attack(self) -> MapSearch:
        """The attack whose objective evaluates the noise."""
        if isinstance(self.like, MapSearch):
            return self.like
        known = {
            entry.name: entry.factory
            for entry in available("attack").values()
            if is_map_search(entry.factory)
        }
        if self.like not in known:
            raise UserError(f"There is no attack '{self.like}' on maps: {did_you_mean(self.like, known)}")
        judging: MapSearch = known[self.like]()
        return judging

    def plan(self) -> AttackPlan:
        """The plan of the evaluating attack, with the search reduced to its starting points.

        A single draw is returned unconditionally; of several the best is.
        """
        start = "surface" if self.fill == "surface" else "random"
        selection, constraint = ("last", "soft") if self.draws == 1 else ("best", "hard")
        return replace(
            self.judging_attack().plan(),
            name=self.name,
            settings=settings_of(self),
            eps=radii(self.eps),
            norm=self.norm,
            search=Search(0, start=start, restarts=self.draws, selection=selection, constraint=constraint),
            twin_beta=None,
            transfer_from=None,
        )


def is_map_search(factory: object) -> bool:
    """True for a class of attack that can evaluate noise."""
    return isinstance(factory, type) and issubclass(factory, MapSearch)


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
@dataclass(frozen=True, kw_only=True, eq=False)
class Pgd(BallAttack):
    """Attack the prediction, not the map: projected gradient ascent on the loss of the target.

    loss: "cross_entropy", or "margin" (the class's logit over the best other one, below zero when changed).
    7 steps and the best iterate as in Madry et al.'s code; tan2023 uses eps 8/255 and step_size 2/255. The maps of the
    result play no part in the search. `images` returns only the attacked images, for training.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> hit = gg.attack("pgd", eps=8 / 255)(model, gg.attribution("gradient"), x, gg.predict(model, x))
    >>> hit.prediction_kept.tolist()
    [False, False]
    """

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

    def check(self) -> None:
        check_words(self, {"loss": ("cross_entropy", "margin")})
        check_search(self)

    def images(self, model: Model, x: Inputs, target: Labels, *, seed: Seed = 0) -> Inputs:
        """The attacked images of one eps, without a map."""
        if isinstance(self.eps, tuple):
            raise UserError("images() takes an attack of one eps and this one has several; give one.")
        return self.every_radius(model, _no_map, x, target, seed=seed)[0].x

    def plan(self) -> AttackPlan:
        """The plan, without a twin: logits have a derivative, with or without kinks."""
        return plan_of(self, search_of(self, constraint="soft"), self.aim, sees_maps=False)

    def aim(self, scene: Scene) -> Aim:
        if self.loss == "margin":
            return Aim(margin(scene.target), margin(scene.target))
        loss = minus_cross_entropy(scene.target)
        return Aim(lambda *seen: -loss_to_climb(-loss(*seen)), loss)


def _no_map(model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:  # noqa: ARG001
    """A dummy attribution for callers that need no map."""
    return x * 0


def transfer(
    model: Model,
    attack: BallAttack,
    source: Attribution,
    targets: Mapping[str, Attribution],
    x: Images,
    target: Labels,
    *,
    seed: Seed = 0,
) -> dict[str, AttackResult]:
    """Attack one attribution and evaluate others on the same images (wang2020 Table 6); one result per name.

    `start` and `value` are the attack's objective for each attribution, with its own clean map.
    """
    if isinstance(attack.eps, tuple):
        raise UserError("transfer takes one eps at a time; give the attack one radius.")
    (hit,) = attack.every_radius(model, source, x, target, seed=seed)
    return transferred(attack.plan(), hit, model, targets)
