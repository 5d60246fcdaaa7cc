"""What the page shows, computed: explanations of one image, an attack on one of them, two models under one attack."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.attacks.runs import STAND_IN
from gyrograd.attacks.settings import MapSearch
from gyrograd.data.opening import is_labelled
from gyrograd.errors import UserError, check_counts
from gyrograd.explorer.stage import Net, Stage
from gyrograd.explorer.watching import (
    OPENING_LOOKS_IN_TRANSFER,
    Place,
    Watch,
    Watched,
    at_every_pass,
    part_of,
    unwatched,
)
from gyrograd.metrics import MapSimilarity, TopKIntersection
from gyrograd.models import logits_of
from gyrograd.numerics.maps import reduce
from gyrograd.parsing import make_from_text, parse_call
from gyrograd.registry import Settings, label_of, lookup, make
from gyrograd.types import Images, Labels

TOP = 0.1
"""Share of the pixels that counts as the top of a map, as in an audit."""
TRIED_IMAGES = 8
TRIED_STEPS = 10
LARGEST_TRIED = 64
"""Images, steps and side in pixels of the look for an image to open with: a second or two."""
ON_THE_WAY = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the attack's change at which the map is looked at."""


@dataclass(frozen=True)
class Prediction:
    """A class and what the model gives it."""

    number: int
    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class Explained:
    """One image through several explanations: maps by method, and why others could not explain it."""

    net: Net
    x: Images
    predicted: Prediction
    target: Prediction
    maps: dict[str, Float[Tensor, "h w"]]
    left_out: dict[str, str]

    @property
    def empty(self) -> tuple[str, ...]:
        """Methods whose map is zero everywhere, which a picture cannot tell from black."""
        return tuple(name for name, map in self.maps.items() if not bool(map.any()))


@dataclass(frozen=True)
class AttackPlan:
    """An attack as the page asks for it: eps in pixel units (joo2023's 4/255), `steps` where the attack takes any.

    `method` is written as on the command line, with settings in brackets: `smoothgrad(sigma=0.2)`.
    """

    method: str = "gradient"
    attack: str = "targeted_map"
    eps: float = 4 / 255
    steps: int = 40

    def __post_init__(self) -> None:
        make_from_text("attribution", self.method)
        lookup("attack", self.attack)
        if not 0 <= self.eps <= 1:
            raise UserError(f"eps is {self.eps * 255:g}/255; give 0/255 to 255/255.")
        check_counts(steps=self.steps)


@dataclass(frozen=True, eq=False)
class Waypoint:
    """The attacked image at a share of its change: the map there and what the model says."""

    share: float
    map: Float[Tensor, "h w"]
    predicted: Prediction


@dataclass(frozen=True, eq=False)
class Attacked:
    """One attack on one image. `kept` and `cosine` are None if the search had nothing to follow."""

    net: Net
    plan: AttackPlan
    hit: AttackResult
    before: Prediction
    after: Prediction
    before_after: float
    """What the attacked image still gives the class that was predicted."""
    kept: float | None
    cosine: float | None
    top: int
    way: tuple[Waypoint, ...]

    @property
    def target(self) -> str:
        """The name of the class explained."""
        return self.net.classes[int(self.hit.target)]

    @property
    def prediction_kept(self) -> bool:
        """Whether the model says the same of both images."""
        return bool(self.hit.prediction_kept)


def prediction(net: Net, x: Images, number: int | None = None) -> Prediction:
    """What a model says of one image: its choice, or what it gives to a class."""
    with torch.no_grad():
        shares = logits_of(net.model, x)[0].softmax(0)
    chosen = int(shares.argmax()) if number is None else number
    net.check_class(chosen)
    return Prediction(chosen, net.classes[chosen], float(shares[chosen]))


def explained(
    net: Net, x: Images, target: int | None, methods: Sequence[str], *, watch: Watch = unwatched
) -> Explained:
    """The maps of these methods, written as on the command line; without a target the model's own choice is explained.

    A method that cannot explain this model or image leaves its sentence and the others go on.
    """
    if not methods:
        raise UserError("No method is chosen; choose at least one, such as gradient.")
    predicted = prediction(net, x)
    wanted = predicted if target is None else prediction(net, x, target)
    classes = torch.tensor([wanted.number], device=x.device)
    maps: dict[str, Tensor] = {}
    left_out: dict[str, str] = {}
    told = Place(watch)
    with at_every_pass(net.model, told.again):
        for place, name in enumerate(methods):
            told(place / len(methods), label_of("attribution", parse_call(name)[0]))
            try:
                maps[name] = reduce(make_from_text("attribution", name)(net.model, x, classes)).detach()[0]
            except UserError as wrong:
                left_out[name] = str(wrong)
    return Explained(net, x, predicted, wanted, maps, left_out)


