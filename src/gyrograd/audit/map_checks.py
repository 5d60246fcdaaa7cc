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
from gyrograd.metrics.sanity_checks import conserved_relevance, empty_top, is_constant, shuffle_weights
from gyrograd.numerics.similarity import cosine
from gyrograd.types import Inputs, Model, PerExample


def row_of(method: str) -> str:
    """The table's row of a method's sanity checks."""
    return f"{method}, sanity checks"


def map_check_plans(inputs: AuditInputs, methods: Sequence[Method]) -> list[Plan]:
    """Plans of the sanity checks of every method's maps, on the first images."""
    images = inputs.preset.flag_images
    checks = MapChecks(inputs.sample, inputs.sample.index[:images], inputs.seed, inputs.top)
    metric = Metric("map_checks", checks.columns, settings={"k": inputs.top})
    return [
        Plan(
            {row_of(method.name): method.attribution},
            # The map, and that of the model with shuffled weights.
            (replace(CLEAN, effort=(OTHER, 2.0 * map_cost(method.attribution))),),
            (metric,),
            images,
            inputs.seed,
        )
        for method in methods
    ]


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
    _twin: Model | None = field(default=None, repr=False)

    def columns(self, at: Look) -> dict[str, Tensor]:
        """Maps that are not finite, constant or sparse, cosines with the twin's and with earlier maps, LRP's relevance."""
        if self._twin is None:  # once per process: the methods share these checks
            self._twin = shuffle_weights(at.model, self.seed)
        # Of a copy of the images, since for the same tensor `Look.attribution` returns the map of the model.
        other = at.attribution(self._twin, at.x.clone(), at.target).detach()
        relevance = conserved_relevance(at.model, at.attribution, at.x, at.target)
        return {
            "not_finite": ~at.map.isfinite().flatten(1).all(1),
            "constant": is_constant(at.map),
            "empty_top": empty_top(at.map, self.top),
            "twin_cosine": cosine(reduce_map(at.map, "abs_sum"), reduce_map(other, "abs_sum")),
            "cosines_with_earlier": self._cosines_with_earlier(at),
            **({} if relevance is None else {"relevance": relevance}),
        }

    def _cosines_with_earlier(self, at: Look) -> PerExample:
        """The sum of the cosines of each map with those of all examples before it."""
        places = [self._places[stream] for stream in at.seed.tolist()]
        pixels = dict(zip(places, _pixels(at.map), strict=True))
        # Empty if one shard holds all examples, as in every preset but `thorough`.
        if missing := sorted(set(range(max(places))) - set(places)):
            x, target, _ = self.sample.rows(
                [self.examples[place] for place in missing], self.seed, at.x.device
            )
            earlier = at.attribution(at.model, x, target).detach()
            pixels |= zip(missing, _pixels(earlier), strict=True)
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


def _pixels(maps: Inputs) -> Tensor:
    return reduce_map(maps, "abs_sum").flatten(1)
