"""A training run: `train` and `fit`, and the work around the steps: checkpoints, logs, signals, the best epoch.

A run that is killed at any moment can be resumed. Top to bottom: `train` (settings to files), `fit` (a given model and
data), `TrainingRun` (between two steps), signals, the log, when to write.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, cast, get_args

import torch

from gyrograd.data import Dataset, batches
from gyrograd.errors import UserError, check_name
from gyrograd.models import save, spec_of
from gyrograd.numerics.modes import eval_mode
from gyrograd.progress import WORTH_A_LINE_S, duration_in_words
from gyrograd.records import os_error_as_user_error, replace_file
from gyrograd.training import snapshots
from gyrograd.training.building import datasets, model_for
from gyrograd.training.capture import CapturedStep
from gyrograd.training.loop import (
    Average,
    BestEpoch,
    EpochEntry,
    Loop,
    Step,
    TrainingProgress,
    check_fit,
    learning_rate,
    optimizer_of,
)
from gyrograd.training.objective import Objective, objective_of
from gyrograd.training.processes import Group, process_group
from gyrograd.training.settings import TrainSettings
from gyrograd.types import Labels, Model

Resume = Literal["auto", "never", "changed"]
OnEpoch = Callable[[EpochEntry, Model], bool | None]
"""Called with an epoch's log entry and the model as it would be saved; returning True ends the run."""
LOOK_EVERY = 50
"""Steps between two reads of the losses, each of which waits for the device."""
LOOK_SECONDS = 5.0
"""If steps are slow, seconds between two reads."""
SYNC_EVERY = 10
"""Steps between exchanges of stop signals among processes; few, because torchrun waits only 30 s."""
PAUSE = 50
"""Pause after writing, in multiples of the time it took: files cost at most a fiftieth of a run."""
LOG = "log.jsonl"
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model in evaluation mode, the log of its epochs, its best epoch, and its file."""

    model: Model
    history: list[EpochEntry]
    best: BestEpoch | None = None
    path: Path | None = None


def train(
    settings: TrainSettings, out: Path | str, *, resume: str = "auto", on_epoch: OnEpoch | None = None
) -> Trained:
    """Build model and data, train, and write `model.safetensors`, `log.jsonl` and a checkpoint into the folder.

    With test images the best epoch is kept, too, as `best.safetensors`. A run that was killed goes on from its last
    checkpoint; on a CPU its weights are bit for bit those of an uninterrupted run.

    Args:
        settings: model, data, objective and schedule.
        out: the run's folder.
        resume: auto (continue the folder's run if it has the same settings), never (the folder must hold no run) or
            changed (continue the folder's run with these settings).
        on_epoch: called with each epoch's log entry and the model as it would be saved; True ends the run.
    """
    _check_resume(resume, Path(out))
    group = process_group(settings)
    data, test = datasets(settings)
    model = model_for(settings, data)
    objective = objective_of(settings)
    check_fit(model, data, test, settings, objective, group)
    path = Path(out) / "model.safetensors"
    with group.holding(Path(out)):
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
        data: the training images.
        settings: all other settings; its model, start, data and test are not used.
        objective: the loss, if it is not that of the settings.
        test: images for the accuracy after each epoch.
        out: folder for checkpoint and log.
        resume: as in `train`.
        on_epoch: as in `train`.
    """
    objective = objective_of(settings) if objective is None else objective
    folder = None if out is None else Path(out)
    _check_resume(resume, folder)
    group = process_group(settings)
    check_fit(model, data, test, settings, objective, group)
    with group.holding(folder):
        return _fit(group, model, data, settings, objective, test, folder, resume, on_epoch)


def _check_resume(resume: str, out: Path | None) -> None:
    """Refuse an unknown value of `resume`, and `never` in a folder that holds a run."""
    check_name("resume", resume, get_args(Resume))
    if resume == "never" and out is not None and (out / snapshots.NAME).exists():
        raise UserError(f"{out} holds a run already; give another folder, or resume auto to go on with it.")


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
    """The loop, with everything on the device: the steps of every epoch; checkpoints, logs and signals between them."""
    mark = "" if out is None else snapshots.fingerprint(data)
    model.to(group.device)
    captured = settings.fast and group.device.type == "cuda" and group.share.of == 1
    if captured:
        model.to(memory_format=torch.channels_last)
    optimizer = optimizer_of(model, settings)
    plain = Step(model, optimizer, objective, group, settings.clip)
    step = CapturedStep(plain) if captured else plain
    average = Average(model, settings.ema) if settings.ema else None
    loop = Loop(group, model, data.to(group.device), settings, optimizer, step, average)
    test = None if test is None else test.to(group.device)
    run = TrainingRun(loop, test, out, out if group.first else None, mark, on_epoch)
    progress, steps, epochs = run.begin(resume), run.loop.steps, settings.epochs
    with (
        _left_as_found(settings, group),
        stop_requests() as request,
        bar(epochs * steps, epochs, shown=group.first) as show,
        run.scalars(progress) as scalars,
    ):
        while progress.epoch < epochs and not progress.ended:
            started, looked = time.monotonic() - progress.seconds, time.monotonic()
            for number, losses, images in run.loop.epoch(progress.epoch, progress.batch):
                progress.add(losses, images)
                progress.seconds = time.monotonic() - started
                last = progress.batch == steps
                if last or (number + 1) % LOOK_EVERY == 0 or time.monotonic() - looked >= LOOK_SECONDS:
                    means, looked = run.check_losses(progress), time.monotonic()
                    if show is not None:
                        show(number + 1, progress.epoch, means)
                run.keep(progress, request, last=last)
            run.close_epoch(progress, time.monotonic() - started, scalars)
    if run.loop.average is not None:
        run.loop.average.give_to(model)
    return Trained(model.eval(), progress.history, progress.best)


@contextmanager
def _left_as_found(settings: TrainSettings, group: Group) -> Iterator[None]:
    """Restore random generators, float32 precision and cuDNN's benchmark mode after the block."""
    products: tuple[Any, ...] = (torch.backends.cuda.matmul, cast(Any, torch.backends.cudnn).conv)
    before, searched = [part.fp32_precision for part in products], torch.backends.cudnn.benchmark
    devices = [group.device] if group.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        try:
            for part in products:
                part.fp32_precision = "tf32" if settings.precision == "tf32" else "ieee"
            # a captured step is replayed often enough to make up for trying every kernel once
            torch.backends.cudnn.benchmark = searched or settings.fast
            yield
        finally:
            torch.backends.cudnn.benchmark = searched
            for part, value in zip(products, before, strict=True):
                part.fp32_precision = value


@torch.no_grad()
def predictions(model: Model, data: Dataset, batch_size: int = 512) -> Labels:
    """The predicted class per example."""
    with eval_mode(model):
        return torch.cat([model(x).argmax(1) for x, _, _ in batches(data, batch_size)])


@dataclass
class FilesOnDisk:
    """State of a run's files on disk, and whether it is time to write again."""

    epoch: int = 0
    """Epochs in the last checkpoint."""
    saved: float = -math.inf
    """When it was written."""
    lines: int | None = 0
    """Lines of the log; None if a log exists whose length is not known."""
    ended: float = -math.inf
    """When anything was written last."""
    cost: float = 0.0
    """Seconds it took."""

    def may_write(self) -> bool:
        """True if the last write is long enough ago, as it always is with epochs of minutes."""
        return time.monotonic() - self.ended >= PAUSE * self.cost

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a write, which decides when the next one may happen."""
        begun = time.monotonic()
        yield
        self.ended = time.monotonic()
        self.cost = self.ended - begun


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A training loop, its folder, and the work between two of its steps."""

    loop: Loop
    test: Dataset | None
    out: Path | None
    folder: Path | None
    """The folder this process writes to: `out` on rank 0, None on all others."""
    mark: str
    """Fingerprint of the training data."""
    on_epoch: OnEpoch | None
    written: FilesOnDisk = field(default_factory=FilesOnDisk)

    def begin(self, resume: str) -> TrainingProgress:
        """Resume the run in the folder, or start a new one and write it at once, so that a bad folder is found now.

        Files that a kill left older or newer than the checkpoint are brought in line with it.
        """
        if self.out is None:
            return TrainingProgress()
        loop, checkpoint = self.loop, self.out / snapshots.NAME
        if self.folder is not None:
            for pattern in (".*.safetensors.*", ".*.jsonl.*"):  # left behind by a kill during a write
                for path in self.folder.glob(pattern):
                    path.unlink(missing_ok=True)
        if (self.out / LOG).exists():
            self.written.lines = None
        found = loop.group.broadcast(snapshots.read(checkpoint) if loop.group.first else None)
        if found is None or found.note["epoch"] == found.note["batch"] == 0:
            # A run without a step (its first one was refused, for example) may be replaced by any other.
            self.save(TrainingProgress())
            return TrainingProgress()
        if resume != "changed":
            snapshots.check_same_run(checkpoint, found, loop.settings, self.mark)
        self.written.saved, self.written.epoch = time.monotonic(), found.note["epoch"]
        progress = snapshots.restore(found, loop.model, loop.optimizer, loop.average)
        self._write_best(progress)
        self._write_log(progress)
        return progress

    def check_losses(self, progress: TrainingProgress) -> dict[str, float]:
        """The mean losses of this epoch so far; a loss that is not finite or too large is an error."""
        losses = progress.means()
        worst = losses.get("loss", 0.0)
        if not math.isfinite(worst) or worst > self.loop.settings.loss_limit:
            raise UserError(self._divergence_message(progress, losses))
        return losses

    def keep(self, progress: TrainingProgress, request: Request, *, last: bool) -> None:
        """Write a checkpoint if it is due, and end the run if a signal asked for it."""
        # Processes must end at the same step, so several ask one another every few steps; a single one stops at once.
        asked, group = request.number is not None, self.loop.group
        if group.share.of > 1:
            asked = group.any(asked) if last or progress.batch % SYNC_EVERY == 0 else False
        if asked:
            self._stop(progress, request)
        elif self.folder is not None and self._due_in_seconds() and not last:
            self.save(progress)

    def save(self, progress: TrainingProgress) -> None:
        """Replace the checkpoint, then best model and log if they changed; weights that are not finite are an error."""
        # In this order a kill cannot leave a best model that the checkpoint does not know; one that is not written yet
        # is inside the checkpoint.
        loop = self.loop
        if self.folder is None:
            return
        with self.written.timed():
            now = snapshots.take(loop.model, loop.optimizer, loop.average, progress, loop.settings, self.mark)
            if not snapshots.finite(now):
                raise UserError(self._divergence_message(progress, progress.means()))
            snapshots.write(self.folder / snapshots.NAME, now)
            self._write_best(progress)
            self._write_log(progress)
        self.written.saved, self.written.epoch = self.written.ended, progress.epoch

    def close_epoch(self, progress: TrainingProgress, seconds: float, scalars: Any) -> None:
        """Measure the accuracy, log the epoch, keep the best model, and write files that are due."""
        loop, steps, epoch = self.loop, self.loop.steps, progress.epoch + 1
        rate = learning_rate(loop.settings, progress.epoch, steps - 1, steps)
        entry: EpochEntry = {
            "epoch": epoch,
            "step": epoch * steps,
            "lr": rate,
            "losses": self.check_losses(progress),
            "seconds": round(seconds, 3),
        }
        with nullcontext() if loop.average is None else loop.average.swapped_into(loop.model):
            if self.test is not None:
                entry["accuracy"] = self.accuracy(self.test)
                self._hold_best(progress, entry)
            ends = self.on_epoch is not None and bool(self.on_epoch(entry, loop.model))
        progress.history.append(entry)
        progress.epoch, progress.batch, progress.ended = epoch, 0, ends
        progress.names, progress.sums, progress.seen, progress.seconds = [], None, 0, 0.0
        if self.folder is not None:
            # Write all files, or only the log if `checkpoint_epochs` lets the others wait.
            may = self.written.may_write()
            enough = progress.epoch - self.written.epoch >= loop.settings.checkpoint_epochs
            last = ends or progress.epoch == loop.settings.epochs
            if last or self._due_in_seconds() or (may and enough):
                self.save(progress)
            elif may:
                with self.written.timed():
                    self._write_log(progress)
        if scalars is not None:
            write_scalars(scalars, entry)

    @torch.no_grad()
    def accuracy(self, data: Dataset, batch_size: int = 512) -> float:
        """Share of images with the right class; the processes share the work."""
        model, group = self.loop.model, self.loop.group
        right = torch.zeros((), dtype=torch.float64, device=group.device)
        with eval_mode(model):
            for number, (x, y, _) in enumerate(batches(data, batch_size)):
                if number % group.share.of == group.share.index:
                    right += (model(x).argmax(1) == y).sum()
        return float(group.all_reduce(right)) / len(data)

    @contextmanager
    def scalars(self, progress: TrainingProgress) -> Iterator[Any]:
        """TensorBoard's writer, or None; the log is complete after the block, also after an error."""
        writer = None
        if self.folder is not None and self.loop.settings.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UserError(
                    "tensorboard true needs TensorBoard: pip install 'gyrograd[tensorboard]'."
                ) from None
            # Entries of an interrupted run from this epoch on are discarded.
            writer = SummaryWriter(self.folder / "tensorboard", purge_step=progress.epoch + 1)
        try:
            yield writer
        finally:
            if writer is not None:
                writer.close()
            self._write_log(progress)

    def _hold_best(self, progress: TrainingProgress, entry: EpochEntry) -> None:
        if progress.best is not None and entry["accuracy"] <= progress.best["accuracy"]:
            return
        progress.best = {"epoch": entry["epoch"], "accuracy": entry["accuracy"]}
        if self.folder is not None and spec_of(self.loop.model) is not None:
            progress.best_weights = Average(self.loop.model, 0.0)

    def _due_in_seconds(self) -> bool:
        return time.monotonic() - self.written.saved >= self.loop.settings.checkpoint_seconds

    def _write_best(self, progress: TrainingProgress) -> None:
        if progress.best_weights is not None and self.folder is not None:
            path = self.folder / "best.safetensors"
            with progress.best_weights.swapped_into(self.loop.model), os_error_as_user_error(path):
                save(path, self.loop.model, facts=progress.best)
        progress.best_weights = None

    def _write_log(self, progress: TrainingProgress) -> None:
        lines = len(progress.history)
        if self.folder is not None and self.written.lines != lines:
            # The whole log, one line per epoch: a function of the history, so a resumed run repeats no line.
            text = "".join(json.dumps(entry) + "\n" for entry in progress.history)
            replace_file(self.folder / LOG, text.encode())
            self.written.lines = lines

    def _stop(self, progress: TrainingProgress, request: Request) -> None:
        self.save(progress)
        number = request.number or 15
        where = f"epoch {progress.epoch + 1}, step {progress.batch}"
        kept = "; without a folder nothing of it is kept."
        if self.out is not None:
            kept = f"; the checkpoint is {self.out / snapshots.NAME}: run it again to resume."
        raise Stopped(f"Training was stopped in {where}{kept}", number)

    def _divergence_message(self, progress: TrainingProgress, losses: dict[str, float]) -> str:
        """The error message: what happened, which checkpoint is left, what to try."""
        s = self.loop.settings
        bad = [f"{name} {value:.3g}" for name, value in losses.items() if not abs(value) <= s.loss_limit]
        what = ", ".join(bad) or "a weight is not finite"
        kept = ""
        if self.out is not None and (good := snapshots.read(path := self.out / snapshots.NAME)) is not None:
            at = f"epoch {good.note['epoch'] + 1}, step {good.note['batch']}"
            kept = f"the last good checkpoint is {path} ({at}): go on from it with --resume changed and "
        hints = f"a lower lr (now {s.lr:g}), a smaller weight or clip {s.clip or 0.5:g}"
        return f"Training diverged in epoch {progress.epoch + 1}, step {progress.batch} ({what}); {kept}try {hints}."


class Stopped(KeyboardInterrupt):
    """A signal ended the run early. Its checkpoint is written, and the same command resumes it."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The shell's 128 + signal: 130 for Ctrl-C, 143 for SIGTERM. Not 0, since the work is not done."""
        return 128 + self.number


@dataclass
class Request:
    """The signal that asked to stop, if one did."""

    number: int | None = None


@contextmanager
def stop_requests() -> Iterator[Request]:
    """Note the first SIGTERM or SIGINT instead of obeying it; the second has its usual effect.

    Only a main thread may handle signals; in other threads (a sweep's worker) nothing is changed.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, _: FrameType | None) -> None:
        request.number = number
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def bar(
    steps: int, epochs: int, *, shown: bool
) -> Iterator[Callable[[int, int, Mapping[str, float]], None] | None]:
    """A bar, called with step, epoch and losses; outside a terminal one line with the time left, if it is long."""
    if not shown:
        yield None
        return
    if not sys.stderr.isatty():
        yield _line_once(steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=steps)

        def show(step: int, epoch: int, losses: Mapping[str, float]) -> None:
            parts = "  ".join(f"{name} {value:.3g}" for name, value in losses.items())
            progress.update(task, completed=step, description=f"epoch {epoch + 1}/{epochs}  {parts}")

        yield show


def _line_once(steps: int) -> Callable[[int, int, Mapping[str, float]], None]:
    """Prints the time left, once, as soon as two calls tell the pace."""
    first: list[tuple[int, float]] = []
    printed = False

    def show(step: int, epoch: int, losses: Mapping[str, float]) -> None:  # noqa: ARG001
        nonlocal printed
        if not first:
            first.append((step, time.monotonic()))
            return
        (begun, when), now = first[0], time.monotonic()
        left = (steps - step) * (now - when) / (step - begun)
        if not printed and left > WORTH_A_LINE_S and now - when >= LOOK_SECONDS:
            printed = True
            print(
                f"gyrograd: training: about {duration_in_words(left)} on this machine.",
                file=sys.stderr,
                flush=True,
            )

    return show


def read_log(out: Path | str) -> list[EpochEntry]:
    """The entries of a run's log, oldest first."""
    path = Path(out) / LOG
    if not path.is_file():
        raise UserError(f"There is no log at {path}; give the folder of a training run.")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_scalars(writer: Any, entry: EpochEntry) -> None:
    """An epoch's numbers for TensorBoard."""
    numbers = {f"losses/{name}": value for name, value in entry["losses"].items()}
    numbers |= {key: entry[key] for key in ("lr", "accuracy", "seconds") if key in entry}
    for name, value in numbers.items():
        writer.add_scalar(name, value, entry["epoch"])
    writer.flush()
