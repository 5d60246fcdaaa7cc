"""The audit of tables, time series and volumes, in standard deviations of the features.

Features have different units, so the model is first turned into one of standardised features (`Standardized`): noise
and attacks move every feature by at most `eps` standard deviations over the given examples, and maps are compared in
those units. It is measured by plans, like an audit of images; the card has its own page.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gyrograd import records as disk
from gyrograd.attributions import predict
from gyrograd.audit import identity
from gyrograd.audit.card import Card
from gyrograd.audit.map_checks import UNSHUFFLED, MapChecks, plans_of
from gyrograd.audit.methods import Method, Methods, methods_of
from gyrograd.audit.plans import MODEL, NOISE, self_checks
from gyrograd.audit.presets import Preset
from gyrograd.audit.sanity_checks import challenges, map_flags, suspects
from gyrograd.audit.table import accuracy_of, stat, steady_radius, worst
from gyrograd.audit.verdict import OPENINGS, grade_of, guessing_note
from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.measurement import (
    CLEAN,
    Column,
    Condition,
    Look,
    Metric,
    Plan,
    Sample,
    Table,
    Workers,
    attacked,
    measure,
    noise,
    registered,
)
from gyrograd.measurement.clusters import workers_of
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.metrics.sanity_checks import has_weights
from gyrograd.models import Standardized, logits_of
from gyrograd.models.opening import check_model
from gyrograd.models.opening import notes as model_notes
from gyrograd.numerics.checks import (
    TRIAL_ROWS,
    check_fits,
    check_inputs,
    check_target,
    class_indices,
    try_model,
)
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.similarity import cosine, top_k_overlap
from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI, Stat
from gyrograd.numerics.wording import few_images_note, interval_text
from gyrograd.occupancy import exclusive_folder
from gyrograd.reporting.features import COLUMNS, cells, feature_page
from gyrograd.reporting.values import write_values
from gyrograd.types import Inputs, Model, Targets

EPS = 0.1
"""Default radius in standard deviations: less than the error of most measured features."""
DEPTHS = {"quick": (9, 5, 64), "standard": (20, 7, 200), "thorough": (50, 10, 1000)}
"""Steps of an attack, steps for maps averaged over many passes, and number of attacked examples."""
FORMS = {2: "table", 3: "series", 5: "volume"}
METHODS = ("gradient", "lrp", "integrated_gradients", "smoothgrad")
OF_TABLES = ("lime", "shap")
SETTINGS: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 20},
    "smoothgrad": {"draws": 20, "sigma": 0.1},
    "lime": {"draws": 200},
    "shap": {"draws": 200},
}
MAX_BATCH = 512
SHOWN = 3
"""Attacked examples on the page."""
NO_GUARANTEE = (
    "No number under attack is a guarantee: longer searches (preset='thorough') can move maps further."
)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureCard(Card):
    """Result of an audit of tables, series or volumes.

    values: by method and column, one number per example. records: the same, as written to disk.
    """

    values: dict[str, dict[str, Column]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def summary(self, width: int | None = None) -> str:  # noqa: ARG002 - a table is never folded
        """Verdict and table of methods as text."""
        card = self.document
        header = ["method", *COLUMNS.values()]
        rows = [
            [method["label"], *cells(method["columns"], card["settings"]["eps"])]
            for method in card["methods"]
        ]
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            for row in [header, *rows]
        ]
        verdict = card["verdict"]
        notes = [f"  note: {note}" for note in card["settings"]["notes"]]
        notes += [f"  left out: {name} ({why})" for name, why in card["settings"]["left_out"].items()]
        head = [card["title"], "", f"Verdict: {verdict['grade'] or 'unknown'}", *verdict["sentences"], ""]
        return "\n".join([*head, *(line.rstrip() for line in lines), *notes])

    def save(self, folder: Path | str) -> Path:
        """Write card.json, the numbers of every example and report.html; returns its path."""
        folder = Path(folder)
        for method, columns in self.values.items():
            write_values(folder, method, columns)
        disk.write_text(folder / "card.json", json.dumps(self.document, indent=1, allow_nan=False) + "\n")
        return self.to_html(folder / "report.html")

    def _page(self) -> str:
        return feature_page(self.document, self.examples)


def audit_features(
    model: Model,
    x: Inputs,
    labels: Targets | None = None,
    *,
    preset: str | Preset = "quick",
    methods: Methods | None = None,
    eps: float | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    fresh: bool = False,
    model_name: str | None = None,
    data_name: str | None = None,
    classes: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    steps: int | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    workers: int | Workers | Literal["auto"] | None = None,
    cluster: str | None = None,
    **of_images: Any,
) -> FeatureCard:
    """Audit a model of `b d` tables, `b c t` series or `b c d h w` volumes, in standard deviations.

    `eps` (0.1) is the largest radius; half and a quarter of it are attacked as well, and noise has twice its size.
    `features`: one name per column of a table. `steps`: steps of each attack, instead of the preset's. Other settings
    are those of `audit`; settings that only apply to images (`of_images`) are refused.
    """
    started = time.monotonic()
    eps = EPS if eps is None else eps
    if not isinstance(preset, str):
        raise UserError(
            "A Preset is for audits of images; for tables, series and volumes give quick, standard or thorough."
        )
    _check_asked(x, eps, features, of_images)
    d = x[0].numel()
    names = None if x.dim() != 2 else tuple(map(str, features or (f"feature {i}" for i in range(d))))
    standard, sample, count = _standardize(model, x, labels)
    if classes is not None and len(classes) != count:
        raise UserError(
            f"There are {len(classes)} names of classes and the model has {count}; give one for each."
        )
    # After the model was tried, which tells one image without a batch axis from a series.
    check_name("preset", preset, DEPTHS)
    usual_steps, mean_steps, most = DEPTHS[preset]
    if steps is None:
        steps = usual_steps
    else:
        mean_steps = steps
    usual = (*METHODS, *OF_TABLES) if x.dim() == 2 else METHODS
    depth = Preset(
        methods=usual, method_settings=SETTINGS, steps=steps, mean_steps=mean_steps, search_rows=20
    )
    one = sample.x[:1].to(next(standard.parameters(), sample.x).device)
    tried, left_out = methods_of(
        methods, depth, standard, one, sample.target[:1].to(one.device), max_batch=MAX_BATCH
    )
    # The top of a map is three features of a small table, or a tenth of the features.
    top = max(min(3, d - 1), round(0.1 * d))
    radii = (eps / 4, eps / 2, eps)
    searches = {
        method.name: attacked(
            "auto",
            radii,
            images=most,
            steps=steps if method.passes == 1 else mean_steps,
            top_fraction=top / d,
            transfer_from=method.search,
        )
        for method in tried
    }
    checks = MapChecks(sample, sample.index[: depth.flag_images], seed, top, "none")
    place = None if out is None else Path(out)
    who = workers_of(None if workers == "auto" else workers, cluster, place)
    with nullcontext() if place is None else exclusive_folder(place):
        table = measure(
            standard,
            sample,
            feature_plans(tried, searches, top, seed) + plans_of(checks, tried),
            place,
            fresh=fresh,
            what="auditing",
            workers=who,
        )
        accuracy = accuracy_of(table) if labels is not None else None
        flags = map_flags(table, tried, depth) + challenges(table, tried, depth)
        if x.dim() == 2:
            # A column of a table means the same in every row: a linear model rightly has one map for all.
            flags = [flag for flag in flags if flag["name"] != "same_map_everywhere"]
        labels_of = {method.name: method.label for method in tried}
        settings = {
            "preset": preset,
            "eps": eps,
            "radii": list(radii),
            "noise_eps": 2 * eps,
            "steps": steps,
            "attacked": min(most, len(x)),
            "top": top,
            "explained": "label" if labels is not None else "prediction",
            "left_out": left_out,
            "notes": [
                *dict.fromkeys([*notes, *model_notes(standard)]),
                *([guessing] if (guessing := guessing_note(accuracy, count)) else []),
                *([few_images_note(len(x), "example")] if len(x) < MIN_IMAGES_FOR_CI else []),
                *([] if has_weights(standard) else [UNSHUFFLED]),
                *_still(standard, names),
                *(
                    f"{labels_of[flag['where'] or '']}: {flag['name'].replace('_', ' ')}. {flag['explanation']}"
                    for flag in flags
                ),
                NO_GUARANTEE,
            ],
        }
        values = {method.name: _method_columns(table, method.name, eps) for method in tried}
        doubtful = suspects(flags)
        rows = [
            _row(table, method, values[method.name], settings, suspect=method.name in doubtful)
            for method in tried
        ]
        document = {
            **_facts(standard, sample, labels is not None, names, classes),
            "title": f"{model_name or identity.model_name(model)} on {data_name or f'{len(x)} examples'}",
            "settings": settings,
            "accuracy": accuracy,
            "verdict": _verdict(rows, doubtful, settings),
            "methods": rows,
            "flags": flags,
            "rerun": identity.rerun(model, command, time.monotonic() - started, seed),
        }
        examples = _most_damaged(standard, sample, table, tried, searches, eps, seed)
        for example in examples:
            example["target"] = classes[example["target"]] if classes else example["target"]
        card = FeatureCard(
            document, _records(values, settings), table=table, values=values, examples=examples
        )
        if place is not None:
            card.save(place)
    return card


def _check_asked(x: Inputs, eps: float, features: Sequence[str] | None, of_images: Mapping[str, Any]) -> None:
    """Refuse unsupported settings and invalid inputs before any computation."""
    for name, value in of_images.items():
        if value is not None and value is not False:
            known = [*(audit_features.__kwdefaults__ or ())]
            raise UserError(
                f"An audit of tables, series and volumes has no setting '{name}': {did_you_mean(name, known)}"
            )
    check_inputs(x)
    if not 0 < eps < 100:
        raise UserError(f"eps is {eps}; give a radius in standard deviations of the features, such as 0.1.")
    if x[0].numel() < 2:
        raise UserError("A map of one number ranks nothing; give inputs of two features or more.")
    if len(x) < 2:
        raise UserError("Standard deviations of the features need several examples; give two or more.")
    if features is not None and (x.dim() != 2 or len(features) != x[0].numel()):
        raise UserError(
            f"There are {len(features)} names for inputs {tuple(x.shape[1:])}; name each column of a table."
        )


def _standardize(model: Model, x: Inputs, labels: Targets | None) -> tuple[Standardized, Sample, int]:
    """The model of standardised features, the standardised examples with their explained classes, and the number of
    the model's classes.
    """
    weight = next((p for p in model.parameters() if p.is_floating_point()), x)
    check_fits(model, x.to(weight))
    model = check_model(model, x[:TRIAL_ROWS].detach().to(weight))
    standard, u = Standardized.of(model, x.detach().to("cpu", torch.float64))
    standard.to(weight.device, None)
    u = u.to(weight.device, weight.dtype)
    try_model(standard, u)
    with torch.no_grad(), eval_mode(standard):
        logits = logits_of(standard, u)
    if labels is None:
        target = predict(standard, u)
    else:
        target = class_indices(labels.to(u.device) if isinstance(labels, Tensor) else labels, u)
    check_target(target, *logits.shape)
    return standard, Sample(u.cpu(), target.cpu(), tuple(range(len(u)))), logits.shape[1]


def feature_plans(
    methods: Sequence[Method], searches: Mapping[str, Condition], top: int, seed: int
) -> list[Plan]:
    """Plans of the audit: accuracy of the model, and for each method the same numbers on clean and moved examples."""
    search = searches[methods[0].name]
    eps = search.radii[-1]
    metrics = (
        replace(registered("rps", eps=2 * eps, draws=10), name="noise_cosine"),
        registered("insertion", substrate="zero"),
        registered("deletion", substrate="zero"),
        Metric("share", lambda at: shares(at.map)),
        Metric("cosine", lambda at: cosine(at.attack.map_clean, at.attack.map), "attacked"),
        Metric("kept", partial(share_kept, top), "attacked", {"top": top}),
        Metric("prediction_kept", lambda at: at.attack.prediction_kept, "attacked"),
        Metric("self_checks", self_checks, "attacked"),
        Metric("share", lambda at: shares(at.map), "attacked"),
    )
    drawn = noise((eps,), images=search.images)
    correct = Metric("correct", lambda at: logits_in_parts(at.model, at.x).argmax(1) == at.target)
    plans = [Plan({MODEL: None}, (CLEAN,), (correct,), seed=seed)]
    for method in methods:
        conditions = (CLEAN, drawn, searches[method.name])
        plans.append(Plan({method.name: method.attribution}, conditions, metrics, seed=seed))
    return plans


def share_kept(top: int, at: Look) -> Tensor:
    """Share of the clean map's top that is in the top of the attacked map."""
    clean, moved = (map.flatten(1).double() for map in (at.attack.map_clean, at.attack.map))
    return top_k_overlap(clean, moved, top)


