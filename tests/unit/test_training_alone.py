"""One process alone needs no Fabric, and trains to the bit as with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import small_training
import torch
from small_training import net, pictures

from gyrograd.errors import UserError
from gyrograd.training import fit, processes
from gyrograd.training.processes import Share, process_group

TESTS = Path(__file__).parents[1]
SINGLE = """
import sys, tempfile
from small_training import net, pictures, settings
from gyrograd.training import fit
with tempfile.TemporaryDirectory() as out:
    done = fit(net(), pictures(), settings(epochs=1), test=pictures(6, 1), out=out)
assert len(done.history) == 1
print([name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning", "ray")])
"""
ABOUT_PROCESSES = (
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "LT_DEVICES",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_started_this(monkeypatch):
    for key in ABOUT_PROCESSES:
        monkeypatch.delenv(key, raising=False)


def settings(**changes):
    return small_training.settings(epochs=2, **changes)


def test_a_run_of_one_process_does_not_import_lightning():
    environment = {key: value for key, value in os.environ.items() if key not in ABOUT_PROCESSES}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", SINGLE],
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_alone_and_with_fabric_a_run_ends_bit_for_bit_the_same(monkeypatch, precision):
    runs = []
    for variables in ({}, {"LT_DEVICES": "1"}):
        for key, value in variables.items():
            monkeypatch.setenv(key, value)
        how = settings(precision=precision, allow_bf16=True)
        assert (process_group(how).fabric is None) == (not variables)
        model = net()
        done = fit(model, pictures(), how, test=pictures(12, 1))
        runs.append((model.state_dict(), [(entry["losses"], entry["accuracy"]) for entry in done.history]))
    (alone, its_log), (gathered, other_log) = runs
    assert its_log == other_log
    assert all(torch.equal(alone[key], gathered[key]) for key in gathered)


@pytest.mark.parametrize(
    ("variables", "alone"),
    [
        ({}, True),
        ({"WORLD_SIZE": "4"}, True),  # of some other program: torchrun did not start this
        ({"WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}, False),
        ({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}, True),
        ({"WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x", "SLURM_NTASKS": "4"}, True),
        ({"SLURM_NTASKS": "2"}, True),  # a batch script, where nothing but itself was started
        ({"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}, True),  # srun's tasks: a run each
        ({"LT_DEVICES": "2"}, False),
    ],
)
def test_who_started_the_process_decides_whether_fabric_is_asked(monkeypatch, variables, alone):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    connected = processes.Group(torch.device("cpu"), fabric="Fabric")
    monkeypatch.setattr(processes, "_fabric_group", lambda _: connected)
    assert (process_group(settings()) is not connected) == alone


@pytest.mark.parametrize(
    ("name", "device"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")]
)
def test_the_device_is_the_one_that_is_named_and_becomes_the_current_one(monkeypatch, name, device):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    group = process_group(settings(device=name))
    assert group.device == torch.device(device)
    assert chosen == ([] if device == "cpu" else [torch.device(device)])
    assert (group.share, group.first, group.fabric) == (Share(0, 1), True, None)


def test_forward_passes_are_bf16_only_where_it_is_asked_for():
    x = torch.ones(2, 2)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        group = process_group(settings(precision=precision))
        for _ in range(2):  # a context for each pass
            with group.autocast():
                assert (x @ x).dtype == dtype
                assert torch.nn.Softplus(3)(x @ x).dtype == dtype
        assert (x @ x).dtype == torch.float32


def test_softplus_alone_is_computed_without_autocast(monkeypatch):
    """On CUDA autocast would make it float32, and the activations of a net twice as large; a CPU's leaves it alone."""
    seen = []

    def note(*_):
        seen.append(torch.is_autocast_enabled("cpu"))

    monkeypatch.setattr(processes.F, "softplus", note)
    mode = processes.SoftplusAsGiven("cpu")
    with process_group(settings(precision="bf16")).autocast():
        for func in (processes.F.softplus, lambda *_: note()):
            mode.__torch_function__(func, (), (torch.ones(2),))
    assert seen == [False, True]


def test_a_task_of_srun_is_a_run_of_its_own_and_a_second_one_in_its_folder_is_told_the_command(
    monkeypatch, tmp_path
):
    """SLURM's variables as srun sets them for the second of two tasks; Fabric would end in a traceback."""
    step = {"JOB_ID": "7", "NTASKS": "2", "STEP_NUM_TASKS": "2", "PROCID": "1", "LOCALID": "1", "NNODES": "1"}
    for key, value in step.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    group = process_group(settings())
    assert (group.share, group.first, group.fabric) == (Share(0, 1), True, None)
    with group.holding(tmp_path):
        sentences: list[str] = []

        def second() -> None:
            try:
                fit(net(), pictures(), settings(), out=tmp_path)
            except UserError as refused:
                sentences.append(str(refused))

        other = threading.Thread(target=second)
        other.start()
        other.join()
    assert "srun --ntasks 1 torchrun --nproc-per-node 2 --no-python gyrograd train" in sentences[0]


def test_one_process_alone_keeps_what_it_has():
    group = process_group(settings())
    numbers = torch.arange(3.0)
    assert group.broadcast("mine") == "mine"
    assert group.all_reduce(numbers) is numbers
    assert (group.any(True), group.any(False)) == (True, False)
