"""The plans of an audit.

model           correct, probability, chance (insertion of a random order), without_model (of the image's own)
each method     clean: rps, insertion, deletion, and metrics asked for
                under noise and each attack, at each radius: cosine, kept, prediction_kept; adversarial_insertion at eps
sweep           rps and insertion of smoothed gradients: the points of the plane
bounds          constants of the theorems and the bounded quantities
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.attacks.auto import coarser
from gyrograd.attacks.self_checks import BEATEN_BY
from gyrograd.attributions.settings import passes_of
from gyrograd.audit.methods import Method, build_attribution
from gyrograd.audit.presets import AIMED, Preset
from gyrograd.audit.theorems import constants
from gyrograd.errors import UserError
from gyrograd.measurement import (
    CLEAN,
    Condition,
    Look,
    Metric,
    Plan,
    Sample,
    attacked,
    fingerprint,
    noise,
    registered,
    streams,
)
from gyrograd.measurement.plan import described, having
from gyrograd.metrics import (
    InsertionCurve,
    MapSimilarity,
    RandomPerturbationSimilarity,
    TopKIntersection,
    deletion,
    insertion,
)
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.numerics.maps import holds_nan
from gyrograd.registry import available, fact, in_order
from gyrograd.types import Attribution, Labels, Model

NOISE = "noise"
MODEL, BOUNDS = "model", "bounds"
"""Rows of the table about the model alone."""

# Estimated costs for the progress bar, in forward passes per image: a gradient is about three, a step of an attack
# about twelve (a map with its graph, that graph's derivative, the verdict). The ratio of first and second derivatives
# differs between nets by factors of two to three, so the bar measures the pace of both kinds. A map of forward passes
# takes those, and a step on it their gradient.
GRADIENT, STEP = 3, 12
ATTACK, OTHER = "attack", "other"


Attack = tuple[int, str, str]
"""Example, method and attack."""


@dataclass(frozen=True, eq=False)
class AuditInputs:
    """The inputs of an audit: model, images with their explained classes, names, and settings.

    `identity` has the hashes of model and data; `max_batch` is the number of images per pass.
    """

    model: Model
    sample: Sample
    preset: Preset
    seed: int
    identity: dict[str, str]
    max_batch: int
    model_name: str
    data_name: str
    labelled: bool
    classes: tuple[str, ...] | None
    names: Mapping[int, str] = field(default_factory=dict)
    """Names of the images by example: their files, or their set and number."""
    notes: tuple[str, ...] = ()
    """Doubts about the labels."""
    hits: dict[Attack, AttackResult] = field(default_factory=dict, repr=False)
    """Attacks on single images, stored for the pictures."""

    def remember(self, method: str, at: Look) -> None:
        """Store an attack on a single image at the audit's eps, because running it again would give the same result."""
        hit = at.attack
        if len(at.x) == 1 and hit.eps == self.preset.eps:
            aimed = [name for name, column in AIMED.items() if column == hit.settings.get("column")]
            attack = aimed[0] if hit.name == "auto" and aimed else hit.name
            self.hits[self.examples_by_stream[int(at.seed)], method, attack] = hit

    @cached_property
    def measured(self) -> dict[str, str]:
        """What the records are of: model, data, and the numbers of the images, by which records name them."""
        return {**self.identity, "index": fingerprint(list(self.sample.index))}

    @cached_property
    def examples_by_stream(self) -> dict[int, int]:
        """The example of each random stream."""
        keys = streams(self.seed, torch.tensor(self.sample.index))
        return dict(zip(keys.tolist(), self.sample.index, strict=True))

    def rows(self, examples: Sequence[int]) -> tuple[Tensor, Labels, Tensor]:
        """Images, classes and random streams of these examples, on the model's device."""
        device = next((p.device for p in self.model.parameters()), self.sample.x.device)
        return self.sample.rows(examples, self.seed, device)

    @property
    def top(self) -> int:
        """Number of pixels in the top of a map."""
        return max(1, round(self.preset.top_fraction * self.sample.x.shape[2:].numel()))


@dataclass(frozen=True)
class SweepPoint:
    """A smoothed gradient with one width. name: its row of the table, such as "smoothgrad at sigma 0.1"."""

    name: str
    method: str
    setting: float
    attribution: Attribution


