"""Cells over examples, a file for each cell and shard: what is finished is never measured twice, nor lost.

    OUT/records/<cell>-<hash of its settings>/<shard>.json

A shard file is written whole or not at all and holds nothing of the run that made it (no time, no machine), so a
run that was killed and taken up again leaves the same bytes as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.progress import Effort, track
from gyrograd.records import Record

Positions = Int[Tensor, " n"]
"""Examples, by their place in the data set."""
Row: TypeAlias = dict[str, float | None]
"""The values of one example by column."""

LONGEST_SLUG = 60


@dataclass(frozen=True)
class Cell:
    """What is measured. `settings` (JSON) hold all that decides the values: model and data by their hash,
    method, metric, seed. Two cells with equal name and settings share their files.

    `measure` takes positions of examples and returns columns, a value or a row of points for each. An example's
    values may not depend on the others it came with: draw from `streams(seed, positions)`. A costly cell may
    keep to the first `limit` positions of a run. `effort` is what one example is guessed to take, for the progress bar.
    """

    name: str
    settings: Mapping[str, Any]
    measure: Callable[[Tensor], dict[str, Tensor]]
    limit: int | None = None
    effort: Effort = ("", 1.0)

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

    def path(self, part: Sequence[int], out: Path) -> Path:
        """The file of a shard: first example, number of examples and, since the others may be any, a hash of all."""
        return (
            Path(out) / "records" / self.folder / f"{part[0]:06d}-{len(part)}-{fingerprint(list(part))}.json"
        )

    def guess(self, examples: int) -> Effort:
        """What so many examples are guessed to take."""
        kind, each = self.effort
        return kind, each * examples

    def record(self, positions: list[int]) -> Record:
        """The values of these examples, measured now."""
        n = len(positions)
        values: dict[str, list[float | None]] = {}
        for name, column in self.measure(torch.tensor(positions, dtype=torch.int64)).items():
            if column.dim() not in (1, 2) or len(column) != n:
                raise UserError(
                    f"Cell '{self.name}': column '{name}' has shape {tuple(column.shape)} for {n} examples; "
                    f"return ({n},) or ({n}, points)."
                )
            if column.dim() == 1:
                values[name] = _finite(column)
            else:  # a curve becomes a column for each of its points
                values |= {f"{name}[{point}]": _finite(part) for point, part in enumerate(column.unbind(1))}
        return Record(self.name, dict(self.settings), list(positions), values)


def fingerprint(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def streams(seed: int, positions: Positions) -> random.Keys:
    """The random stream of each example: a function of the seed and its place in the data set alone."""
    return random.keys(seed, int(positions.max()) + 1)[positions.cpu()]


def run_cells(
    cells: Iterable[Cell],
    positions: Sequence[int],
    out: Path,
    *,
    shard: int = 100,
    what: str = "measuring",
    after_round: Callable[[], None] | None = None,
) -> dict[str, Record]:
    """The record of every cell by its name, over all positions; what an earlier run finished is read.

    Shards need not be those of the earlier run: of a shard that is not there as a whole, only the examples that no
    file holds are measured, so that more examples, or smaller shards, cost what is new in them. All cells of the
    first examples come before the next examples, so that cells can share what they made for them. `what` stands
    beside the bar. `after_round` is called when all cells of some examples are done and other examples are left.
    """
    known = _checked(cells, positions, shard)
    wanted = [pair for pairs in _rounds(known, positions, shard) for pair in pairs]
    ready = {(cell.name, part): _read(cell, part, out) for cell, part in wanted}
    pending = [(cell, part) for cell, part in wanted if ready[cell.name, part] is None]
    begun = {cell.name for cell, _ in pending}
    whole = {cell.path(part, out) for cell, part in wanted if ready[cell.name, part] is not None}
    earlier = {cell.name: _examples(cell, out, whole) for cell in known if cell.name in begun}
    following = [part[0] for _, part in pending[1:]]
    work = track(pending, len(pending), what, lambda pair: pair[0].guess(len(pair[1])))
    for place, (cell, part) in enumerate(work):
        record = _completed(cell, part, earlier[cell.name])
        records.write(cell.path(part, out), record)
        ready[cell.name, part] = record
        if after_round is not None and place < len(following) and following[place] != part[0]:
            after_round()
    return {cell.name: _joined([ready[c.name, part] for c, part in wanted if c is cell]) for cell in known}


def finished(
    cells: Iterable[Cell], positions: Sequence[int], out: Path, *, shard: int = 100
) -> dict[str, Record]:
    """What an interrupted run left: the first shards that every cell has finished, nothing if there are none."""
    known = _checked(cells, positions, shard)
    kept: dict[str, list[Record | None]] = {cell.name: [] for cell in known}
    for pairs in _rounds(known, positions, shard):
        found = {cell.name: _read(cell, part, out) for cell, part in pairs}
        if any(record is None for record in found.values()):
            break
        for name, record in found.items():
            kept[name].append(record)
    return {name: _joined(shards) for name, shards in kept.items() if shards}


def forget(cells: Iterable[Cell], out: Path) -> None:
    """Remove what was measured of these cells; other files stay."""
    for cell in cells:
        folder = Path(out) / "records" / cell.folder
        if folder.exists():
            shutil.rmtree(folder)


def _checked(cells: Iterable[Cell], positions: Sequence[int], shard: int) -> list[Cell]:
    known = list(cells)
    names = [cell.name for cell in known]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"Two cells are named '{twice[0]}'; give each cell a name of its own.")
    if not names or not positions:
        raise UserError(
            f"There are {len(names)} cells and {len(positions)} examples; give at least one of each."
        )
    if len(set(positions)) != len(positions) or min(positions) < 0:
        raise UserError("An example is named twice or below 0; give each position of the data set once.")
    if shard < 1:
        raise UserError(f"shard is {shard}; give the number of examples in one file, such as 100.")
    return known


def _rounds(
    cells: Sequence[Cell], positions: Sequence[int], shard: int
) -> list[list[tuple[Cell, tuple[int, ...]]]]:
    """The work in its order: all cells of the first shard, then of the next; a cell may end before the others."""
    places = tuple(int(position) for position in positions)
    rounds = []
    for first in range(0, len(places), shard):
        pairs = [(cell, places[: cell.limit][first : first + shard]) for cell in cells]
        rounds.append([(cell, part) for cell, part in pairs if part])
    return rounds


def _examples(cell: Cell, out: Path, besides: Set[Path]) -> dict[int, Row]:
    """What the files of a cell hold, example by example, whatever shards they are; `besides` were read already."""
    rows: dict[int, Row] = {}
    for path in sorted(set((Path(out) / "records" / cell.folder).glob("*.json")) - besides):
        try:
            record = records.read(path)
        except UserError:
            continue  # a shard that is asked for by its name says so; this one is not needed
        if (record.name, record.settings) == (cell.name, cell.settings):
            rows |= _rows(record)
    return rows


def _rows(record: Record) -> dict[int, Row]:
    return {
        int(position): {column: values[i] for column, values in record.values.items()}
        for i, position in enumerate(record.examples)
    }


def _completed(cell: Cell, part: tuple[int, ...], earlier: dict[int, Row]) -> Record:
    """The shard, with only those examples measured that are not there already."""
    missing = [position for position in part if position not in earlier]
    if len(missing) == len(part):
        return cell.record(missing)
    rows = {**earlier, **(_rows(cell.record(missing)) if missing else {})}
    columns = sorted(rows[part[0]])
    if any(sorted(rows[position]) != columns for position in part):
        return cell.record(list(part))  # files of another version: their columns are not these
    values = {column: [rows[position][column] for position in part] for column in columns}
    return Record(cell.name, dict(cell.settings), list(part), values)


def _read(cell: Cell, part: tuple[int, ...], out: Path) -> Record | None:
    """A finished shard; None if there is none, or if its contents do not match its name."""
    path = cell.path(part, out)
    if not path.exists():
        return None
    try:
        record = records.read(path)
    except UserError as wrong:
        print(f"gyrograd: measuring again: {wrong}", file=sys.stderr)
        return None
    if (record.name, record.settings, record.examples) != (cell.name, cell.settings, list(part)):
        print(f"gyrograd: measuring again: {path} does not hold what its name says.", file=sys.stderr)
        return None
    return record


def _joined(shards: Sequence[Record | None]) -> Record:
    """The shards as one record; nothing of the run is in them, so it does not show how they were cut."""
    whole = records.merge(shard for shard in shards if shard is not None)
    return Record(whole.name, whole.settings, whole.examples, whole.values)


def _finite(column: Tensor) -> list[float | None]:
    """Numbers as Python floats; None where there is none, as the file will say."""
    numbers = column.detach().to("cpu", torch.float64).tolist()
    return [number if math.isfinite(number) else None for number in numbers]
