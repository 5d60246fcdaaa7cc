"""`measure`: run a plan on a model and images, in resumable shards."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyrograd.attacks.looks import shared_clean_looks, shared_clean_map
from gyrograd.data import Dataset
from gyrograd.data.streamed import Streamed
from gyrograd.errors import UserError
from gyrograd.measurement.cells import Cell, Workers, fingerprint, finished, forget, run_cells, streams
from gyrograd.measurement.clusters import workers_of
from gyrograd.measurement.plan import Condition, Look, Metric, Plan, described
from gyrograd.measurement.table import Source, Table
from gyrograd.metrics.insertion import shared_curves
from gyrograd.numerics.checks import class_indices
from gyrograd.records import Record
from gyrograd.registry import load_plugins
from gyrograd.types import Attribution, Inputs, Labels, Model

VERSION = 6
"""Increase it if a change of the code changes values; records of older versions are then measured again."""


class Interrupted(KeyboardInterrupt):
    """Raised by Ctrl-C during `measure`. `table`: the examples finished in every cell, or None."""

    def __init__(self, table: Table | None) -> None:
        super().__init__()
        self.table = table


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs, their explained classes, and their positions in the data set.

    Inputs that do not fit memory are `Streamed`, and read on demand.
    """

    x: Inputs | Streamed
    target: Labels
    index: tuple[int, ...]
    _last: dict[tuple[tuple[int, ...], int], tuple[Inputs, Labels, Tensor]] = field(
        default_factory=dict, repr=False
    )

    @staticmethod
    def of(data: Dataset) -> Sample:
        """All examples of a data set, with their labels as explained classes."""
        streamed = isinstance(data.images, Streamed)
        x = data.images.to(torch.float32) if streamed else data.pixels()
        return Sample(x, data.labels, tuple(range(len(data))))

    def rows(
        self, positions: Sequence[int], seed: int, device: torch.device
    ) -> tuple[Inputs, Labels, Tensor]:
        """Inputs, classes and random streams of these examples, on the device.

        A repeated call returns the same tensors, so that attacks can share the clean maps.
        """
        asked = (tuple(positions), seed)
        if asked not in self._last:
            here = torch.tensor([self._row[p] for p in positions])
            keys = streams(seed, torch.tensor(positions, dtype=torch.int64))
            # Only the last two: cells come shard by shard, and a few of them are of the first images of a shard.
            if len(self._last) > 1:
                del self._last[next(iter(self._last))]
            self._last[asked] = (self.x[here].to(device), self.target[here].to(device), keys.to(device))
        return self._last[asked]

    @cached_property
    def _row(self) -> dict[int, int]:
        return {example: row for row, example in enumerate(self.index)}


