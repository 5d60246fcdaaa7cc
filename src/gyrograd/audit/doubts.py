"""Self-suspicion: what else would give these numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gyrograd.audit.measurements import Bench
from gyrograd.audit.methods import Method
from gyrograd.audit.table import Column, attacked_only, column, mean_over, points
from gyrograd.metrics import Flag, suspicion
from gyrograd.records import Record

HOLLOW = {"ignores_model", "same_map_everywhere", "constant_map", "calm_but_empty"}
"""Flags of maps that hold still for a reason that makes them useless."""


def doubts(bench: Bench, records: Mapping[str, Record], methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Every flag raised, of the model and of each method."""
    x, target, _ = bench.rows(torch.tensor(bench.index[: bench.preset.flag_images]))
    found: list[tuple[str, Flag | None]] = [
        *(("model", flag) for flag in suspicion.model_flags(bench.model, x)),
        ("model", suspicion.training_mode(bench.model)),
        ("model", suspicion.saturated(bench.model, x, target)),
    ]
    for method in methods:
        maps = method.attribution(bench.model, x, target).detach()
        found += [(method.name, flag) for flag in _of_maps(bench, method, maps, x, target)]
        found += [(method.name, flag) for flag in _of_records(bench, records, method)]
    return [_row(where, flag) for where, flag in found if flag is not None]


def _of_maps(bench: Bench, method: Method, maps: Tensor, x: Tensor, target: Tensor) -> list[Flag | None]:
    return [
        suspicion.not_finite_maps(maps),
        suspicion.relevance_lost(bench.model, method.attribution, x, target),
        suspicion.constant_maps(maps),
        suspicion.same_map_everywhere(maps) if len(maps) > 1 else None,
        suspicion.ignores_model(bench.model, method.attribution, x, target, seed=bench.seed),
    ]


def _of_records(bench: Bench, records: Mapping[str, Record], method: Method) -> list[Flag | None]:
    """Flags that need no further pass: of draws, of chance, of noise against attack, of searches that stood still."""
    record = records[method.name]
    per_draw = torch.stack(_shared(*points(record, "rps")), 1)
    rps, insertion = mean_over(points(record, "rps")), mean_over(points(record, "insertion"))
    found = [
        suspicion.calm_but_empty(*_shared(rps, insertion, column(records["model"], "chance"))),
        suspicion.too_few_draws(per_draw) if len(per_draw) > 1 else None,
    ]
    noise = records[f"{method.name} under noise"]
    moved = attacked_only(records, method.name, bench.preset, "cosine")
    index = noise.settings["eps"].index(bench.preset.eps)
    attacked, noisy = _shared(moved, column(noise, f"cosine[{index}]"))
    if len(attacked):
        found.append(suspicion.noise_beats_attack(attacked, noisy, "higher is better"))
    if any(value is None for value in moved.values()):
        x, target, _ = bench.rows(torch.tensor([e for e, v in moved.items() if v is None]))
        found.append(suspicion.zero_derivative(bench.model, method.search or method.attribution, x, target))
    return found


def _shared(*columns: Column) -> list[Tensor]:
    """The columns over the examples that all of them have."""
    common = [e for e in columns[0] if all(c.get(e) is not None for c in columns)]
    return [_numbers([c[e] for e in common]) for c in columns]


def _numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _row(where: str, flag: Flag) -> dict[str, Any]:
    return {
        "name": flag.name,
        "where": where,
        "raised_if": flag.raised_if,
        "explanation": flag.explanation,
        "what_to_do": flag.what_to_do,
        "measured": flag.measured,
    }


def suspects(flags: Sequence[Mapping[str, Any]]) -> set[str]:
    """The methods whose steadiness counts for nothing."""
    return {str(flag["where"]) for flag in flags if flag["name"] in HOLLOW}
