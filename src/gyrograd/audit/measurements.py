"""What is measured of a model and its explanations: one cell each, examples in, columns out.

model                      correct, probability, chance (insertion of a random order)
METHOD                     rps[draw], insertion[point], deletion[point], and metrics asked for
METHOD under ATTACK        cosine, kept, prediction_kept, stuck: a column for each eps; adversarial_insertion at one
METHOD under noise         the same under random noise of the same budgets, the yardstick
METHOD at SETTING          rps, insertion: the points of the plane
bounds                     constants of the theorems and what was measured
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.attacks.doubts import DOUBTS
from gyrograd.attacks.settings import settings_of
from gyrograd.audit.methods import Method, built
from gyrograd.audit.presets import AIMED, Preset
from gyrograd.audit.theorems import constants
from gyrograd.evaluation import Cell, streams
from gyrograd.metrics import (
    MapSimilarity,
    PixelGame,
    RandomPerturbationSimilarity,
    TopKIntersection,
    deletion,
    insertion,
)
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Images, Labels, Model

VERSION = 2
"""Raise it when a change of this file changes values: records of older versions are then measured again."""

NOISE = "noise"
SWEPT = {"smoothgrad": "sigma", "unigrad": "eps"}
"""The setting that is swept of each method on the plane."""

Columns = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Bench:
    """What is audited: a model, images, the class explained of each, and how much is measured.

    `index` says which example of the data set each row is, `identity` names model and data by their hashes;
    max_batch is the number of images in one pass.
    """

    model: Model
    x: Images
    target: Labels
    index: tuple[int, ...]
    preset: Preset
    seed: int
    identity: dict[str, Any]
    max_batch: int

    def rows(self, positions: Tensor) -> tuple[Images, Labels, Tensor]:
        """Images, classes and random streams of these examples, where the model is.

        The last ones asked for are the same tensors again, so that attacks can share what they say of clean images.
        """
        asked = tuple(int(p) for p in positions)
        if asked not in self._last_rows:
            here = torch.tensor([self._row[p] for p in asked])
            keys = streams(self.seed, positions)
            found = (self.x[here].to(self.device), self.target[here].to(self.device), keys.to(self.device))
            self._last_rows.clear()
            self._last_rows[asked] = found
        return self._last_rows[asked]

    @cached_property
    def _last_rows(self) -> dict[tuple[int, ...], tuple[Images, Labels, Tensor]]:
        return {}

    @cached_property
    def _row(self) -> dict[int, int]:
        return {example: row for row, example in enumerate(self.index)}

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((p.device for p in self.model.parameters()), self.x.device)

    @property
    def top(self) -> int:
        """How many pixels count as the top of a map."""
        return max(1, round(self.preset.kept * self.x[0, 0].numel()))

    def game(self, make: Callable[..., PixelGame]) -> PixelGame:
        """Insertion or deletion over the preset's shares of pixels."""
        return make(ratios=self.preset.ratios, max_batch=self.max_batch)

    def noise(self, draws: int) -> RandomPerturbationSimilarity:
        """RPS with the preset's noise."""
        return RandomPerturbationSimilarity(eps=self.preset.noise_eps, draws=draws, max_batch=self.max_batch)

    def cell(
        self, name: str, measure: Callable[[Tensor], Columns], limit: int | None = None, **settings: Any
    ) -> Cell:
        """A cell whose settings begin with model, data, seed and version."""
        common = {**self.identity, "seed": self.seed, "version": VERSION}
        return Cell(name, common | settings, measure, limit)


@dataclass(eq=False)
class Remembering:
    """An attribution that makes the maps of one batch once and any others as they come."""

    attribution: Attribution
    x: Tensor = field(repr=False)
    map: Tensor | None = field(default=None, repr=False)

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        same = not create_graph and x.shape == self.x.shape and x.data_ptr() == self.x.data_ptr()
        if not same:
            return self.attribution(model, x, target, create_graph=create_graph)
        if self.map is None:
            self.map = self.attribution(model, x, target).detach()
        return self.map


def all_cells(bench: Bench, methods: list[Method]) -> list[Cell]:
    """Every cell of an audit, cheap ones and those of the first method first."""
    cells = [model_cell(bench)]
    for number, method in enumerate(methods):
        radii = {name: radii_of(bench.preset, name, number) for name in bench.preset.searches}
        curve = bench.preset.radii if number < bench.preset.curve_methods else (bench.preset.eps,)
        cells += [method_cell(bench, method), noise_cell(bench, method, curve)]
        cells += [attack_cell(bench, method, name, at_eps) for name, at_eps in radii.items()]
    cells += [sweep_cell(bench, name, setting) for name, setting in swept(bench, methods)]
    return [*cells, bounds_cell(bench)]


def radii_of(preset: Preset, attack: str, number: int) -> tuple[float, ...]:
    """The radii an attack is run at, of the method with this number."""
    curve = attack == "auto" or ("auto" not in preset.attacks and number < preset.curve_methods)
    return preset.radii if curve else (preset.eps,)