@dataclass(eq=False)
class Remembering:
    """An attribution that caches the maps of one batch and its model; others are computed as usual."""

    attribution: Attribution
    model: Model = field(repr=False)
    x: Tensor = field(repr=False)
    target: Labels = field(repr=False)
    map: Tensor | None = field(default=None, repr=False)

    def __call__(self, model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        # By address: metrics that move the images make new tensors, and `rows` returns the same ones.
        where = [(each.data_ptr(), each.shape, each.stride()) for each in (x, self.x)]
        same = not create_graph and model is self.model and where[0] == where[1]
        if not same or not torch.equal(class_indices(target, x), class_indices(self.target, x)):
            return self.attribution(model, x, target, create_graph=create_graph)
        if self.map is None:
            self.map = shared_clean_map(model, self.attribution, x, target)
        return self.map

    def __getattr__(self, name: str) -> Any:
        """Settings of the attribution; soft stability needs the segments of LIME and SHAP."""
        if name == "attribution":
            raise AttributeError(name)  # an object that is being copied has no fields yet
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
    """Measure a plan, or several; with `out`, results of an earlier run are read.

    Args:
        model: the model, in evaluation mode; it is not changed.
        data: a data set, or images with their classes.
        plan: what to measure.
        out: folder for the shards.
        shard: images per file. A smaller shard loses less if the run is killed.
        fresh: discard the results of an earlier run.
        what: label of the progress bar.
        identity: identifiers of model and data, which must change whenever they do; default: hashes of both and of the
            numbers of the images, by which records name them.
        workers: number of processes, or the workers themselves (`gyrograd.measurement.workers`); default: this process.
            Records are bit for bit those of one process with as many threads as a worker has.
        watch: called with the growing table, soon after the first numbers and then less and less often; it lacks cells
            that have not started.

    Raises:
        Interrupted: after a KeyboardInterrupt; it holds the table of the finished examples.

    >>> import gyrograd as gg
    >>> from gyrograd.measurement import CLEAN, Plan, registered
    >>> model, data = gg.model("lenet", num_classes=10, seed=0).eval(), gg.dataset("shapes", split="test", n=2)
    >>> plan = Plan({"gradient": gg.attribution("gradient")}, (CLEAN,), (registered("insertion"),))
    >>> list(measure(model, data, plan).of(method="gradient", metric="insertion"))
    [0, 1]
    """
    who, plans = workers_of(workers), (plan,) if isinstance(plan, Plan) else tuple(plan)
    sample = data if isinstance(data, Sample) else Sample.of(data)
    named = identity or {
        "model": model_hash(model),
        "data": data_hash(sample.x, sample.target),
        "index": fingerprint(list(sample.index)),
    }
    planned = [
        (method, condition, _cell(model, sample, named, each, method, condition))
        for each in plans
        for method in each.methods
        for condition in each.conditions
    ]
    cells = [cell for _, _, cell in planned]

    def table(found: Mapping[str, Record]) -> Table:
        return Table(
            Source(method, each.name, each.radii, _record_of(each, method, found[cell.name]))
            for method, condition, cell in planned
            if cell.name in found
            for each in (condition, *condition.then)
        )

    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        place = Path(folder)
        if fresh:
            forget(cells, place)
        else:
            _tell_of_other_records(cells, place)
        try:
            with shared_clean_looks(), shared_curves():
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
        # Left out if there are none: records made without plug-ins keep their names.
        **({"plugins": plugins} if (plugins := load_plugins()) else {}),
        "method": None if attribution is _no_method else described(attribution),
        **condition.settings,
        "metrics": {metric.name: dict(metric.settings) for metric in metrics},
    }
    limits = [limit for limit in (plan.images, condition.images) if limit is not None]
    name = _name(method, condition)
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
    """The columns of all metrics for these examples in a condition; under an attack, per radius."""
    # A model without weights runs where the images are.
    device = next((p.device for p in model.parameters()), sample.x.device)
    x, target, streams = sample.rows(positions.tolist(), seed, device)
    if condition.attack is None:
        look = Look(model, Remembering(attribution, model, x, target), x, target, streams)
        return {name: column for metric in metrics for name, column in metric.columns(look).items()}
    made: dict[str, Tensor] = {}
    for name_of_attack, hits in condition.attack_all(model, attribution, x, target, streams).items():
        before = "" if name_of_attack == condition.name else f"{name_of_attack}{OF}"
        for at, hit in enumerate(hits):
            look = Look(model, attribution, hit.x_clean, hit.target, streams, hit)
            for metric in metrics:
                for name, column in metric.columns(look).items():
                    # An image whose search had no gradient to follow gets no value.
                    stuck = hit.stuck if column.dim() == 1 else hit.stuck[:, None]
                    made[f"{before}{name}[{at}]"] = torch.where(stuck, torch.nan, column.double())
            made[f"{before}stuck[{at}]"] = hit.stuck.double()
    return made


OF = ": "
"""In the record of a cell, between the name of a later attack and that of its column."""


def _name(method: str, condition: Condition) -> str:
    return method if condition.attack is None else f"{method} under {condition.name}"


def _record_of(condition: Condition, method: str, record: Record) -> Record:
    """The part of a cell's record that belongs to one of its conditions."""
    values: dict[str, list[float | None]] = {}
    for name, column in record.values.items():
        attack, _, later = name.rpartition(OF)
        if attack == condition.name or (not attack and _name(method, condition) == record.name):
            values[later] = column
    return replace(record, name=_name(method, condition), values=values)


def _no_method(model: Model, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:  # noqa: ARG001
    """The attribution of a plan that measures the model alone."""
    raise UserError(
        "This metric looks at maps, and the plan measures the model alone; give the plan methods."
    )


def _tell_of_other_records(cells: Sequence[Cell], place: Path) -> None:
    """Print a line if the folder holds records of another version or with other settings, which are not read."""
    kept = [p.name for p in (place / "records").glob("*-*") if p.is_dir()]
    if kept and not {cell.folder for cell in cells} & set(kept):
        print(
            f"gyrograd: measuring again: {place / 'records'} holds numbers of other settings or of an earlier version.",
            file=sys.stderr,
        )


SHOW_THEIR_SETTINGS = {"gyrograd", "timm", "torch", "torchvision", "transformers"}
"""Packages whose printed modules tell them apart; a module of a user seldom prints its temperature."""


def model_hash(model: Model) -> str:
    """sha256 of the printed architecture, of every weight and buffer, and of the settings of a user's own modules."""
    # Weights alone do not tell a ReLU net from the same net with Softplus.
    total = hashlib.sha256(str(model).encode())
    for name, module in model.named_modules():
        if type(module).__module__.partition(".")[0] not in SHOW_THEIR_SETTINGS:
            plain = {
                key: value for key, value in vars(module).items() if isinstance(value, str | int | float)
            }
            own = sorted((key, value) for key, value in plain.items() if key[0] != "_" and key != "training")
            total.update(f"{name} {own}".encode() if own else b"")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(_bytes(tensor))
    return total.hexdigest()


def data_hash(x: Tensor | Streamed, target: Tensor) -> str:
    """sha256 of the pixels (for streamed images, of their files) and of the explained classes."""
    total = hashlib.sha256(f"{x.dtype} {tuple(x.shape)}".encode())
    total.update(x.digest().encode() if isinstance(x, Streamed) else _bytes(x))
    total.update(_bytes(target))
    return total.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    # As bytes, because numpy has no bfloat16.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
