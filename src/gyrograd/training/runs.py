"""What happens around the steps of a run: looking at the losses, keeping checkpoints, closing an epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gyrograd.data import Dataset, batches
from gyrograd.errors import UserError
from gyrograd.models import save, spec_of
from gyrograd.numerics.modes import evaluating
from gyrograd.training import logs, snapshots
from gyrograd.training.capture import CapturedStep
from gyrograd.training.files import Written, remove_leftovers, told_of_trouble
from gyrograd.training.objective import Objective
from gyrograd.training.processes import Group
from gyrograd.training.schedules import learning_rate
from gyrograd.training.settings import TrainSettings
from gyrograd.training.snapshots import Place
from gyrograd.training.steps import Average, Step, optimizer_of
from gyrograd.training.stopping import Request, Stopped
from gyrograd.types import Model

OnEpoch = Callable[[dict[str, Any], Model], bool | None]
"""Called with an epoch's log entry and the model as it would be saved; True ends the run there."""
WATCHED = 50
"""Steps between two looks at the losses: each look waits for the device."""
AGREED = 10
"""Steps between two questions among processes whether one was asked to stop: few, since torchrun waits 30 s."""


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model in evaluation mode, the log of its epochs, its best epoch, and the file it is in."""

    model: Model
    history: list[dict[str, Any]]
    best: dict[str, Any] | None = None
    path: Path | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A run's parts, and what is done with them between two steps."""

    group: Group
    model: Model
    data: Dataset
    settings: TrainSettings
    step: Step | CapturedStep
    average: Average | None
    test: Dataset | None
    out: Path | None
    mark: str
    on_epoch: OnEpoch | None
    written: Written = field(default_factory=Written)
    """What of the run is on disk."""

    @staticmethod
    def of(
        group: Group,
        model: Model,
        data: Dataset,
        settings: TrainSettings,
        objective: Objective,
        test: Dataset | None,
        out: Path | None,
        on_epoch: OnEpoch | None,
    ) -> Run:
        """Everything on the device, the optimizer new."""
        mark = snapshots.fingerprint(data)
        model.to(group.device)
        captured = settings.fast and group.device.type == "cuda" and group.share.of == 1
        if captured:
            model.to(memory_format=torch.channels_last)
        plain = Step(model, optimizer_of(model, settings), objective, group, settings.clip)
        step = CapturedStep(plain) if captured else plain
        average = Average(model, settings.ema) if settings.ema else None
        data, test = data.to(group.device), None if test is None else test.to(group.device)
        return Run(group, model, data, settings, step, average, test, out, mark, on_epoch)

    @property
    def checkpoint(self) -> Path | None:
        """The file that holds the run."""
        return None if self.out is None else self.out / snapshots.NAME

    def begun(self, resume: str) -> Place:
        """The place of the run in the folder, or a new one, written down at once: a bad folder is found now.

        Files that a kill left older or newer than the checkpoint are made to fit it.
        """
        if self.checkpoint is None:
            return Place()
        if self.group.first:
            remove_leftovers(self.checkpoint.parent)
        if (self.checkpoint.parent / logs.NAME).exists():
            self.written.lines = None
        found = self.group.told(snapshots.read(self.checkpoint) if self.group.first else None)
        if found is None or found.note["epoch"] == found.note["batch"] == 0:
            # A run that took no step (its first one was refused, say) holds nothing to keep or to contradict.
            self.save(Place())
            return Place()
        if resume != "changed":
            snapshots.check_same_run(self.checkpoint, found, self.settings, self.mark)
        self.written.saved, self.written.epoch = time.monotonic(), found.note["epoch"]
        place = snapshots.restore(found, self.model, self.step.optimizer, self.average)
        self._write_best(place)
        self._write_log(place)
        return place

    def follow(self, number: int) -> None:
        """The averaged weights follow the model's."""
        if self.average is not None:
            self.average.update(self.model, number)

    def looks(self, number: int, *, last: bool) -> bool:
        """Whether the losses are looked at after this step."""
        return last or (number + 1) % WATCHED == 0

    def watched(self, place: Place) -> dict[str, float]:
        """The mean losses of this epoch so far; a loss that is no number, or too large, ends the run."""
        losses = place.means()
        worst = losses.get("loss", 0.0)
        if not math.isfinite(worst) or worst > self.settings.loss_limit:
            raise UserError(self._diverged(place, losses))
        return losses

    def keep(self, place: Place, request: Request, *, last: bool) -> None:
        """Write a checkpoint when it is time, and end the run when a signal asked for it.

        Processes must end at the same step, so several of them ask one another, now and then; one alone stops here.
        """
        asked = request.number is not None
        if self.group.share.of > 1:
            asked = self.group.any(asked) if last or place.batch % AGREED == 0 else False
        if asked:
            self._stop(place, request)
        elif self.group.first and self._due_in_seconds() and not last:
            self.save(place)

    def save(self, place: Place) -> None:
        """Replace the checkpoint, and what has changed of best model and log; no number that is none is written.

        In this order a kill leaves no best model the checkpoint does not know, and one it came too soon for is in the
        checkpoint.
        """
        if self.checkpoint is None or not self.group.first:
            return
        with self.written.measured():
            optimizer = self.step.optimizer
            now = snapshots.taken(self.model, optimizer, self.average, place, self.settings, self.mark)
            if not snapshots.finite(now):
                raise UserError(self._diverged(place, place.means()))
            snapshots.write(self.checkpoint, now)
            self._write_best(place)
            self._write_log(place)
        self.written.saved, self.written.epoch = self.written.ended, place.epoch

    def close_epoch(self, place: Place, steps: int, seconds: float, scalars: Any) -> None:
        """Measure, note the epoch, hold the best, and write what is due."""
        epoch = place.epoch + 1
        rate = learning_rate(self.settings, place.epoch, steps - 1, steps)
        entry = {"epoch": epoch, "step": epoch * steps, "lr": rate, "losses": self.watched(place)}
        entry["seconds"] = round(seconds, 3)
        with nullcontext() if self.average is None else self.average.worn_by(self.model):
            if self.test is not None:
                entry["accuracy"] = self.accuracy(self.test)
                self._hold_best(place, entry)
            ends = self.on_epoch is not None and bool(self.on_epoch(entry, self.model))
        place.history.append(entry)
        place.next_epoch()
        place.ended = ends
        self._write_due(place, last=ends or place.epoch == self.settings.epochs)
        if scalars is not None:
            logs.write_scalars(scalars, entry)

    @torch.no_grad()
    def accuracy(self, data: Dataset, batch_size: int = 512) -> float:
        """The share of images whose class is found; the processes share the work."""
        right = torch.zeros((), dtype=torch.float64, device=self.group.device)
        with evaluating(self.model):
            for number, (x, y, _) in enumerate(batches(data, batch_size)):
                if number % self.group.share.of == self.group.share.index:
                    right += (self.model(x).argmax(1) == y).sum()
        return float(self.group.summed(right)) / len(data)

    @contextmanager
    def scalars(self, place: Place) -> Iterator[Any]:
        """TensorBoard's writer, where it is asked for. However the block is left, the log is whole afterwards."""
        writer = None
        if self.out is not None and self.settings.tensorboard and self.group.first:
            writer = logs.tensorboard_writer(self.out, place.epoch)
        try:
            yield writer
        finally:
            if writer is not None:
                writer.close()
            self._write_log(place)

    def finished(self, place: Place) -> Trained:
        """The model as it is used: averaged if it was, in evaluation mode."""
        if self.average is not None:
            self.average.give_to(self.model)
        return Trained(self.model.eval(), place.history, place.best)

    def _hold_best(self, place: Place, entry: dict[str, Any]) -> None:
        if place.best is not None and entry["accuracy"] <= place.best["accuracy"]:
            return
        place.best = {"epoch": entry["epoch"], "accuracy": entry["accuracy"]}
        if self.out is not None and self.group.first and spec_of(self.model) is not None:
            place.best_weights = Average(self.model, 0.0)

    def _due_in_seconds(self) -> bool:
        return time.monotonic() - self.written.saved >= self.settings.checkpoint_seconds

    def _write_due(self, place: Place, *, last: bool) -> None:
        """After an epoch: all files, or the log alone where `checkpoint_epochs` lets the others wait."""
        may = self.written.may_write()
        enough = place.epoch - self.written.epoch >= self.settings.checkpoint_epochs
        if last or self._due_in_seconds() or (may and enough):
            self.save(place)
        elif may:
            with self.written.measured():
                self._write_log(place)

    def _write_best(self, place: Place) -> None:
        if place.best_weights is not None and self.out is not None and self.group.first:
            path = self.out / "best.safetensors"
            with place.best_weights.worn_by(self.model), told_of_trouble(path):
                save(path, self.model, facts=place.best)
        place.best_weights = None

    def _write_log(self, place: Place) -> None:
        lines = len(place.history)
        if self.out is not None and self.group.first and self.written.lines != lines:
            logs.write_log(self.out, place.history)
            self.written.lines = lines

    def _stop(self, place: Place, request: Request) -> None:
        self.save(place)
        number = request.number or 15
        where = f"epoch {place.epoch + 1}, step {place.batch}"
        if self.checkpoint is None:
            raise Stopped(
                f"Training was asked to stop in {where}; without a folder nothing of it is kept.", number
            )
        raise Stopped(
            f"Training was asked to stop in {where}, which is in {self.checkpoint}; run it again to go on.",
            number,
        )

    def _diverged(self, place: Place, losses: dict[str, float]) -> str:
        """What happened, what is left, what to try."""
        bad = [
            f"{name} {value:.3g}"
            for name, value in losses.items()
            if not abs(value) <= self.settings.loss_limit
        ]
        what = ", ".join(bad) or "a weight is not finite"
        good = None if self.checkpoint is None else snapshots.read(self.checkpoint)
        kept = ""
        if good is not None:
            at = f"epoch {good.note['epoch'] + 1}, step {good.note['batch']}"
            kept = f"the last good checkpoint is {self.checkpoint} ({at}): go on from it with --resume changed and "
        hints = (
            f"a lower lr (now {self.settings.lr:g}), a smaller weight or clip {self.settings.clip or 0.5:g}"
        )
        return (
            f"Training diverged in epoch {place.epoch + 1}, step {place.batch} ({what}); {kept}try {hints}."
        )
