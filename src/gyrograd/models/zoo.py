"""Trained models that come with gyrograd, verified by hash.

`cifar10/lenet-ce` is the folder `zoo/cifar10/lenet-ce`, in the form of model hubs: `model.safetensors`, a card
`config.json` (data, recipe, accuracy, robustness with intervals, command, sha256 of the checkpoint), and the same in
words as `README.md`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from torch import nn

from gyrograd.errors import UserError, did_you_mean
from gyrograd.models import checkpoints
from gyrograd.records import JsonObject, read_json, write_text

HOME = Path(__file__).parent / "zoo"
WEIGHTS, CARD, README = "model.safetensors", "config.json", "README.md"


def names() -> tuple[str, ...]:
    """Every model of the zoo, sorted."""
    found = HOME.rglob(WEIGHTS) if HOME.is_dir() else ()
    return tuple(sorted(path.parent.relative_to(HOME).as_posix() for path in found))


def card(name: str) -> JsonObject:
    """The card of a model; `sha256` is that of its checkpoint."""
    path = _folder(name) / CARD
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
    """The model on the CPU, in single precision and eval mode; its hash must be that of the card."""
    path, known = _folder(name) / WEIGHTS, card(name)
    if hashlib.sha256(path.read_bytes()).hexdigest() != known["sha256"]:
        raise UserError(
            f"The zoo's '{name}' is damaged (its hash is not the card's); install gyrograd again."
        )
    model = checkpoints.load(path).float()
    model.__dict__["class_names"] = known.get("id2label")
    return model


def add(
    name: str, model: nn.Module, facts: JsonObject, home: Path | None = None, *, half: bool = False
) -> Path:
    """Write a model built by gyrograd into the zoo (or another folder); returns its folder.

    half: keep the weights in half precision, at half the size; `load` gives single precision again.
    """
    parts = name.split("/")
    if not all(part and part not in {".", ".."} and "\\" not in part for part in parts):
        raise UserError(
            f"'{name}' is not the name of a zoo model; give DATA/MODEL, such as cifar10/lenet-ce."
        )
    folder = (HOME if home is None else home).joinpath(*parts)
    checkpoints.save(folder / WEIGHTS, copy.deepcopy(model).half() if half else model, facts=facts)
    digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    document = {**facts, "name": name, "sha256": digest}
    write_text(folder / CARD, json.dumps(document, indent=1, sort_keys=True) + "\n")
    write_text(folder / README, in_words(document))
    return folder


def in_words(document: Mapping[str, object]) -> str:
    """A card as Markdown: what the model is, how to load it, every number with its interval and n."""
    lines = [
        "---", "library_name: gyrograd", "license: apache-2.0", "pipeline_tag: image-classification", "---",
        f"# {document['name']}",
    ]  # fmt: skip
    lines += [f"- {key}: {document[key]}" for key in README_FACTS if key in document]
    lines += ["", "```python", "import gyrograd as gg", "", f'model = gg.load("{document["name"]}")', "```"]
    robustness = document.get("robustness")
    measured = {"accuracy": document.get("accuracy")}
    measured |= dict(robustness) if isinstance(robustness, Mapping) else {}
    rows = {name: value for name, value in measured.items() if isinstance(value, Mapping)}
    if rows:
        lines += ["", "| measured | value | 95 % interval | n |", "|---|---|---|---|"]
        lines += [
            f"| {name} | {v['value']:g} | {v['low']:g} to {v['high']:g} | {v['n']:,} |"
            for name, v in rows.items()
        ]
    return "\n".join(lines) + "\n"


README_FACTS = ("architecture", "data", "objective", "epochs", "seed", "command", "hardware", "measured_on")
"""Facts in a model's README, in this order."""


def _folder(name: str) -> Path:
    """The folder of a model; only listed names are looked up, so that none leads out of the zoo."""
    known = names()
    if name not in known:
        raise UserError(f"There is no model '{name}' in the zoo: {did_you_mean(name, known)}")
    return HOME / name
