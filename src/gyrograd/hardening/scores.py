"""How steady each explanation of a net is, by an audit; hardening compares these scores before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyrograd.audit import Card, Preset
from gyrograd.audit.presets import preset_of
from gyrograd.audit.table import STEADY, kept_over_eps
from gyrograd.measurement import mean_over
from gyrograd.numerics.statistics import Stat

EXTRA_RADII = (1 / 255, 16 / 255)
"""Radii added to those of the presets: plain nets on large images lose half of their top pixels below 2/255, and steady
nets keep half beyond 8/255."""


@dataclass(frozen=True, eq=False)
class MethodScore:
    """Steadiness and faithfulness of one explanation method under the attack `auto`.

    radius: steady radius in units of 1/255. kept: per image, the share of the top pixels that stays, averaged over the
    attacked radii. insertion: insertion score per image.
    """

    method: str
    label: str
    radius: Stat | None
    kept: list[float | None]
    insertion: list[float | None]


def audit_preset(preset: str | Preset, images: int) -> Preset:
    """The preset changed for hardening: every image attacked by `auto` at more radii, no sweep of smoothing widths."""
    chosen = preset_of(preset)
    curve = tuple(sorted({*EXTRA_RADII, *chosen.curve}))
    return preset_of(chosen, attacks=("auto",), curve=curve, attacked_images=images, sweep={})


def method_scores(card: Card, preset: Preset) -> dict[str, MethodScore]:
    """The scores of an audit by method."""
    return {method["name"]: _score(card, preset, method) for method in card.document["methods"]}


def best_score(card: Card, preset: Preset) -> MethodScore:
    """The score of the recommended method, or of the one with the largest steady radius if none is recommended."""
    methods: Sequence[Mapping[str, Any]] = card.document["methods"]
    chosen = next((method for method in methods if method["recommended"]), None)
    if chosen is None:
        chosen = max(methods, key=lambda method: (method["columns"].get(STEADY) or {"value": -1.0})["value"])
    return _score(card, preset, chosen)


def _score(card: Card, preset: Preset, method: Mapping[str, Any]) -> MethodScore:
    name = method["name"]
    assert card.table is not None  # an audit that just ran has it
    _, kept = kept_over_eps(card.table, name, preset)
    insertion = mean_over(card.table.curve(method=name, metric="insertion"))
    return MethodScore(
        name,
        method["label"],
        method["columns"].get(STEADY),
        list(mean_over(kept).values()),
        [insertion[example] for example in mean_over(kept)],
    )