def swept(bench: Bench, methods: list[Method]) -> list[tuple[str, float]]:
    """The points of the plane that need a cell of their own: not those that are one of the methods, draw for draw."""
    known = {described(method.attribution) for method in methods}
    every = [(name, setting) for name, settings in bench.preset.sweep.items() for setting in settings]
    return [point for point in every if described(smooth_map(bench, *point)) not in known]


def smooth_map(bench: Bench, name: str, setting: float) -> Attribution:
    """The smoothed gradient of a point of the plane."""
    settings = {SWEPT[name]: setting, "draws": bench.preset.sweep_draws}
    return built(name, settings, bench.max_batch)


def model_cell(bench: Bench) -> Cell:
    """Whether the model is right, how sure it is, and what insertion gives for a random order of pixels."""

    def measure(positions: Tensor) -> Columns:
        x, target, seed = bench.rows(positions)
        logits = logits_in_parts(bench.model, x, bench.max_batch)
        probability = logits.softmax(1).gather(1, target[:, None])[:, 0]
        chance = bench.game(insertion).chance(bench.model, x, target, seed=seed)
        return {"correct": logits.argmax(1) == target, "probability": probability, "chance": chance}

    return bench.cell("model", measure, ratios=bench.preset.ratios)


def method_cell(bench: Bench, method: Method) -> Cell:
    """A method without an attacker: still under noise, and true to the model? The clean map is made once."""

    def measure(positions: Tensor) -> Columns:
        x, target, seed = bench.rows(positions)
        explain = Remembering(method.attribution, x)
        map = explain(bench.model, x, target)
        columns = {
            "rps": bench.noise(bench.preset.draws).per_draw(bench.model, explain, x, target, seed=seed),
            "insertion": bench.game(insertion).curve_of_map(bench.model, map, x, target),
            "deletion": bench.game(deletion).curve_of_map(bench.model, map, x, target),
        }
        for name, metric in further_metrics(bench, attacked=False).items():
            columns[name] = metric(bench.model, explain, x, target, seed=seed)
        return columns

    preset = bench.preset
    return bench.cell(
        method.name,
        measure,
        method=described(method.attribution),
        noise_eps=preset.noise_eps,
        draws=preset.draws,
        ratios=preset.ratios,
        metrics=preset.metrics,
    )


def attack_cell(bench: Bench, method: Method, attack: str, radii: tuple[float, ...]) -> Cell:
    """What an attack on the map did to it, at each radius; all measures look at the same attacked images."""
    run = attack_of(bench, method, attack, radii)

    def measure(positions: Tensor) -> Columns:
        x, target, seed = bench.rows(positions)
        hits = run(bench.model, method.attribution, x, target, seed=seed)
        return _stacked([_response(bench, method, hit) for hit in hits])

    return bench.cell(
        under(method.name, attack),
        measure,
        bench.preset.attacked_images,
        method=described(method.attribution),
        attack=_decided(run, method),
        ratios=bench.preset.ratios,
        kept=bench.top,
        metrics=bench.preset.metrics,
    )


