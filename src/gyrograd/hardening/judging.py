"""The yardstick of hardening: one audit of the net as it came, the same audit of the net that was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyrograd.audit import Card, Preset, audit
from gyrograd.audit.presets import preset_of
from gyrograd.audit.table import STEADY, kept_over_eps
from gyrograd.data import Dataset
from gyrograd.measurement import mean_over
from gyrograd.numerics.statistics import Stat
from gyrograd.types import Model

REACH = (1 / 255, 16 / 255)
"""Large images of plain nets lose half of their top pixels below 2/255, and steady nets keep it beyond 8/255: the radii
of the presets alone would cut off both ends."""


@dataclass(frozen=True, eq=False)
class Held:
    """How far one explanation holds under `auto`.

    radius: the steady radius, of 255. kept: for each image the share of the top pixels that stays, mean over the
    radii attacked. insertion: how faithful the map is, for each image.
    """

    method: str
    label: str
    radius: Stat | None
    kept: list[float | None]
    insertion: list[float | None]


def yardstick(preset: str | Preset, images: int) -> Preset:
    """The preset as hardening needs it: every image attacked by `auto`, from near to far, and no sweep of widths."""
    chosen = preset_of(preset)
    curve = tuple(sorted({*REACH, *chosen.curve}))
    return preset_of(chosen, attacks=("auto",), curve=curve, attacked_images=images, sweep={})


def judged(model: Model, data: Dataset, preset: Preset, out: Path, *, seed: int, name: str) -> Card:
    """The audit, kept in a folder: killed, it goes on. `name`: what the model is called there."""
    card = audit(model, data, preset=preset, out=out, seed=seed, model_name=name, data_name=data.name)
    assert isinstance(card, Card)  # a data set holds images
    return card


def all_held(card: Card, preset: Preset) -> list[Held]:
    """Every explanation of an audit."""
    return [_held(card, preset, method) for method in card.document["methods"]]


def best_held(card: Card, preset: Preset) -> Held:
    """The explanation the audit recommends; if it recommends none, the one that holds furthest."""
    methods: Sequence[Mapping[str, Any]] = card.document["methods"]
    chosen = next((method for method in methods if method["recommended"]), None)
    if chosen is None:
        chosen = max(methods, key=lambda method: (method["columns"].get(STEADY) or {"value": -1.0})["value"])
    return _held(card, preset, chosen)


def _held(card: Card, preset: Preset, method: Mapping[str, Any]) -> Held:
    name = method["name"]
    assert card.table is not None  # an audit that just ran has it
    _, kept, _ = kept_over_eps(card.table, name, preset)
    insertion = mean_over(card.table.curve(method=name, metric="insertion"))
    return Held(
        name,
        method["label"],
        method["columns"].get(STEADY),
        list(mean_over(kept).values()),
        [insertion[example] for example in mean_over(kept)],
    )
