"""Resumable measurements: cells over examples, one file per cell and shard; finished work is neither lost nor repeated.

    OUT/records/<cell>-<hash of its settings>/<shard>.json

A shard file is written atomically and contains nothing specific to the run (no time, no machine), so a run that was
killed and resumed leaves the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.progress import Effort, track
from gyrograd.records import Record

Positions = Int[Tensor, " n"]
"""Positions of examples in the data set."""
Row: TypeAlias = dict[str, float | None]
"""The values of one example by column."""

LONGEST_SLUG = 60
COLUMNAR_FROM = 400
"""Shards of at least this many examples are stored as arrays: a tenth of the time of JSON, a third of the space."""


@dataclass(frozen=True)
class Cell:
    """One measurement of many examples.

    settings: JSON with everything that determines the values: hashes of model and data, method, metric, seed. Cells
    with equal name and settings share their files. measure: takes positions of examples and returns columns, with one
    value or one row of points per example; the values of an example must not depend on the others, so draw from
    `streams(seed, positions)`. limit: an expensive cell may stop after the first `limit` positions. effort: estimate
    per example, for the progress bar.
    """

    name: str
    settings: Mapping[str, Any]
    measure: Callable[[Tensor], dict[str, Tensor]]
    limit: int | None = None
    effort: Effort = ("", 1.0)
    folder: str = field(init=False, repr=False)
    """The name of its folder: readable, and unique to its settings."""

    def __post_init__(self) -> None:
        """Convert settings to plain JSON values, so that a cell equals its own round trip through a file."""
        try:
            # NaN is not equal to itself, so a cell with one would never find its own record.
            plain = json.loads(json.dumps(dict(self.settings), allow_nan=False))
        except (TypeError, ValueError) as wrong:
            raise UserError(
                f"The settings of cell '{self.name}' must be plain JSON values ({wrong}); write repr(...) of others."
            ) from None
        if self.limit is not None and self.limit < 1:
            raise UserError(
                f"Cell '{self.name}' is limited to {self.limit} examples; give at least 1, or no limit."
            )
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")[:LONGEST_SLUG] or "cell"
        object.__setattr__(self, "settings", plain)
        object.__setattr__(self, "folder", f"{slug}-{fingerprint([self.name, plain])}")

    def path(self, part: Sequence[int], out: Path) -> Path:
        """The file of a shard, named by the first example, the number of examples, and a hash of all positions."""
        ending = records.COLUMNAR if len(part) >= COLUMNAR_FROM else ".json"
        name = f"{part[0]:06d}-{len(part)}-{fingerprint(list(part))}{ending}"
        return Path(out) / "records" / self.folder / name

    def record(self, positions: list[int]) -> Record:
        """Measure these examples and return their record."""
        n = len(positions)
        values: dict[str, list[float | None]] = {}
        for name, column in self.measure(torch.tensor(positions, dtype=torch.int64)).items():
            if column.dim() not in (1, 2) or len(column) != n:
                raise UserError(
                    f"Cell '{self.name}': column '{name}' has shape {tuple(column.shape)} for {n} examples; "
                    f"return ({n},) or ({n}, points)."
                )
            # Every smaller type fits float64 exactly, so a file holds the measured bits.
            column = column.detach().to("cpu", torch.float64)
            points = {name: column}
            if column.dim() == 2:  # a curve becomes one column per point
                points = {f"{name}[{point}]": part for point, part in enumerate(column.unbind(1))}
            for key, numbers in points.items():
                # As in the file, there is no value if a number is not finite.
                values[key] = [number if math.isfinite(number) else None for number in numbers.tolist()]
        return Record(self.name, dict(self.settings), list(positions), values)


class Task(NamedTuple):
    """Examples of a cell (given by its number) to measure at once. `turn`: the round of shards they belong to."""

    cell: int
    positions: tuple[int, ...]
    turn: int
    guess: Effort


Finished: TypeAlias = Generator[tuple[int, Record], None, None]
"""Yields the number of each task with its record, in any order; closing it ends the work."""
Workers: TypeAlias = Callable[[Sequence[Cell], Sequence[Task]], Finished]
"""A function that measures the tasks of these cells: in this process, other processes, or a cluster."""


def fingerprint(value: Any) -> str:
    """Twelve hexadecimal digits of the sha256 of a JSON value."""
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def streams(seed: int, positions: Positions) -> random.Keys:
    """The random stream of each example, which depends only on the seed and its position in the data set."""
    return random.keys(seed, int(positions.max()) + 1)[positions.cpu()]


def run_cells(
    cells: Iterable[Cell],
    positions: Sequence[int],
    out: Path,
    *,
    shard: int = 100,
    what: str = "measuring",
    workers: Workers | None = None,
    watch: Callable[[dict[str, Record]], None] | None = None,
) -> dict[str, Record]:
    """Measure the cells at these positions, reading what an earlier run finished; returns one record per cell name.

    Shards may be split differently from the earlier run: only examples that are in no file are measured, so that more
    examples, or smaller shards, cost only what is new. All cells of the first examples come before the next examples,
    so that cells can share work on them.

    Args:
        cells: what to measure.
        positions: the examples.
        out: folder of the shards.
        shard: examples per file.
        what: label of the progress bar.
        workers: who measures; default: this process.
        watch: called with the records so far, soon after the first numbers and then less and less often.
    """
    known = _checked(cells, positions, shard)
    rounds = _rounds(known, positions, shard)
    wanted = [(cell, part, turn) for turn, pairs in enumerate(rounds) for cell, part in pairs]
    ready = {(cell.name, part): _read(cell, part, out) for cell, part, _ in wanted}
    pending = [(cell, part, turn) for cell, part, turn in wanted if ready[cell.name, part] is None]
    whole = {cell.path(part, out) for cell, part, _ in wanted if ready[cell.name, part] is not None}
    # By id: a cell holds a dict and has no hash.
    earlier = {cell.name: _examples(cell, out, whole) for cell in {id(c): c for c, _, _ in pending}.values()}

    def keep(cell: Cell, part: tuple[int, ...], measured: Record | None) -> None:
        """Store a shard; the only place that writes to the folder."""
        record = _completed(cell, part, earlier[cell.name], measured)
        records.write(cell.path(part, out), record)
        ready[cell.name, part] = record

    work: list[tuple[Task, tuple[int, ...]]] = []
    for cell, part, turn in pending:
        missing = tuple(position for position in part if position not in earlier[cell.name])
        if missing:
            kind, each = cell.effort
            work.append((Task(known.index(cell), missing, turn, (kind, each * len(missing))), part))
        else:
            keep(cell, part, None)
    # Cheap cells first, so that `watch` soon sees something of every cell.
    work.sort(key=lambda one: (one[0].turn, one[0].guess[1]))
    tasks, guesses = [task for task, _ in work], [task.guess for task, _ in work]
    clock = Watch()
    # Closed however the loop ends, so that no worker outlives an error or Ctrl-C.
    with closing((workers or in_this_process)(known, tasks)) as arriving:
        for number, measured in track(arriving, len(tasks), what, lambda done: guesses[done[0]], guesses):
            task, part = work[number]
            keep(known[task.cell], part, measured)
            if watch is not None and clock.is_due():
                with clock.paused():
                    watch(_so_far(known, ready))
    return {cell.name: _joined([ready[c.name, part] for c, part, _ in wanted if c is cell]) for cell in known}


def _so_far(
    cells: Sequence[Cell], ready: Mapping[tuple[str, tuple[int, ...]], Record | None]
) -> dict[str, Record]:
    """The records so far, without cells that have nothing yet."""
    found: dict[str, list[Record]] = {}
    for (name, _), record in ready.items():
        if record is not None:
            found.setdefault(name, []).append(record)
    return {cell.name: _joined(found[cell.name]) for cell in cells if cell.name in found}


@dataclass
class Watch:
    """When to call `watch`: soon, then at growing intervals, so that it takes a small part of the time."""

    clock: Callable[[], float] = time.monotonic
    wait: float = 5.0
    since: float = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.clock()

    def is_due(self) -> bool:
        return self.clock() - self.since >= self.wait

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time the block; the next call waits at least twenty times as long."""
        began = self.clock()
        yield
        self.since = self.clock()
        self.wait = max(1.5 * self.wait, 20 * (self.since - began))


