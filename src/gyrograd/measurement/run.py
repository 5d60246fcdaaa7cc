"""`measure`: a plan on a model and images, kept in shards, resumable."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyrograd.attacks.runs import shared_clean_looks
from gyrograd.data import Dataset
from gyrograd.data.streamed import Streamed
from gyrograd.errors import UserError
from gyrograd.measurement.cells import Cell, Workers, finished, forget, run_cells, streams
from gyrograd.measurement.clusters import workers_of
from gyrograd.measurement.plan import Condition, Look, Metric, Plan, described
from gyrograd.measurement.table import Source, Table
from gyrograd.records import Record
from gyrograd.registry import load_plugins
from gyrograd.types import Attribution, Inputs, Labels, Model

VERSION = 3
"""Raise it when a change of the code changes values: records of older versions are then measured again."""


class Interrupted(KeyboardInterrupt):
    """Measuring was stopped. `table`: the examples finished in every cell, None if there are none."""

    def __init__(self, table: Table | None) -> None:
        super().__init__()
        self.table = table


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs, the class explained of each, and their positions in the data set they come from.

    Inputs too many for memory are `Streamed` and read as they are asked for.
    """

    x: Inputs | Streamed
    target: Labels
    index: tuple[int, ...]
    _last: dict[tuple[tuple[int, ...], int], tuple[Inputs, Labels, Tensor]] = field(
        default_factory=dict, repr=False
    )

    @staticmethod
    def of(data: Dataset) -> Sample:
        """All examples of a data set, explained for their labels."""
        streamed = isinstance(data.images, Streamed)
        x = data.images.to(torch.float32) if streamed else data.pixels()
        return Sample(x, data.labels, tuple(range(len(data))))

    def rows(
        self, positions: Sequence[int], seed: int, device: torch.device
    ) -> tuple[Inputs, Labels, Tensor]:
        """Inputs, classes and random streams of these examples, on the device.

        The last ones asked for are the same tensors again, so that attacks can share what they say of clean images.
        """
        asked = (tuple(positions), seed)
        if asked not in self._last:
            here = torch.tensor([self._row[p] for p in positions])
            keys = streams(seed, torch.tensor(positions, dtype=torch.int64))
            self._last.clear()
            self._last[asked] = (self.x[here].to(device), self.target[here].to(device), keys.to(device))
        return self._last[asked]

    @cached_property
    def _row(self) -> dict[int, int]:
        return {example: row for row, example in enumerate(self.index)}


@dataclass(eq=False)
class Remembering:
    """An attribution that makes the maps of one batch once and any others as they come."""

    attribution: Attribution
    x: Tensor = field(repr=False)
    map: Tensor | None = field(default=None, repr=False)

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        same = not create_graph and x.shape == self.x.shape and x.data_ptr() == self.x.data_ptr()
        if not same:
            return self.attribution(model, x, target, create_graph=create_graph)
        if self.map is None:
            self.map = self.attribution(model, x, target).detach()
        return self.map

    def __getattr__(self, name: str) -> Any:
        """The attribution's own settings: soft stability asks for the segments of LIME and SHAP."""
        if name == "attribution":
            raise AttributeError(name)  # a copy that is being made has none yet
        return getattr(self.attribution, name)


