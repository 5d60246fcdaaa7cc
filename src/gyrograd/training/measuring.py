"""What a trained model is judged by here: accuracy, stability of the gradient map, and what an attack does to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor

from gyrograd.attacks import AttackResult, TargetedMap
from gyrograd.attributions import Gradient
from gyrograd.data import Dataset
from gyrograd.errors import UserError
from gyrograd.metrics import MapSimilarity, PixelGame, RandomPerturbationSimilarity, TopKIntersection
from gyrograd.metrics.suspicion import calm_but_empty, same_map_everywhere
from gyrograd.numerics import random
from gyrograd.records import Record
from gyrograd.training.loop import predictions
from gyrograd.types import Model, PerExample

Columns = dict[str, list[float | None]]
"""A number for each example; None for an image that was not looked at, or on which an attack had no way to go."""

LARGEST = 10
"""One pixel in so many counts as one of the largest of a map."""


@dataclass(frozen=True)
class Measuring:
    """Accuracy of every image; of `images` of them, chosen by the seed, Grad RPS (joo2023, Metrics).

    eps and draws are those of RPS; attack_eps and attack_steps belong to the targeted attack of joo2023's
    Adversarial attribution manipulation. The map is the gradient of the label's logit.
    """

    images: int = 100
    eps: float = 16 / 255
    draws: int = 10
    attack_eps: float = 8 / 255
    attack_steps: int = 40
    seed: int = 0
    batch_size: int = 128
    """Images in one pass; it changes no number."""

    def __post_init__(self) -> None:
        if self.images < 1:
            raise UserError(f"images is {self.images}; give at least 1 image to explain.")
        if self.attack_steps < 1:
            raise UserError(f"attack_steps is {self.attack_steps}; give at least 1.")
        if not 0 < self.attack_eps <= 1:
            raise UserError(f"attack_eps is {self.attack_eps}; give a radius above 0, such as 8 / 255.")
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

    def full(self, model: Model, data: Dataset) -> tuple[Columns, list[str]]:
        """These, `insertion`, and the attack's `pixels_kept` and `cosine_kept`; then what a reader must know."""
        some = self._chosen(data)
        x, y = data.pixels(some), data.labels[some]
        maps = Gradient()(model, x, y)
        game = PixelGame("insertion", max_batch=self.batch_size)
        insertion, chance = game.curve_of_map(model, maps, x, y).mean(1), game.chance(model, x, y)
        hit, kept = self._under_attack(model, data, some)
        calm = self.calm(model, data)
        stability = torch.tensor([value for value in calm["rps"] if value is not None])
        doubts = [calm_but_empty(stability, insertion.cpu(), chance.cpu())]
        doubts += [same_map_everywhere(maps)] if len(some) > 1 else []
        columns = {"insertion": insertion, **kept}
        spread = {key: _spread(column, some, len(data)) for key, column in columns.items()}
        return {**calm, **spread}, [*hit.flags, *(str(doubt) for doubt in doubts if doubt is not None)]

    def _stability(self, model: Model, data: Dataset, some: Tensor) -> PerExample:
        metric = self._rps()
        return metric(model, Gradient(), data.pixels(some), data.labels[some], seed=self._keys(data, some))

    def _under_attack(
        self, model: Model, data: Dataset, some: Tensor
    ) -> tuple[AttackResult, dict[str, Tensor]]:
        attack = TargetedMap(eps=self.attack_eps, steps=self.attack_steps, max_batch=self.batch_size)
        x, y = data.pixels(some), data.labels[some]
        hit = cast(AttackResult, attack(model, Gradient(), x, y, seed=self._keys(data, some)))
        kept = TopKIntersection(k=max(1, x[0, 0].numel() // LARGEST))
        columns = {
            "pixels_kept": kept(hit.map_clean, hit.map),
            "cosine_kept": MapSimilarity()(hit.map_clean, hit.map),
        }
        # An attack without a derivative to follow says nothing about robustness.
        return hit, {key: column.masked_fill(hit.stuck, float("nan")) for key, column in columns.items()}

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
