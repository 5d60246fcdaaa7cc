"""A cell: one measurement of all examples, and the settings that decide its values."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.records import Record

Positions = Int[Tensor, " n"]
"""Examples, by their place in the data set."""
Measure = Callable[[Tensor], dict[str, Tensor]]
"""Positions of n examples to columns of n values, or of n x points."""

LONGEST_SLUG = 60


@dataclass(frozen=True)
class Cell:
    """What is measured. `settings` (JSON) hold all that decides the values: model and data by their hash,
    method, metric, seed. Two cells with equal name and settings share their files.

    `measure` takes positions of examples and returns columns, a value or a row of points for each. An example's
    values may not depend on the others it came with: draw from `streams(seed, positions)`. A costly cell may
    keep to the first `limit` positions of a run.
    """

    name: str
    settings: Mapping[str, Any]
    measure: Measure
    limit: int | None = None

    def __post_init__(self) -> None:
        """Settings become plain JSON values at once, so that a cell equals what was read back of it."""
        try:
            plain = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as wrong:
            raise UserError(
                f"The settings of cell '{self.name}' must be plain JSON values ({wrong}); write repr(...) of others."
            ) from None
        if self.limit is not None and self.limit < 1:
            raise UserError(
                f"Cell '{self.name}' is limited to {self.limit} examples; give at least 1, or no limit."
            )
        object.__setattr__(self, "settings", plain)

    @property
    def folder(self) -> str:
        """The name of its folder: readable, and different for different settings."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:LONGEST_SLUG]
        return f"{slug or 'cell'}-{fingerprint([self.name, self.settings])}"

    def record(self, positions: list[int]) -> Record:
        """The values of these examples, measured now."""
        columns = self.measure(torch.tensor(positions, dtype=torch.int64))
        values: dict[str, list[float | None]] = {}
        for name, column in columns.items():
            values.update(_rows(self.name, name, column, len(positions)))
        return Record(self.name, dict(self.settings), list(positions), values)


def fingerprint(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def streams(seed: int, positions: Positions) -> random.Keys:
    """The random stream of each example: a function of the seed and its place in the data set alone."""
    return random.keys(seed, int(positions.max()) + 1)[positions.cpu()]


def _rows(cell: str, name: str, column: Tensor, n: int) -> dict[str, list[float | None]]:
    """A column as lists; a curve becomes a column for each of its points, name[0], name[1], ..."""
    if column.dim() not in (1, 2) or len(column) != n:
        raise UserError(
            f"Cell '{cell}': column '{name}' has shape {tuple(column.shape)} for {n} examples; "
            f"return ({n},) or ({n}, points)."
        )
    if column.dim() == 1:
        return {name: _finite(column)}
    return {f"{name}[{point}]": _finite(part) for point, part in enumerate(column.unbind(1))}


def _finite(column: Tensor) -> list[float | None]:
    """Numbers as Python floats; None where there is none, as the file will say."""
    numbers = column.detach().to("cpu", torch.float64).tolist()
    return [number if math.isfinite(number) else None for number in numbers]
