"""Submissions: audits that another machine can check, written by `gyrograd submit` and checked by `gyrograd verify`.

The folder holds the card and its records, the model, and the audited images. Checking has four steps, each of which
catches what the previous ones cannot:

1. every file is the one that was submitted (sha256);
2. model and images match the hashes on the card;
3. the card's numbers, flags, verdict and curves follow from the records;
4. the records of a few images, chosen by a seed, are measured again.

A changed card with a new sha256 fails step 3; changed weights with new hashes fail step 4, and so do invented records,
if the sample contains them: choose your own `--seed`.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes
from torch import Tensor

from gyrograd.audit.engine import conclusions, every_plan, judge, rows_per_pass
from gyrograd.audit.map_checks import map_check_plans
from gyrograd.audit.methods import Method, methods_of
from gyrograd.audit.plans import MODEL, AuditInputs
from gyrograd.audit.presets import OLD_FIELDS, Preset
from gyrograd.audit.sanity_checks import audit_flags, challenges
from gyrograd.audit.verdict import NOT_JUDGED
from gyrograd.errors import UserError, check_schema
from gyrograd.measurement import Plan, Sample, Table, measure
from gyrograd.measurement.run import data_hash, model_hash
from gyrograd.models import save, spec_of
from gyrograd.models.opening import check_model, open_model, resolve_device
from gyrograd.numerics import random
from gyrograd.numerics.checks import TRIAL_ROWS
from gyrograd.records import JsonObject, read_json, replace_file, write_text
from gyrograd.renames import with_new_names
from gyrograd.reporting.leaderboard import SUBMISSION
from gyrograd.reporting.schema import CARD, AuditCard, read_card, version_of
from gyrograd.types import Model
from gyrograd.version import __version__

SCHEMA = 1
IMAGES, CHECKPOINT = "images.safetensors", "model.safetensors"
CLEAN_TOLERANCE, ATTACK_TOLERANCE, MEAN_TOLERANCE = 0.02, 0.25, 0.1
"""Allowed differences between machines. Rounding decides between nearly equal pixels, and changes the sign steps of a
search, so a number under attack may differ on single images, but not on average."""
COMPARED = {
    "correct",
    "probability",
    "rps",
    "insertion",
    "deletion",
    "cosine",
    "kept",
    "adversarial_insertion",
}
"""Metrics that are compared after measuring again, with values between 0 and 1."""
SAME = 1e-9
"""Tolerance for averages of the same records."""


@dataclass(frozen=True)
class Check:
    """Result of one step: `wrong` says what is wrong, None if it holds."""

    what: str
    wrong: str | None = None


def write_submission(
    folder: Path,
    model: Model,
    x: Tensor,
    target: Tensor,
    index: tuple[int, ...],
    opening: Mapping[str, Any],
    facts: JsonObject,
) -> Path:
    """Add to an audit's folder the model, the images and a list of all files, so that it can be checked.

    Args:
        folder: folder of a finished audit.
        model: the audited model.
        x: its images.
        target: the explained classes.
        index: numbers of the images in their data set.
        opening: the options that opened the model, for one that no checkpoint can hold.
        facts: name, authors, paper, link, and reported values.
    """
    _refuse_precision(folder, read_card(folder / CARD))
    write_images(folder / IMAGES, x, target, index)
    how: JsonObject = {"file": CHECKPOINT}
    if spec_of(model) is not None:
        save(folder / CHECKPOINT, model)
    else:
        how = _copy_model_files(folder, opening)
    every = sorted(p for p in folder.rglob("*") if p.is_file() and _is_evidence(p.relative_to(folder)))
    document = {
        "schema": SCHEMA,
        **facts,
        "model": how,
        "files": {p.relative_to(folder).as_posix(): _sha256(p) for p in every},
    }
    write_text(folder / SUBMISSION, json.dumps(document, indent=1) + "\n")
    return folder / SUBMISSION


def _is_evidence(path: Path) -> bool:
    """True for card, records, model and images; pages and pictures can be regenerated from them."""
    return path.parts[0] in {CARD, "records", IMAGES, CHECKPOINT, "model"} and not path.name.startswith(".")


def _copy_model_files(folder: Path, opening: Mapping[str, Any]) -> JsonObject:
    """Copy the model's files into the folder, and return the options that open them there."""
    how: JsonObject = {key: opening[key] for key in ("classes", "normalize") if opening.get(key) is not None}
    word = str(opening["model"])
    for key, path in (("file", Path(word)), ("weights", opening.get("weights"))):
        if path is not None and Path(path).is_file():
            how[key] = f"model/{Path(path).name}"
            replace_file(folder / how[key], Path(path).read_bytes())
    if "file" not in how:
        refuse_code(word)
        how["name"] = word
    return how


