"""Maps as pictures, with two numbers for what the eye sees in them: how rough, and how bright."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions import predict
from gyrograd.experiments.pictures import BAR, Arrays, colours, grey, shown_by
from gyrograd.experiments.results import MEDIAN, Results
from gyrograd.experiments.runs import Finish, Found, Measured, Run
from gyrograd.experiments.subjects import Columns, Maker, Part, Subject
from gyrograd.numerics.maps import reduce
from gyrograd.reporting import Figure, Section, map_grid
from gyrograd.types import Attribution, Inputs, Labels, Model, PerExample

Maps = Callable[[str, Mapping[str, Any]], dict[str, Attribution]]
"""The maps of a setting by name."""


def looks_of(maps: Maps, beside: str | None = None) -> Maker:
    """Roughness of every map. With `beside`, also brightness: the mean pixel over that map's, of one quantity.

    Brightness is summed up by the median: of an image the net is sure of, the other map is nearly zero.
    """

    def of(subject: Subject) -> list[Part]:
        every = maps(subject.setting, subject.sizes)
        return [_look(subject, every, name, beside) for name in every]

    return of


def _look(subject: Subject, maps: dict[str, Attribution], name: str, beside: str | None) -> Part:
    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predict(model, x)
        map = reduce(maps[name](model, x, target).detach())
        if beside is None:
            return {"roughness": roughness(map)}
        other = reduce(maps[beside](model, x, target).detach())
        return {"roughness": roughness(map), f"brightness{MEDIAN}": map.mean((1, 2)) / other.mean((1, 2))}

    settings = {"map": repr(maps[name]), "beside": beside}
    return subject.part(f"{subject.way} {name}", f"{name} looks", settings, columns)


def roughness(map: Float[Tensor, "b h w"]) -> PerExample:
    """Mean step between neighbouring pixels over the mean pixel; no value for a zero map.

    Own measure: the paper says of UniGrad that it denoises, and shows it.
    """
    size = map.abs()
    down, across = (size[:, 1:] - size[:, :-1]).abs(), (size[:, :, 1:] - size[:, :, :-1]).abs()
    steps = torch.cat([down.flatten(1), across.flatten(1)], 1).mean(1)
    return steps / size.flatten(1).mean(1)


def shown(maps: Maps) -> Finish:
    """A few images with their maps."""

    def finish(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:
        found: Arrays = {}
        for each in shown_by(run, subjects):
            setting, target = each.subject.setting, predict(each.model, each.x)
            found[f"{setting}{BAR}image"] = colours(each.x)
            for name, explain in maps(setting, each.subject.sizes).items():
                map = reduce(explain(each.model, each.x, target).detach())
                found[f"{setting}{BAR}{name}{BAR}map"] = grey(map)
        return Found(records, found)

    return finish


def map_sections(results: Results) -> tuple[Section, ...]:
    """A grid for each setting: a row per image, a column per map."""
    sections = []
    parts = [key.split(BAR) for key in results.pictures]
    for setting in dict.fromkeys(part[0] for part in parts):
        image = results.pictures[f"{setting}{BAR}image"]
        maps = {
            part[1]: results.pictures[BAR.join(part)]
            for part in parts
            if len(part) == 3 and part[0] == setting
        }
        png = map_grid({"image": image}, maps, [""] * len(image))
        figure = Figure(png, "Sizes over channels; each map over its own largest value.")
        sections.append(Section(f"{setting}: maps", (), None, (figure,)))
    return tuple(sections)