def shares(map: Tensor) -> Tensor:
    """Share of each feature, time step or slice in the total magnitude of each map."""
    sizes = map.detach().abs().double()
    if sizes.dim() > 2:
        sizes = sizes.sum([axis for axis in range(1, sizes.dim()) if axis != 2])
    total = sizes.sum(1, keepdim=True)
    return sizes / torch.where(total > 0, total, 1.0)


def _method_columns(table: Table, method: str, eps: float) -> dict[str, Column]:
    """All columns of a method by their keys on the card."""

    def at(condition: str, metric: str) -> Column:
        return table.of(method=method, condition=condition, eps=eps, metric=metric)

    return {
        "noise_cosine": table.of(method=method, metric="noise_cosine"),
        "noise_kept": at(NOISE, "kept"),
        "attack_cosine": at("auto", "cosine"),
        "top_k_kept": worst([at("auto", "kept")], at(NOISE, "kept"), at(NOISE, "prediction_kept")),
        **{game: table.of(method=method, metric=game) for game in ("insertion", "deletion")},
    }


def _records(values: Mapping[str, Mapping[str, Column]], settings: dict[str, Any]) -> dict[str, disk.Record]:
    """The columns of each method as a record."""
    found = {}
    for method, columns in values.items():
        examples = sorted({example for column in columns.values() for example in column})
        numbers = {key: [column.get(example) for example in examples] for key, column in columns.items()}
        found[method] = disk.Record(method, settings, examples, numbers)
    return found


