"""Trained models on disk: safetensors with the spec to build the model again, and a checksum.

The file's metadata has one entry, `gyrograd`: JSON with `schema`, `spec`, `facts` and `sha256` over these and
every tensor (`checksums`). Nothing in it is code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gyrograd.errors import UserError, check_schema
from gyrograd.models.assembly import rebuild
from gyrograd.models.checksums import check_digest, damage_sentence, read_note, signed_bytes
from gyrograd.models.specs import ModelSpec, spec_of
from gyrograd.models.weights import check_kinds, fit, is_pickled
from gyrograd.records import JsonObject, write_bytes

SCHEMA = 1


def save(path: Path | str, model: nn.Module, *, facts: Mapping[str, Any] | None = None) -> None:
    """Save a model that gyrograd built; `load` returns it bit for bit.

    The file is written completely or not at all. `facts` are JSON values to keep with it (accuracy, epochs).

    >>> import tempfile, torch, gyrograd as gg
    >>> model = gg.model("lenet", num_classes=3, seed=0).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gg.save(f"{folder}/net.safetensors", model, facts={"epochs": 12})
    ...     again = gg.load(f"{folder}/net.safetensors")
    >>> x = torch.rand(2, 3, 32, 32)
    >>> torch.equal(model(x), again(x))
    True
    """
    spec = spec_of(model)
    if spec is None:
        raise UserError(
            f"{type(model).__name__} was not built by gyrograd.model, so no checkpoint could build it again; "
            "save its state_dict with safetensors and read it with load_state."
        )
    tensors = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in model.state_dict().items()}
    # Refused now, not on load: a model that was changed after it was built and no longer fits its spec.
    expected = {key: tensor.shape for key, tensor in rebuild(spec).state_dict().items()}
    if expected != {key: tensor.shape for key, tensor in tensors.items()}:
        raise UserError(
            f"The model was changed after gyrograd built it and is no longer a '{spec.name}'; "
            "build it with the settings it now has, or save its state_dict with safetensors."
        )
    note = {"schema": SCHEMA, "spec": json.loads(spec.to_json()), "facts": facts or {}}
    _json(note)
    write_bytes(path, signed_bytes("gyrograd", note, tensors))


def load(path: Path | str) -> nn.Module:
    """The model that was saved, bit for bit, on the CPU and in eval mode."""
    note, tensors = _contents(Path(path))
    spec = ModelSpec.from_json(_json(note["spec"]))
    _check_extent(path, spec, sum(tensor.numel() for tensor in tensors.values()))
    model = rebuild(spec)
    own = model.state_dict(keep_vars=True)
    check_kinds(tensors, own, path)
    for key in own.keys() & tensors.keys():
        own[key].data = own[key].data.to(tensors[key].dtype)
    fit(model, tensors, path)
    return model.eval()


def _check_extent(path: Path | str, spec: ModelSpec, elements: int) -> None:
    """Refuse a spec of a model far larger than the file, before building it fills the memory."""
    most = max(elements, 10_000)
    level: list[Any] = [spec.settings, [options for _, options in spec.wraps]]
    while level:
        value = level.pop()
        if isinstance(value, Mapping):
            level += value.values()
        elif isinstance(value, list):
            level += [len(value) * 10, *value]
        elif isinstance(value, int | float) and abs(value) > most:
            raise UserError(f"{path} describes a model much larger than itself ({value}); write it again.")


def facts(path: Path | str) -> JsonObject:
    """The facts that were saved with a checkpoint."""
    note, _ = _contents(Path(path))
    kept: JsonObject = note["facts"]
    return kept


def _contents(path: Path) -> tuple[JsonObject, dict[str, Tensor]]:
    """Note and tensors of a checkpoint, after all checks of the file."""
    if not path.is_file():
        raise UserError(f"There is no checkpoint at {path}; check the path.")
    if is_pickled(path):
        raise UserError(
            f"{path} is a pickle or zip, which could run code, not a gyrograd checkpoint; "
            "build its model and read the weights with load_state."
        )
    try:
        with safe_open(path, framework="pt") as file:
            words = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, ValueError, RuntimeError) as wrong:
        raise UserError(_unreadable(path, wrong)) from wrong
    if "gyrograd" not in words:
        raise UserError(
            f"{path} is safetensors but not written by gyrograd; build its model and read it with load_state."
        )
    return _check_note(path, words["gyrograd"], tensors), tensors


def _unreadable(path: Path, wrong: Exception) -> str:
    with path.open("rb") as file:
        start = file.read(256)
    if b"gyrograd" in start:
        return f"{path} is damaged ({wrong}); copy it again or train again."
    return f"{path} is not a gyrograd checkpoint (nor safetensors); check the path."


def _check_note(path: Path, text: str, tensors: Mapping[str, Tensor]) -> JsonObject:
    """The note, if its schema is known, its checksum matches these tensors, and it describes a model."""
    note = read_note(path, text)
    schema = note.get("schema")
    if type(schema) is not int or schema < 1:
        raise UserError(damage_sentence(path))
    check_schema(path, schema, SCHEMA)
    check_digest(path, note, tensors)
    if not isinstance(note.get("spec"), dict) or not isinstance(note.get("facts"), dict):
        raise UserError(
            f"{path} does not say which model it holds (its note lacks spec or facts); write it with gyrograd.save."
        )
    return note


def _json(note: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(note), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise UserError(
            f"The facts of a checkpoint must be plain JSON values ({wrong}); write repr(...) of others."
        ) from None
