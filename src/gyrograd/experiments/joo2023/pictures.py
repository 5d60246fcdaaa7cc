"""Pictures of maps before and after the attack: their arrays, and the figure."""

from __future__ import annotations

import numpy as np
import torch

from gyrograd.experiments.engine import Draw, Finish
from gyrograd.experiments.joo2023.measures import ATTACK_STEPS, attacked
from gyrograd.experiments.joo2023.variants import attack_eps
from gyrograd.experiments.pictures import BAR, Arrays, Shown, colours, grey, with_pictures
from gyrograd.experiments.results import Results
from gyrograd.numerics.maps import reduce
from gyrograd.reporting import Figure, Section, map_grid


def under_attack(*names: str, eps: int | None = None) -> Finish:
    """Add maps of a few images by setting, row and attribution, clean and attacked in turn."""

    def draw(each: Shown) -> Arrays:
        setting, way = each.trained_net.setting, each.trained_net.way
        found = {BAR.join((setting, "image")): np.repeat(colours(each.x), 2, 0)}
        for name in names:
            radius = eps or attack_eps(setting)
            steps = int(each.trained_net.sizes.get("steps", ATTACK_STEPS))
            hit = attacked(each.model, name, each.x, each.labels, eps=radius, steps=steps, seed=each.keys)
            both = torch.stack([reduce(hit.map_clean), reduce(hit.map)], 1).flatten(0, 1)
            found[BAR.join((setting, way, name))] = grey(both)
        return found

    return with_pictures(draw)


def attack_sections(what: str) -> Draw:
    """Draw one grid per setting and attribution, one column per net, clean maps above attacked ones."""

    def drawn(results: Results) -> tuple[Section, ...]:
        sections = []
        maps_of: dict[tuple[str, str], Arrays] = {}
        for key in results.pictures:
            setting, way, *attribution = key.split(BAR)
            if attribution:
                maps_of.setdefault((setting, attribution[0]), {})[way] = results.pictures[key]
        for (setting, name), maps in maps_of.items():
            image = results.pictures[BAR.join((setting, "image"))]
            labels = ["clean", "attacked"] * (len(image) // 2)
            caption = f"{name} of {setting}, {what}. Each map over its own largest value."
            figure = Figure(map_grid({"image": image}, maps, labels), caption)
            sections.append(Section(f"{setting}: {name}", (), None, (figure,)))
        return tuple(sections)

    return drawn