def _facts(
    standard: Standardized,
    sample: Sample,
    labelled: bool,
    names: Sequence[str] | None,
    classes: Sequence[str] | None,
) -> dict[str, Any]:
    """The card's facts about the model and the data."""
    return {
        "schema": 1,
        "kind": "feature audit",
        "form": FORMS[len(sample.x.shape)],
        "model": {
            "description": identity.model_description(standard.core),
            "parameters": identity.parameters(standard),
        },
        "data": {
            "examples": len(sample.x),
            "shape": list(sample.x.shape[1:]),
            "labelled": labelled,
            "classes": None if classes is None else list(classes),
            "features": None if names is None else list(names),
            "mean": standard.mean.flatten().tolist(),
            "std": standard.std.flatten().tolist(),
        },
    }


def _row(
    table: Table,
    method: Method,
    columns: Mapping[str, Column],
    settings: Mapping[str, Any],
    *,
    suspect: bool,
) -> dict[str, Any]:
    """The card's entry of a method."""
    radii, name = settings["radii"], method.name
    stats: dict[str, Stat | None] = {key: stat(column) for key, column in columns.items()}
    kept = [table.of(method=name, condition="auto", eps=eps, metric="kept") for eps in radii]
    clean = table.curve(method=name, metric="share")
    moved = table.curve(method=name, condition="auto", eps=settings["eps"], metric="share")
    examples = list(moved[0])

    def mean(column: Column, instead: Column) -> float:
        """Mean over the attacked examples; a search without a derivative leaves the clean map, so its clean value."""
        values = [instead[e] if column[e] is None else column[e] for e in examples]
        return sum(value or 0.0 for value in values) / len(values)

    return {
        "name": name,
        "label": method.label,
        "settings": method.settings,
        "notes": list(method.notes),
        "columns": stats
        | {"steady_radius": steady_radius(kept, [r / 255 for r in radii])},  # its unit is 1/255
        "grade": grade_of(stats, suspect=suspect),
        "attacked": len(examples),
        "share": [mean(column, column) for column in clean],
        "share_attacked": [mean(*pair) for pair in zip(moved, clean, strict=True)],
    }


