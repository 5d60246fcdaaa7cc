"""Trained models that come with gyrograd: a checkpoint and a card for each, read offline, verified by hash.

`cifar10/lenet-ce` is `zoo/cifar10/lenet-ce.safetensors` with `lenet-ce.json` beside it. A card holds what is known
of the model (data, recipe, accuracy, robustness with its interval, command) and the sha256 of the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from torch import nn

from gyrograd.errors import UserError, did_you_mean
from gyrograd.models import checkpoints
from gyrograd.records import JsonObject, read_json, write_text

HOME = Path(__file__).parent / "zoo"


def names() -> tuple[str, ...]:
    """Every model of the zoo, sorted."""
    found = HOME.rglob("*.safetensors") if HOME.is_dir() else ()
    return tuple(sorted(path.relative_to(HOME).with_suffix("").as_posix() for path in found))


def card(name: str) -> JsonObject:
    """What is known of a model; `sha256` is that of its checkpoint."""
    path = _file(name, ".json")
    try:
        document = read_json(path)
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("sha256"), str):
        raise UserError(
            f"The card of the zoo's '{name}' is missing or damaged ({path}); install gyrograd again."
        )
    return document


def load(name: str) -> nn.Module:
    """The model, on the CPU and in eval mode, once its hash is found to be the card's."""
    path = _file(name, ".safetensors")
    if hashlib.sha256(path.read_bytes()).hexdigest() != card(name)["sha256"]:
        raise UserError(
            f"The zoo's '{name}' is damaged (its hash is not the card's); install gyrograd again."
        )
    return checkpoints.load(path)


def add(name: str, model: nn.Module, facts: JsonObject, home: Path | None = None) -> Path:
    """Write a model built by gyrograd and its card into the zoo (or another folder); returns the card's path."""
    parts = name.split("/")
    if not all(part and part not in {".", ".."} and "\\" not in part for part in parts):
        raise UserError(f"'{name}' is no name for the zoo; give DATA/MODEL, such as cifar10/lenet-ce.")
    path = (HOME if home is None else home).joinpath(*parts[:-1], f"{parts[-1]}.safetensors")
    checkpoints.save(path, model, facts=facts)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    document = {**facts, "name": name, "sha256": digest}
    write_text(path.with_suffix(".json"), json.dumps(document, indent=1, sort_keys=True) + "\n")
    return path.with_suffix(".json")


def _file(name: str, suffix: str) -> Path:
    """A file of a model that exists; only listed names are looked up, so none leads out of the folder."""
    known = names()
    if name not in known:
        raise UserError(f"There is no model '{name}' in the zoo: {did_you_mean(name, known)}")
    return HOME / f"{name}{suffix}"
