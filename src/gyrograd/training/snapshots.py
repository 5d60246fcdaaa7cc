"""The checkpoint of a run: one file, replaced atomically, that contains no code.

It is safetensors: weights, optimizer state, averaged weights, sums of the current epoch, and the best epoch's weights
while they are in no file of their own. The metadata has one entry, `gyrograd_run`: JSON with settings, progress,
history, best epoch and a checksum over everything (`models.checksums`). It holds no scheduler state, because the rate
is a function of the step, and no generator state, because every step seeds torch's generators and draws by (seed,
example, epoch).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gyrograd.data import Dataset
from gyrograd.errors import UserError, check_schema
from gyrograd.models.checksums import check_digest, read_note, signed_bytes
from gyrograd.records import JsonObject, replace_file
from gyrograd.training.loop import Average, TrainingProgress
from gyrograd.training.settings import TrainSettings, as_tree, decisive_settings, first_difference
from gyrograd.types import Model

SCHEMA = 2
UNSIGNED = 1
"""The schema of files written before they carried a checksum."""
NAME = "checkpoint.safetensors"
_PROGRESS: dict[str, type | UnionType] = {
    "epoch": int,
    "batch": int,
    "names": list,
    "seen": int,
    "history": list,
    "best": dict | None,
    "ended": bool,
}
"""Fields of the progress that a checkpoint's note holds, and their types."""
_KINDS = {"schema": int, "settings": dict, "data": str, "optimizer": dict, **_PROGRESS}


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Content of a checkpoint file: a JSON note and tensors."""

    note: JsonObject
    tensors: dict[str, Tensor]


def take(
    model: Model,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    progress: TrainingProgress,
    settings: TrainSettings,
    data: str,
) -> Snapshot:
    """A copy of the current state on the CPU. `data` is the fingerprint of the training data."""
    tensors = {f"model.{key}": value for key, value in model.state_dict().items()}
    for name, held in (("average", average), ("best", progress.best_weights)):
        if held is not None:
            tensors |= {f"{name}.{key}": value for key, value in held.values.items()}
    rest: dict[str, float] = {}
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            (tensors if isinstance(value, Tensor) else rest)[f"optimizer.{index}.{key}"] = value
    if progress.sums is not None:
        tensors["sums"] = progress.sums
    note = {
        "schema": SCHEMA,
        "settings": as_tree(settings),
        "data": data,
        "optimizer": rest,
        "seconds": progress.seconds,
        **{key: getattr(progress, key) for key in _PROGRESS},
    }
    on_cpu = {key: value.detach().to("cpu", copy=True).contiguous() for key, value in tensors.items()}
    return Snapshot(note, on_cpu)


def finite(snapshot: Snapshot) -> bool:
    """True if every number in it is finite."""
    # Minimum and maximum are finite exactly if all values are (they pass NaN on), and need no mask of tensor size.
    values = [value for value in snapshot.tensors.values() if value.is_floating_point() and value.numel()]
    return all(bool(end.isfinite()) for value in values for end in value.aminmax())


def write(path: Path, snapshot: Snapshot) -> None:
    replace_file(path, signed_bytes("gyrograd_run", snapshot.note, snapshot.tensors))


def read(path: Path) -> Snapshot | None:
    """The checkpoint in this file, or None if there is no file; a damaged one is an error."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            words = (file.metadata() or {})["gyrograd_run"]
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, KeyError, ValueError, RuntimeError, OSError) as wrong:
        raise UserError(
            f"{path} is not a checkpoint of a training run, or is damaged ({wrong}); "
            "remove it or give another folder."
        ) from wrong
    note = read_note(path, words)
    schema = note.get("schema")
    if type(schema) is int:
        check_schema(path, schema, SCHEMA)
    if schema != UNSIGNED:
        check_digest(path, note, tensors)
    misfit = next((key for key, kind in _KINDS.items() if not isinstance(note.get(key, ...), kind)), None)
    if misfit is not None:
        raise UserError(
            f"{path} is not a checkpoint that a run can resume from ('{misfit}' is missing or of the wrong type); "
            "remove it or give another folder."
        )
    return Snapshot({key: value for key, value in note.items() if key != "sha256"}, tensors)


