"""Maps before and after the attack as pictures: arrays of a run, and the figure made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from gyrograd.experiments.joo2023.measures import ATTACK_STEPS, attacked
from gyrograd.experiments.joo2023.ways import ATTACK_EPS, paper_setting
from gyrograd.experiments.pictures import BAR, Arrays, colours, grey, shown_by
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Finish, Found, Measured, Run
from gyrograd.experiments.subjects import Subject
from gyrograd.numerics.maps import reduce
from gyrograd.reporting import Figure, Section, map_grid


def under_attack(*names: str, eps: int | None = None) -> Finish:
    """By setting, row and attribution: the maps of a few images, clean and attacked one after the other."""

    def finish(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:
        found: Arrays = {}
        for each in shown_by(run, subjects):
            subject = each.subject
            found[BAR.join((subject.setting, "image"))] = np.repeat(colours(each.x), 2, 0)
            for name in names:
                hit = attacked(
                    each.model,
                    name,
                    each.x,
                    each.labels,
                    eps=eps or ATTACK_EPS[paper_setting(subject.setting)],
                    steps=int(subject.sizes.get("steps", ATTACK_STEPS)),
                    seed=each.keys,
                )
                both = torch.stack([reduce(hit.map_clean), reduce(hit.map)], 1).flatten(0, 1)
                found[BAR.join((subject.setting, subject.way, name))] = grey(both)
        return Found(records, found)

    return finish


def attack_sections(what: str) -> Callable[[Results], tuple[Section, ...]]:
    """A grid for each setting and attribution: a column per net, clean maps over attacked ones."""

    def drawn(results: Results) -> tuple[Section, ...]:
        sections = []
        parts = [key.split(BAR) for key in results.pictures]
        for setting, name in dict.fromkeys((p[0], p[2]) for p in parts if len(p) == 3):
            maps = {
                p[1]: results.pictures[BAR.join(p)]
                for p in parts
                if len(p) == 3 and (p[0], p[2]) == (setting, name)
            }
            image = results.pictures[BAR.join((setting, "image"))]
            labels = ["clean", "attacked"] * (len(image) // 2)
            caption = f"{name} of {setting}, {what}. Each map over its own largest value."
            figure = Figure(map_grid({"image": image}, maps, labels), caption)
            sections.append(Section(f"{setting}: {name}", (), None, (figure,)))
        return tuple(sections)

    return drawn
