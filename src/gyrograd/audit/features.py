"""The audit of tables, time series and volumes: the questions of the audit of images, in standard deviations.

Features have units of their own, so the model is made one of standardised features first (`Standardized`): noise and
attacks move every feature by at most so many of its standard deviations over the examples given, and maps are compared
in those units.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyrograd import records as disk
from gyrograd.attacks import AttackResult
from gyrograd.attributions import predict
from gyrograd.audit import identity
from gyrograd.audit.methods import Method, methods_of
from gyrograd.audit.presets import Preset
from gyrograd.audit.steady import steady_radius
from gyrograd.audit.table import stat
from gyrograd.audit.verdict import OPENINGS, grade_of
from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.measurement import Column
from gyrograd.models import Standardized, logits_of
from gyrograd.numerics.checks import check_fits, check_inputs, check_target, class_indices, try_model
from gyrograd.numerics.maps import top_k_mask
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.similarity import cosine
from gyrograd.numerics.statistics import Stat
from gyrograd.numerics.wording import interval_text
from gyrograd.registry import make
from gyrograd.reporting.features import COLUMNS, cells, feature_page
from gyrograd.reporting.values import write_values
from gyrograd.types import Attribution, Inputs, Labels, Model, Targets

EPS = 0.1
"""Standard deviations: less than the error of most measurements that tables hold."""
DEPTHS = {"quick": (9, 5, 64), "standard": (20, 7, 200), "thorough": (50, 10, 1000)}
"""Steps of an attack, steps where a map is a mean over many passes, and examples attacked."""
FORMS = {2: "table", 3: "series", 5: "volume"}
METHODS = ("gradient", "lrp", "integrated_gradients", "smoothgrad")
OF_TABLES = ("lime", "shap")
SETTINGS: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 20},
    "smoothgrad": {"draws": 20, "sigma": 0.1},
    "lime": {"draws": 200},
    "shap": {"draws": 200},
}
SHOWN = 3
"""Attacked examples on the page."""


@dataclass(frozen=True, eq=False)
class FeatureCard:
    """What an audit of tables, series or volumes found. `values`: by method and column, a number per example."""

    document: dict[str, Any]
    values: dict[str, dict[str, Column]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @property
    def grade(self) -> str | None:
        """steady, shaky or unsafe; None where the attacks had nothing to follow."""
        found: str | None = self.document["verdict"]["grade"]
        return found

    @property
    def records(self) -> dict[str, disk.Record]:
        """The numbers of every example, by method."""
        found = {}
        for method, columns in self.values.items():
            examples = sorted({example for column in columns.values() for example in column})
            values = {key: [column.get(example) for example in examples] for key, column in columns.items()}
            found[method] = disk.Record(method, dict(self.document["settings"]), examples, values)
        return found

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

    def to_html(self, path: Path | str) -> Path:
        """Write the page alone, self-contained."""
        disk.write_text(path, self._page())
        return Path(path)

    def save(self, folder: Path | str) -> Path:
        """Write card.json, the numbers of every example and report.html; returns its path."""
        folder = Path(folder)
        for method, columns in self.values.items():
            write_values(folder, method, columns)
        disk.write_text(folder / "card.json", json.dumps(self.document, indent=1, allow_nan=False) + "\n")
        return self.to_html(folder / "report.html")

    def _page(self) -> str:
        return feature_page(self.document, self.examples)

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame of its own so that its style stays there."""
        return (
            f'<iframe srcdoc="{escape(self._page())}" style="width: 100%; height: 44em; border: 0"></iframe>'
        )