def refuse_code(model: str) -> None:
    """Refuse a model in a Python file: checking the submission would run it."""
    if ".py:" in model:
        raise UserError(
            f"{model} is code, which a submission cannot include; submit a checkpoint or a torch.export file of it."
        )


def write_images(path: Path, x: Tensor, target: Tensor, index: tuple[int, ...]) -> None:
    """Write the images, as bytes if that is lossless."""
    bytes_ = (x * 255).round().clamp(0, 255).to(torch.uint8)
    exact = torch.equal(bytes_.to(x.dtype) / 255, x)
    tensors = {"x": bytes_ if exact else x.contiguous(), "target": target, "index": torch.tensor(index)}
    replace_file(path, to_bytes({key: value.cpu().contiguous() for key, value in tensors.items()}))


def read_images(path: Path) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Images in [0, 1], explained classes and numbers of the images."""
    try:
        found = load_file(path)
        x, target, index = found["x"], found["target"], found["index"]
    except (OSError, SafetensorError, KeyError) as wrong:
        raise UserError(
            f"{path} does not hold the audited images ({wrong}); ask the submission's author to send it again."
        ) from None
    return x.float() / 255 if x.dtype == torch.uint8 else x, target, tuple(index.tolist())


def verify(folder: Path, *, sample: int = 4, seed: int = 0, device: str = "auto") -> Iterator[Check]:
    """Check a submission step by step; stops at the first step that fails.

    Args:
        folder: a folder that `gyrograd submit` wrote.
        sample: number of images to measure again.
        seed: seed of their choice.
        device: where the model runs.
    """
    document = _document(folder)
    changed = next(_file_differences(folder, document["files"]), None)
    yield Check(f"{len(document['files'])} files are the submitted ones", changed)
    if changed:
        return
    card = read_card(folder / CARD)
    _refuse_precision(folder, card)
    x, target, index = read_images(folder / IMAGES)
    model = _open_submitted_model(folder, document["model"], device)
    # As the audit did, which explains the logarithm of probabilities.
    model = check_model(model, x[:TRIAL_ROWS].to(next(model.parameters(), x)))
    wrong = None
    if model_hash(model) != card["model"]["sha256"]:
        wrong = "the model is not the one the card speaks of (its weights have another hash)"
    elif data_hash(x, target) != card["data"]["sha256"]:
        wrong = "the images are not those the card speaks of (they have another hash)"
    yield Check("model and images are those of the card", wrong)
    if wrong:
        return
    inputs, methods = _inputs(model, Sample(x, target, index), card)
    table = _table_of_records(folder, inputs, methods)
    wrong = next(_card_differences(card, inputs, methods, table), None)
    yield _with_version(Check("the card's numbers, flags and verdict follow from its records", wrong), card)
    if wrong:
        return
    drawn = _choose_images(inputs, sample, seed)
    yield _with_version(_compare_with_records(inputs, methods, table, drawn), card)


def _with_version(check: Check, card: AuditCard) -> Check:
    """The check; one that failed names the version that made the card, if it is another.

    Records of a version with other numbers are not read but measured again, and then differ from the card.
    """
    made_by = version_of(card)
    if check.wrong is None or made_by in (None, __version__):
        return check
    other = f"gyrograd {made_by} made this card and this is {__version__}, whose numbers may differ"
    return replace(check, wrong=f"{check.wrong} ({other}: verify it with that version)")


def _refuse_precision(folder: Path, card: Mapping[str, Any]) -> None:
    """Refuse an audit with a precision: its methods stop at different images, which a sample cannot check."""
    precision = (card["settings"] or {}).get("precision")
    if precision is not None:
        raise UserError(
            f"{folder} was audited to a precision of {precision}, and a submission needs a fixed "
            "number of images: gyrograd submit MODEL DATA --images 100."
        )


def _document(folder: Path) -> JsonObject:
    try:
        document = read_json(folder / SUBMISSION)
    except FileNotFoundError:
        raise UserError(
            f"There is no {SUBMISSION} in {folder}; give a folder that gyrograd submit wrote."
        ) from None
    except ValueError as wrong:
        raise UserError(
            f"{folder / SUBMISSION} is not a submission ({wrong}); ask its author to send it again."
        ) from None
    kinds = {"schema": int, "model": dict, "files": dict}
    if not isinstance(document, dict) or any(
        type(document.get(key)) is not kind for key, kind in kinds.items()
    ):
        raise UserError(
            f"{folder / SUBMISSION} is not a submission (fields are missing); ask its author to send it again."
        )
    check_schema(folder / SUBMISSION, document["schema"], SCHEMA)
    missing = {CARD, IMAGES} - set(document["files"])
    if missing:
        raise UserError(
            f"{folder / SUBMISSION} does not list {', '.join(sorted(missing))}; ask its author to send it again."
        )
    return document


def _file_differences(folder: Path, files: Mapping[str, Any]) -> Iterator[str]:
    """One sentence per missing, changed or added file."""
    for name, digest in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            yield f"'{name}' leads out of the folder"
        elif not path.is_file():
            yield f"{name} is missing"
        elif _sha256(path) != digest:
            yield f"{name} was changed after it was submitted"
    for path in sorted((folder / "records").rglob("*.json")):
        if (name := path.relative_to(folder).as_posix()) not in files:
            yield f"{name} was added after the submission"


def _open_submitted_model(folder: Path, how: Mapping[str, Any], device: str) -> Model:
    """Open the submitted model; its files are read, never executed."""
    file, weights = (how.get(key) for key in ("file", "weights"))
    for name in (file, weights):
        if name is not None and (
            not isinstance(name, str) or Path(name).suffix == ".py" or ".." in Path(name).parts
        ):
            raise UserError(
                f"The submission names the model file '{name}', which is code or outside its folder; ask for another."
            )
    return open_model(
        str(folder / file) if file else str(how.get("name")),
        weights=folder / weights if weights else None,
        classes=how.get("classes"),
        normalize=how.get("normalize"),
        device=resolve_device(device),
    )


def _inputs(model: Model, sample: Sample, card: Mapping[str, Any]) -> tuple[AuditInputs, list[Method]]:
    """The audit's inputs and methods, from the card."""
    settings = with_new_names(card["settings"] or {}, OLD_FIELDS)
    names = [field.name for field in fields(Preset)]
    try:
        preset = Preset(**{name: _lists_to_tuples(settings[name]) for name in names})
        seed = int(settings["seed"])
    except (KeyError, TypeError, ValueError) as wrong:
        raise UserError(
            f"The card's settings cannot be run again by this gyrograd ({wrong}); submit with the same version."
        ) from None
    device = next((p.device.type for p in model.parameters()), "cpu")
    inputs = AuditInputs(
        model,
        sample,
        preset,
        seed,
        {"model": card["model"]["sha256"], "data": card["data"]["sha256"]},
        rows_per_pass(torch.device(device), sample.x[:1].numel()),
        card["model"]["source"],
        card["data"]["source"],
        bool(card["data"]["labelled"]),
        None,
    )
    x, target, _ = inputs.rows(sample.index[:1])
    methods, _ = methods_of(
        [m["name"] for m in card["methods"]], preset, model, x, target, max_batch=inputs.max_batch
    )
    return inputs, methods


