"""Images and maps of a run as arrays for its figures; `BAR` separates the parts of an array's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyrograd.experiments.engine import ExperimentOutput, Finish, MeasuredNets
from gyrograd.experiments.trained_nets import TrainedNet
from gyrograd.measurement import streams
from gyrograd.numerics.random import Keys
from gyrograd.types import Images, Labels, Model

Arrays = dict[str, NDArray[Any]]
BAR = "|"


@dataclass(frozen=True, eq=False)
class Shown:
    """A net and the few images that a figure shows."""

    trained_net: TrainedNet
    model: Model
    x: Images
    labels: Labels
    keys: Keys


def with_pictures(draw: Callable[[Shown], Arrays], most: int | None = None) -> Finish:
    """Add the arrays that `draw` returns for a few images of each net; `most` limits the number of images."""

    def finish(measured: MeasuredNets) -> ExperimentOutput:
        pictures = {key: array for each in shown_by(measured, most) for key, array in draw(each).items()}
        return ExperimentOutput(measured.records, pictures)

    return finish


def shown_by(measured: MeasuredNets, most: int | None = None) -> Iterator[Shown]:
    """The first measured images with one net per row, that of the first seed."""
    run = measured.run
    for trained_net in measured.trained_nets:
        if trained_net.seed == run.seeds[0]:
            count = run.sizes(trained_net.setting).get("pictures", 2)
            positions = torch.tensor(run.positions(trained_net.setting)[:count][:most])
            here = run.test_images(trained_net.setting).rows(positions)
            keys = streams(trained_net.seed, positions).to(run.device)
            yield Shown(trained_net, run.net(trained_net.net), here.pixels(), here.labels, keys)


def colours(x: Tensor) -> NDArray[Any]:
    """Images as `n h w 3`, rounded to multiples of 1/255, so that the file is small."""
    pixels = x.detach().cpu().movedim(1, -1).numpy()
    return np.asarray(np.round(pixels * 255) / 255, dtype=np.float32)


def grey(maps: Tensor) -> NDArray[Any]:
    """Maps as `n h w` in half precision."""
    largest = maps.flatten(1).amax(1).view(-1, 1, 1)
    shares = maps / torch.where(largest > 0, largest, 1)
    return np.asarray(shares.detach().cpu().numpy(), dtype=np.float16)