def audit_features(
    model: Model,
    x: Inputs,
    labels: Targets | None = None,
    *,
    preset: str = "quick",
    methods: Sequence[str] | Mapping[str, Attribution] | None = None,
    eps: float | None = None,
    out: Path | str | None = None,
    seed: int = 0,
    model_name: str | None = None,
    data_name: str | None = None,
    classes: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    steps: int | None = None,
    notes: Sequence[str] = (),
) -> FeatureCard:
    """The card of a model of `b d` tables, `b c t` series or `b c d h w` volumes, in standard deviations.

    `eps` (0.1) is the largest radius; half and a quarter of it are attacked too, and noise has twice its size.
    `features`: their names, one for each column of a table. `steps`: of each attack, in place of the preset's.
    """
    started = time.monotonic()
    check_inputs(x)
    check_name("preset", preset, DEPTHS)
    eps = EPS if eps is None else eps
    if not 0 < eps < 100:
        raise UserError(f"eps is {eps}; give a radius in standard deviations of the features, such as 0.1.")
    if x.dim() not in FORMS:
        raise UserError(
            f"The inputs have shape {tuple(x.shape)}; give a table b d, series b c t or volumes b c d h w."
        )
    if len(x) < 2:
        raise UserError("Standard deviations of the features need several examples; give two or more.")
    check_fits(model, x.to(next((p for p in model.parameters() if p.is_floating_point()), x)))
    subject = _subject(model, x, labels, classes, features, seed)
    usual_steps, mean_steps, attacked = DEPTHS[preset]
    if steps is None:
        steps = usual_steps
    else:
        mean_steps = steps
    usual = (*METHODS, *OF_TABLES) if x.dim() == 2 else METHODS
    plan = Preset(methods=usual, method_settings=SETTINGS, steps=steps, mean_steps=mean_steps, search_rows=20)
    tried, left_out = methods_of(
        methods, plan, subject.model, subject.u[:1], subject.target[:1], max_batch=512
    )
    radii = (eps / 4, eps / 2, eps)
    measured = {m.name: _measured(subject, m, radii, plan, attacked) for m in tried}
    settings = {
        "preset": preset,
        "eps": eps,
        "radii": list(radii),
        "noise_eps": 2 * eps,
        "steps": steps,
        "attacked": min(attacked, len(x)),
        "top": subject.top,
        "explained": "label" if labels is not None else "prediction",
        "left_out": left_out,
        "notes": [*notes, *subject.notes(), _NO_GUARANTEE],
    }
    title = f"{model_name or type(model).__name__} on {data_name or f'{len(x)} examples'}"
    document = _document(subject, tried, measured, settings, title) | {
        "rerun": identity.rerun(model, None, time.monotonic() - started, seed)
    }
    values = {name: one.columns for name, one in measured.items()}
    card = FeatureCard(document, values, _most_damaged(subject, tried, measured))
    if out is not None:
        card.save(out)
    return card


_NO_GUARANTEE = (
    "No number under attack is a guarantee: longer searches (preset='thorough') can move maps further."
)


@dataclass(frozen=True, eq=False)
class _Subject:
    """What is audited: the model of standardised features, the features, the classes explained."""

    model: Standardized
    u: Inputs
    target: Labels
    labelled: bool
    correct: Column
    classes: tuple[str, ...] | None
    features: tuple[str, ...]
    seed: int

    @property
    def form(self) -> str:
        return FORMS[self.u.dim()]

    @property
    def top(self) -> int:
        """How many numbers of a map count as its top: three of a small table, a tenth of anything larger."""
        d = self.u[0].numel()
        return max(min(3, d - 1), round(0.1 * d))

    def notes(self) -> list[str]:
        still = (self.model.std == 0).flatten()
        names = [
            self.features[i] if self.form == "table" else f"channel {i}"
            for i in still.nonzero().flatten().tolist()
        ]
        if not names:
            return []
        return [f"Never different in these examples, so nothing moves them: {', '.join(names[:10])}."]


@dataclass(frozen=True, eq=False)
class _Measured:
    columns: dict[str, Column]
    attack: AttackResult
    kept_at: list[Column]
    cosines: Tensor