def _lists_to_tuples(value: Any) -> Any:
    """The value with lists converted back to tuples."""
    if isinstance(value, list):
        return tuple(_lists_to_tuples(item) for item in value)
    return {key: _lists_to_tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _table_of_records(folder: Path, inputs: AuditInputs, methods: list[Method]) -> Table:
    """The table of the records; missing parts are measured, so that leaving them out gains nothing.

    The sanity checks of maps are measured anyway: nobody looks at a map again whose record says that it is sound.
    """
    with tempfile.TemporaryDirectory() as place:
        if (folder / "records").is_dir():
            shutil.copytree(folder / "records", Path(place) / "records")

        def table_of(plans: list[Plan], *, fresh: bool) -> Table:
            return measure(
                inputs.model,
                inputs.sample,
                plans,
                Path(place),
                shard=inputs.preset.shard,
                fresh=fresh,
                what="reading records",
                identity=inputs.measured,
            )

        table_of(map_check_plans(inputs, methods), fresh=True)
        return table_of(every_plan(inputs, methods), fresh=False)


def _card_differences(
    card: Mapping[str, Any], inputs: AuditInputs, methods: list[Method], table: Table
) -> Iterator[str]:
    """One sentence per difference between the card and its records."""
    raised = audit_flags(inputs, table, methods) + challenges(table, methods, inputs.preset)
    found = conclusions(inputs, methods, table, judge(inputs, methods, table, raised))
    expected: JsonObject = json.loads(json.dumps(found))
    if not _alike(card["accuracy"], expected["accuracy"]):
        yield "the card's accuracy is not that of its records"
    for one, row in zip(expected["methods"], card["methods"], strict=True):
        for key in {**one["columns"], **row["columns"]}:
            if not _alike(row["columns"].get(key), one["columns"].get(key)):
                yield f"the card's '{key}' of {one['name']} is not that of its records"
        if row["passes"] is not None and row["passes"] != one["passes"]:
            yield f"the card gives {one['name']} {row['passes']} passes and it takes {one['passes']}"
    recorded = {(flag["name"], flag["where"]) for flag in card["flags"] or ()}
    for flag in raised:
        if (flag["name"], flag["where"]) not in recorded:
            yield f"the card does not say that {flag['name'].replace('_', ' ')} was raised for {flag['where']}"
    curves: Mapping[str, Any] = card["curves"] or {}
    for name, drawn in expected["curves"].items():
        if not _alike(curves.get(name), drawn):
            yield f"the card's curves {'over eps' if name == 'eps' else f'of {name}'} are not those of its records"
    # A checkpoint does not say that its weights are random, so what is not judged may stay so.
    judged = card["verdict"]["sentences"] != NOT_JUDGED
    for key, value in expected.items():
        if (judged or key not in {"verdict", "methods", "plane"}) and not _alike(card[key], value):
            yield f"the part '{key}' of the card is not what follows from its records"
    if card["data"]["images"] != len(inputs.sample.index):
        yield f"the card speaks of {card['data']['images']} images and {len(inputs.sample.index)} were submitted"


def _alike(one: Any, other: Any) -> bool:
    """True if two parts of a card are the same but for the rounding of averages."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_alike(one.get(key), other.get(key)) for key in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=SAME, abs_tol=SAME)
    return bool(one == other)


def _choose_images(inputs: AuditInputs, count: int, seed: int) -> list[int]:
    """The images to measure again: one half from the attacked images, one half from the others, attacked first."""
    index, attacked = inputs.sample.index, inputs.preset.attacked_images
    order = random.permutation(random.keys(seed, 1), len(index), stream=0)[0].tolist()
    first = [index[i] for i in order if i < attacked]
    rest = [index[i] for i in order if i >= attacked]
    half = max(1, count - min(len(rest), count // 2))
    return [*first[:half], *rest[: max(0, count - half)]]


def _compare_with_records(
    inputs: AuditInputs, methods: list[Method], table: Table, drawn: list[int]
) -> Check:
    """Compare every number of these images with its record."""
    attacked = sum(inputs.sample.index.index(i) < inputs.preset.attacked_images for i in drawn)
    x, target, _ = inputs.rows(drawn)
    few = replace(
        inputs,
        sample=Sample(x.cpu(), target.cpu(), tuple(drawn)),
        preset=replace(inputs.preset, attacked_images=attacked),
    )
    again = measure(inputs.model, few.sample, every_plan(few, methods), None, shard=len(drawn), what="measuring again",
                    identity=inputs.measured)  # fmt: skip
    agree = "images measured again agree with their records"
    if len(drawn) == 1:
        agree = "image measured again agrees with its records"
    step = f"{len(drawn)} {agree}"
    recorded = {(row.key, row.example): row.value for row in table}
    names = {method.name for method in methods} | {MODEL}
    offsets: dict[tuple[str, str, str], list[float]] = {}
    for row in again:
        if row.key.method not in names or row.key.metric not in COMPARED:
            continue
        before = recorded.get((row.key, row.example))
        what = (row.key.method, row.key.condition, row.key.metric)
        if (before is None) != (row.value is None):
            return Check(step, f"{' '.join(what)} of image {row.example} is missing on one side")
        if before is None or row.value is None:
            continue
        off = row.value - before
        if abs(off) > (CLEAN_TOLERANCE if row.key.eps is None else ATTACK_TOLERANCE):
            return Check(
                step,
                f"{row.key.metric} of {row.key.method} on image {row.example} ({row.key.condition}) is {row.value:.3f}"
                f", and its record says {before:.3f}",
            )
        offsets.setdefault(what, []).append(off)
    for what, found in offsets.items():
        mean = sum(found) / len(found)
        if abs(mean) > MEAN_TOLERANCE:
            return Check(step, f"{' '.join(what)} is off by {mean:+.3f} on average")
    largest = max((abs(off) for each in offsets.values() for off in each), default=0.0)
    return Check(f"{step}; the largest difference is {largest:.2g}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
