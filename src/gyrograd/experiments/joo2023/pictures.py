"""Maps before and after the attack as pictures: arrays of a run, and the figure made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.experiments.joo2023.measures import ATTACK_STEPS, attacked
from gyrograd.experiments.joo2023.ways import ATTACK_EPS, paper_setting
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Finish, Found, Measured, Run
from gyrograd.experiments.subjects import Subject
from gyrograd.measurement import streams
from gyrograd.numerics.maps import reduce
from gyrograd.reporting import Figure, Section, map_grid

Arrays = dict[str, NDArray[Any]]
BAR = "|"


def under_attack(*names: str, eps: int | None = None) -> Finish:
    """By setting, row and attribution: the maps of a few images, clean and attacked one after the other."""

    def finish(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:
        found: Arrays = {}
        for subject in first_seed(run, subjects):
            positions = torch.tensor(shown_positions(run, subject.setting))
            here = run.test_images(subject.setting).rows(positions)
            model, x = run.net(subject.net), here.pixels()
            found[BAR.join((subject.setting, "image"))] = np.repeat(colours(x), 2, 0)
            for name in names:
                hit = attacked(
                    model,
                    name,
                    x,
                    here.labels,
                    eps=eps or ATTACK_EPS[paper_setting(subject.setting)],
                    steps=int(subject.sizes.get("steps", ATTACK_STEPS)),
                    seed=streams(subject.seed, positions).to(run.device),
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


def first_seed(run: Run, subjects: Sequence[Subject]) -> list[Subject]:
    """Pictures are of one net per row."""
    return [subject for subject in subjects if subject.seed == run.seeds[0]]


def shown_positions(run: Run, setting: str) -> list[int]:
    """The first few of the measured images."""
    return run.positions(setting)[: run.sizes(setting).get("pictures", 2)]


def colours(x: Tensor) -> NDArray[Any]:
    """Images as `n h w 3` bytes over 255, small in a file."""
    pixels = x.detach().cpu().movedim(1, -1).numpy()
    return np.asarray(np.round(pixels * 255) / 255, dtype=np.float32)


def grey(maps: Tensor) -> NDArray[Any]:
    """Maps `n h w`, in half the bytes."""
    largest = maps.flatten(1).amax(1).view(-1, 1, 1)
    shares = maps / torch.where(largest > 0, largest, 1)
    return np.asarray(shares.detach().cpu().numpy(), dtype=np.float16)