def _subject(
    model: Model,
    x: Inputs,
    labels: Targets | None,
    classes: Sequence[str] | None,
    features: Sequence[str] | None,
    seed: int,
) -> _Subject:
    weight = next((p for p in model.parameters() if p.is_floating_point()), x)
    standard, u = Standardized.of(model, x.detach().to("cpu", torch.float64))
    standard.to(weight.device, None)
    u = u.to(weight.device, weight.dtype)
    try_model(standard, u)
    with torch.no_grad(), eval_mode(standard):
        logits = logits_of(standard, u)
    if isinstance(labels, Tensor):
        labels = labels.to(u.device)
    target = predict(standard, u) if labels is None else class_indices(labels, u)
    check_target(target, *logits.shape)
    d = x[0].numel()
    if features is not None and (x.dim() != 2 or len(features) != d):
        raise UserError(
            f"There are {len(features)} names for inputs {tuple(x.shape[1:])}; name each column of a table."
        )
    right = (logits.argmax(1) == target).double().tolist()
    names = tuple(map(str, features)) if features is not None else tuple(f"feature {i}" for i in range(d))
    return _Subject(
        standard,
        u,
        target,
        labels is not None,
        dict(enumerate(right)),
        None if classes is None else tuple(classes),
        names,
        seed,
    )


def _measured(
    subject: _Subject, method: Method, radii: tuple[float, ...], plan: Preset, attacked: int
) -> _Measured:
    """Every number of a method by its key on the card."""
    model, u, target = subject.model, subject.u, subject.target
    rps = make("metric", "random_perturbation_similarity", eps=2 * radii[-1], draws=10)
    games = {game: make("metric", game, substrate="zero") for game in ("insertion", "deletion")}
    many = method.passes > 1 and plan.mean_steps is not None
    attack = make(
        "attack",
        "auto",
        eps=radii,
        steps=plan.mean_steps if many else plan.steps,
        top_fraction=subject.top / u[0].numel(),
        transfer_from=method.search,
    )
    noise = make("attack", "random", eps=radii[-1])
    first, chosen = u[:attacked], target[:attacked]
    hits = attack(model, method.attribution, first, chosen, seed=subject.seed)
    drawn = noise(model, method.attribution, first, chosen, seed=subject.seed)
    kept_at = [_column(_kept(hit, subject.top), hit.stuck) for hit in hits]
    # Noise that left the prediction alone is an attack that anyone could have made.
    lowest = torch.minimum(
        _kept(hits[-1], subject.top), torch.where(drawn.prediction_kept, _kept(drawn, subject.top), 1.0)
    )
    cosines = cosine(hits[-1].map_clean, hits[-1].map)
    columns: dict[str, Column] = {
        "noise_cosine": _column(rps(model, method.attribution, u, target, seed=subject.seed)),
        "noise_kept": _column(_kept(drawn, subject.top)),
        "attack_cosine": _column(cosines, hits[-1].stuck),
        "top_k_kept": _column(lowest, hits[-1].stuck),
        **{game: _column(metric(model, method.attribution, u, target)) for game, metric in games.items()},
    }
    return _Measured(columns, hits[-1], kept_at, cosines)


def _kept(hit: AttackResult, top: int) -> Tensor:
    """The share of the top of the clean map that is in the top of the other."""
    before, after = (top_k_mask(map.abs().flatten(1), top) for map in (hit.map_clean, hit.map))
    return (before & after).sum(1).double() / top


def _column(values: Tensor, unknown: Tensor | None = None) -> Column:
    known = torch.ones(len(values), dtype=torch.bool) if unknown is None else ~unknown.cpu()
    known = known & values.detach().isfinite().cpu()
    return {
        i: float(v) if k else None
        for i, (v, k) in enumerate(zip(values.tolist(), known.tolist(), strict=True))
    }


