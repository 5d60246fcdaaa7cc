"""One loop: any model, any data set, any objective, on one process or many. Killed at any moment, it loses nothing.

Top to bottom: `train` (settings to files), `fit` (a model and data at hand), the loop itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gyrograd.data import Dataset, batches
from gyrograd.data.batches import order
from gyrograd.models import save
from gyrograd.numerics import random
from gyrograd.numerics.modes import evaluating
from gyrograd.numerics.random import Keys
from gyrograd.training import logs
from gyrograd.training.augmentation import augmented
from gyrograd.training.building import check_fit, check_resume, datasets, model_for
from gyrograd.training.objective import Objective, objective_of
from gyrograd.training.processes import Group, launched
from gyrograd.training.runs import OnEpoch, Run, Trained
from gyrograd.training.schedules import learning_rate
from gyrograd.training.settings import TrainSettings
from gyrograd.training.snapshots import Place
from gyrograd.training.steps import set_learning_rate
from gyrograd.training.stopping import Request, stop_requests
from gyrograd.types import Inputs, Labels, Model

T = TypeVar("T")

AHEAD = 16
"""Batches a GPU prepares at once."""


def train(
    settings: TrainSettings, out: Path | str, *, resume: str = "auto", on_epoch: OnEpoch | None = None
) -> Trained:
    """Build model and data, train, and write `model.safetensors`, `log.jsonl` and a checkpoint into the folder.

    With test images the best epoch is kept too, as `best.safetensors`. A run that was killed goes on from its last
    checkpoint; on a CPU the weights come out bit for bit as if it had not been.

    Args:
        settings: what to train, on what, for what, how.
        out: the run's folder.
        resume: auto (go on with the folder's run, if it is this one), never (the folder must hold no run) or
            changed (go on with the folder's run under these settings, whatever its own were).
        on_epoch: called with each epoch's log entry and the model as it would be saved; True ends the run.
    """
    check_resume(resume, Path(out))
    group = launched(settings)
    data, test = datasets(settings)
    model = model_for(settings, data)
    objective = objective_of(settings)
    check_fit(model, data, test, settings, objective, group)
    path = Path(out) / "model.safetensors"
    with group.alone_in(Path(out)):
        done = _fit(group, model, data, settings, objective, test, Path(out), resume, on_epoch)
        if group.first:
            last = {key: value for key, value in done.history[-1].items() if key != "seconds"}
            save(path, done.model, facts={"data": data.name, "last_epoch": last})
    return replace(done, path=path)


def fit(
    model: Model,
    data: Dataset,
    settings: TrainSettings,
    *,
    objective: Objective | None = None,
    test: Dataset | None = None,
    out: Path | str | None = None,
    resume: str = "auto",
    on_epoch: OnEpoch | None = None,
) -> Trained:
    """Train the model in place, on the settings' device. Without a folder nothing is written.

    Same seed, same weights on a CPU; torch's generators are left as they were.

    Args:
        model: any module from images to logits.
        data: what it learns from.
        settings: how; its model, start, data and test are not read.
        objective: what is minimised, if not what the settings say.
        test: images the accuracy is measured on after each epoch.
        out: folder for checkpoint and log.
        resume: as in `train`.
        on_epoch: as in `train`.
    """
    objective = objective_of(settings) if objective is None else objective
    folder = None if out is None else Path(out)
    check_resume(resume, folder)
    group = launched(settings)
    check_fit(model, data, test, settings, objective, group)
    with group.alone_in(folder):
        return _fit(group, model, data, settings, objective, test, folder, resume, on_epoch)


def _fit(
    group: Group,
    model: Model,
    data: Dataset,
    settings: TrainSettings,
    objective: Objective,
    test: Dataset | None,
    out: Path | None,
    resume: str,
    on_epoch: OnEpoch | None,
) -> Trained:
    run = Run.of(group, model, data, settings, objective, test, out, on_epoch)
    place = run.begun(resume)
    with _left_as_found(settings, group), stop_requests() as request:
        _loop(run, place, request)
    return run.finished(place)


def _loop(run: Run, place: Place, request: Request) -> None:
    """What a step needs is a function of (settings, epoch, batch): the loop can begin at any place."""
    s, group, data = run.settings, run.group, run.data
    keys = random.keys(s.seed, len(data), group.device)
    steps = -(-len(data) // s.batch_size)
    with logs.bar(s.epochs * steps, s.epochs, shown=group.first) as bar, run.scalars(place) as scalars:
        while place.epoch < s.epochs and not place.ended:
            started = time.monotonic()
            run.model.train()
            for x, y, own, count in _prepared(run, keys, place):
                number = place.epoch * steps + place.batch
                rate = learning_rate(s, place.epoch, place.batch, steps)
                set_learning_rate(run.step.optimizer, rate)
                _seed_generators(s.seed, number, group.share.index)
                losses = run.step(x, y, own, count, number)
                run.follow(number)
                place.add(losses, count)
                if run.looks(number, last=place.batch == steps):
                    bar(number + 1, place.epoch, run.watched(place))
                run.keep(place, request, last=place.batch == steps)
            run.close_epoch(place, steps, time.monotonic() - started, scalars)


def _prepared(run: Run, keys: Keys, place: Place) -> Iterator[tuple[Inputs, Labels, Keys, int]]:
    """The epoch's batches from the place on: images, labels, keys, and rows over all processes.

    A GPU makes several at once: they are small, and their kernels' launches would cost more than their work.
    """
    s, group, data = run.settings, run.group, run.data
    left = order(len(data), s.seed, place.epoch, group.device).split(s.batch_size)[place.batch :]
    at_once = AHEAD if group.device.type == "cuda" else 1

    def made(some: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        together = torch.cat([batch[group.share.rows] for batch in some])
        # One key for each (example, epoch): draws depend on neither batch size nor number of processes.
        own = random.subkeys(keys[together], place.epoch)
        return augmented(data.pixels(together), own, s), data.labels[together], own

    groups = [left[first : first + at_once] for first in range(0, len(left), at_once)]
    for some, columns in zip(groups, _one_ahead(made, groups, group.device), strict=True):
        sizes = [len(batch[group.share.rows]) for batch in some]
        for batch, *parts in zip(some, *(column.split(sizes) for column in columns), strict=True):
            yield parts[0], parts[1], parts[2], len(batch)


def _one_ahead(
    make: Callable[[T], tuple[Tensor, ...]], parts: Sequence[T], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """`make` of each part. A GPU begins the next on a stream of its own while this one is worked on."""
    if device.type != "cuda" or not parts:
        yield from map(make, parts)
        return
    here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    aside.wait_stream(here)

    def begun(part: T) -> tuple[tuple[Tensor, ...], torch.cuda.Event]:
        with torch.cuda.stream(aside):
            return make(part), aside.record_event()

    next_one = begun(parts[0])
    for following in (*parts[1:], None):
        columns, ready = next_one
        if following is not None:
            next_one = begun(following)
        here.wait_event(ready)
        for column in columns:
            column.record_stream(here)  # its memory is not given away before this stream is done with it
        yield columns


def _seed_generators(seed: int, number: int, process: int) -> None:
    """torch's generators (dropout) begin anew at every step: a resumed run needs no state of theirs."""
    torch.manual_seed(((seed * 0x9E3779B1 + number) * 4096 + process) % (1 << 63))


@contextmanager
def _left_as_found(settings: TrainSettings, group: Group) -> Iterator[None]:
    """Random generators, the precision of float32 products and the search for kernels are put back after the run."""
    products: tuple[Any, ...] = (torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn).conv)
    before, searched = [place.fp32_precision for place in products], torch.backends.cudnn.benchmark
    devices = [group.device] if group.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            for place in products:
                place.fp32_precision = "tf32" if settings.precision == "tf32" else "ieee"
            # a step that is captured runs long enough to make up for trying every kernel once
            torch.backends.cudnn.benchmark = searched or settings.fast
            yield
        finally:
            torch.backends.cudnn.benchmark = searched
            for place, value in zip(products, before, strict=True):
                place.fp32_precision = value


@torch.no_grad()
def predictions(model: Model, data: Dataset, batch_size: int = 512) -> Labels:
    """The class the model gives each example."""
    with evaluating(model):
        return torch.cat([model(x).argmax(1) for x, _, _ in batches(data, batch_size)])
