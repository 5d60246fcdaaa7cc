"""Scales as data: how large a run is. A paper's `scales.toml` holds sizes; the method is in the code alone.

    [small]
    compares = "orders"       # what can be compared with the paper: nothing, orders, values
    seeds = 1
    [small.settings.cifar10-lenet]
    data = { name = "cifar10" }
    epochs = 4

Which sizes a setting has is the paper's matter; those in `SIZES` may be there and nothing else.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.experiments.claims import Comparison

SCALES = ("smoke", "small", "paper")

SIZES = {
    "data": "the data set: its name and settings",
    "side": "images are averaged down to this many pixels a side",
    "model": "the model: its name and settings",
    "train": "training images",
    "images": "test images that are measured",
    "epochs": "passes over the training images",
    "batch_size": "images a training step",
    "draws": "random perturbations of each image",
    "steps": "steps of an attack",
    "grid": "weights of each regulariser that are tried, evenly picked from the paper's list",
    "levels": "points of a sweep, evenly picked from the paper's list",
    "rounds": "repetitions of a timing",
    "samples": "samples of LIME and SHAP",
    "pictures": "images in a figure",
    "why": "what stands for what, and why",
}
"""What a scale may set, and nothing else: a test holds every scales.toml to it."""
CHANGES = "training"
"""Beside the sizes of a setting: what the user changed of the training (`--train`), never what a file says."""


@dataclass(frozen=True)
class Scale:
    """How large a run is: sizes by setting, and what may be compared with the paper."""

    name: str
    compares: Comparison
    seeds: int
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_scale(path: Path, name: str) -> Scale:
    """One scale out of a paper's file."""
    check_name("scale", name, SCALES)
    entry = tomllib.loads(path.read_text(encoding="utf-8"))[name]
    for setting, sizes in entry["settings"].items():
        for size in sizes:
            if size not in SIZES:
                raise UserError(
                    f"{path.name}, {name}, {setting}: '{size}' is not a size: {did_you_mean(size, SIZES)}"
                )
    return Scale(name, entry["compares"], int(entry["seeds"]), entry["settings"])


def picked(items: list[Any], n: int | None) -> list[Any]:
    """n of the items, evenly, first and last among them; all of them without n."""
    if n is None or n >= len(items):
        return list(items)
    if n == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]