def audit_plans(
    inputs: AuditInputs, methods: Sequence[Method], limits: Mapping[str, int] | None = None
) -> list[Plan]:
    """All plans of an audit; cheap ones and those of the first method come first. `limits`: images per method."""
    preset, seed, most = inputs.preset, inputs.seed, max(limits.values()) if limits else None
    rest = replace(CLEAN, effort=(OTHER, 2.0 * preset.points))
    game = insertion(ratios=preset.ratios, max_batch=inputs.max_batch)
    right = Metric("model", partial(_right_and_chance, game), settings={"ratios": preset.ratios})
    plans = [Plan({MODEL: None}, (rest,), (right,), most, seed)]
    for number, method in enumerate(methods):
        conditions, limit = _conditions(inputs, method, number), limits[method.name] if limits else None
        metrics = _method_metrics(inputs, method, game)
        plans.append(Plan({method.name: method.attribution}, conditions, metrics, limit, seed))
    points = {point.name: point.attribution for point in sweep_points(inputs, methods)}
    if points:
        passes = GRADIENT * preset.sweep_draws * (1 + preset.sweep_noise) + preset.points
        swept = replace(CLEAN, effort=(OTHER, float(passes)))
        plans.append(Plan(points, (swept,), _sweep_metrics(inputs, game), preset.sweep_images, seed))
    if preset.bound_images:
        sigma, draws = preset.bound_sigma, preset.bound_draws
        bounds = Metric(
            "constants",
            lambda at: constants(at.model, at.x, at.target, at.seed, sigma, draws, inputs.max_batch),
            settings={"sigma": sigma, "draws": draws},
        )
        plans.append(Plan({BOUNDS: None}, (rest,), (bounds,), preset.bound_images, seed))
    return plans


def _conditions(inputs: AuditInputs, method: Method, number: int) -> tuple[Condition, ...]:
    """The conditions of a method: clean, noise, and each attack, with their estimated costs."""
    preset = inputs.preset
    look = map_cost(method.attribution) + preset.points
    clean = map_cost(method.attribution) * (1 + preset.draws) + 2 * preset.points
    curve = preset.radii if number < preset.curve_methods else (preset.eps,)
    return (
        replace(CLEAN, effort=(OTHER, float(clean))),
        noise(curve, images=preset.attacked_images, effort=(OTHER, float(len(curve) * look))),
        *attacks_on(inputs, method, {name: radii_of(preset, name, number) for name in preset.searches}),
    )


def attacks_on(
    inputs: AuditInputs, method: Method, radii: Mapping[str, tuple[float, ...]]
) -> list[Condition]:
    """The attacks on a method, each at its radii. Those of `auto` follow one another: each starts where one ended."""
    found = [search(inputs, method, name, radii[name]) for name in inputs.preset.searches]
    first = next((each for each in found if each.name == "auto"), None)
    if first is None:
        return found
    later = tuple(each for each in found if each.name in AIMED and each is not first)
    kind, own = first.effort
    whole = replace(first, then=later, effort=(kind, own + sum(each.effort[1] for each in later)))
    return [whole if each is first else each for each in found if each not in later]


