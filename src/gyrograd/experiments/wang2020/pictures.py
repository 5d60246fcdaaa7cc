"""Pictures of maps, with two numbers for their looks: roughness and brightness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions import predict
from gyrograd.experiments.engine import Finish
from gyrograd.experiments.pictures import BAR, Arrays, Shown, colours, grey, with_pictures
from gyrograd.experiments.results import MEDIAN, Results
from gyrograd.experiments.trained_nets import Columns, Maker, Part, TrainedNet
from gyrograd.numerics.maps import reduce
from gyrograd.reporting import Figure, Section, map_grid
from gyrograd.types import Attribution, Inputs, Labels, Model, PerExample

Maps = Callable[[str, Mapping[str, Any]], dict[str, Attribution]]
"""The maps of a setting by name."""


def looks_of(maps: Maps, beside: str | None = None) -> Maker:
    """Roughness of every map. With `beside`, also brightness: the mean pixel relative to that map's.

    Brightness is summarized by the median, because the other map is nearly zero if the net is certain of its class.
    """

    def of(trained_net: TrainedNet) -> list[Part]:
        every = maps(trained_net.setting, trained_net.sizes)
        return [_look(trained_net, every, name, beside) for name in every]

    return of


def _look(trained_net: TrainedNet, maps: dict[str, Attribution], name: str, beside: str | None) -> Part:
    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predict(model, x)
        map = reduce(maps[name](model, x, target).detach())
        if beside is None:
            return {"roughness": roughness(map)}
        other = reduce(maps[beside](model, x, target).detach())
        return {"roughness": roughness(map), f"brightness{MEDIAN}": map.mean((1, 2)) / other.mean((1, 2))}

    settings = {"map": repr(maps[name]), "beside": beside}
    return trained_net.part(f"{trained_net.way} {name}", f"{name} looks", settings, columns)


def roughness(map: Float[Tensor, "b h w"]) -> PerExample:
    """Mean difference of neighbouring pixels divided by the mean pixel; no value for a zero map.

    Our own measure: the paper says that UniGrad denoises and shows pictures.
    """
    size = map.abs()
    down, across = (size[:, 1:] - size[:, :-1]).abs(), (size[:, :, 1:] - size[:, :, :-1]).abs()
    steps = torch.cat([down.flatten(1), across.flatten(1)], 1).mean(1)
    return steps / size.flatten(1).mean(1)


def shown(maps: Maps) -> Finish:
    """Add pictures of a few images with their maps."""

    def draw(each: Shown) -> Arrays:
        setting, target = each.trained_net.setting, predict(each.model, each.x)
        found = {f"{setting}{BAR}image": colours(each.x)}
        for name, explain in maps(setting, each.trained_net.sizes).items():
            map = reduce(explain(each.model, each.x, target).detach())
            found[f"{setting}{BAR}{name}{BAR}map"] = grey(map)
        return found

    return with_pictures(draw)


def map_sections(results: Results) -> tuple[Section, ...]:
    """Draw one grid per setting, with one row per image and one column per map."""
    sections = []
    maps_of: dict[str, Arrays] = {}
    for key in results.pictures:
        setting, name, *map_part = key.split(BAR)
        if map_part:
            maps_of.setdefault(setting, {})[name] = results.pictures[key]
    for setting, maps in maps_of.items():
        image = results.pictures[f"{setting}{BAR}image"]
        png = map_grid({"image": image}, maps, [""] * len(image))
        figure = Figure(png, "Sizes over channels; each map over its own largest value.")
        sections.append(Section(f"{setting}: maps", (), None, (figure,)))
    return tuple(sections)
