"""The audit: measure, check the numbers, grade, recommend."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from gyrograd.attributions import predict
from gyrograd.audit import identity
from gyrograd.audit.card import PICTURES, Card
from gyrograd.audit.certificates import (
    card_certificates,
    certificate_plans,
    certified_columns,
)
from gyrograd.audit.features import FORMS, FeatureCard, audit_features
from gyrograd.audit.growing import write_growing_page
from gyrograd.audit.map_checks import UNSHUFFLED, map_check_plans
from gyrograd.audit.methods import Method, Methods, methods_of
from gyrograd.audit.pictures import attack_rows, most_damaging
from gyrograd.audit.plane import Choice, choice, own_setting, plane, plane_points
from gyrograd.audit.plans import BOUNDS, MODEL, AuditInputs, audit_plans, sweep_points
from gyrograd.audit.precision import in_random_order, measure_until_precise, sequential_stat, shortfall
from gyrograd.audit.presets import Preset, preset_of
from gyrograd.audit.sanity_checks import audit_flags, challenges, suspects
from gyrograd.audit.table import (
    STEADY,
    accuracy_of,
    card_columns,
    eps_curves,
    has_radius,
    kept_over_eps,
    method_columns,
    pixel_curves,
    searched,
    stat,
    steady_radius,
)
from gyrograd.audit.theorems import promises
from gyrograd.audit.verdict import NOT_JUDGED, Grade, grade_of, guessing_note, sentences
from gyrograd.data.dataset import Dataset
from gyrograd.data.opening import check_labels_fit, is_labelled
from gyrograd.data.streamed import Streamed
from gyrograd.errors import UserError
from gyrograd.measurement import Interrupted, Plan, Sample, Table, Workers, mean_over, measure
from gyrograd.measurement.clusters import workers_of
from gyrograd.measurement.run import data_hash, model_hash
from gyrograd.measurement.workers import ProcessesIfLong
from gyrograd.metrics.sanity_checks import has_weights
from gyrograd.models import logits_of
from gyrograd.models.class_names import class_names, label_notes
from gyrograd.models.opening import UNTRAINED, check_model
from gyrograd.models.opening import notes as model_notes
from gyrograd.numerics.checks import TRIAL_ROWS, check_images, check_is_module, check_target, class_indices
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI, Stat, paired_difference
from gyrograd.numerics.wording import eps_text, few_images_note
from gyrograd.occupancy import exclusive_folder
from gyrograd.registry import lookup
from gyrograd.reporting.schema import SCHEMA, AuditCard, CardFlag, Conclusions, Verdict
from gyrograd.reporting.values import OF_MODEL, write_values
from gyrograd.reporting.wording import counted_images
from gyrograd.theory import Point
from gyrograd.types import Model, Targets

ROWS, ROWS_ON_GPU, GPU_BYTES = 128, 2048, 24 << 30
"""Images of 3 x 32 x 32 per pass; fewer if they are larger, so that memory stays the same. On a GPU of more than 24 GB
more: with 41 images of 224 pixels per pass an H200 waits for Python."""
MOST_SHARDS, LARGEST_SHARD = 50, 1000
"""Most files per cell if there are many images, and most images per file: 50,000 images are 50 files."""
SHARD_NUMBERS = 1 << 25
"""Most pixel values per shard, whose images are in memory at once: 128 MB, about 200 images of 224 pixels."""
DARK = 2 / 255
"""No photograph is darker throughout, but one that was divided by 255 twice is."""
ALWAYS = {"random_perturbation_similarity", "insertion", "deletion", "adversarial_insertion"}
"""Metrics that every audit measures; naming them has no effect."""


def audit(
    model: Model,
    images: Tensor | Dataset,
    labels: Targets | None = None,
    *,
    preset: str | Preset = "quick",
    methods: Methods | None = None,
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
    workers: int | Workers | Literal["auto"] | None = None,
    cluster: str | None = None,
    **changes: Any,
) -> Card | FeatureCard:
    """Measure whether a model's explanations can be trusted, and return the report card.

    Args:
        model: from images in [0, 1] to logits.
        images: `b c h w` in [0, 1], or a data set.
        labels: the classes to explain; without them each image is explained for its predicted class.
        preset: how much is measured: "glance", "quick", "standard", "thorough", or a `Preset`.
        methods: one or several names or functions, or a dictionary that names them; default: the preset's.
        attacks, metrics: by name; default: the preset's.
        eps: radius of the attacks, such as 8 / 255.
        out: folder for the card, records, pictures and the page. Results are written as they are made: the same call
            continues an interrupted audit.
        seed: seed of the noise and the attacks.
        fresh: discard earlier results in `out`.
        model_name, data_name, classes, names: names on the card of the model, the data, the classes (default: those of
            the model) and the images, such as their files.
        index: numbers of the images, if they are part of a larger set.
        notes: sentences printed with the verdict.
        command: the command line to print on the card.
        workers: number of processes, each with its share of the processors or a GPU; the numbers stay the same. "auto":
            one per core if the audit takes longer than some 90 seconds of CPU time, else this process alone.
        cluster: where the workers run: "ray" (on this machine, or at $RAY_ADDRESS), "ray:ADDRESS" or "slurm".
        changes: any other setting of `Preset`, such as `steps=50`.

    Tables `b d`, time series `b c t` and volumes `b c d h w` get a card of their own (`audit.features`): `eps` is then
    in standard deviations of the features, and `features=` names the columns of a table.

    Returns:
        The card: `.summary()`, `.grade`, `.to_html(path)`, `.records`, `.table`. A notebook shows it as a page.

    >>> import gyrograd as gg
    >>> model, data = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2)
    >>> tiny = dict(steps=2, draws=1, points=2, sweep={}, curve=(), bound_images=1, flag_images=1, pictures=1)
    >>> card = gg.audit(model, data, methods=["gradient"], **tiny)      # a real audit: gg.audit(model, data)
    >>> card.grade
    'unsafe'
    >>> card.summary().splitlines()[3]
    'Verdict: unsafe'
    """
    check_is_module(model)
    if torch.is_inference_mode_enabled():
        raise UserError("Nothing has a gradient inside torch.inference_mode(); call the audit outside of it.")
    if isinstance(images, Tensor) and images.dim() in FORMS:
        return audit_features(
            model, images, labels, preset=preset, methods=methods, attacks=attacks, metrics=metrics, eps=eps, out=out,
            seed=seed, fresh=fresh, model_name=model_name, data_name=data_name, classes=classes, names=names,
            index=index, notes=notes, command=command, workers=workers, cluster=cluster, **changes,
        )  # fmt: skip
    started = time.monotonic()
    further = None if metrics is None else tuple(m for m in metrics if lookup("metric", m).name not in ALWAYS)
    chosen = preset_of(
        preset, attacks=None if attacks is None else _names(attacks), metrics=further, eps=eps, **changes
    )
    if chosen.precision is not None:
        chosen = replace(chosen, attacked_images=max(1, len(images)))
    inputs = _inputs(model, images, labels, classes, names, index, model_name, data_name, chosen, seed)
    model = inputs.model
    x, target, _ = inputs.rows(inputs.sample.index[:1])
    tried, left_out = methods_of(methods, chosen, model, x, target, max_batch=inputs.max_batch)
    settings = {
        "preset": preset if isinstance(preset, str) else "own",
        "left_out": left_out,
        "notes": [
            *dict.fromkeys([*notes, *inputs.notes, *model_notes(model)]),
            *([] if has_weights(model) else [UNSHUFFLED]),
            *_warnings(inputs.sample.x, chosen),
        ],
    }
    card_of = partial(_card, inputs, tried, settings, command, started)
    place = None if out is None else Path(out)
    if workers == "auto":
        # On a GPU one process keeps it busy; audits of single images keep their attacks for the pictures.
        alone = cluster is not None or x.is_cuda or chosen.shard == 1
        workers = None if alone else ProcessesIfLong(_cpu_seconds_per_pass(model, x))
    who = workers_of(workers, cluster, place)

    def measure_table(limits: Mapping[str, int] | None) -> Table:
        """The table with these limits, which grow from call to call; earlier results are read, even if `fresh`."""
        nonlocal fresh
        anew, fresh = fresh, False
        return measure(
            model,
            inputs.sample,
            every_plan(inputs, tried, limits),
            store,
            shard=shard_of(chosen, inputs.sample.x.shape, inputs.max_batch if x.is_cuda else 1),
            fresh=anew,
            what="auditing",
            identity=inputs.measured,
            workers=who,
            watch=None if place is None else partial(write_growing_page, place, inputs, tried),
        )

    with ExitStack() as held:
        if place is not None:
            held.enter_context(exclusive_folder(place))
        store = place or Path(held.enter_context(tempfile.TemporaryDirectory()))
        try:
            if chosen.precision is None:
                table = measure_table(None)
            else:
                names_tried = [method.name for method in tried]
                table = measure_until_precise(measure_table, names_tried, inputs.sample.index, chosen)
        except Interrupted as stopped:
            # A card of the images finished so far, marked as such.
            if place is not None and stopped.table is not None:
                card_of(stopped.table, complete=False).save(place)
            raise
        card = card_of(table)
        if place is not None:
            for method in tried:
                columns = method_columns(table, method.name, chosen) | certified_columns(table, method.name)
                write_values(place, method.name, columns)
            if inputs.labelled:
                write_values(place, OF_MODEL, {"accuracy": table.of(method=MODEL, metric="correct")})
            card.save(place)
    return card


def _cpu_seconds_per_pass(model: Model, x: Tensor) -> float:
    """CPU seconds per unit of effort: half those of a forward pass, since estimates of effort are twice too high."""
    few = x[:1].expand(TIMED_ROWS, *x.shape[1:]).contiguous()
    with torch.no_grad(), eval_mode(model):
        model(few)
        began = time.process_time()
        model(few)
    return (time.process_time() - began) / TIMED_ROWS / 2


TIMED_ROWS = 8


def rows_per_pass(device: torch.device, numbers: int) -> int:
    """Images per pass on this device, each of so many pixel values."""
    rows = ROWS
    if device.type == "cuda":
        rows = max(
            ROWS_ON_GPU, ROWS_ON_GPU * torch.cuda.get_device_properties(device).total_memory // GPU_BYTES
        )
    return max(1, rows * 3 * 32 * 32 // numbers)


def shard_of(preset: Preset, shape: Sequence[int], at_once: int = 1) -> int:
    """Images per file: the preset's number, or more for many images, to keep the number of files small.

    `at_once`: images that fill a pass, if the device is idle with fewer; an audit of single images keeps to one.
    """
    images, *one = shape
    most = min(LARGEST_SHARD, SHARD_NUMBERS // math.prod(one))
    full = at_once if preset.shard > 1 else 1
    return max(preset.shard, min(most, max(images // MOST_SHARDS, full)))


def _warnings(x: Tensor | Streamed, preset: Preset) -> list[str]:
    n, found = len(x), []
    if not isinstance(x, Streamed):
        if (brightest := float(x.max())) < DARK:
            found.append(
                f"No pixel is above {brightest:.2g}: images look so if they were divided by 255 twice."
            )
        if copies := _copies(x):
            found.append(
                f"{copies} of {n} images are copies of others but count as new ones, so that intervals are too narrow "
                "and maps look alike; leave them out."
            )
    if n < MIN_IMAGES_FOR_CI:
        found.append(few_images_note(n))
    elif preset.attacked_images < MIN_IMAGES_FOR_CI:
        found.append(few_images_note(preset.attacked_images, "attacked image"))
    if preset.is_brief:
        found.append(
            "A search this short shows that a map moves, not that it holds: --preset quick searches longer."
        )
    return [
        *found,
        f"No number under attack is a guarantee: the searches took {searched(preset)}, and longer ones (--steps) can "
        "move maps further.",
    ]


def _copies(x: Tensor) -> int:
    """The number of images that are equal to an earlier one."""
    return len(x) - len({hashlib.sha256(image.numpy()).digest() for image in x.cpu().contiguous().float()})


def _image_alone_note(table: Table, methods: Sequence[Method]) -> str | None:
    """Names the methods whose insertion is not measurably above that of an order made without the model."""
    alone = {e: v for e, v in table.of(method=MODEL, metric="without_model").items() if v is not None}
    if len(alone) < MIN_IMAGES_FOR_CI:
        return None
    below = []
    for method in methods:
        own = mean_over(table.curve(method=method.name, metric="insertion"))
        known = [example for example in alone if own.get(example) is not None]
        if known and not paired_difference([own[e] for e in known], [alone[e] for e in known]).low > 0:
            below.append(method.label)
    found = stat(alone)
    if not below or found is None:
        return None
    return (
        "Insertion rewards pixels that stand out, whatever the model made of them: an order made without the model, by "
        f"how far each pixel is from the colour of the empty image, reaches {found['value']:.3f} "
        f"[{found['low']:.3f}, {found['high']:.3f}]. Not measurably above it: "
        f"{', '.join(below)}."
    )


def _extrapolated_note(columns: Mapping[str, Mapping[str, Stat | None]], preset: Preset) -> str | None:
    """Says which steady radii lie below every radius that was attacked."""
    smallest = preset.radii[0]
    radii = [stats.get(STEADY) for stats in columns.values()]
    if not any(stat and (stat["value"] or 0.0) < 255 * smallest for stat in radii):
        return None
    return (
        f"Nothing was attacked below {eps_text(smallest)}: a smaller steady radius lies on a line drawn from eps 0, "
        "and its interval does not contain the error of that. --radii with smaller ones measures it."
    )


@dataclass(frozen=True, eq=False)
class Judgement:
    """The conclusions of an audit.

    columns, grades: by method. points: of the plane. best: the steadiest method. chosen: the recommendation, or None,
    for example for a model without trained weights.
    """

    columns: dict[str, dict[str, Stat | None]]
    grades: dict[str, Grade | None]
    verdict: Verdict
    points: list[Point]
    best: Method | None
    chosen: Choice | None


def judge(inputs: AuditInputs, methods: list[Method], table: Table, flags: Sequence[CardFlag]) -> Judgement:
    """Grade every method, choose the one to use, and write the verdict."""
    preset, first, hollow = inputs.preset, methods[0], suspects(flags)
    # A method that is only swept has no flags, because its maps were not checked.
    unchecked = set(preset.sweep) - {method.name for method in methods}
    columns = {method.name: method_stats(inputs, table, method.name) for method in methods}
    placed = plane_points(table, methods, sweep_points(inputs, methods), preset)
    own = {(m.name, own_setting(m)): columns[m.name] for m in methods}
    passes = dict.fromkeys(preset.sweep, preset.sweep_draws) | {m.name: m.passes for m in methods}
    # With a single radius there is no steady radius; compare the share kept there.
    yardstick = STEADY if has_radius(preset) else "top_k_kept" if "auto" in preset.attacks else None
    held = {key: stats[yardstick] for key, stats in own.items()} if yardstick else {}
    faithful = {key: mean_over(table.curve(method=key[0], metric="insertion")) for key in own}
    chosen = choice(placed, first, hollow | unchecked, passes, held, faithful, by_radius=yardstick == STEADY)
    best = next((method for method in methods if chosen and chosen.point.method == method.name), None)
    judged = best if best is not None and chosen is not None and chosen.held is not None else first
    # The share of the chosen map that an attack leaves, if it was attacked.
    attacked = chosen and own.get((chosen.point.method, chosen.point.setting))
    verdict_sentences = sentences(
        judged,
        columns[judged.name],
        chosen,
        preset,
        suspect=judged.name in hollow,
        kept=attacked["top_k_kept"] if attacked else None,
        against=first,
        before=columns[first.name],
    )
    grades = {
        name: grade_of(stats, suspect=name in hollow, brief=preset.is_brief)
        for name, stats in columns.items()
    }
    if UNTRAINED in model_notes(inputs.model):
        grades, verdict_sentences, chosen = dict.fromkeys(grades), NOT_JUDGED, None
    verdict: Verdict = {"grade": grades[judged.name], "sentences": verdict_sentences}
    return Judgement(columns, grades, verdict, placed, best, chosen)


def _card(
    inputs: AuditInputs,
    methods: list[Method],
    settings: dict[str, Any],
    command: str | None,
    started: float,
    table: Table,
    *,
    complete: bool = True,
) -> Card:
    """The card of a table. The card of an unfinished run has one picture and no flags, which are of all images."""
    preset = inputs.preset
    flags: list[CardFlag] = []
    if complete:
        flags = audit_flags(inputs, table, methods) + challenges(table, methods, preset)
    found = judge(inputs, methods, table, flags)
    damage = most_damaging(table, methods, preset)
    shown = damage if complete else damage[:1]
    worst, arrays = attack_rows(inputs, methods, table, shown, found.best)
    if preset.precision is not None and (short := shortfall(found.columns, preset.precision)):
        settings = settings | {"notes": [*settings["notes"], short]}
    if complete and (beaten := _image_alone_note(table, methods)):
        settings = settings | {"notes": [*settings["notes"], beaten]}
    if has_radius(preset) and (estimated := _extrapolated_note(found.columns, preset)):
        settings = settings | {"notes": [*settings["notes"], estimated]}
    correct = table.of(method=MODEL, metric="correct")
    with torch.no_grad(), eval_mode(inputs.model):
        classes = inputs.model(inputs.rows(inputs.sample.index[:1])[0]).shape[1]
    concluded = conclusions(inputs, methods, table, found)
    if guessing := guessing_note(concluded["accuracy"], classes):
        settings = settings | {"notes": [guessing, *settings["notes"]]}
    explained = "label" if inputs.labelled else "prediction"
    decided = asdict(preset) | {"seed": inputs.seed, "explained": explained}
    document: AuditCard = {
        **concluded,
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
        "settings": settings | json.loads(json.dumps(decided, default=repr)),
        "complete": complete,
        "certificates": (
            card_certificates(inputs, table, methods, pictures=complete) if preset.certified_images else None
        ),
        "worst": worst,
        "pictures": PICTURES if arrays else None,
        "flags": flags,
        "rerun": identity.rerun(inputs.model, command, time.monotonic() - started, inputs.seed),
    }
    return Card(cast(dict[str, Any], document), table.records, arrays, table)


def conclusions(inputs: AuditInputs, methods: list[Method], table: Table, found: Judgement) -> Conclusions:
    """The part of the card that follows from the table, which `verify` makes again."""
    preset, names = inputs.preset, [method.name for method in methods]
    return {
        "accuracy": accuracy_of(table) if inputs.labelled else None,
        "verdict": found.verdict,
        "columns": card_columns(preset),
        "methods": [
            {
                "name": method.name,
                "label": method.label,
                "settings": method.settings,
                "columns": found.columns[method.name],
                "grade": found.grades[method.name],
                "notes": list(method.notes),
                "recommended": method is found.best and found.chosen is not None,
                "passes": method.passes,
            }
            for method in methods
        ],
        "curves": {
            "eps": eps_curves(table, names, preset),
            "insertion": pixel_curves(table, names, "insertion", preset),
            "deletion": pixel_curves(table, names, "deletion", preset),
        },
        "plane": plane(found.points, found.chosen, preset),
        "bounds": promises(table.metrics(method=BOUNDS), preset.bound_sigma) if preset.bound_images else [],
    }


def every_plan(
    inputs: AuditInputs, methods: list[Method], limits: Mapping[str, int] | None = None
) -> list[Plan]:
    """Everything that an audit measures."""
    certified = certificate_plans(inputs, methods) if inputs.preset.certified_images else []
    return audit_plans(inputs, methods, limits) + map_check_plans(inputs, methods) + certified


def method_stats(inputs: AuditInputs, table: Table, name: str) -> dict[str, Stat | None]:
    """The numbers of a method by their keys on the card."""
    preset, columns = inputs.preset, method_columns(table, name, inputs.preset)
    if preset.precision is None:
        stats = {key: stat(values) for key, values in columns.items()}
    else:
        stats = {key: sequential_stat(key, values, inputs.sample.index) for key, values in columns.items()}
    if preset.certified_images:
        stats |= {key: stat(values) for key, values in certified_columns(table, name).items()}
    if has_radius(preset):
        radii, kept = kept_over_eps(table, name, preset)
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
    """The audit's inputs, checked before any long computation."""
    of_data: Sequence[str] | None = None
    own_labels = isinstance(images, Dataset) and is_labelled(images) and labels is None
    if isinstance(images, Dataset):
        known = is_labelled(images)
        labels = images.labels if own_labels else labels
        of_data = images.classes if known else None
        data_name = data_name or images.name
        pixels = images.images if isinstance(images.images, Streamed) else images.pixels()
    else:
        pixels = images
    if isinstance(pixels, Streamed):
        few = pixels.to("cpu").to(torch.float32)[:TRIAL_ROWS]
    else:
        check_images(pixels)
        pixels, few = pixels.detach(), pixels[:TRIAL_ROWS].detach()
    weight = next((p for p in model.parameters() if p.is_floating_point()), few)
    max_batch = rows_per_pass(weight.device, few[0].numel())
    x, few = pixels.to(weight.dtype), few[:max_batch].to(weight)
    model = check_model(model, few)
    with torch.no_grad(), eval_mode(model):
        logits = logits_of(model, few[:1])
    doubts: tuple[str, ...] = ()
    if isinstance(images, Dataset) and own_labels:
        check_labels_fit(images, logits.shape[1])
        doubts = label_notes(model, logits.shape[1], images.name, images.classes)
    if labels is None:
        target = torch.cat([predict(model, part.to(weight.device)).cpu() for part in x.split(max_batch)])
    else:
        rows = torch.empty(len(x), 0) if isinstance(x, Streamed) else x.cpu()
        target = class_indices(labels.cpu() if isinstance(labels, Tensor) else labels, rows)
    check_target(target, len(x), logits.shape[1])
    places = tuple(range(len(x))) if index is None else tuple(int(i) for i in index)
    if len(set(places)) != len(x):
        raise UserError(
            f"index has {len(set(places))} different numbers for {len(x)} images; give one for each image."
        )
    if names is not None and len(names) != len(x):
        raise UserError(f"There are {len(names)} names for {len(x)} images; give one for each.")
    if classes is None:
        classes = class_names(model, logits.shape[1], of_data)
    elif len(classes) != logits.shape[1]:
        raise UserError(
            f"There are {len(classes)} names of classes and the model has {logits.shape[1]}; give one for each."
        )
    x = x.to("cpu")
    sample = Sample(x, target, places)
    return AuditInputs(
        model,
        sample if preset.precision is None else in_random_order(sample, seed),
        preset,
        seed,
        {"model": model_hash(model), "data": data_hash(x, target)},
        max_batch,
        model_name or identity.model_name(model),
        data_name or counted_images(len(x)),
        labels is not None,
        None if classes is None else tuple(classes),
        {} if names is None else dict(zip(places, names, strict=True)),
        doubts,
    )


def _names(attacks: Sequence[str]) -> tuple[str, ...]:
    """The registered names of the attacks; noise is always measured and must not be named."""
    names = tuple(lookup("attack", name).name for name in attacks)
    if "random" in names or len(set(names)) < len(names):
        raise UserError(
            f"The attacks are {', '.join(names)}; name each once, and leave out 'random': it is always measured."
        )
    return names