def check_same_run(path: Path, snapshot: Snapshot, settings: TrainSettings, data: str) -> None:
    """Refuse to resume with other settings or data; the error names the first difference."""
    here = decisive_settings(json.loads(json.dumps(as_tree(settings)))) | {"the training data": data}
    there = decisive_settings(snapshot.note["settings"]) | {"the training data": snapshot.note["data"]}
    check_same_settings(path, here, there)


def check_same_settings(path: Path, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    """Refuse to resume the run in `path` if its settings differ."""
    difference = first_difference(here, there)
    if difference is not None:
        key, mine, its = difference
        raise UserError(
            f"{path} belongs to another run: {key} is {_text(mine)} here and {_text(its)} there; give the same, "
            "another folder (--out), or --resume changed to resume regardless."
        )


def restore(
    snapshot: Snapshot, model: Model, optimizer: torch.optim.Optimizer, average: Average | None
) -> TrainingProgress:
    """Restore weights and optimizer; returns the progress of the run."""
    misfit = "The checkpoint holds another model than the settings describe; give the settings it was trained with."
    try:
        load_weights(model, _below(snapshot, "model."), misfit)
        state: dict[int, dict[str, Any]] = {}
        plain = {key.removeprefix("optimizer."): value for key, value in snapshot.note["optimizer"].items()}
        for key, value in {**_below(snapshot, "optimizer."), **plain}.items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        # SGD and Adam keep different things per weight. After a change from one to the other it begins afresh.
        if isinstance(optimizer, torch.optim.Adam) == any("exp_avg" in own for own in state.values()):
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
        for weight, own in optimizer.state.items():
            for name, value in own.items():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    # Files do not keep memory formats, and a fused optimizer needs that of the weight (channels last).
                    own[name] = torch.empty_like(weight, requires_grad=False).copy_(value)
        if average is not None:
            for key, value in (_below(snapshot, "average.") or _below(snapshot, "model.")).items():
                average.values[key].copy_(value)
        sums = snapshot.tensors.get("sums")
        device = next(model.parameters()).device
        kept = {key: snapshot.note[key] for key in _PROGRESS}
        kept["seconds"] = snapshot.note.get("seconds", 0.0)  # older checkpoints have none
        best = _below(snapshot, "best.")
        progress = TrainingProgress(**kept, sums=None if sums is None else sums.to(device))
        if best:
            progress.best_weights = Average(model, 0.0)
            progress.best_weights.values = best
        return progress
    except UserError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as wrong:
        # Only a file without a checksum can get here: an edited one.
        raise UserError(
            f"The checkpoint does not fit the run ({type(wrong).__name__}: {wrong}); "
            "remove it or give another folder."
        ) from wrong


def fingerprint(data: Dataset) -> str:
    """A short digest of a data set: its labels and up to 256 of its images."""
    some = torch.linspace(0, len(data) - 1, min(len(data), 256)).long()
    digest = hashlib.sha256(f"{tuple(data.images.shape)} {data.images.dtype} {data.classes}".encode())
    for part in (data.labels, data.images[some.to(data.labels.device)]):
        digest.update(part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def load_weights(model: Model, weights: Mapping[str, Tensor], misfit: str) -> None:
    """Load weights of the same names and shapes; others are an error, with this sentence."""
    own = {key: value.shape for key, value in model.state_dict().items()}
    if own != {key: value.shape for key, value in weights.items()}:
        raise UserError(misfit)
    model.load_state_dict(dict(weights))


def _below(snapshot: Snapshot, prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): value for key, value in snapshot.tensors.items() if key.startswith(prefix)
    }


def _text(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)
