"""Trials on a Ray cluster: its own on this machine, or one that runs already. A killed worker's trial begins anew."""

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
"""A trial's record, or the sentence it failed with."""
Outcomes = Generator[tuple[Trial, Outcome], None, None]
Run = Callable[[Trial], Record]


@dataclass(frozen=True)
class Cluster:
    """Where trials run on Ray, and what each takes.

    A worker that dies takes its trial to another, which goes on from the trial's last checkpoint; the folder of a
    sweep must be one all machines see. What a trial itself raises is an outcome, not a reason to try again.
    """

    address: str = LOCAL
    """local (a cluster of this machine, ended afterwards), auto (one that runs already) or its address."""
    max_retries: int = 2
    """How often a trial whose worker died is tried again."""
    cpus: float = 1
    """Processors of a trial."""
    gpus: float | None = None
    """GPUs of a trial, or a share of one; None: one, where there are some and the trial does not ask for the CPU."""
    workers: int | None = None
    """Processors of a local cluster; None: all there are."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise UserError(f"max_retries is {self.max_retries}; give 0 or more.")
        if not self.cpus > 0 or (self.gpus is not None and not self.gpus >= 0):
            raise UserError(
                f"A trial takes {self.cpus} cpus and {self.gpus} gpus; give more than 0, and 0 or more."
            )

    def outcomes(self, trials: Sequence[Trial], run: Run) -> Outcomes:
        """Each trial with its outcome, as they finish."""
        ray = ray_library("A sweep on a cluster")
        with ray_connection(ray, self.address, self.workers):
            resources = {"num_cpus": self.cpus, "num_gpus": self._gpus(trials[0])}
            task = ray.remote(max_retries=self.max_retries, **resources)(_outcome)
            flushed = denormals_are_zero()
            waiting = {task.remote(run, trial, flushed): trial for trial in trials}
            while waiting:
                (ready, *_), _ = ray.wait(list(waiting))
                yield waiting.pop(ready), self._received(ray, ready)

    def _gpus(self, trial: Trial) -> float:
        if self.gpus is not None:
            return self.gpus
        return float(torch.cuda.is_available() and trial.settings.device != "cpu")

    def _received(self, ray: Any, ready: Any) -> Outcome:
        wrong = ray.exceptions
        try:
            outcome: Outcome = ray.get(ready)
        except (wrong.WorkerCrashedError, wrong.NodeDiedError, wrong.OutOfMemoryError):
            return f"its worker died {self.max_retries + 1} times; give it more memory, or raise max_retries."
        except wrong.TaskCancelledError:
            return "it was cancelled; run the sweep again to go on."
        return outcome


def _outcome(run: Run, trial: Trial, flushed: bool) -> Outcome:
    """In the worker: the user's mistakes travel as sentences."""
    # As in the process that asked: the same numbers come out, and a CPU is not slowed down by those near zero.
    torch.set_flush_denormal(flushed)
    try:
        return run(trial)
    except UserError as mistake:
        return str(mistake)