def search(inputs: AuditInputs, method: Method, attack: str, radii: tuple[float, ...]) -> Condition:
    """The condition of an attack on a method, with those of the audit's settings that the attack has."""
    preset, name = inputs.preset, "auto" if attack in AIMED else attack
    steps = steps_of(preset, method, attack)
    given = {
        "steps": steps,
        "column": AIMED.get(attack, "top_kept"),
        "top_fraction": preset.top_fraction,
        "settled": preset.settled,
        "search_precision": preset.search_precision,
        "ratios": preset.ratios,
        "transfer_from": method.search,
        "max_batch": max(1, inputs.max_batch // 2),
    }
    look = map_cost(method.attribution) + preset.points
    step = map_cost(method.search or method.attribution) * STEP // GRADIENT
    passes = len(radii) * (step * steps + look)
    settings = having("attack", name, given)
    effort = (ATTACK, float(passes))
    return attacked(name, radii, name=attack, images=preset.attacked_images, effort=effort, **settings)


def map_cost(attribution: Attribution) -> int:
    """Estimated cost of a map, in forward passes per image."""
    passes = passes_of(attribution)
    return passes if fact("attribution", attribution, "forward_only") else GRADIENT * passes


def radii_of(preset: Preset, attack: str, number: int) -> tuple[float, ...]:
    """The radii of an attack on the method with this number."""
    curve = attack == "auto" or ("auto" not in preset.attacks and number < preset.curve_methods)
    return preset.radii if curve else (preset.eps,)


def steps_of(preset: Preset, method: Method, attack: str) -> int:
    """Steps of an attack on this method: fewer for maps of many passes, and half for insertion, whose steps take
    several passes more. The cosine's search starts where `auto` ended, so that half are enough for a map of many
    passes; one with a coarser map, which most steps follow, can afford them all.
    """
    through = method.search or method.attribution
    many = passes_of(through) > 1
    steps = preset.mean_steps if many and preset.mean_steps is not None else preset.steps
    if attack == "auto on insertion":
        return max(2, steps // 2)
    fewer = attack == "auto on cosine" and many and "auto" in preset.searches and coarser(through) is None
    return (steps + 1) // 2 if fewer else steps


def swept_setting(method: str) -> str:
    """The name of the setting that holds a method's width, which the plane sweeps."""
    entry = available("attribution").get(method)
    if entry is None or not entry.width:
        known = ", ".join(other.name for other in in_order("attribution") if other.width)
        raise UserError(f"The sweep names '{method}', which has no width; sweep one that has: {known}.")
    return entry.width


def sweep_points(inputs: AuditInputs, methods: Sequence[Method]) -> list[SweepPoint]:
    """The points of the sweep that must be measured, without those that are identical to one of the methods."""
    preset = inputs.preset
    known = {described(repr(method.attribution)) for method in methods}
    points = []
    for method, widths in preset.sweep.items():
        for width in widths:
            setting = swept_setting(method)
            settings = {setting: width, "draws": preset.sweep_draws}
            attribution = build_attribution(method, settings, inputs.max_batch)
            if described(repr(attribution)) not in known:
                points.append(SweepPoint(f"{method} at {setting} {width:.6g}", method, width, attribution))
    return points


def _right_and_chance(game: InsertionCurve, at: Look) -> dict[str, Tensor]:
    """Accuracy and confidence of the model, and insertion in two orders that are not the model's."""
    logits = logits_in_parts(at.model, at.x, game.max_batch)
    probability = logits.softmax(1).gather(1, at.target[:, None])[:, 0]
    chance = game.chance(at.model, at.x, at.target, seed=at.seed)
    return {
        "correct": (logits.argmax(1) == at.target) & ~holds_nan(logits),
        "probability": probability,
        "chance": chance,
        "without_model": game.without_model(at.model, at.x, at.target),
    }


def _method_metrics(inputs: AuditInputs, method: Method, game: InsertionCurve) -> tuple[Metric, ...]:
    """Metrics of a method: RPS of every draw and the curves on clean images, changes under attack, requested ones."""
    preset, most = inputs.preset, inputs.max_batch
    rps = RandomPerturbationSimilarity(eps=preset.noise_eps, draws=preset.draws, max_batch=most)
    removal = deletion(ratios=preset.ratios, max_batch=most)
    cosine, kept = MapSimilarity(), TopKIntersection(k=inputs.top)
    remember = partial(inputs.remember, method.name) if preset.shard == 1 else None
    return (
        Metric(
            "rps",
            lambda at: rps.per_draw(at.model, at.attribution, at.x, at.target, seed=at.seed),
            settings={"eps": preset.noise_eps, "draws": preset.draws},
        ),
        Metric("insertion", partial(_pixel_curve, game), settings={"ratios": preset.ratios}),
        Metric("deletion", partial(_pixel_curve, removal), settings={"ratios": preset.ratios}),
        Metric("cosine", lambda at: cosine(at.attack.map_clean, at.attack.map), "attacked"),
        Metric("kept", lambda at: kept(at.attack.map_clean, at.attack.map), "attacked", {"k": inputs.top}),
        Metric("prediction_kept", lambda at: at.attack.prediction_kept, "attacked"),
        Metric(
            "adversarial_insertion",
            partial(_adversarial_insertion, game, preset.eps),
            "attacked",
            {"ratios": preset.ratios, "eps": preset.eps},
        ),
        Metric("self_checks", partial(self_checks, remember=remember), "attacked"),
        *(registered(name, max_batch=most) for name in preset.metrics),
    )


def _pixel_curve(game: InsertionCurve, at: Look) -> Tensor:
    """Insertion or deletion in the order of the map, which is the attacked one under attack."""
    return game.curve_of_map(at.model, at.map, at.x, at.target)


def _adversarial_insertion(game: InsertionCurve, eps: float, at: Look) -> Tensor:
    """Insertion in the attacked map's order, only at the preset's eps: a curve costs as much as an attack step."""
    hit = at.attack
    if hit.settings.get("column") == "insertion":
        return hit.value
    if hit.eps != eps:
        return torch.full_like(hit.value, torch.nan)
    return _pixel_curve(game, at).mean(1)


def self_checks(at: Look, remember: Callable[[Look], None] | None = None) -> dict[str, Tensor]:
    """Columns of `auto`'s self-checks: images on which a challenger won, or the search was misled."""
    hit = at.attack
    if remember is not None:
        remember(at)
    if hit.name != "auto":
        return {}
    nothing = torch.zeros_like(hit.stuck)
    beaten = {f"beaten_by_{name}": hit.beaten_by.get(name, nothing) for name in BEATEN_BY}
    return {**beaten, "misled": nothing if hit.misled is None else hit.misled}


def _sweep_metrics(inputs: AuditInputs, game: InsertionCurve) -> tuple[Metric, ...]:
    """Metrics of a point of the sweep, with fewer draws than for the methods."""
    preset = inputs.preset
    rps = RandomPerturbationSimilarity(
        eps=preset.noise_eps, draws=preset.sweep_noise, max_batch=inputs.max_batch
    )
    return (
        Metric(
            "rps",
            lambda at: rps(at.model, at.attribution, at.x, at.target, seed=at.seed),
            settings={"eps": preset.noise_eps, "draws": preset.sweep_noise},
        ),
        Metric("insertion", lambda at: _pixel_curve(game, at).mean(1), settings={"ratios": preset.ratios}),
    )
