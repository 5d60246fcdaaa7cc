"""The most damaging attacks found, made again one image at a time to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.audit.methods import Method
from gyrograd.audit.plans import AuditInputs, search
from gyrograd.audit.presets import Preset
from gyrograd.measurement import Table
from gyrograd.metrics import MapSimilarity
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.numerics.maps import reduce
from gyrograd.reporting.schema import Predicted, WorstAttack

Arrays = dict[str, NDArray[np.float32]]


class Damage(NamedTuple):
    """One attack on one example at the audit's eps, and the cosine it left."""

    cosine: float
    example: int
    method: str
    attack: str


def most_damaging(table: Table, methods: Sequence[Method], preset: Preset) -> list[Damage]:
    """The lowest cosines among attacks that left the prediction alone, each example once; as many as are shown."""
    found = []
    for method in methods:
        for attack in preset.searches:
            cosines, kept = (
                table.of(method=method.name, condition=attack, eps=preset.eps, metric=metric)
                for metric in ("cosine", "prediction_kept")
            )
            found += [
                Damage(c, e, method.name, attack)
                for e, c in cosines.items()
                if c is not None and kept[e] == 1.0
            ]
    chosen: dict[int, Damage] = {}
    for damage in sorted(found):
        chosen.setdefault(damage.example, damage)
    return list(chosen.values())[: preset.pictures]


def pictured(
    inputs: AuditInputs, damages: Sequence[Damage], methods: Sequence[Method]
) -> tuple[list[WorstAttack], Arrays]:
    """Rows of the card and their arrays.

    Each attack is run again on its image alone, so that the picture does not depend on which part of the audit
    was read from disk; the last digits can differ from the record's, which came from a batch.
    """
    by_name = {method.name: method for method in methods}
    rows: list[WorstAttack] = []
    hits = []
    for row, damage in enumerate(damages):
        method = by_name[damage.method]
        run = search(inputs, method, damage.attack, (inputs.preset.eps,)).attack
        x, target, seed = inputs.rows([damage.example])
        (hit,) = run(inputs.model, method.attribution, x, target, seed=seed)
        before, after = (_predicted(inputs, x) for x in (hit.x_clean, hit.x))
        rows.append(
            {
                "row": row,
                "example": damage.example,
                "method": damage.method,
                "attack": damage.attack,
                "eps": inputs.preset.eps,
                "cosine": float(MapSimilarity()(hit.map_clean, hit.map)),
                "before": before,
                "after": after,
            }
        )
        hits.append(hit)
    return rows, _arrays(hits)


def _predicted(inputs: AuditInputs, x: Tensor) -> Predicted:
    probability, index = logits_in_parts(inputs.model, x).softmax(1).max(1)
    number, names = int(index), inputs.classes or ()
    label = names[number] if number < len(names) else f"class {number}"
    return {"label": label, "probability": float(probability)}


def _arrays(hits: Sequence[AttackResult]) -> Arrays:
    if not hits:
        return {}
    images = {"image": [h.x_clean for h in hits], "attacked": [h.x for h in hits]}
    maps = {"map_clean": [h.map_clean for h in hits], "map_attacked": [h.map for h in hits]}
    arrays = {key: _coloured(torch.cat(parts)).permute(0, 2, 3, 1) for key, parts in images.items()}
    arrays |= {key: reduce(torch.cat(parts), "abs_sum") for key, parts in maps.items()}
    return {key: array.detach().cpu().float().numpy() for key, array in arrays.items()}


def _coloured(x: Tensor) -> Tensor:
    """Three channels: a grey image three times, of any other number the first three (or the first, grey)."""
    return x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)
