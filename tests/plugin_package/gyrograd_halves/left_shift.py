"""An attack: an objective; the search, its settings and its checks come with `MapSearch`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gyrograd.attacks import MapSearch
from gyrograd.attacks.objectives import Objective, Scene
from gyrograd.registry import register


@register(
    "attack", "left_shift", paper="own", group="map", about="Moves the map to the left half of the image."
)
@dataclass(frozen=True, kw_only=True, eq=False)
class LeftShift(MapSearch):
    """Move the map to the left: least share of its size on the right half of the image."""

    def objective(self, scene: Scene) -> Objective:
        """The share on the right, one number per example."""

        def on_the_right(map: Tensor, *_: Tensor) -> Tensor:
            sizes = map.abs()
            return sizes[..., map.shape[3] // 2 :].flatten(1).sum(1) / sizes.flatten(1).sum(1)

        return on_the_right
