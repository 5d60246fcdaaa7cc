"""The trials of a sweep: one training run, with a folder and a record, per point of the grid and seed.

They are compared by accuracy and by the stability of the gradient map under noise (`Measuring`).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyrograd import records
from gyrograd.attributions import Gradient
from gyrograd.data import Dataset
from gyrograd.errors import UserError
from gyrograd.metrics import RandomPerturbationSimilarity
from gyrograd.numerics import random
from gyrograd.parsing import with_numbers
from gyrograd.records import JsonObject, Record
from gyrograd.training.building import datasets
from gyrograd.training.objective import objective_of
from gyrograd.training.runs import OnEpoch, predictions, train
from gyrograd.training.settings import (
    TrainSettings,
    as_tree,
    decisive_settings,
    merge_settings,
    settings_from,
)
from gyrograd.types import Model

REFERENCE = "cross-entropy"
"""The point that others are compared with: the same settings without a term."""
LONGEST_SLUG = 80
Columns = dict[str, list[float | None]]
"""One number per example; None for an image that was not measured."""


@dataclass(frozen=True)
class Measuring:
    """Measures accuracy on every image, and Grad RPS (joo2023, Metrics) on `images` of them, chosen by the seed.

    eps and draws are those of RPS. The map is the gradient of the label's logit.
    """

    images: int = 100
    eps: float = 16 / 255
    draws: int = 10
    seed: int = 0
    batch_size: int = 128
    """Images per pass; does not affect the results."""

    def __post_init__(self) -> None:
        if self.images < 1:
            raise UserError(f"images is {self.images}; give at least 1 image to explain.")
        self._rps()

    @property
    def settings(self) -> JsonObject:
        """Settings that affect the results."""
        return {key: value for key, value in asdict(self).items() if key != "batch_size"}

    def measure(self, model: Model, data: Dataset) -> Columns:
        """`accuracy` of every image and `rps` of the chosen ones."""
        right = (predictions(model, data, self.batch_size) == data.labels).double()
        some = data.chosen(min(self.images, len(data)), self.seed).to(data.labels.device)
        # One random key per image, independent of which others are measured.
        keys = random.keys(self.seed, len(data), data.labels.device)[some]
        rps = self._rps()(model, Gradient(), data.pixels(some), data.labels[some], seed=keys)
        return {"accuracy": right.tolist(), "rps": _spread(rps, some, len(data))}

    def _rps(self) -> RandomPerturbationSimilarity:
        return RandomPerturbationSimilarity(eps=self.eps, draws=self.draws, max_batch=self.batch_size)


def record(name: str, columns: Columns, settings: Mapping[str, Any], facts: Mapping[str, Any]) -> Record:
    """The columns as a record; examples are numbered by their position in the data set."""
    n = len(next(iter(columns.values())))
    return Record(name, dict(settings), list(range(n)), columns, dict(facts))


def mean(columns: Columns, key: str) -> float:
    """The mean of a column's numbers."""
    numbers = [value for value in columns[key] if value is not None]
    return sum(numbers) / len(numbers)


def weights_digest(model: Model) -> str:
    """A digest of the weights, sixteen hex digits."""
    digest = hashlib.sha256()
    for key, tensor in model.state_dict().items():
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _spread(values: Tensor, rows: Tensor, n: int) -> list[float | None]:
    """The values at their rows among n; None elsewhere and for NaN."""
    column: list[float | None] = [None] * n
    for row, value in zip(rows.tolist(), values.detach().double().tolist(), strict=True):
        column[row] = None if value != value else value
    return column