def _document(
    subject: _Subject,
    methods: list[Method],
    measured: dict[str, _Measured],
    settings: dict[str, Any],
    title: str,
) -> dict[str, Any]:
    rows = []
    for method in methods:
        one = measured[method.name]
        stats: dict[str, Stat | None] = {key: stat(column) for key, column in one.columns.items()}
        radius = steady_radius(one.kept_at, [r / 255 for r in settings["radii"]])  # its unit is 1/255
        rows.append(
            {
                "name": method.name,
                "label": method.label,
                "settings": method.settings,
                "notes": list(method.notes),
                "columns": stats | {"steady_radius": radius},
                "grade": grade_of(stats),
                "attacked": len(one.attack),
                "share": _shares(subject, one.attack.map_clean),
                "share_attacked": _shares(subject, one.attack.map),
            }
        )
    best = max(rows, key=lambda row: _value(row, "top_k_kept"))
    return {
        "schema": 1,
        "kind": "feature audit",
        "form": subject.form,
        "title": title,
        "model": {
            "description": identity.model_description(subject.model.core),
            "parameters": identity.parameters(subject.model),
        },
        "data": {
            "examples": len(subject.u),
            "shape": list(subject.u.shape[1:]),
            "labelled": subject.labelled,
            "classes": None if subject.classes is None else list(subject.classes),
            "features": list(subject.features) if subject.form == "table" else None,
            "mean": subject.model.mean.flatten().tolist(),
            "std": subject.model.std.flatten().tolist(),
        },
        "settings": settings,
        "accuracy": stat(subject.correct) if subject.labelled else None,
        "verdict": {"grade": best["grade"], "sentences": _sentences(best, rows[0], settings)},
        "methods": rows,
    }


def _value(row: Mapping[str, Any], key: str) -> float:
    found = row["columns"].get(key)
    return -1.0 if found is None or found["value"] is None else float(found["value"])


def _sentences(best: Mapping[str, Any], first: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    columns, eps, top = best["columns"], settings["eps"], settings["top"]
    if best["grade"] is None:
        return [
            "No attack found a derivative to follow, so nothing is said of these explanations under attack."
        ]
    kept = interval_text(columns["top_k_kept"], ".0f", scale=100, unit=" %")
    noise = interval_text(columns["noise_kept"], ".0f", scale=100, unit=" %")
    told = [
        f"{OPENINGS[best['grade']]}: moved by at most {eps:g} standard deviations with the prediction unchanged, "
        f"{best['label']}, the steadiest map measured, keeps {kept} of its top {top}; noise of that size leaves "
        f"{noise}."
    ]
    if first["name"] != best["name"] and first["grade"] is not None:
        other = interval_text(first["columns"]["top_k_kept"], ".0f", scale=100, unit=" %")
        told.append(f"Use {best['label']}: {first['label']} keeps {other}.")
    return told


def _shares(subject: _Subject, map: Tensor) -> list[float]:
    """The mean share of each feature, time step or slice in the size of the maps."""
    sizes = map.detach().abs().double()
    if subject.form != "table":
        sizes = sizes.sum([axis for axis in range(1, sizes.dim()) if axis != 2])
    total = sizes.sum(1, keepdim=True)
    shares: list[float] = (sizes / torch.where(total > 0, total, 1.0)).mean(0).tolist()
    return shares


def _most_damaged(
    subject: _Subject, methods: list[Method], measured: dict[str, _Measured]
) -> list[dict[str, Any]]:
    """The lowest cosines under attack, each example once."""
    found = []
    for method in methods:
        hit = measured[method.name].attack
        for row, value in enumerate(measured[method.name].cosines.tolist()):
            if bool(hit.prediction_kept[row]) and not bool(hit.stuck[row]) and value == value:
                found.append((value, row, method))
    shown: dict[int, dict[str, Any]] = {}
    for value, row, method in sorted(found, key=lambda one: one[:2]):
        if row not in shown and len(shown) < SHOWN:
            hit, number = measured[method.name].attack, int(subject.target[row])
            shown[row] = {
                "example": row,
                "method": method.label,
                "cosine": value,
                "target": subject.classes[number] if subject.classes else number,
                "values": hit.x_clean[row].cpu().tolist(),
                "values_attacked": hit.x[row].cpu().tolist(),
                "map": hit.map_clean[row].cpu().tolist(),
                "map_attacked": hit.map[row].cpu().tolist(),
            }
    return list(shown.values())


def settings_of_features(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `audit` that an audit of features has, too; one that it has not is refused."""
    known = {
        "preset",
        "methods",
        "eps",
        "out",
        "seed",
        "model_name",
        "data_name",
        "classes",
        "features",
        "steps",
        "notes",
    }
    for name, value in given.items():
        if name not in known and value is not None and value is not False:
            raise UserError(
                f"An audit of tables, series and volumes has no setting '{name}': {did_you_mean(name, known)}"
            )
    return {name: value for name, value in given.items() if name in known}
