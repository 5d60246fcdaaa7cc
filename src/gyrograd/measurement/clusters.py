"""Workers on a cluster: Ray actors that hold the cells and receive one shard after another, or an array of SLURM jobs.

As on one machine (`workers`) they only measure; the process that started them writes the results. A lost worker, or a
lost machine, is replaced, and its shards are given out again.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import torch

from gyrograd.attacks.looks import shared_clean_looks
from gyrograd.errors import UserError, check_name
from gyrograd.measurement.cells import Cell, Finished, Task, Workers
from gyrograd.measurement.workers import (
    MAX_DEATHS,
    Numerics,
    Pool,
    Processes,
    Reply,
    long_first,
    packed,
    portable,
    unpacked,
)
from gyrograd.progress import without_bars
from gyrograd.ray_cluster import LOCAL, ray_connection, ray_library

CLUSTERS = ("ray", "slurm")
JOBS_PER_WORKER = 4
"""SLURM jobs per worker; with several, a lost job loses less."""


def workers_of(
    workers: int | Workers | None, cluster: str | None = None, folder: Path | None = None
) -> Workers | None:
    """The workers for these settings: processes of this machine, a cluster, given ones, or None for this process.

    `cluster`: "ray" (on this machine, or at $RAY_ADDRESS), "ray:ADDRESS" or "slurm", whose jobs write their files into
    `folder`, which all machines must see.
    """
    if callable(workers):
        return workers
    if cluster is None:
        return None if workers in (None, 1) else Processes(workers or 0)
    kind, _, address = cluster.partition(":")
    check_name("cluster", kind, CLUSTERS)
    if kind == "ray":
        return RayActors(workers, address or os.environ.get("RAY_ADDRESS") or LOCAL)
    if folder is None:
        raise UserError("SLURM's jobs need a folder that all machines see; give --out.")
    return SlurmJobs(workers or 1, folder / ".slurm")


class Measurer:
    """Runs in a worker: rebuilds the cells once and measures one task after another."""

    def __init__(self, content: bytes, numerics: Numerics) -> None:
        numerics.apply()
        self.cells = unpacked(io.BytesIO(content))

    def ready(self) -> tuple[str]:
        return ("ready",)

    def measure(self, task: Task) -> tuple[str, Any]:
        """("done", record) of a task, or ("failed", exception)."""
        try:
            with without_bars(), shared_clean_looks():
                return "done", self.cells[task.cell].record(list(task.positions))
        except Exception as wrong:
            return "failed", portable(wrong)


@dataclass(frozen=True)
class RayActors:
    """Workers as Ray actors: one per GPU for a model on a GPU, else one per processor; `count` of them, or all.

    Ray handles machines that come and go: an actor waits until there is a machine for it.
    """

    count: int | None = None
    address: str = LOCAL

    def __call__(self, cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
        """Yield each task's number with its record, in the order in which they finish."""
        ray = ray_library("Measuring on a cluster")
        if not tasks:
            return
        content = packed(cells)
        gpu = float(torch.cuda.is_available())
        with ray_connection(ray, self.address, self.count, 2 * len(content)):
            there = ray.cluster_resources()
            count = self.count or max(1, int(there.get("GPU" if gpu else "CPU", 1)))
            # The pool replaces a lost actor itself: it must also give out its task again.
            actor = ray.remote(num_cpus=1, num_gpus=gpu, max_restarts=0)(Measurer)
            # Stored once for all actors, not sent to each.
            given = (ray.put(content), Numerics.here(1))
            pool = Pool(
                min(count, len(tasks)), lambda slot, say: _Actor(ray, slot, actor.remote(*given), say)
            )
            yield from pool.finished(tasks)


class _Actor:
    """The starting process's handle of a Ray actor."""

    def __init__(self, ray: Any, slot: int, actor: Any, say: Callable[[Reply], None]) -> None:
        self.ray, self.slot, self.actor, self.say = ray, slot, actor, say
        self._await(actor.ready.remote())

    def ask(self, task: Task) -> None:
        self._await(self.actor.measure.remote(task))

    def stop(self) -> None:
        with suppress(Exception):  # the actor, or its cluster, may be gone
            self.ray.kill(self.actor)

    def _await(self, promised: Any) -> None:
        # `ray.get` blocks, and the pool listens to all actors through one queue.
        Thread(target=self._listen, args=(promised,), daemon=True).start()

    def _listen(self, promised: Any) -> None:
        try:
            self.say(Reply(self.slot, *self.ray.get(promised)))
        except self.ray.exceptions.RayTaskError as wrong:
            cause = getattr(wrong, "cause", None)
            self.say(Reply(self.slot, "failed", cause if isinstance(cause, Exception) else wrong))
        except Exception:  # the actor or its machine died, or memory ran out
            self.say(Reply(self.slot, "lost"))


@dataclass(frozen=True)
class SlurmJobs:
    """Workers as an array of SLURM jobs, through submitit; `count` run at once. `cluster="local"` is for tests.

    A job holds the cells and measures several tasks. A failed job is submitted again.
    """

    count: int
    folder: Path
    cluster: str | None = None
    cpus: int = 1
    poll_s: float = 5.0

    def __call__(self, cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
        """Yield each task's number with its record, job by job as they finish."""
        try:
            import submitit
        except ImportError:
            raise UserError("Measuring on SLURM needs submitit: pip install 'gyrograd[slurm]'.") from None
        if not tasks:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "cells.pkl"
        file.write_bytes(packed(cells))
        executor = submitit.AutoExecutor(folder=self.folder, cluster=self.cluster)
        executor.update_parameters(
            name="gyrograd",
            cpus_per_task=self.cpus,
            gpus_per_node=int(torch.cuda.is_available()),
            slurm_array_parallelism=self.count,
            timeout_min=24 * 60,
        )
        order = long_first(tasks)
        # Dealt out in turn, so that every job has some of the long tasks.
        waiting = [order[first :: self._jobs(tasks)] for first in range(self._jobs(tasks))]
        for _ in range(MAX_DEATHS):
            given = [[(number, tasks[number]) for number in part] for part in waiting]
            same = len(given)
            jobs = executor.map_array(
                measured_in_job, [file] * same, [Numerics.here(self.cpus)] * same, given
            )
            parts = {job.job_id: part for job, part in zip(jobs, waiting, strict=True)}
            waiting, reason = [], ""
            try:
                for job in submitit.helpers.as_completed(jobs, poll_frequency=self.poll_s):
                    if (error := job.exception()) is not None:
                        waiting.append(parts[job.job_id])
                        reason = " ".join(str(error).split())[-200:]
                        continue
                    for number, (kind, value) in job.result():
                        if kind == "failed":
                            raise value
                        yield number, value
            finally:
                # Also if the caller stops early: jobs that still wait in the queue would run for nobody.
                for job in jobs:
                    job.cancel(check=False)
            if not waiting:
                return
        raise UserError(
            f"{len(waiting)} SLURM jobs failed {MAX_DEATHS} times ({reason}); see the logs in {self.folder}. What was "
            "measured is kept."
        )

    def _jobs(self, tasks: Sequence[Task]) -> int:
        return min(len(tasks), self.count * JOBS_PER_WORKER)


def measured_in_job(
    file: Path, numerics: Numerics, given: Sequence[tuple[int, Task]]
) -> list[tuple[int, tuple[str, Any]]]:
    """Runs in a job: each task's number with its record, or with its exception."""
    measurer = Measurer(file.read_bytes(), numerics)
    return [(number, measurer.measure(task)) for number, task in given]
