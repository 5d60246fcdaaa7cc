"""Sanity checks of maps as measured columns: workers share them, and a resumed audit reads them from disk.

The flags follow from the table alone (`audit.sanity_checks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from gyrograd.audit.methods import Method
from gyrograd.audit.plans import OTHER, AuditInputs, map_cost
from gyrograd.measurement import CLEAN, Look, Metric, Plan, Sample, streams
from gyrograd.metrics.reductions import reduce_map
from gyrograd.metrics.sanity_checks import (
    conserved_relevance,
    empty_top,
    has_weights,
    is_constant,
    shuffle_weights,
)
from gyrograd.numerics.similarity import cosine
from gyrograd.types import Inputs, Model, PerExample

UNSHUFFLED = (
    "The model has no weights that can be shuffled (a frozen script or a black box has none), so it was not checked "
    "whether its maps ignore it."
)


def row_of(method: str) -> str:
    """The table's row of a method's sanity checks."""
    return f"{method}, sanity checks"


def map_check_plans(inputs: AuditInputs, methods: Sequence[Method]) -> list[Plan]:
    """Plans of the sanity checks of every method's maps, on the first images."""
    first = inputs.sample.index[: inputs.preset.flag_images]
    return plans_of(MapChecks(inputs.sample, first, inputs.seed, inputs.top), methods)


@dataclass(eq=False)
class MapChecks:
    """The columns of the checks: what is compared with other images is compared with earlier ones of `examples`.

    Thus a value does not depend on the batch, and the values of all examples contain each pair once.
    """

    sample: Sample
    examples: tuple[int, ...]
    seed: int
    top: int
    """Number of pixels in the top of a map."""
    reduce: str = "abs_sum"
    """How maps are compared: pixels by their size, features with their sign."""
    _twin: Model | None = field(default=None, repr=False)

    def columns(self, at: Look) -> dict[str, Tensor]:
        """Maps that are not finite, constant or sparse, cosines with the twin's and earlier maps, LRP's relevance."""
        relevance = conserved_relevance(at.model, at.attribution, at.x, at.target)
        return {
            "not_finite": ~at.map.isfinite().flatten(1).all(1),
            "constant": is_constant(at.map),
            "empty_top": empty_top(at.map, self.top),
            "twin_cosine": self._twin_cosine(at),
            "cosines_with_earlier": self._cosines_with_earlier(at),
            **({} if relevance is None else {"relevance": relevance}),
        }

    def _twin_cosine(self, at: Look) -> PerExample:
        """The cosine of each map with that of a copy with shuffled weights; NaN if the model has none to shuffle."""
        if not has_weights(at.model):
            return at.map.new_full((len(at.map),), torch.nan)
        if self._twin is None:  # once per process: the methods share these checks
            self._twin = shuffle_weights(at.model, self.seed)
        # Of a copy of the images, since for the same tensor `Look.attribution` returns the map of the model.
        other = at.attribution(self._twin, at.x.clone(), at.target).detach()
        return cosine(reduce_map(at.map, self.reduce), reduce_map(other, self.reduce))

    def _cosines_with_earlier(self, at: Look) -> PerExample:
        """The sum of the cosines of each map with those of all examples before it."""
        places = [self._places[stream] for stream in at.seed.tolist()]
        pixels = dict(zip(places, self._pixels(at.map), strict=True))
        # Empty if one shard holds all examples, as in every preset but `thorough`.
        if missing := sorted(set(range(max(places))) - set(places)):
            x, target, _ = self.sample.rows(
                [self.examples[place] for place in missing], self.seed, at.x.device
            )
            earlier = at.attribution(at.model, x, target).detach()
            pixels |= zip(missing, self._pixels(earlier), strict=True)
        return torch.stack(
            [
                cosine(pixels[place].expand(place, -1), torch.stack([pixels[i] for i in range(place)])).sum()
                if place
                else pixels[0].new_zeros(())
                for place in places
            ]
        )

    @cached_property
    def _places(self) -> dict[int, int]:
        """The place of an example among the checked ones by its random stream, by which a metric knows it."""
        keys = streams(self.seed, torch.tensor(self.examples)).tolist()
        return {stream: place for place, stream in enumerate(keys)}

    def _pixels(self, maps: Inputs) -> Tensor:
        return reduce_map(maps, self.reduce).flatten(1)


def plans_of(checks: MapChecks, methods: Sequence[Method]) -> list[Plan]:
    """Plans of these checks, one per method."""
    metric = Metric("map_checks", checks.columns, settings={"k": checks.top})
    return [
        Plan(
            {row_of(method.name): method.attribution},
            # The map, and that of the model with shuffled weights.
            (replace(CLEAN, effort=(OTHER, 2.0 * map_cost(method.attribution))),),
            (metric,),
            len(checks.examples),
            checks.seed,
        )
        for method in methods
    ]