def measure(
    model: Model,
    data: Dataset | Sample,
    plan: Plan | Sequence[Plan],
    out: Path | None = None,
    *,
    shard: int = 100,
    fresh: bool = False,
    what: str = "measuring",
    identity: Mapping[str, str] | None = None,
    workers: int | Workers | None = None,
    watch: Callable[[Table], None] | None = None,
) -> Table:
    """The table of a plan, or of several; with `out`, what an earlier run finished is read.

    Args:
        model: left as it is; it should be in evaluation mode.
        data: a data set, or images with their classes.
        plan: what to measure.
        out: folder for the shards.
        shard: images in one file. A smaller one loses less when the run is killed.
        fresh: forget what an earlier run finished.
        what: stands beside the progress bar.
        identity: names of model and data that differ whenever they do; hashes of both by default.
        workers: how many processes measure, or who does (`gyrograd.measurement.workers`); this one by default. Records
            are the same to the bit as those of one process with as many threads as each worker has.
        watch: is shown the table as it grows, soon after the first numbers and then ever less often; of cells that are
            not begun it has nothing.

    Raises:
        Interrupted: A KeyboardInterrupt came; it holds the table of what is finished.

    >>> import gyrograd as gg
    >>> from gyrograd.measurement import CLEAN, Plan, registered
    >>> model, data = gg.model("lenet", num_classes=10, seed=0).eval(), gg.dataset("shapes", split="test", n=2)
    >>> plan = Plan({"gradient": gg.attribution("gradient")}, (CLEAN,), (registered("insertion"),))
    >>> list(measure(model, data, plan).of(method="gradient", metric="insertion"))
    [0, 1]
    """
    who, plans = workers_of(workers), (plan,) if isinstance(plan, Plan) else tuple(plan)
    sample = data if isinstance(data, Sample) else Sample.of(data)
    named = identity or {"model": model_hash(model), "data": data_hash(sample.x, sample.target)}
    planned = [
        (method, condition, _cell(model, sample, named, each, method, condition))
        for each in plans
        for method in each.methods
        for condition in each.conditions
    ]
    cells = [cell for _, _, cell in planned]

    def table(found: Mapping[str, Record]) -> Table:
        there = ((m, c, found.get(cell.name)) for m, c, cell in planned)
        return Table(Source(m, c.name, c.radii, record) for m, c, record in there if record is not None)

    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        place = Path(folder)
        if fresh:
            forget(cells, place)
        _tell_of_other_records(cells, place)
        try:
            with shared_clean_looks():
                shown = None if watch is None else lambda found: watch(table(found))
                return table(
                    run_cells(cells, sample.index, place, shard=shard, what=what, workers=who, watch=shown)
                )
        except KeyboardInterrupt:
            done = finished(cells, sample.index, place, shard=shard)
            raise Interrupted(table(done) if len(done) == len(cells) else None) from None


def _cell(
    model: Model, sample: Sample, named: Mapping[str, str], plan: Plan, method: str, condition: Condition
) -> Cell:
    attribution, metrics = plan.methods[method] or _no_method, plan.metrics_of(condition)
    settings = {
        **named,
        "seed": plan.seed,
        "version": VERSION,
        **({"plugins": plugins} if (plugins := load_plugins()) else {}),
        "method": None if attribution is _no_method else described(repr(attribution)),
        **condition.settings,
        "metrics": {metric.name: dict(metric.settings) for metric in metrics},
    }
    limits = [limit for limit in (plan.images, condition.images) if limit is not None]
    name = method if condition.attack is None else f"{method} under {condition.name}"
    columns = partial(_columns, model, sample, plan.seed, attribution, condition, metrics)
    return Cell(name, settings, columns, min(limits, default=None), condition.effort)


def _columns(
    model: Model,
    sample: Sample,
    seed: int,
    attribution: Attribution,
    condition: Condition,
    metrics: Sequence[Metric],
    positions: Tensor,
) -> dict[str, Tensor]:
    """What the metrics say of these examples in a condition; under an attack, for each of its radii."""
    device = next((p.device for p in model.parameters()), sample.x.device)
    x, target, streams = sample.rows(positions.tolist(), seed, device)
    if condition.attack is None:
        look = Look(model, Remembering(attribution, x), x, target, streams)
        return {name: column for metric in metrics for name, column in metric.columns(look).items()}
    made: dict[str, Tensor] = {}
    for at, hit in enumerate(condition.attack(model, attribution, x, target, seed=streams)):
        look = Look(model, attribution, hit.x_clean, hit.target, streams, hit)
        for metric in metrics:
            for name, column in metric.columns(look).items():
                # Nothing is said of images whose search stood still.
                stuck = hit.stuck if column.dim() == 1 else hit.stuck[:, None]
                made[f"{name}[{at}]"] = torch.where(stuck, torch.nan, column.double())
        made[f"stuck[{at}]"] = hit.stuck.double()
    return made


def _no_method(model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:  # noqa: ARG001
    """In place of the method where the model alone is measured."""
    raise UserError("This metric looks at maps, and the plan measures the model alone; give its methods.")


def _tell_of_other_records(cells: Sequence[Cell], place: Path) -> None:
    """Records of another version or with other settings stay where they are and are not read."""
    kept = [p.name for p in (place / "records").glob("*-*") if p.is_dir()]
    if kept and not {cell.folder for cell in cells} & set(kept):
        print(
            f"gyrograd: measuring anew: {place / 'records'} holds numbers of other settings or of an earlier version.",
            file=sys.stderr,
        )


def model_hash(model: Model) -> str:
    """The sha256 of the architecture as printed and of every weight and buffer."""
    total = hashlib.sha256(str(model).encode())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(_bytes(tensor))
    return total.hexdigest()


def data_hash(x: Tensor | Streamed, target: Tensor) -> str:
    """The sha256 of the pixels, of streamed images that of their files, and of the classes explained."""
    total = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    total.update(x.digest().encode() if isinstance(x, Streamed) else _bytes(x))
    total.update(_bytes(target))
    return total.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
