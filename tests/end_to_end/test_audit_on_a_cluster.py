"""Workers on Ray and on SLURM measure what one process would, also where some of them are lost."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.measurement import Cell, run_cells, streams
from gyrograd.measurement.clusters import RayActors, SlurmJobs, workers_of
from gyrograd.measurement.workers import Processes
from gyrograd.numerics import random


@pytest.fixture
def ray() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    yield ray
    ray.shutdown()


def cells(mark: Path) -> list[Cell]:
    """Two cells; the process that first measures example 4 away from here is killed."""
    here = os.getpid()

    def measure(positions: Tensor) -> dict[str, Tensor]:
        if os.getpid() != here and 4 in positions.tolist() and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"draws": random.uniform(streams(0, positions), (3,)).log()}

    return [Cell("a", {}, measure), Cell("b", {"other": 1}, measure)]


def contents(folder: Path) -> dict[str, bytes]:
    found = (folder / "records").rglob("*.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(found)}


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, bytes]:
    run_cells(cells(tmp_path / "mark"), range(9), tmp_path / "alone", shard=2)
    return contents(tmp_path / "alone")


def test_two_ray_actors_one_of_them_killed_leave_the_bytes_of_one_process(
    ray: Any, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    run_cells(cells(tmp_path / "mark"), range(9), tmp_path / "ray", shard=2, workers=RayActors(2))
    assert (tmp_path / "mark").exists()
    assert contents(tmp_path / "ray") == alone
    assert not ray.is_initialized()


def test_a_slurm_job_that_is_killed_and_submitted_again_leaves_the_bytes_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import submitit

    # For a network disk that shows a result late; this one is local, and a job that is killed has none.
    monkeypatch.setattr(submitit.Job, "_results_timeout_s", 0)
    jobs = SlurmJobs(1, tmp_path / "jobs", cluster="local", poll_s=0.1)
    run_cells(cells(tmp_path / "mark")[:1], range(9), tmp_path / "slurm", shard=9, workers=jobs)
    assert (tmp_path / "mark").exists()
    run_cells(cells(tmp_path / "mark")[:1], range(9), tmp_path / "one", shard=9)
    assert contents(tmp_path / "slurm") == contents(tmp_path / "one")


def test_the_words_for_workers_and_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert workers_of(None) is None
    assert workers_of(1) is None
    assert workers_of(3) == Processes(3)
    assert workers_of(2, "ray") == RayActors(2, "local")
    assert workers_of(None, "ray:10.0.0.1:6379") == RayActors(None, "10.0.0.1:6379")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert workers_of(None, "ray") == RayActors(None, "auto")
    assert workers_of(5, "slurm", tmp_path) == SlurmJobs(5, tmp_path / ".slurm")
    with pytest.raises(UserError, match="--out"):
        workers_of(5, "slurm")
    with pytest.raises(UserError, match="no cluster 'rya'.*ray"):
        workers_of(5, "rya")
    with pytest.raises(UserError, match="workers is 0"):
        workers_of(0)
