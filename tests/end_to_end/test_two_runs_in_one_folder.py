"""Two processes and one folder: a second run is refused while the first lives; a net both want is trained once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import small_audits
import small_training
from tiny_sweeps import base, write_images

import gyrograd as gg
from gyrograd.cli import main
from gyrograd.errors import UserError
from gyrograd.hardening import harden
from gyrograd.occupancy import NAME
from gyrograd.training import fit
from gyrograd.training.snapshots import NAME as CHECKPOINT
from gyrograd.training.sweep import sweep

GYROGRAD = [sys.executable, "-c", "import sys; from gyrograd.cli import main; sys.exit(main())"]
ENDLESS = [
    "--model", "mlp", "--model_settings.hidden", "[8]", "--data", "toy2d", "--data_settings.n", "60",
    "--epochs", "1000000", "--device", "cpu", "--batch-size", "20",
]  # fmt: skip
HOLDER = """
import sys
from contextlib import ExitStack
from gyrograd.occupancy import exclusive_folder
with ExitStack() as held:
    for folder in sys.argv[1:]:
        held.enter_context(exclusive_folder(folder))
    print("in", flush=True)
    sys.stdin.read()
"""
# One process imports torch and forks the two that want a net; the first is held up in its training.
WANTERS = """
import json, os, signal, sys, time
from pathlib import Path
from gyrograd.experiments import Net, nets
import torch._dynamo  # which an optimizer imports: here once, instead of in every fork

home = Path(sys.argv[1])
wanted = Net(
    label="plain",
    model={"name": "lenet", "image_size": 8, "activation": "softplus", "beta": 3},
    sizes={"data": {"name": "shapes", "n": 50}, "side": 8, "train": 8, "epochs": 2, "batch_size": 4},
    recipe={"optimizer": "adam", "lr": 1e-3},
)
train = nets._train


def started(name, folder):
    pid = os.fork()
    if pid:
        return pid
    def noted(*words):
        with open(folder / "trainings", "a") as file:
            file.write(name)
        while name == "a" and not (folder / "go").exists():
            time.sleep(0.01)
        train(*words)
    nets._train = noted
    os.dup2(os.open(folder / f"{name}.err", os.O_WRONLY | os.O_CREAT), 2)
    try:
        model = nets.train_or_load(wanted, folder / "nets")
        total = sum(float(p.detach().double().sum()) for p in model.parameters())
        (folder / f"{name}.sum").write_text(repr(total))
        os._exit(0)
    except BaseException as wrong:
        print(repr(wrong), file=sys.stderr, flush=True)
        os._exit(1)


def until(holds):
    while not holds():
        time.sleep(0.01)


def wanted_by_two(way):
    folder = home / way
    folder.mkdir()
    a = started("a", folder)
    until((folder / "trainings").exists)
    b = started("b", folder)
    until(lambda: (folder / "b.err").exists() and "UTC." in (folder / "b.err").read_text())
    os.kill(a, signal.SIGKILL) if way == "killed" else (folder / "go").touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in (a, b)]
    said, trainings = ((folder / name).read_text() for name in ("b.err", "trainings"))
    return {"first": a, "codes": codes, "trainings": trainings, "said": said}


print(json.dumps({way: wanted_by_two(way) for way in ("finished", "killed")}))
"""


@pytest.fixture
def held(tmp_path):
    """Folders in the hands of another process."""
    folders = {
        name: tmp_path / name for name in ("train", "fit", "audit", "sweep", "harden", "explain", "attack")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *map(str, folders.values())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    yield folders | {"pid": process.pid}
    process.kill()
    process.communicate()


def learned():
    model = small_training.net(dropout=0.0)
    fit(model, small_training.pictures(), small_training.settings(epochs=6, terms={}, zoom=1.0))
    return model


def test_what_another_process_writes_in_is_refused_by_every_verb_and_left_as_it_is(held, tmp_path, capsys):
    few = small_training.settings(epochs=1)
    pictures = small_training.pictures
    x, y = small_audits.small_images()
    verbs = {
        "fit": lambda out: fit(small_training.net(), pictures(), few, out=out),
        "audit": lambda out: gg.audit(small_audits.small_net(), x, y, preset=small_audits.SMALL, out=out),
        "sweep": lambda out: sweep(
            base(write_images(tmp_path / "images")), {"terms.l2.weight": [1]}, out=out
        ),
        "harden": lambda out: harden(learned(), pictures(), test=pictures(12, 1), out=out, device="cpu"),
    }
    for name, act in verbs.items():
        with pytest.raises(UserError, match=f"is in use: process {held['pid']} on .*; wait until it ends"):
            act(held[name])
        assert {path.name for path in held[name].iterdir()} <= {NAME, "trials"}, name
    commands = {
        "train": ENDLESS,
        **{verb: ["lenet", "shapes", "--images", "2"] for verb in ("explain", "attack")},
    }
    for name, words in commands.items():
        assert main([name, *words, "--out", str(held[name])]) == 2
        assert f"gyrograd: {held[name]} is in use: process {held['pid']} on " in capsys.readouterr().err
        assert {path.name for path in held[name].iterdir()} == {NAME}, name


def test_a_second_training_is_refused_while_the_first_lives_and_goes_on_once_it_is_killed(tmp_path, capsys):
    words = ["train", *ENDLESS, "--out", str(tmp_path / "run")]
    first = subprocess.Popen(
        [*GYROGRAD, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        until = time.monotonic() + 100
        while not (tmp_path / "run" / CHECKPOINT).exists():
            assert first.poll() is None, first.stderr
            assert time.monotonic() < until
            time.sleep(0.05)
        assert main(words) == 2
        said = capsys.readouterr().err
        assert f"is in use: process {first.pid} on " in said
        assert said.count("\n") == 1
        assert first.poll() is None  # and was not harmed
    finally:
        first.kill()
        first.communicate()
    assert main([*words, "--epochs", "1", "--resume", "changed"]) == 0
    assert "Resuming" in capsys.readouterr().out
    assert not (tmp_path / "run" / NAME).exists()


def test_a_net_that_two_processes_want_is_trained_once_and_by_the_second_if_the_first_is_killed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WANTERS, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    for way, found in json.loads(done.stdout).items():
        assert found["trainings"] == {"finished": "a", "killed": "ab"}[way]
        assert found["codes"] == {"finished": [0, 0], "killed": [-9, 0]}[way]
        assert found["said"].startswith(f"gyrograd: waiting for plain, seed 0: process {found['first']} on ")
        assert found["said"].count("\n") == 1
        kept = sorted(path.suffix for path in (tmp_path / way / "nets").iterdir())
        assert kept == [".jsonl", ".safetensors"]
    # the net that was read, and the one that was trained after a kill, are the net
    assert len({path.read_text() for path in tmp_path.glob("*/*.sum")}) == 1
    assert len(list(tmp_path.glob("*/*.sum"))) == 3
