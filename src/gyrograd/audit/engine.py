"""The audit: measure, doubt, judge, recommend."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyrograd.attacks.runs import shared_clean_looks
from gyrograd.attributions import predicted
from gyrograd.audit import identity
from gyrograd.audit.card import PICTURES, Card
from gyrograd.audit.challenges import challenges, masked
from gyrograd.audit.doubts import doubts, suspects
from gyrograd.audit.effort import efforts
from gyrograd.audit.measurements import Bench, all_cells
from gyrograd.audit.methods import Method, methods_of
from gyrograd.audit.pictures import Arrays, most_damaging, pictured
from gyrograd.audit.plane import Choice, choice, own_setting, plane, plane_points
from gyrograd.audit.presets import Preset, preset_of
from gyrograd.audit.steady import steady_radius
from gyrograd.audit.table import (
    STEADY,
    card_columns,
    column,
    eps_curves,
    kept_over_eps,
    method_columns,
    pixel_curves,
    searched,
    stat,
)
from gyrograd.audit.theorems import promises
from gyrograd.audit.verdict import grade_of, sentences
from gyrograd.data.dataset import Dataset
from gyrograd.data.opening import is_labelled
from gyrograd.errors import UserError
from gyrograd.evaluation import evaluated, finished, forget
from gyrograd.models import logits_of
from gyrograd.numerics.checks import check_images, check_target, class_indices, try_model
from gyrograd.numerics.modes import evaluating
from gyrograd.occupancy import sole_writer
from gyrograd.records import Record
from gyrograd.registry import lookup
from gyrograd.reporting.values import write_values
from gyrograd.reporting.wording import counted_images
from gyrograd.types import Attribution, Labels, Model, Targets

ROWS = {"cpu": 128, "cuda": 2048}
"""Images of 3 x 32 x 32 in one pass; of larger images fewer, so that memory stays the same."""
FEW = 10
"""Below so many images a bootstrap interval is far too narrow: of two images it spans just those two."""
ALWAYS = {"random_perturbation_similarity", "insertion", "deletion", "adversarial_insertion"}
"""Metrics every audit measures; naming them changes nothing."""


@dataclass(frozen=True, eq=False)
class Subject:
    """Images and classes under audit, and how they are called."""

    x: Tensor
    target: Tensor
    labelled: bool
    classes: tuple[str, ...] | None
    index: tuple[int, ...]
    model_name: str
    data_name: str


def audit(
    model: Model,
    images: Tensor | Dataset,
    labels: Targets | None = None,
    *,
    preset: str | Preset = "standard",
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
    index: Sequence[int] | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    **changes: Any,
) -> Card:
    """Can this model's explanations be trusted? The report card over images in [0, 1].

    Without labels each image is explained for the class the model predicts. `preset`: "quick", "standard" or
    "thorough"; `methods`, `attacks` and further `metrics` by name, `eps` and any other setting of `Preset` in
    place of its own. With `out`, numbers are kept there as they are made: a second call takes up where an
    interrupted one stopped (`fresh` starts anew), and the folder ends up with card, records, pictures and report.
    `index` numbers the images where they are part of a larger set; `notes` are printed with the verdict.
    """
    started = time.monotonic()
    further = None if metrics is None else tuple(m for m in metrics if lookup("metric", m).name not in ALWAYS)
    chosen = preset_of(preset, attacks=_names(attacks), metrics=further, eps=eps, **changes)
    subject = _subject(model, images, labels, classes, index, model_name, data_name)
    bench = _bench(model, subject, chosen, seed)
    tried, left_out = methods_of(methods, chosen, model, *_first(bench), max_batch=bench.max_batch)
    settings = {
        "preset": preset if isinstance(preset, str) else "own",
        "left_out": left_out,
        "notes": [*notes, *_few(subject), _no_guarantee(chosen)],
    }
    report = _Report(bench, subject, tried, settings, command, started)
    with _folder(out) as place:
        records = _measured(report, place, fresh=fresh, kept=out is not None)
        card = report.card(records)
        if out is not None:
            for method in tried:
                write_values(place, method.name, method_columns(records, method.name, chosen))
            card.save(place)
    return card


def _few(subject: Subject) -> list[str]:
    n = len(subject.x)
    few = f"{n} image{'s are' if n > 1 else ' is'} few: intervals over fewer than {FEW} are too narrow to go by."
    return [few] if n < FEW else []


def _no_guarantee(preset: Preset) -> str:
    return (
        f"No number under attack is a guarantee: the searches took {searched(preset)}, and longer ones (--steps) can "
        "move maps further."
    )


@dataclass(frozen=True, eq=False)
class _Report:
    """All that turns records into a card."""

    bench: Bench
    subject: Subject
    methods: list[Method]
    settings: dict[str, Any]
    command: str | None
    started: float

    def card(self, records: dict[str, Record], *, complete: bool = True) -> Card:
        """The card; of an unfinished run without flags and pictures, which need the model again."""
        flags = doubts(self.bench, records, self.methods) if complete else []
        flags += challenges(records, self.methods, self.bench.preset) if complete else []
        rows, arrays = self._pictures(records) if complete else ([], {})
        return Card(self._document(records, flags, rows, arrays, complete), records, arrays)

    def _pictures(self, records: dict[str, Record]) -> tuple[list[dict[str, Any]], Arrays]:
        preset = self.bench.preset
        damages = most_damaging(records, self.methods, preset.searches, preset.eps, preset.pictures)
        return pictured(self.bench, damages, self.methods, self.subject.classes)

    def _document(
        self,
        records: dict[str, Record],
        flags: list[dict[str, Any]],
        worst: list[dict[str, Any]],
        arrays: Arrays,
        complete: bool,
    ) -> dict[str, Any]:
        preset, names = self.bench.preset, [method.name for method in self.methods]
        placed, hollow = plane_points(records, self.methods, preset), suspects(flags) | masked(flags)
        columns = {name: self._stats(records, name) for name in names}
        radii = {(m.name, own_setting(m)): columns[m.name].get(STEADY) for m in self.methods}
        chosen = choice(placed, self.methods[0], hollow, self._passes(), radii)
        judged = self.methods[0]
        if chosen is not None and chosen.radius is not None:
            judged = next(method for method in self.methods if method.name == chosen.point.method)
        graded, empty = columns[judged.name], judged.name in hollow
        kept = self._kept(chosen, columns)
        told = sentences(judged, graded, chosen, preset, suspect=empty, kept=kept, against=self.methods[0])
        correct = stat(column(records["model"], "correct")) if self.subject.labelled else None
        return {
            "schema": 1,
            "kind": "audit",
            "title": f"{self.subject.model_name} on {self.subject.data_name}",
            "model": self._model(),
            "data": self._data(len(records["model"].examples)),
            "settings": self._settings(),
            "complete": complete,
            "accuracy": correct,
            "verdict": {"grade": grade_of(graded, suspect=empty), "sentences": told},
            "columns": card_columns(preset),
            "methods": [
                self._method(method, columns[method.name], chosen, hollow) for method in self.methods
            ],
            "curves": {
                "eps": eps_curves(records, names, preset),
                "insertion": pixel_curves(records, names, "insertion", preset),
                "deletion": pixel_curves(records, names, "deletion", preset),
            },
            "plane": plane(placed, chosen, preset),
            "bounds": promises(records["bounds"]),
            "worst": worst,
            "pictures": PICTURES if arrays else None,
            "flags": flags,
            "rerun": identity.rerun(
                self.bench.model, self.command, time.monotonic() - self.started, self.bench.seed
            ),
        }

    def _stats(self, records: dict[str, Record], name: str) -> dict[str, Any]:
        preset = self.bench.preset
        stats = {key: stat(values) for key, values in method_columns(records, name, preset).items()}
        if "auto" in preset.attacks:
            radii, kept, _ = kept_over_eps(records, name, preset)
            stats[STEADY] = steady_radius(kept, radii)
        return stats

    def _kept(self, chosen: Choice | None, columns: dict[str, dict[str, Any]]) -> Any:
        """What an attack leaves of the chosen map, if it is one that was attacked."""
        own = {(method.name, own_setting(method)) for method in self.methods}
        if chosen is None or (chosen.point.method, chosen.point.setting) not in own:
            return None
        return columns[chosen.point.method]["top_k_kept"]

    def _passes(self) -> dict[str, int]:
        swept = dict.fromkeys(self.bench.preset.sweep, self.bench.preset.sweep_draws)
        return swept | {method.name: method.passes for method in self.methods}

    def _method(
        self, method: Method, columns: dict[str, Any], chosen: Choice | None, hollow: set[str]
    ) -> dict[str, Any]:
        return {
            "name": method.name,
            "label": method.label,
            "settings": method.settings,
            "columns": columns,
            "grade": grade_of(columns, suspect=method.name in hollow),
            "notes": list(method.notes),
            "recommended": chosen is not None and chosen.point.method == method.name,
        }

    def _model(self) -> dict[str, Any]:
        with torch.no_grad(), evaluating(self.bench.model):
            classes = self.bench.model(_first(self.bench)[0]).shape[1]
        return {
            "source": self.subject.model_name,
            "description": identity.model_description(self.bench.model),
            "parameters": identity.parameters(self.bench.model),
            "sha256": self.bench.identity["model"],
            "classes": int(classes),
        }

    def _data(self, images: int) -> dict[str, Any]:
        return {
            "source": self.subject.data_name,
            "images": images,
            "labelled": self.subject.labelled,
            "shape": list(self.subject.x.shape[1:]),
            "sha256": self.bench.identity["data"],
            "classes": None if self.subject.classes is None else list(self.subject.classes),
        }

    def _settings(self) -> dict[str, Any]:
        explained = "label" if self.subject.labelled else "prediction"
        plain = {**asdict(self.bench.preset), "seed": self.bench.seed, "explained": explained}
        return {**self.settings, **_json(plain)}


def _measured(report: _Report, place: Path, *, fresh: bool, kept: bool) -> dict[str, Record]:
    """The records; an interruption leaves a card of what is finished, where there is a folder for it."""
    bench = report.bench
    cells, rows = all_cells(bench, report.methods), bench.index
    if fresh:
        forget(cells, place)
    try:
        effort = efforts(bench, report.methods)
        with shared_clean_looks():
            return evaluated(cells, rows, place, shard=bench.preset.shard, what="auditing", effort=effort)
    except KeyboardInterrupt:
        done = finished(cells, rows, place, shard=bench.preset.shard)
        if kept and len(done) == len(cells):
            report.card(done, complete=False).save(place)
        raise


def _subject(
    model: Model,
    images: Tensor | Dataset,
    labels: Targets | None,
    classes: Sequence[str] | None,
    index: Sequence[int] | None,
    model_name: str | None,
    data_name: str | None,
) -> Subject:
    """Images and classes, checked before anything long is begun."""
    if isinstance(images, Dataset):
        known = is_labelled(images)
        labels = images.labels if labels is None and known else labels
        classes = images.classes if classes is None and known else classes
        data_name = data_name or images.name
        images = images.pixels()
    check_images(images)
    weight = next((p for p in model.parameters() if p.is_floating_point()), images)
    x = images.detach().to(weight.dtype)
    try_model(model, x[:1].to(weight.device))
    with torch.no_grad(), evaluating(model):
        logits = logits_of(model, x[:1].to(weight.device))
    target = _predictions(model, x, weight.device) if labels is None else _labels(labels, x)
    check_target(target, len(x), logits.shape[1])
    places = tuple(range(len(x))) if index is None else tuple(int(i) for i in index)
    if len(set(places)) != len(x):
        raise UserError(
            f"There are {len(set(places))} numbers for {len(x)} images; give each image one of its own."
        )
    names = None if classes is None else tuple(classes)
    called = (model_name or type(model).__name__, data_name or counted_images(len(x)))
    return Subject(x.cpu(), target, labels is not None, names, places, *called)


def _labels(labels: Targets, x: Tensor) -> Labels:
    return class_indices(labels.cpu() if isinstance(labels, Tensor) else labels, x.cpu())


def _predictions(model: Model, x: Tensor, device: torch.device) -> Labels:
    return torch.cat([predicted(model, part.to(device)).cpu() for part in x.split(_rows_at_once(x, device))])


def _bench(model: Model, subject: Subject, preset: Preset, seed: int) -> Bench:
    named = {"model": identity.model_hash(model), "data": identity.data_hash(subject.x, subject.target)}
    place = next((p.device for p in model.parameters()), subject.x.device)
    rows = _rows_at_once(subject.x, place)
    return Bench(model, subject.x, subject.target, subject.index, preset, seed, named, rows)


def _rows_at_once(x: Tensor, device: torch.device) -> int:
    return max(1, ROWS.get(device.type, ROWS["cpu"]) * 3072 // x[0].numel())


def _first(bench: Bench) -> tuple[Tensor, Tensor]:
    x, target, _ = bench.rows(torch.tensor(bench.index[:1]))
    return x, target


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


@contextmanager
def _folder(out: Path | str | None) -> Iterator[Path]:
    """The folder to write in, which is this audit's alone."""
    if out is not None:
        with sole_writer(out):
            yield Path(out)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
