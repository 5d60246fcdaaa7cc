"""The most damaging attacks found, made again one image at a time to be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.audit.measurements import Bench, attack_of
from gyrograd.audit.methods import Method
from gyrograd.audit.table import column
from gyrograd.metrics import MapSimilarity
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.numerics.maps import reduce
from gyrograd.records import Record

Arrays = dict[str, NDArray[np.float32]]


class Damage(NamedTuple):
    """One attack on one example at the audit's eps, and the cosine it left."""

    cosine: float
    example: int
    method: str
    attack: str


def most_damaging(
    records: Mapping[str, Record], methods: Sequence[Method], attacks: Sequence[str], eps: float, n: int
) -> list[Damage]:
    """The n lowest cosines among attacks that left the prediction alone, each example once."""
    found = [
        damage
        for method in methods
        for attack in attacks
        for damage in _kept(records, method.name, attack, eps)
    ]
    chosen: dict[int, Damage] = {}
    for damage in sorted(found):
        chosen.setdefault(damage.example, damage)
    return list(chosen.values())[:n]


def _kept(records: Mapping[str, Record], method: str, attack: str, eps: float) -> list[Damage]:
    record = records[f"{method} under {attack}"]
    at = record.settings["attack"]["eps"].index(eps)
    cosines, kept = column(record, f"cosine[{at}]"), column(record, f"prediction_kept[{at}]")
    return [Damage(c, e, method, attack) for e, c in cosines.items() if c is not None and kept[e] == 1.0]


def pictured(
    bench: Bench, damages: Sequence[Damage], methods: Sequence[Method], classes: Sequence[str] | None
) -> tuple[list[dict[str, Any]], Arrays]:
    """Rows of the card and their arrays.

    Each attack is run again on its image alone, so that the picture does not depend on which part of the audit
    was read from disk; the last digits can differ from the record's, which came from a batch.
    """
    by_name = {method.name: method for method in methods}
    rows, hits = [], []
    for row, damage in enumerate(damages):
        method = by_name[damage.method]
        run = attack_of(bench, method, damage.attack, (bench.preset.eps,))
        x, target, seed = bench.rows(torch.tensor([damage.example]))
        (hit,) = run(bench.model, method.attribution, x, target, seed=seed)
        rows.append(_row(bench, row, damage, hit, classes))
        hits.append(hit)
    return rows, _arrays(hits)


def _row(
    bench: Bench, row: int, damage: Damage, hit: AttackResult, classes: Sequence[str] | None
) -> dict[str, Any]:
    before, after = (_predicted(bench, x, classes) for x in (hit.x_clean, hit.x))
    return {
        "row": row,
        "example": damage.example,
        "method": damage.method,
        "attack": damage.attack,
        "eps": bench.preset.eps,
        "cosine": float(MapSimilarity()(hit.map_clean, hit.map)),
        "before": before,
        "after": after,
    }


def _predicted(bench: Bench, x: Tensor, classes: Sequence[str] | None) -> dict[str, Any]:
    probability, index = logits_in_parts(bench.model, x).softmax(1).max(1)
    number = int(index)
    named = classes is not None and number < len(classes)
    return {"label": classes[number] if named else f"class {number}", "probability": float(probability)}  # type: ignore[index]


def _arrays(hits: Sequence[AttackResult]) -> Arrays:
    if not hits:
        return {}
    images = {"image": [h.x_clean for h in hits], "attacked": [h.x for h in hits]}
    maps = {"map_clean": [h.map_clean for h in hits], "map_attacked": [h.map for h in hits]}
    return {
        **{key: _array(_coloured(torch.cat(parts)).permute(0, 2, 3, 1)) for key, parts in images.items()},
        **{key: _array(reduce(torch.cat(parts), "abs_sum")) for key, parts in maps.items()},
    }


def _coloured(x: Tensor) -> Tensor:
    """Three channels: a grey image three times, of any other number the first three (or the first, grey)."""
    return x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)


def _array(x: Tensor) -> NDArray[np.float32]:
    return np.asarray(x.detach().cpu().float().numpy(), dtype=np.float32)
