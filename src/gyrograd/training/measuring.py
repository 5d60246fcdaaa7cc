"""What the trials of a sweep are judged by: accuracy, and stability of the gradient map under noise."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from gyrograd.attributions import Gradient
from gyrograd.data import Dataset
from gyrograd.errors import UserError
from gyrograd.metrics import RandomPerturbationSimilarity
from gyrograd.numerics import random
from gyrograd.records import Record
from gyrograd.training.loop import predictions
from gyrograd.types import Model, PerExample

Columns = dict[str, list[float | None]]
"""A number for each example; None for an image that was not looked at."""


@dataclass(frozen=True)
class Measuring:
    """Accuracy of every image; of `images` of them, chosen by the seed, Grad RPS (joo2023, Metrics).

    eps and draws are those of RPS. The map is the gradient of the label's logit.
    """

    images: int = 100
    eps: float = 16 / 255
    draws: int = 10
    seed: int = 0
    batch_size: int = 128
    """Images in one pass; it changes no number."""

    def __post_init__(self) -> None:
        if self.images < 1:
            raise UserError(f"images is {self.images}; give at least 1 image to explain.")
        self._rps()

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the numbers."""
        return {key: value for key, value in asdict(self).items() if key != "batch_size"}

    def calm(self, model: Model, data: Dataset) -> Columns:
        """`accuracy` of every image and `rps` of the chosen ones."""
        right = (predictions(model, data, self.batch_size) == data.labels).double()
        some = self._chosen(data)
        return {
            "accuracy": right.tolist(),
            "rps": _spread(self._stability(model, data, some), some, len(data)),
        }

    def _stability(self, model: Model, data: Dataset, some: Tensor) -> PerExample:
        metric = self._rps()
        return metric(model, Gradient(), data.pixels(some), data.labels[some], seed=self._keys(data, some))

    def _rps(self) -> RandomPerturbationSimilarity:
        return RandomPerturbationSimilarity(eps=self.eps, draws=self.draws, max_batch=self.batch_size)

    def _chosen(self, data: Dataset) -> Tensor:
        return data.chosen(min(self.images, len(data)), self.seed).to(data.labels.device)

    def _keys(self, data: Dataset, some: Tensor) -> Tensor:
        """An image's random stream is its own, whichever others are looked at."""
        return random.keys(self.seed, len(data), data.labels.device)[some]


def record(name: str, columns: Columns, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> Record:
    """The columns as a record; examples are named by their place in the data set."""
    n = len(next(iter(columns.values())))
    return Record(name, dict(settings), list(range(n)), columns, dict(facts))


def mean(columns: Columns, key: str) -> float:
    """The mean of a column's numbers."""
    numbers = [value for value in columns[key] if value is not None]
    return sum(numbers) / len(numbers)


def weights_digest(model: Model) -> str:
    """Sixteen digits that tell one set of weights from another."""
    digest = hashlib.sha256()
    for key, tensor in model.state_dict().items():
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _spread(values: Tensor, rows: Tensor, n: int) -> list[float | None]:
    """The values at their rows among n; a NaN is no value."""
    column: list[float | None] = [None] * n
    for row, value in zip(rows.tolist(), values.detach().double().tolist(), strict=True):
        column[row] = None if value != value else value
    return column