def attacked(
    net: Net, x: Images, target: int | None, plan: AttackPlan, *, seed: int = 0, watch: Watch = unwatched
) -> Attacked:
    """Run the plan on one image and look at what it did; the numbers are those of the library's own call.

    `watch` is told before every pass of the model, so that what it raises ends the work soon, whatever runs.
    """
    before = prediction(net, x)
    if target is not None:
        net.check_class(target)
    classes = torch.tensor([before.number if target is None else target], device=x.device)
    told = Place(watch)
    hit = _hit(net, x, classes, plan, seed, told)
    top = _top(x)
    still = bool(hit.stuck)
    with at_every_pass(net.model, told.again):
        after, before_after = prediction(net, hit.x), prediction(net, hit.x, before.number)
        method = make_from_text("attribution", plan.method)
        way = tuple(_waypoint(net, method, hit, share) for share in ON_THE_WAY)
    return Attacked(
        net=net,
        plan=plan,
        hit=hit,
        before=before,
        after=after,
        before_after=before_after.probability,
        kept=None if still else float(TopKIntersection(k=top)(hit.map_clean, hit.map)),
        cosine=None if still else float(MapSimilarity()(hit.map_clean, hit.map)),
        top=top,
        way=way,
    )


def _hit(net: Net, x: Images, classes: Labels, plan: AttackPlan, seed: int, told: Place) -> AttackResult:
    """The attack, watched: by the map it searches through, by the model's passes, or, without steps, as a whole."""
    through, attack = make_from_text("attribution", plan.method), attack_of(plan, told)
    tell = told.again
    steps = _takes(plan, "steps")
    told(0.0, f"step 0 of {plan.steps}" if steps else label_of("attack", plan.attack))
    if steps and not isinstance(attack, MapSearch):
        through = Watched(through, told, plan.steps, opening=0)
        tell = through.passed
    elif steps and not _transfers(plan):  # where the search goes through another map, that one is watched
        through = Watched(through, told, plan.steps)
    with at_every_pass(net.model, tell):
        hit: AttackResult = attack(net.model, through, x, classes, seed=seed)
    return hit


def compared(
    nets: Sequence[Net],
    x: Images,
    target: int | None,
    plan: AttackPlan,
    *,
    seed: int = 0,
    watch: Watch = unwatched,
) -> tuple[Attacked, ...]:
    """Every model under the same attack on the same image: each is attacked for itself, with the same budget."""
    parts = [
        part_of(watch, place / len(nets), (place + 1) / len(nets), net.name) for place, net in enumerate(nets)
    ]
    return tuple(
        attacked(net, x, target, plan, seed=seed, watch=part) for net, part in zip(nets, parts, strict=True)
    )


def opening_image(stage: Stage, plan: AttackPlan) -> int:
    """The image the page opens with: of the first ones, one that every model labels rightly and an attack moves far.

    How far is tried with a few steps on the first model. Images that are too large for that are told apart by their
    labels alone.
    """
    x = stage.data.pixels(torch.arange(min(TRIED_IMAGES, len(stage.data))))
    labels = stage.data.labels[: len(x)]
    with torch.no_grad():
        guesses = [logits_of(net.model, x).argmax(1) for net in stage.nets]
    right = (
        torch.stack([guess == labels for guess in guesses]).all(0)
        if is_labelled(stage.data)
        else labels == labels
    )
    rows = right.nonzero()[:, 0] if bool(right.any()) else torch.arange(len(x), device=x.device)
    if max(x.shape[2:]) > LARGEST_TRIED or len(rows) == 1:
        return int(rows[0])
    net, short = stage.nets[0], replace(plan, steps=TRIED_STEPS)
    hit = attack_of(short)(
        net.model, make_from_text("attribution", plan.method), x[rows], guesses[0][rows], seed=stage.seed
    )
    kept = TopKIntersection(k=_top(x))(hit.map_clean, hit.map)
    return int(rows[kept.masked_fill(hit.stuck | ~hit.prediction_kept, 1.0).argmin()])


def _top(x: Images) -> int:
    return max(1, round(TOP * x[0, 0].numel()))


def attack_of(plan: AttackPlan, watch: Watch = unwatched) -> Any:
    """The plan's attack with the settings it knows; a map without derivative is attacked through the gradient's."""
    settings: Settings = {"eps": plan.eps}
    if _takes(plan, "steps"):
        settings["steps"] = plan.steps
    if _transfers(plan):
        gradient = make("attribution", STAND_IN)
        settings["transfer_from"] = Watched(gradient, watch, plan.steps, OPENING_LOOKS_IN_TRANSFER)
    return make("attack", plan.attack, **settings)


def _takes(plan: AttackPlan, setting: str) -> bool:
    return setting in inspect.signature(lookup("attack", plan.attack).factory).parameters


def _transfers(plan: AttackPlan) -> bool:
    return (
        _takes(plan, "transfer_from") and not lookup("attribution", parse_call(plan.method)[0]).differentiable
    )


def _waypoint(net: Net, method: Any, hit: AttackResult, share: float) -> Waypoint:
    """The ends are the images themselves, bit for bit."""
    between = hit.x_clean + share * (hit.x - hit.x_clean)
    x = {0.0: hit.x_clean, 1.0: hit.x}.get(share, between)
    map = reduce(method(net.model, x, hit.target)).detach()[0]
    return Waypoint(share, map, prediction(net, x))
