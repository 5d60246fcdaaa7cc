"""Pictures of the most damaging attacks.

They are run again on their images; beside each is the recommended method, attacked on the same image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.attacks import AttackResult
from gyrograd.audit.methods import Method
from gyrograd.audit.plans import Attack, AuditInputs, search
from gyrograd.audit.presets import AIMED, Preset
from gyrograd.measurement import Table
from gyrograd.metrics import MapSimilarity, TopKIntersection
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.numerics.maps import reduce
from gyrograd.reporting.pictures import BEST
from gyrograd.reporting.schema import Predicted, WorstAttack
from gyrograd.types import AttackOutcome

Arrays = dict[str, NDArray[np.float32]]


class Damage(NamedTuple):
    """One attack on one example at the audit's eps: the share of top pixels kept, and the cosine."""

    kept: float
    cosine: float
    example: int
    method: str
    attack: str

    @property
    def key(self) -> Attack:
        """Its place in the attacks that an audit keeps."""
        return self.example, self.method, self.attack


def most_damaging(table: Table, methods: Sequence[Method], preset: Preset) -> list[Damage]:
    """The attacks that keep the prediction and the fewest top pixels, each example once, as many as are shown."""
    chosen: dict[int, Damage] = {}
    for damage in sorted(each for method in methods for each in damages(table, method, preset)):
        chosen.setdefault(damage.example, damage)
    return list(chosen.values())[: preset.pictures]


def pictured_attacks(preset: Preset) -> list[str]:
    """The attacks to choose pictures from: of the searches of `auto`, only the one for the fewest top pixels kept.

    That is what a picture shows, and to repeat a later search would mean to repeat all those before it, too.
    """
    later = AIMED.keys() - {"auto"} if "auto" in preset.searches else ()
    return [name for name in preset.searches if name not in later]


def damages(table: Table, method: Method, preset: Preset) -> list[Damage]:
    """The attacks on a method at the audit's eps that keep the prediction."""
    found = []
    for attack in pictured_attacks(preset):
        kept, cosines, same = (
            table.of(method=method.name, condition=attack, eps=preset.eps, metric=metric)
            for metric in ("kept", "cosine", "prediction_kept")
        )
        for example, share in kept.items():
            cosine = cosines[example]
            if share is not None and cosine is not None and same[example] == 1.0:
                found.append(Damage(share, cosine, example, method.name, attack))
    return found


def attack_rows(
    inputs: AuditInputs, methods: Sequence[Method], table: Table, worst: Sequence[Damage], best: Method | None
) -> tuple[list[WorstAttack], Arrays]:
    """The card's rows of these attacks, and the arrays of their pictures; `best` is the recommended method.

    The attacks are run again on these images, so that the pictures do not depend on which results were read from disk;
    the last digits can differ from the record's, which was measured in another batch.
    """
    beside: dict[int, Damage] = {}
    for each in [] if best is None else sorted(damages(table, best, inputs.preset)):
        beside.setdefault(each.example, each)
    others = [beside.get(damage.example) for damage in worst]
    others = [None if o is None or o.method == d.method else o for o, d in zip(others, worst, strict=True)]
    _attack_again(inputs, methods, [each for each in (*worst, *others) if each is not None])
    rows: list[WorstAttack] = []
    hits, pairs = [], []
    for row, (damage, other) in enumerate(zip(worst, others, strict=True)):
        hit = inputs.hits[damage.key]
        pair = None if other is None else inputs.hits[other.key]
        cosine, kept = _similarity(inputs, hit)
        rows.append(
            {
                "row": row,
                "example": damage.example,
                "name": inputs.names.get(damage.example),
                "method": damage.method,
                "attack": damage.attack,
                "eps": inputs.preset.eps,
                "cosine": cosine,
                "kept": kept,
                "before": _prediction(inputs, hit.x_clean),
                "after": _prediction(inputs, hit.x),
                "best": None,
            }
        )
        if pair is not None and other is not None:
            cosine, kept = _similarity(inputs, pair)
            rows[-1]["best"] = {"method": other.method, "cosine": cosine, "kept": kept}
        hits.append(hit)
        pairs.append(pair)
    return rows, picture_arrays(hits) | _best_arrays(hits, pairs)


def _attack_again(inputs: AuditInputs, methods: Sequence[Method], wanted: Sequence[Damage]) -> None:
    """Run these attacks, each once even if the page is written several times, and keep them in `inputs.hits`."""
    for method in methods:
        for attack in pictured_attacks(inputs.preset):
            missing = {
                each.example: each.key
                for each in wanted
                if (each.method, each.attack) == (method.name, attack) and each.key not in inputs.hits
            }
            if not missing:
                continue
            run = search(inputs, method, attack, (inputs.preset.eps,))
            x, target, seed = inputs.rows([*missing])
            (hit,) = run.attack(inputs.model, method.attribution, x, target, seed=seed)
            inputs.hits.update({key: hit.row(i) for i, key in enumerate(missing.values())})


def _similarity(inputs: AuditInputs, hit: AttackResult) -> tuple[float, float]:
    """Cosine of the two maps, and the share of the top pixels kept."""
    maps = (hit.map_clean, hit.map)
    return float(MapSimilarity()(*maps)), float(TopKIntersection(k=inputs.top)(*maps))


def _prediction(inputs: AuditInputs, x: Tensor) -> Predicted:
    """The predicted class, by its name if it has one, and its probability."""
    probability, index = logits_in_parts(inputs.model, x).softmax(1).max(1)
    label = f"class {int(index)}"
    if inputs.classes is not None and int(index) < len(inputs.classes):
        label = inputs.classes[int(index)]
    return {"label": label, "probability": float(probability)}


def picture_arrays(hits: Sequence[AttackOutcome]) -> Arrays:
    """Images and maps before and after attacks, one row per image, as `reporting.pictures` draws them."""
    if not hits:
        return {}
    clean, moved = (torch.cat(maps) for maps in ([h.map_clean for h in hits], [h.map for h in hits]))
    # Three channels: a grey image is repeated; of other images the first three channels (or the first, as grey).
    image, attacked = (
        (x[:, :3] if x.shape[1] >= 3 else x[:, :1].expand(-1, 3, -1, -1)).permute(0, 2, 3, 1)
        for x in (torch.cat([h.x_clean for h in hits]), torch.cat([h.x for h in hits]))
    )
    arrays = {
        "image": image,
        "attacked": attacked,
        "map_clean": reduce(clean, "abs_sum"),
        "map_attacked": reduce(moved, "abs_sum"),
        "signed_clean": reduce(clean, "sum"),
        "signed_attacked": reduce(moved, "sum"),
    }
    return {key: array.detach().cpu().float().numpy() for key, array in arrays.items()}


def _best_arrays(hits: Sequence[AttackResult], pairs: Sequence[AttackResult | None]) -> Arrays:
    """The arrays of the recommended method, with zeros for images without one; empty if there is none at all."""
    if all(pair is None for pair in pairs):
        return {}
    found = picture_arrays([hit if pair is None else pair for hit, pair in zip(hits, pairs, strict=True)])
    del found["image"]
    for row, pair in enumerate(pairs):
        if pair is None:
            for array in found.values():
                array[row] = 0
    return {BEST + key: array for key, array in found.items()}
