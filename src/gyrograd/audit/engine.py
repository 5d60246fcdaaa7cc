"""The audit: measure, doubt, judge, recommend."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from gyrograd.attributions import predicted
from gyrograd.audit import identity
from gyrograd.audit.card import PICTURES, Card
from gyrograd.audit.doubts import challenges, doubts, masked, suspects
from gyrograd.audit.methods import Method, methods_of
from gyrograd.audit.pictures import Pictures, most_damaging
from gyrograd.audit.plane import choice, own_setting, plane, plane_points
from gyrograd.audit.plans import BOUNDS, MODEL, AuditInputs, audit_plans, sweep_points
from gyrograd.audit.presets import Preset, preset_of
from gyrograd.audit.steady import steady_radius
from gyrograd.audit.table import (
    STEADY,
    card_columns,
    eps_curves,
    has_radius,
    kept_over_eps,
    method_columns,
    pixel_curves,
    searched,
    stat,
)
from gyrograd.audit.theorems import promises
from gyrograd.audit.verdict import NOT_JUDGED, Grade, grade_of, sentences
from gyrograd.data.dataset import Dataset
from gyrograd.data.opening import is_labelled
from gyrograd.errors import UserError, printable
from gyrograd.measurement import Interrupted, Sample, Table, mean_over, measure
from gyrograd.measurement.run import data_hash, model_hash
from gyrograd.models import logits_of
from gyrograd.models.class_names import class_names
from gyrograd.models.opening import UNTRAINED
from gyrograd.models.opening import notes as model_notes
from gyrograd.numerics.checks import check_images, check_target, class_indices, try_model
from gyrograd.numerics.modes import evaluating
from gyrograd.numerics.statistics import Stat
from gyrograd.occupancy import sole_writer
from gyrograd.registry import lookup
from gyrograd.reporting.schema import SCHEMA, AuditCard, CardFlag
from gyrograd.reporting.values import write_values
from gyrograd.reporting.wording import counted_images
from gyrograd.types import Attribution, Model, Targets

ROWS = {"cpu": 128, "cuda": 2048}
"""Images of 3 x 32 x 32 in one pass; of larger images fewer, so that memory stays the same."""
FEW = 10
"""Below so many images a bootstrap interval is far too narrow: of two images it spans just those two."""
ALWAYS = {"random_perturbation_similarity", "insertion", "deletion", "adversarial_insertion"}
"""Metrics every audit measures; naming them changes nothing."""


def audit(
    model: Model,
    images: Tensor | Dataset,
    labels: Targets | None = None,
    *,
    preset: str | Preset = "quick",
    methods: Sequence[str] | Mapping[str, Attribution] | None = None,
    attacks: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    eps: float | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    fresh: bool = False,
    model_name: str | None = None,
    data_name: str | None = None,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    index: Sequence[int] | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    **changes: Any,
) -> Card:
    """Can this model's explanations be trusted? The report card over images in [0, 1].

    Without labels each image is explained for the class the model predicts. `preset`: "glance", "quick", "standard" or
    "thorough"; `methods`, `attacks` and further `metrics` by name, `eps` and any other setting of `Preset` in
    place of its own. With `out`, numbers are kept there as they are made: a second call takes up where an
    interrupted one stopped (`fresh` starts anew), and the folder ends up with card, records, pictures and report; a
    report of the images finished so far is there while a long audit runs. `classes` are the names of the model's
    classes (found by itself where the model carries them), `names` those of the images, such as their files; `index`
    numbers the images where they are part of a larger set; `notes` are printed with the verdict.
    """
    started = time.monotonic()
    further = None if metrics is None else tuple(m for m in metrics if lookup("metric", m).name not in ALWAYS)
    chosen = preset_of(preset, attacks=_names(attacks), metrics=further, eps=eps, **changes)
    inputs = _inputs(model, images, labels, classes, names, index, model_name, data_name, chosen, seed)
    x, target, _ = inputs.rows(inputs.sample.index[:1])
    tried, left_out = methods_of(methods, chosen, model, x, target, max_batch=inputs.max_batch)
    settings = {
        "preset": preset if isinstance(preset, str) else "own",
        "left_out": left_out,
        "notes": [*notes, *_warnings(len(inputs.sample.x), chosen)],
    }
    shown = Pictures(inputs, tried)

    def card_of(table: Table, *, complete: bool = True) -> Card:
        seconds = time.monotonic() - started
        return _card(inputs, tried, table, shown, settings, command, seconds, complete=complete)

    with nullcontext() if out is None else sole_writer(out):
        place = None if out is None else Path(out)
        try:
            table = measure(
                model,
                inputs.sample,
                audit_plans(inputs, tried),
                place,
                shard=chosen.shard,
                fresh=fresh,
                what="auditing",
                identity=inputs.identity,
                grown=None
                if place is None
                else lambda table: _write_so_far(card_of(table, complete=False), place),
            )
        except Interrupted as stopped:
            # A card of the images finished so far, marked as such.
            if place is not None and stopped.table is not None:
                card_of(stopped.table, complete=False).save(place)
            raise
        card = card_of(table)
        if place is not None:
            for method in tried:
                write_values(place, method.name, method_columns(table, method.name, chosen))
            card.save(place)
    return card


def _write_so_far(card: Card, place: Path) -> None:
    """The report of the images finished so far; told where there is none yet."""
    is_first = not (place / "report.html").exists()
    page = card.save(place)
    if is_first:
        print(f"gyrograd: the first images are on the page, which grows: {printable(page)}", file=sys.stderr)


def _warnings(n: int, preset: Preset) -> list[str]:
    few = f"{n} image{'s are' if n > 1 else ' is'} few: intervals over fewer than {FEW} are too narrow to go by."
    brief = "A search this short shows that a map moves, not that it holds: --preset quick searches longer."
    return [
        *([few] if n < FEW else []),
        *([brief] if preset.is_brief else []),
        f"No number under attack is a guarantee: the searches took {searched(preset)}, and longer ones (--steps) can "
        "move maps further.",
    ]


def _card(
    inputs: AuditInputs,
    methods: list[Method],
    table: Table,
    shown: Pictures,
    settings: dict[str, Any],
    command: str | None,
    seconds: float,
    *,
    complete: bool = True,
) -> Card:
    """The card of a table; of an unfinished run without flags, which need the model again, and with one picture."""
    preset, first = inputs.preset, methods[0]
    flags: list[CardFlag] = []
    if complete:
        flags = doubts(inputs, table, methods) + challenges(table, methods, preset)
    hollow = suspects(flags) | masked(flags)

    columns = {method.name: _stats(table, method.name, preset) for method in methods}
    placed = plane_points(table, methods, sweep_points(inputs, methods), preset)
    own = {(m.name, own_setting(m)): columns[m.name] for m in methods}
    passes = dict.fromkeys(preset.sweep, preset.sweep_draws) | {m.name: m.passes for m in methods}
    # At a single radius there is no steady radius, and what stays there is compared.
    yardstick = STEADY if has_radius(preset) else "top_k_kept" if "auto" in preset.attacks else None
    held = {key: stats[yardstick] for key, stats in own.items()} if yardstick else {}
    faithful = {key: mean_over(table.curve(method=key[0], metric="insertion")) for key in own}
    chosen = choice(placed, first, hollow, passes, held, faithful, by_radius=yardstick == STEADY)
    judged = first
    if chosen is not None and chosen.held is not None:
        judged = next(method for method in methods if method.name == chosen.point.method)
    graded, empty = columns[judged.name], judged.name in hollow
    # What an attack leaves of the chosen map, if it is one that was attacked.
    attacked = chosen and own.get((chosen.point.method, chosen.point.setting))
    kept = attacked["top_k_kept"] if attacked else None
    untrained = UNTRAINED in model_notes(inputs.model)
    told = sentences(
        judged, graded, chosen, preset, suspect=empty, kept=kept, against=first, before=columns[first.name]
    )

    def grade(name: str) -> Grade | None:
        return None if untrained else grade_of(columns[name], suspect=name in hollow, brief=preset.is_brief)

    best = next(
        (method for method in methods if chosen is not None and chosen.point.method == method.name), None
    )
    damage = most_damaging(table, methods, preset)
    worst, arrays = shown.of(table, damage if complete else damage[:1], best)

    names = [method.name for method in methods]
    correct = table.of(method=MODEL, metric="correct")
    with torch.no_grad(), evaluating(inputs.model):
        classes = inputs.model(inputs.rows(inputs.sample.index[:1])[0]).shape[1]
    explained = "label" if inputs.labelled else "prediction"
    document: AuditCard = {
        "schema": SCHEMA,
        "kind": "audit",
        "title": f"{inputs.model_name} on {inputs.data_name}",
        "model": {
            "source": inputs.model_name,
            "description": identity.model_description(inputs.model),
            "parameters": identity.parameters(inputs.model),
            "sha256": inputs.identity["model"],
            "classes": int(classes),
        },
        "data": {
            "source": inputs.data_name,
            "images": len(correct),
            "labelled": inputs.labelled,
            "shape": list(inputs.sample.x.shape[1:]),
            "sha256": inputs.identity["data"],
            "classes": None if inputs.classes is None else list(inputs.classes),
            "planned": len(inputs.sample.x),
        },
        "settings": settings | _json(asdict(preset) | {"seed": inputs.seed, "explained": explained}),
        "complete": complete,
        "accuracy": stat(correct) if inputs.labelled else None,
        "verdict": {"grade": grade(judged.name), "sentences": NOT_JUDGED if untrained else told},
        "columns": card_columns(preset),
        "methods": [
            {
                "name": method.name,
                "label": method.label,
                "settings": method.settings,
                "columns": columns[method.name],
                "grade": grade(method.name),
                "notes": list(method.notes),
                "recommended": method is best and not untrained,
            }
            for method in methods
        ],
        "curves": {
            "eps": eps_curves(table, names, preset),
            "insertion": pixel_curves(table, names, "insertion", preset),
            "deletion": pixel_curves(table, names, "deletion", preset),
        },
        "plane": plane(placed, None if untrained else chosen, preset),
        "bounds": promises(table.metrics(method=BOUNDS), preset.bound_sigma) if preset.bound_images else [],
        "worst": worst,
        "pictures": PICTURES if arrays else None,
        "flags": flags,
        "rerun": identity.rerun(inputs.model, command, seconds, inputs.seed),
    }
    return Card(cast(dict[str, Any], document), table.records, arrays, table)


def _stats(table: Table, name: str, preset: Preset) -> dict[str, Stat | None]:
    """The numbers of a method by their keys on the card."""
    stats = {key: stat(values) for key, values in method_columns(table, name, preset).items()}
    if has_radius(preset):
        radii, kept, _ = kept_over_eps(table, name, preset)
        stats[STEADY] = steady_radius(kept, radii)
    return stats


def _inputs(
    model: Model,
    images: Tensor | Dataset,
    labels: Targets | None,
    classes: Sequence[str] | None,
    names: Sequence[str] | None,
    index: Sequence[int] | None,
    model_name: str | None,
    data_name: str | None,
    preset: Preset,
    seed: int,
) -> AuditInputs:
    """Images and classes, checked before anything long is begun."""
    of_data: Sequence[str] | None = None
    if isinstance(images, Dataset):
        known = is_labelled(images)
        labels = images.labels if labels is None and known else labels
        of_data = images.classes if known else None
        data_name = data_name or images.name
        images = images.pixels()
    check_images(images)
    weight = next((p for p in model.parameters() if p.is_floating_point()), images)
    x = images.detach().to(weight.dtype)
    try_model(model, x[:1].to(weight.device))
    with torch.no_grad(), evaluating(model):
        logits = logits_of(model, x[:1].to(weight.device))
    # Memory stays the same for larger images.
    max_batch = max(1, ROWS.get(weight.device.type, ROWS["cpu"]) * 3072 // x[0].numel())
    if labels is None:
        target = torch.cat([predicted(model, part.to(weight.device)).cpu() for part in x.split(max_batch)])
    else:
        target = class_indices(labels.cpu() if isinstance(labels, Tensor) else labels, x.cpu())
    check_target(target, len(x), logits.shape[1])
    places = tuple(range(len(x))) if index is None else tuple(int(i) for i in index)
    if len(set(places)) != len(x):
        raise UserError(
            f"There are {len(set(places))} numbers for {len(x)} images; give each image one of its own."
        )
    if names is not None and len(names) != len(x):
        raise UserError(f"There are {len(names)} names for {len(x)} images; give each image one of its own.")
    if classes is None:
        classes = class_names(model, logits.shape[1], of_data)
    return AuditInputs(
        model,
        Sample(x.cpu(), target, places),
        preset,
        seed,
        {"model": model_hash(model), "data": data_hash(x.cpu(), target)},
        max_batch,
        model_name or type(model).__name__,
        data_name or counted_images(len(x)),
        labels is not None,
        None if classes is None else tuple(classes),
        None if names is None else tuple(names),
    )


def _names(attacks: Sequence[str] | None) -> tuple[str, ...] | None:
    """The attacks by their own names; noise is always there and is no attack."""
    if attacks is None:
        return None
    names = tuple(lookup("attack", name).name for name in attacks)
    if "random" in names or len(set(names)) < len(names):
        raise UserError(
            f"The attacks are {', '.join(names)}; name each once, and leave out 'random': it is always measured."
        )
    return names


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
