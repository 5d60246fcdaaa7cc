"""A local Ray cluster runs a 2 x 2 sweep; a worker that is killed costs a retry, not a trial."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from pathlib import Path

import pytest
from tiny_sweeps import GRID, base, write_images

from gyrograd.training import runs
from gyrograd.training import sweep as module
from gyrograd.training.clusters import Cluster
from gyrograd.training.sweep import sweep
from gyrograd.training.trials import Measuring, run_trial

QUICK = Measuring(images=6, draws=2)
VICTIM = "l2_cosine.l2=0.1 l2_cosine.cosine=1"


@pytest.fixture
def ray():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
    # This file's functions travel as they are: workers cannot import it.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield ray
    ray.shutdown()


def killed_once(trial):
    """The trial, whose worker kills itself in the second epoch of its first attempt."""
    epochs = Path(trial.folder) / "epochs"
    runs.PAUSE = 0  # in the worker's own process: epochs this short would not be written each

    def kill(entry, model):
        before = epochs.read_text() if epochs.exists() else ""
        epochs.write_text(f"{before}{entry['epoch']} ")
        if trial.point == VICTIM and before == "1 ":
            os.kill(os.getpid(), signal.SIGKILL)

    return run_trial(trial, kill)


def test_a_cluster_runs_the_grid_retries_a_killed_worker_and_gives_the_numbers_of_one_process(
    ray, tmp_path, monkeypatch
):
    settings = base(write_images(tmp_path / "images"))
    monkeypatch.setattr(module, "run_trial", killed_once)
    done = sweep(settings, GRID, out=tmp_path / "ray", measuring=QUICK, ray=Cluster(max_retries=1, workers=2))
    assert not ray.is_initialized()
    assert len(done.records) == 2 * 2 + 1
    assert not done.failures
    # One epoch was kept when the worker died: the second attempt took the other one alone.
    epochs = {path.parent.name: path.read_text() for path in (tmp_path / "ray" / "trials").glob("*/epochs")}
    assert sorted(epochs.values()) == ["1 2 "] * 4 + ["1 2 2 "]
    monkeypatch.setattr(module, "run_trial", run_trial)
    here = sweep(settings, GRID, out=tmp_path / "here", measuring=QUICK)
    assert {name: record.values for name, record in done.records.items()} == {
        name: record.values for name, record in here.records.items()
    }
    assert done.selection == here.selection