def in_this_process(cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
    """Measure the tasks one after another."""
    for number, task in enumerate(tasks):
        yield number, cells[task.cell].record(list(task.positions))


def finished(
    cells: Iterable[Cell], positions: Sequence[int], out: Path, *, shard: int = 100
) -> dict[str, Record]:
    """The results of an interrupted run: the first shards that every cell has finished; empty if there are none."""
    known = _checked(cells, positions, shard)
    kept: dict[str, list[Record | None]] = {cell.name: [] for cell in known}
    for pairs in _rounds(known, positions, shard):
        found = {cell.name: _read(cell, part, out) for cell, part in pairs}
        # Later rounds are left out even if some cells finished them: means must be over the same examples.
        if any(record is None for record in found.values()):
            break
        for name, record in found.items():
            kept[name].append(record)
    return {name: _joined(shards) for name, shards in kept.items() if shards}


def forget(cells: Iterable[Cell], out: Path) -> None:
    """Remove the files of these cells; other files stay."""
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
    """The work in order: all cells of the first shard, then of the next; a cell with a limit ends earlier."""
    places = tuple(int(position) for position in positions)
    rounds = []
    for first in range(0, len(places), shard):
        pairs = [(cell, places[: cell.limit][first : first + shard]) for cell in cells]
        rounds.append([(cell, part) for cell, part in pairs if part])
    return rounds


def _examples(cell: Cell, out: Path, besides: Set[Path]) -> dict[int, Row]:
    """The rows of all files of a cell, however they are split; files in `besides` were read already."""
    rows: dict[int, Row] = {}
    folder = Path(out) / "records" / cell.folder
    for path in sorted({*folder.glob("*.json"), *folder.glob(f"*{records.COLUMNAR}")} - besides):
        try:
            record = records.read(path)
        except UserError:
            continue  # a damaged file that is not needed; a needed shard is reported where it is read
        if (record.name, record.settings) == (cell.name, cell.settings):
            rows |= _rows(record)
    return rows


def _rows(record: Record) -> dict[int, Row]:
    return {
        int(position): {column: values[i] for column, values in record.values.items()}
        for i, position in enumerate(record.examples)
    }


def _completed(cell: Cell, part: tuple[int, ...], earlier: dict[int, Row], measured: Record | None) -> Record:
    """The complete shard: rows of earlier files, and the newly measured rest."""
    if measured is not None and len(measured.examples) == len(part):
        return measured
    rows = {**earlier, **(_rows(measured) if measured else {})}
    columns = sorted(rows[part[0]])
    if any(sorted(rows[position]) != columns for position in part):
        return cell.record(list(part))  # files of another version, with other columns
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
    """The shards as one record, independent of how they were split."""
    return replace(records.merge(shard for shard in shards if shard is not None), facts={})