def attack_of(bench: Bench, method: Method, attack: str, radii: tuple[float, ...]) -> Any:
    """The attack with the audit's settings, as far as it has them."""
    name = "auto" if attack in AIMED else attack
    given = {
        "eps": radii,
        "steps": steps_of(bench.preset, method, attack),
        "column": AIMED.get(attack, "top_kept"),
        "top_fraction": bench.preset.kept,
        "ratios": bench.preset.ratios,
        "transfer_from": method.search,
        "max_batch": max(1, bench.max_batch // 2),
    }
    return make("attack", name, **_known("attack", name, given))


def steps_of(preset: Preset, method: Method, attack: str) -> int:
    """How many steps an attack on this method takes: fewer where each looks at many draws, and half where `auto` is not
    aimed at the top pixels, by which maps are graded."""
    drawn = getattr(method.search or method.attribution, "draws", 1) > 1
    steps = preset.drawn_steps if drawn and preset.drawn_steps is not None else preset.steps
    return max(2, steps // 2) if attack in AIMED and attack != "auto" else steps


def noise_cell(bench: Bench, method: Method, radii: tuple[float, ...]) -> Cell:
    """The yardstick: noise of the attacker's budgets, on the same images."""
    run = make("attack", "random", eps=radii)

    def measure(positions: Tensor) -> Columns:
        x, target, seed = bench.rows(positions)
        hits = run(bench.model, method.attribution, x, target, seed=seed)
        return _stacked([_response(bench, method, hit) for hit in hits])

    return bench.cell(
        under(method.name, NOISE),
        measure,
        bench.preset.attacked_images,
        method=described(method.attribution),
        eps=radii,
        ratios=bench.preset.ratios,
        kept=bench.top,
        metrics=bench.preset.metrics,
    )


def sweep_cell(bench: Bench, name: str, setting: float) -> Cell:
    """One point of the plane: a smoothed gradient at one width."""
    preset = bench.preset
    attribution = smooth_map(bench, name, setting)

    def measure(positions: Tensor) -> Columns:
        x, target, seed = bench.rows(positions)
        explain = Remembering(attribution, x)
        map = explain(bench.model, x, target)
        rps = bench.noise(preset.sweep_noise)(bench.model, explain, x, target, seed=seed)
        curve = bench.game(insertion).curve_of_map(bench.model, map, x, target)
        return {"rps": rps, "insertion": curve.mean(1)}

    return bench.cell(
        at(name, setting),
        measure,
        preset.sweep_images,
        method=described(attribution),
        noise_eps=preset.noise_eps,
        draws=preset.sweep_noise,
        ratios=preset.ratios,
    )


def bounds_cell(bench: Bench) -> Cell:
    """The constants the theorems ask for, and what they speak of, as measured."""
    preset = bench.preset

    def measure(positions: Tensor) -> Columns:
        x, target, seed = bench.rows(positions)
        return constants(
            bench.model, x, target, seed, preset.bound_sigma, preset.bound_draws, bench.max_batch
        )

    return bench.cell(
        "bounds", measure, preset.bound_images, sigma=preset.bound_sigma, draws=preset.bound_draws
    )


def under(method: str, attack: str) -> str:
    """The name of an attack's cell."""
    return f"{method} under {attack}"


def at(method: str, setting: float) -> str:
    """The name of a cell of the plane."""
    return f"{method} at {SWEPT[method]} {setting:.6g}"


def further_metrics(bench: Bench, *, attacked: bool) -> dict[str, Any]:
    """The metrics asked for by name: those that look at attacked images, or those that do not."""
    found = {}
    for name in bench.preset.metrics:
        entry = lookup("metric", name)
        metric = make("metric", name, **_known("metric", name, {"max_batch": bench.max_batch}))
        takes = "perturbed" in inspect.signature(type(metric).__call__).parameters
        needs = takes and getattr(metric, "attacked", True)
        if needs == attacked:
            found[entry.name] = metric
    return found


def described(attribution: Attribution | None) -> str | None:
    """An attribution's settings as text; the size of a batch decides no value and is left out."""
    if attribution is None:
        return None
    return re.sub(r",? ?max_batch=\d+", "", repr(attribution))


def _response(bench: Bench, method: Method, hit: AttackResult) -> Columns:
    """One attack's images, seen by every measure; nothing is said of images whose search stood still."""
    kept = TopKIntersection(k=bench.top)(hit.map_clean, hit.map)
    columns = {
        "cosine": MapSimilarity()(hit.map_clean, hit.map),
        "kept": kept,
        "prediction_kept": hit.prediction_kept.to(kept),
        "adversarial_insertion": _insertion(bench, hit),
        **_challenges(hit, kept),
    }
    for name, metric in further_metrics(bench, attacked=True).items():
        columns[name] = metric(bench.model, method.attribution, hit.x_clean, hit.target, perturbed=hit.x)
    blank = {name: torch.where(hit.stuck, torch.nan, column) for name, column in columns.items()}
    return {**blank, "stuck": hit.stuck.to(kept)}


def _insertion(bench: Bench, hit: AttackResult) -> Tensor:
    """Insertion in the attacked map's order. The card shows it at the preset's eps; elsewhere it is not measured, since
    a curve costs as much as a step of an attack."""
    if hit.settings.get("column") == "insertion":
        return hit.value
    if hit.eps != bench.preset.eps:
        return torch.full_like(hit.value, torch.nan)
    return bench.game(insertion).curve_of_map(bench.model, hit.map, hit.x_clean, hit.target).mean(1)


def _challenges(hit: AttackResult, like: Tensor) -> Columns:
    """Where a challenger of `auto` beat its main search, or that was misled; one that did not run has not beaten it."""
    if hit.name != "auto":
        return {}
    nothing = torch.zeros_like(hit.stuck)
    beaten = {f"beaten_by_{name}": hit.beaten_by.get(name, nothing).to(like) for name in DOUBTS}
    return {**beaten, "misled": (nothing if hit.misled is None else hit.misled).to(like)}


def _stacked(results: list[Columns]) -> Columns:
    return {name: torch.stack([result[name] for result in results], 1) for name in results[0]}


def _known(kind: str, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the settings that this entry has."""
    parameters = inspect.signature(lookup(kind, name).factory).parameters
    return {key: value for key, value in settings.items() if key in parameters}


def _decided(attack: Any, method: Method) -> dict[str, Any]:
    """All that decides what an attack finds."""
    found = {key: value for key, value in settings_of(attack).items() if key != "max_batch"}
    return {**found, "name": attack.name, "transfer_from": described(method.search)}
