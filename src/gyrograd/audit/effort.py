"""What a cell is guessed to cost, so that a bar can tell the time left before it has seen one of each.

Counted in forward passes of one image: a gradient is about three, a step of an attack about twelve (a map with its
graph, that graph's derivative, the verdict). What a pass takes, and what a second derivative takes beside it, differs
from net to net by factors of two to three: the bar measures both kinds as they go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gyrograd.attributions.settings import passes_of
from gyrograd.audit.measurements import NOISE, Bench, at, radii_of, steps_of, swept, under
from gyrograd.audit.methods import Method
from gyrograd.audit.presets import Preset
from gyrograd.progress import Effort

GRADIENT = 3
STEP = 12
ATTACK, OTHER = "attack", "other"


def efforts(bench: Bench, methods: list[Method]) -> Callable[[Any], Effort]:
    """The guess for a cell and its examples, as `evaluated` hands them to a bar."""
    known: dict[str, Effort] = {}
    for number, method in enumerate(methods):
        known |= _of_method(method, bench.preset, number)
    known |= {at(*point): (OTHER, _of_sweep(bench.preset)) for point in swept(bench, methods)}
    rest: Effort = (OTHER, 2.0 * bench.preset.points)

    def effort(pair: tuple[Any, Sequence[int]]) -> Effort:
        cell, examples = pair
        kind, passes = known.get(cell.name, rest)
        return kind, passes * len(examples)

    return effort


def _of_method(method: Method, preset: Preset, number: int) -> dict[str, Effort]:
    look = GRADIENT * method.passes + preset.points
    clean = GRADIENT * method.passes * (1 + preset.draws) + 2 * preset.points
    rows = passes_of(method.search or method.attribution)
    noisy = len(preset.radii) if number < preset.curve_methods else 1
    radii = {name: len(radii_of(preset, name, number)) for name in preset.searches}
    attacks: dict[str, Effort] = {
        under(method.name, name): (
            ATTACK,
            float(count * (STEP * rows * steps_of(preset, method, name) + look)),
        )
        for name, count in radii.items()
    }
    return {
        method.name: (OTHER, float(clean)),
        under(method.name, NOISE): (OTHER, float(noisy * look)),
        **attacks,
    }


def _of_sweep(preset: Preset) -> float:
    return float(GRADIENT * preset.sweep_draws * (1 + preset.sweep_noise) + preset.points)
