"""Scales: the sizes of a run, as data. A paper's `scales.toml` holds sizes; the method is in the code.

    [small]
    compares = "orders"       # what can be compared with the paper: nothing, orders, values
    seeds = 1
    [small.settings.cifar10-lenet]
    data = { name = "cifar10" }
    epochs = 4

A setting may have any of the sizes in `SIZES`, and nothing else.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.experiments.claims import Comparison
from gyrograd.registry import Settings

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
"""The sizes that a scale may set; a test checks every scales.toml."""
CHANGES = "training"
"""Key for changes of the training (`--train`) among the sizes of a setting; never set by a file."""


@dataclass(frozen=True)
class Scale:
    """The sizes of a run by setting, and which claims of the paper it can be compared with."""

    name: str
    compares: Comparison
    seeds: int
    settings: dict[str, Settings] = field(default_factory=dict)


def read_scale(path: Path, name: str) -> Scale:
    """Read one scale from a paper's file."""
    check_name("scale", name, SCALES)
    entry = tomllib.loads(path.read_text(encoding="utf-8"))[name]
    for setting, sizes in entry["settings"].items():
        for size in sizes:
            if size not in SIZES:
                raise UserError(
                    f"{path.name}, {name}, {setting}: '{size}' is not a size: {did_you_mean(size, SIZES)}"
                )
    return Scale(name, entry["compares"], int(entry["seeds"]), entry["settings"])


def pick_evenly(items: list[Any], n: int | None) -> list[Any]:
    """n items at even distances, including the first and the last; all items if n is None."""
    if n is None or n >= len(items):
        return list(items)
    if n == 1:
        return [items[-1]]
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]
