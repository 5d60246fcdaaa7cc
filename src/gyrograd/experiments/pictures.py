"""Images and maps of a run as arrays, for its figures; `BAR` joins the words of an array's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.experiments.runs import Run
from gyrograd.experiments.subjects import Subject
from gyrograd.measurement import streams
from gyrograd.numerics.random import Keys
from gyrograd.types import Images, Labels, Model

Arrays = dict[str, NDArray[Any]]
BAR = "|"


@dataclass(frozen=True, eq=False)
class Shown:
    """A net and the few images a figure shows of it."""

    subject: Subject
    model: Model
    x: Images
    labels: Labels
    keys: Keys


def shown_by(run: Run, subjects: Sequence[Subject], most: int | None = None) -> Iterator[Shown]:
    """The first images measured, under one net per row: that of the first seed."""
    for subject in subjects:
        if subject.seed == run.seeds[0]:
            count = run.sizes(subject.setting).get("pictures", 2)
            positions = torch.tensor(run.positions(subject.setting)[:count][:most])
            here = run.test_images(subject.setting).rows(positions)
            keys = streams(subject.seed, positions).to(run.device)
            yield Shown(subject, run.net(subject.net), here.pixels(), here.labels, keys)


def colours(x: Tensor) -> NDArray[Any]:
    """Images as `n h w 3` bytes over 255, small in a file."""
    pixels = x.detach().cpu().movedim(1, -1).numpy()
    return np.asarray(np.round(pixels * 255) / 255, dtype=np.float32)


def grey(maps: Tensor) -> NDArray[Any]:
    """Maps `n h w`, in half the bytes."""
    largest = maps.flatten(1).amax(1).view(-1, 1, 1)
    shares = maps / torch.where(largest > 0, largest, 1)
    return np.asarray(shares.detach().cpu().numpy(), dtype=np.float16)
