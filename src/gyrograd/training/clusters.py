"""Run trials on a Ray cluster, started on this machine or already running; the trial of a killed worker is retried."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gyrograd.errors import UserError
from gyrograd.numerics.modes import denormals_are_zero
from gyrograd.ray_cluster import LOCAL, ray_connection, ray_library
from gyrograd.records import Record
from gyrograd.training.trials import Trial

Outcome = Record | str
"""A trial's record, or its error message."""
Outcomes = Generator[tuple[Trial, Outcome], None, None]
Run = Callable[[Trial], Record]


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster for trials, and the resources of each.

    If a worker dies its trial moves to another and resumes from its last checkpoint, so all machines must see the
    folder of the sweep. An exception of the trial itself is its outcome and is not retried.
    """

    address: str = LOCAL
    """local (a cluster of this machine, ended afterwards), auto (one that runs already) or its address."""
    max_retries: int = 2
    """Retries of a trial whose worker died."""
    cpus: float = 1
    """Processors per trial."""
    gpus: float | None = None
    """GPUs per trial, or a share of one; None: one, if there are any and the trial does not ask for the CPU."""
    workers: int | None = None
    """Processors of a local cluster; None: all there are."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise UserError(f"max_retries is {self.max_retries}; give 0 or more.")
        if not self.cpus > 0 or (self.gpus is not None and not self.gpus >= 0):
            raise UserError(
                f"cpus is {self.cpus} and gpus {self.gpus}; give cpus above 0 and gpus of 0 or more."
            )

    def outcomes(self, trials: Sequence[Trial], run: Run) -> Outcomes:
        """Each trial with its outcome, as they finish."""
        ray = ray_library("A sweep on a cluster")
        with ray_connection(ray, self.address, self.workers):
            gpus = self.gpus
            if gpus is None:
                gpus = float(torch.cuda.is_available() and trials[0].settings.device != "cpu")
            resources = {"num_cpus": self.cpus, "num_gpus": gpus}
            task = ray.remote(max_retries=self.max_retries, **resources)(_in_worker)
            flushed = denormals_are_zero()
            waiting = {task.remote(run, trial, flushed): trial for trial in trials}
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield waiting.pop(ready), self._receive(ray, ready)

    def _receive(self, ray: Any, ready: Any) -> Outcome:
        wrong = ray.exceptions
        try:
            outcome: Outcome = ray.get(ready)
        except (wrong.WorkerCrashedError, wrong.NodeDiedError, wrong.OutOfMemoryError):
            return f"its worker died {self.max_retries + 1} times; give it more memory, or raise max_retries."
        except wrong.TaskCancelledError:
            return "it was cancelled; run the sweep again to go on."
        return outcome


def _in_worker(run: Run, trial: Trial, flushed: bool) -> Outcome:
    # As in the main process, so that the numbers are the same and a CPU is not slowed down by tiny ones.
    torch.set_flush_denormal(flushed)
    return attempt(run, trial)


def attempt(run: Run, trial: Trial) -> Outcome:
    """The record of a trial; a UserError is returned as its message."""
    try:
        return run(trial)
    except UserError as mistake:
        return str(mistake)
