"""Computations of the page: explanations of an image, an attack on one of them, models under the same attack."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.attacks.engine import STAND_IN
from gyrograd.attacks.settings import MapSearch
from gyrograd.data.opening import is_labelled
from gyrograd.errors import UserError, check_counts
from gyrograd.explorer.stage import Net, Stage
from gyrograd.explorer.watching import (
    OPENING_LOOKS_IN_TRANSFER,
    ProgressReporter,
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
"""Share of the pixels that are the top of a map, as in an audit."""
TRIED_IMAGES = 8
TRIED_STEPS = 10
LARGEST_TRIED = 64
"""Images, attack steps and largest side in pixels when the opening image is chosen, which takes a second or two."""
ON_THE_WAY = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares of the attack's change at which the map is computed."""


@dataclass(frozen=True)
class Prediction:
    """A class and its probability."""

    number: int
    label: str
    probability: float


@dataclass(frozen=True, eq=False)
class MapsScene:
    """Explanations of one image: maps by method, and for failed methods the reason."""

    net: Net
    x: Images
    predicted: Prediction
    target: Prediction
    maps: dict[str, Float[Tensor, "h w"]]
    left_out: dict[str, str]

    @property
    def empty(self) -> tuple[str, ...]:
        """Methods whose map is zero everywhere, which would be drawn black."""
        return tuple(name for name, map in self.maps.items() if not bool(map.any()))


@dataclass(frozen=True)
class AttackPlan:
    """Settings of an attack: eps in pixel units (default joo2023's 4/255), and `steps` for attacks that have them.

    `method` is written as on the command line, with settings in brackets: `smoothgrad(sigma=0.2)`.
    """

    method: str = "gradient"
    attack: str = "auto"
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
    """The map and the prediction at a share of the attack's change."""

    share: float
    map: Float[Tensor, "h w"]
    predicted: Prediction


@dataclass(frozen=True, eq=False)
class AttackScene:
    """An attack on one image. `kept` and `cosine` are None if the search had no gradient to follow."""

    net: Net
    plan: AttackPlan
    hit: AttackResult
    before: Prediction
    after: Prediction
    before_after: float
    """Probability of the originally predicted class on the attacked image."""
    kept: float | None
    cosine: float | None
    top: int
    way: tuple[Waypoint, ...]

    @property
    def target(self) -> str:
        """The name of the explained class."""
        return self.net.classes[int(self.hit.target)]

    @property
    def prediction_kept(self) -> bool:
        """Whether the predicted class is the same for both images."""
        return bool(self.hit.prediction_kept)


def prediction(net: Net, x: Images, number: int | None = None) -> Prediction:
    """The predicted class of one image, or class `number`, with its probability."""
    with torch.no_grad():
        shares = logits_of(net.model, x)[0].softmax(0)
    chosen = int(shares.argmax()) if number is None else number
    net.check_class(chosen)
    return Prediction(chosen, net.classes[chosen], float(shares[chosen]))


def explain_image(
    net: Net, x: Images, target: int | None, methods: Sequence[str], *, watch: Watch = unwatched
) -> MapsScene:
    """Compute the maps of these methods, written as on the command line; by default for the predicted class.

    If a method cannot explain this model or image, its error message is kept and the others go on.
    """
    if not methods:
        raise UserError("No method is chosen; choose at least one, such as gradient.")
    predicted = prediction(net, x)
    wanted = predicted if target is None else prediction(net, x, target)
    classes = torch.tensor([wanted.number], device=x.device)
    maps: dict[str, Tensor] = {}
    left_out: dict[str, str] = {}
    report = ProgressReporter(watch)
    with at_every_pass(net.model, report.again):
        for place, name in enumerate(methods):
            report(place / len(methods), label_of("attribution", parse_call(name)[0]))
            try:
                maps[name] = reduce(make_from_text("attribution", name)(net.model, x, classes)).detach()[0]
            except UserError as wrong:
                left_out[name] = str(wrong)
    return MapsScene(net, x, predicted, wanted, maps, left_out)


def attack_image(
    net: Net, x: Images, target: int | None, plan: AttackPlan, *, seed: int = 0, watch: Watch = unwatched
) -> AttackScene:
    """Run the planned attack on one image; the numbers are the same as from a call of the library.

    `watch` is called before every pass of the model, so an exception that it raises soon ends the work.
    """
    before = prediction(net, x)
    if target is not None:
        net.check_class(target)
    classes = torch.tensor([before.number if target is None else target], device=x.device)
    report = ProgressReporter(watch)
    hit = _hit(net, x, classes, plan, seed, report)
    top = _top(x)
    still = bool(hit.stuck)
    with at_every_pass(net.model, report.again):
        after, before_after = prediction(net, hit.x), prediction(net, hit.x, before.number)
        method = make_from_text("attribution", plan.method)
        way = tuple(_waypoint(net, method, hit, share) for share in ON_THE_WAY)
    return AttackScene(
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


def _hit(
    net: Net, x: Images, classes: Labels, plan: AttackPlan, seed: int, report: ProgressReporter
) -> AttackResult:
    """Run the attack and report progress: by evaluations of the map, by passes of the model, or only as a whole."""
    through, attack = make_from_text("attribution", plan.method), attack_of(plan, report)
    tell = report.again
    steps = _takes(plan, "steps")
    report(0.0, f"step 0 of {plan.steps}" if steps else label_of("attack", plan.attack))
    if steps and not isinstance(attack, MapSearch):
        through = Watched(through, report, plan.steps, opening=0)
        tell = through.count_pass
    elif steps and not _transfers(plan):  # if the search goes through another map, that one is watched
        through = Watched(through, report, plan.steps)
    with at_every_pass(net.model, tell):
        hit: AttackResult = attack(net.model, through, x, classes, seed=seed)
    return hit


def compare_models(
    nets: Sequence[Net],
    x: Images,
    target: int | None,
    plan: AttackPlan,
    *,
    seed: int = 0,
    watch: Watch = unwatched,
) -> tuple[AttackScene, ...]:
    """Attack every model on the same image with the same budget."""
    scenes = []
    for place, net in enumerate(nets):
        part = part_of(watch, place / len(nets), (place + 1) / len(nets), net.name)
        scenes.append(attack_image(net, x, target, plan, seed=seed, watch=part))
    return tuple(scenes)


def opening_image(stage: Stage, plan: AttackPlan) -> int:
    """The image that the page opens with: one that every model classifies correctly and whose map an attack moves far.

    Only the first images are tried, with a few attack steps on the first model. Images that are too large for that are
    chosen by their labels alone.
    """
    x = stage.data.pixels(torch.arange(min(TRIED_IMAGES, len(stage.data))))
    labels = stage.data.labels[: len(x)]
    with torch.no_grad():
        guesses = [logits_of(net.model, x).argmax(1) for net in stage.nets]
    right = torch.ones_like(labels, dtype=torch.bool)
    if is_labelled(stage.data):
        right = torch.stack([guess == labels for guess in guesses]).all(0)
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
    """The plan's attack with the settings it takes; maps without a derivative are attacked through the gradient."""
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
    """The map and the prediction at this share; shares 0 and 1 use exactly the clean and the attacked image."""
    between = hit.x_clean + share * (hit.x - hit.x_clean)
    x = {0.0: hit.x_clean, 1.0: hit.x}.get(share, between)
    map = reduce(method(net.model, x, hit.target)).detach()[0]
    return Waypoint(share, map, prediction(net, x))
