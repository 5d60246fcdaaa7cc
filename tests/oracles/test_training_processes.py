"""Two gloo processes take the steps of one: same losses, same gradients, same weights."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

TESTS = Path(__file__).parents[1]

# One process imports torch and forks the ranks, as torchrun would start them.
WORKER = """
import json, os, sys
from pathlib import Path
from safetensors.torch import save_file
from small_training import net, pictures, settings
from gyrograd.training import fit
import lightning.fabric

folder, port = Path(sys.argv[1]), sys.argv[2]
# A plain step of size 1: the weights move by the gradient itself. 13 rows do not halve evenly.
PLAIN = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0, "nesterov": False, "ema": 0.0, "clip": None, "warmup": 0.0}
RUNS = {
    "gradient": dict(PLAIN, epochs=1, batch_size=13, schedule="constant"),
    "several": dict(epochs=2, batch_size=5),
    "batchnorm": dict(epochs=2, batch_size=5),
}


def run(name, rank):
    model = net(batchnorm=name == "batchnorm", dropout=0.0)
    done = fit(model, pictures(13), settings(**RUNS[name]), test=pictures(700, 1))
    save_file(model.state_dict(), folder / f"{name}-{rank}.safetensors")
    (folder / f"{name}-{rank}.json").write_text(json.dumps(done.history))


def forked(rank, world):
    pid = os.fork()
    if pid:
        return pid
    if world > 1:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID="test", GROUP_RANK="0",
        )
    try:
        for name in RUNS:
            run(name, rank if world > 1 else "alone")
        os._exit(0)
    except BaseException as wrong:
        import traceback
        traceback.print_exc()
        os._exit(1)


pids = [forked(0, 1), forked(0, 2), forked(1, 2)]
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
assert codes == [0, 0, 0], codes
"""


def free_port() -> str:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return str(place.getsockname()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("processes")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(
        [sys.executable, "-c", WORKER, str(place), free_port()],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return place


def weights(folder, name, rank):
    return load_file(folder / f"{name}-{rank}.safetensors")


def history(folder, name, rank):
    import json

    entries = json.loads((folder / f"{name}-{rank}.json").read_text())
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


def test_two_processes_give_the_gradients_of_one(folder):
    from small_training import net

    start = net(batchnorm=False, dropout=0.0).state_dict()
    alone, shared = (weights(folder, "gradient", rank) for rank in ("alone", 0))
    for key, before in start.items():
        mine, its = before - shared[key], before - alone[key]
        assert mine.abs().max() > 1e-4
        assert torch.allclose(mine, its, rtol=1e-4, atol=1e-4 * float(its.abs().max())), key


def test_two_processes_train_the_same_model_with_the_same_log(folder):
    alone, shared = (weights(folder, "several", rank) for rank in ("alone", 0))
    for key, value in alone.items():
        assert torch.allclose(shared[key], value, rtol=1e-3, atol=1e-4), key
    for mine, its in zip(history(folder, "several", 0), history(folder, "several", "alone"), strict=True):
        assert mine["losses"] == pytest.approx(its["losses"], rel=1e-4)
        assert mine["accuracy"] == its["accuracy"]


@pytest.mark.parametrize("name", ["gradient", "several", "batchnorm"])
def test_every_process_holds_the_same_model_and_log(folder, name):
    first, second = (weights(folder, name, rank) for rank in (0, 1))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert history(folder, name, 0) == history(folder, name, 1)