@dataclass(frozen=True)
class Trial:
    """One training run of a sweep. `point` names its settings in the grid, without the seed."""

    point: str
    settings: TrainSettings
    measuring: Measuring
    out: Path
    """The sweep's folder."""

    @property
    def name(self) -> str:
        """Readable and unique per settings, so that a larger grid finds the trials of a smaller one."""
        slug = re.sub(r"[^A-Za-z0-9.=]+", "_", self.point).strip("_")[:LONGEST_SLUG]
        return f"{slug}-seed{self.settings.seed}-{self.digest}"

    @property
    def digest(self) -> str:
        """Equal for equal settings."""
        text = json.dumps(decisive_settings(as_tree(self.settings)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def folder(self) -> Path:
        return self.out / "trials" / self.name

    @property
    def record_path(self) -> Path:
        return self.folder / "record.json"

    @property
    def identity(self) -> JsonObject:
        """Everything that affects its results, as plain values."""
        tree = {"train": decisive_settings(as_tree(self.settings)), "measuring": self.measuring.settings}
        return dict(json.loads(json.dumps(tree)))

    def known(self) -> Record | None:
        """The record of an earlier sweep, if this trial is finished."""
        if not self.record_path.exists():
            return None
        found = records.read(self.record_path)
        return found if found.settings == self.identity else None


def trials_of(
    base: Mapping[str, Any],
    grid: Mapping[str, Any],
    seeds: Sequence[Any],
    measuring: Measuring,
    out: Path,
) -> list[Trial]:
    """Every trial, those of cross-entropy first; unknown keys and settings are errors.

    `base`: settings as `settings_from` takes them. `grid`: dotted keys such as `terms.l2_cosine.l2`, each with a list
    of values. The reference has the base's settings without terms; an equal point of the grid is not run twice.
    """
    _check_grid(grid)
    _check_seeds(seeds)
    points: dict[str, Mapping[str, Any]] = {REFERENCE: {**base, "terms": {}, "cross_entropy": None}}
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, (with_numbers(value) for value in values), strict=True))
        # The name is what a reader looks for first: `l2_cosine.l2=0.1 l2_cosine.cosine=1`.
        name = " ".join(f"{key.removeprefix('terms.')}={_short(value)}" for key, value in chosen.items())
        tree = dict(base)
        for key, value in chosen.items():
            for part in reversed(key.split(".")):
                value = {part: value}
            tree = merge_settings(tree, value)
        points.setdefault(name, tree)
    trials = [
        Trial(point, _checked_settings({**tree, "seed": seed}), measuring, out)
        for point, tree in points.items()
        for seed in seeds
    ]
    _check_test_images(trial.settings for trial in trials)
    # Equal settings are one trial, in the place and under the name of the first.
    first: dict[str, Trial] = {}
    for trial in trials:
        first.setdefault(trial.digest, trial)
    return list(first.values())


def run_trial(trial: Trial, on_epoch: OnEpoch | None = None) -> Record:
    """Train, or resume, then measure accuracy and Grad RPS per test image."""
    started = time.monotonic()
    done = train(trial.settings, trial.folder, resume="auto", on_epoch=on_epoch)
    _, test = datasets(trial.settings)
    assert test is not None  # as `_checked_settings` made sure
    device = next(done.model.parameters()).device
    columns = trial.measuring.measure(done.model, test.to(device))
    facts = {"trial": trial.name, "seconds": round(time.monotonic() - started, 1), "torch": torch.__version__}
    return record(f"trial {trial.point}", columns, trial.identity, facts)


def _short(value: Any) -> str:
    return (
        f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else json.dumps(value)
    )


def _checked_settings(tree: Mapping[str, Any]) -> TrainSettings:
    settings = settings_from(tree)
    objective_of(settings)
    if settings.test is None:
        raise UserError(
            "A sweep compares accuracies and needs test images: give test, such as {split: test}."
        )
    return settings


def _check_test_images(settings: Iterable[TrainSettings]) -> None:
    """Refuse a grid that changes the test images: points are compared image by image."""
    tests = [(own.data, own.data_settings | (own.test or {})) for own in settings]
    if any(test != tests[0] for test in tests):
        raise UserError(
            "The grid changes the test images, and points are compared image by image; leave the setting out of the "
            "grid, or give test a value of its own for it, such as {split: test, n: 1000}."
        )


def _check_grid(grid: Mapping[str, Any]) -> None:
    if not grid:
        raise UserError(
            "The grid is empty; give it a key with values, such as terms.l2_cosine.l2: [0.01, 0.1]."
        )
    for key, values in grid.items():
        if not isinstance(values, Sequence) or isinstance(values, str) or not values:
            raise UserError(f"The grid has {values!r} for {key}; give a list of values, such as [0.01, 0.1].")
        written = [json.dumps(with_numbers(value), sort_keys=True, default=str) for value in values]
        twice = next((one for place, one in enumerate(written) if one in written[:place]), None)
        if twice is not None:
            raise UserError(f"The grid has {twice} twice for {key}; leave one out.")
        if key == "seed":
            raise UserError("Seeds are not part of the grid; give them as seeds, such as [0, 1, 2].")


def _check_seeds(seeds: Sequence[Any]) -> None:
    if (
        not seeds
        or len(set(seeds)) != len(seeds)
        or not all(type(seed) is int and seed >= 0 for seed in seeds)
    ):
        raise UserError(
            f"seeds is {list(seeds)}; give whole numbers of 0 or more, each once, such as [0, 1, 2]."
        )