def _still(standard: Standardized, names: Sequence[str] | None) -> list[str]:
    """A note if some features or channels are constant."""
    still = (standard.std == 0).flatten().nonzero().flatten().tolist()
    constant = [names[i] if names else f"channel {i}" for i in still[:10]]
    return (
        [f"Never different in these examples, so nothing moves them: {', '.join(constant)}."]
        if constant
        else []
    )


def _verdict(
    rows: Sequence[Mapping[str, Any]], doubtful: Collection[str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The grade of the steadiest method, and sentences about it.

    Doubtful methods, whose flags name another cause of steadiness, are not compared with the others unless there are no
    others, and none of them is recommended.
    """

    def share(row: Mapping[str, Any], key: str) -> str:
        return interval_text(row["columns"][key], ".0f", scale=100, unit=" %")

    followed = [row for row in rows if row["name"] not in doubtful] or rows
    first, best = (
        rows[0],
        max(followed, key=lambda row: (row["columns"]["top_k_kept"] or {"value": -1.0})["value"]),
    )
    if best["grade"] is None:
        sentence = (
            "No attack found a derivative to follow, so nothing is said of these explanations under attack."
        )
        return {"grade": None, "sentences": [sentence]}
    sentences = [
        f"{OPENINGS[best['grade']]}: moved by at most {settings['eps']:g} standard deviations with the prediction "
        f"unchanged, {best['label']}, the steadiest map measured, keeps {share(best, 'top_k_kept')} of its top "
        f"{settings['top']}; noise of that size leaves {share(best, 'noise_kept')}."
    ]
    if best["name"] in doubtful:
        sentences.append("Nothing is recommended: every method is flagged (see the notes).")
    elif first["name"] != best["name"] and first["grade"] is not None:
        sentences.append(f"Use {best['label']}: {first['label']} keeps {share(first, 'top_k_kept')}.")
    return {"grade": best["grade"], "sentences": sentences}


def _most_damaged(
    standard: Standardized,
    sample: Sample,
    table: Table,
    methods: Sequence[Method],
    searches: Mapping[str, Condition],
    eps: float,
    seed: int,
) -> list[dict[str, Any]]:
    """The examples with the lowest cosines under attack, each once, attacked again for the page."""
    found = []
    for method in methods:
        cosines, same = (
            table.of(method=method.name, condition="auto", eps=eps, metric=metric)
            for metric in ("cosine", "prediction_kept")
        )
        found += [(v, e, method) for e, v in cosines.items() if v is not None and same[e] == 1.0]
    shown: dict[int, dict[str, Any]] = {}
    for value, example, method in sorted(found, key=lambda one: one[:2]):
        if example not in shown and len(shown) < SHOWN:
            device = next(standard.parameters(), sample.x).device
            x, target, streams = sample.rows([example], seed, device)
            *_, hit = searches[method.name].attack(standard, method.attribution, x, target, seed=streams)
            shown[example] = {
                "example": example,
                "method": method.label,
                "cosine": value,
                "target": int(target),
                "values": hit.x_clean[0].cpu().tolist(),
                "values_attacked": hit.x[0].cpu().tolist(),
                "map": hit.map_clean[0].cpu().tolist(),
                "map_attacked": hit.map[0].cpu().tolist(),
            }
    return list(shown.values())
