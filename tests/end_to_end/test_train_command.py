"""`gyrograd train` as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import gyrograd as gg
from gyrograd.cli import main
from gyrograd.training import recipe, settings_from
from gyrograd.training.settings import as_tree

GYROGRAD = [sys.executable, "-c", "import sys; from gyrograd.cli import main; sys.exit(main())"]
SMALL = [
    "--model", "mlp", "--model_settings.hidden", "[8]", "--data", "toy2d", "--data_settings.n", "60",
    "--test.split", "test", "--epochs", "3", "--device", "cpu", "--batch-size", "20",
]  # fmt: skip


@pytest.fixture
def pictures(tmp_path):
    """Two classes of small images, a good one each."""
    for label, shade in (("ant", 40), ("bee", 200)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(4):
            picture = np.full((8, 8, 3), shade + number, np.uint8)
            Image.fromarray(picture).save(tmp_path / "images" / label / f"{number}.png")
    return tmp_path / "images"


def test_a_run_ends_with_the_path_of_its_model(tmp_path, capsys):
    assert main(["train", *SMALL, "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == str(tmp_path / "model.safetensors")
    assert sum(line.startswith("epoch ") for line in lines) == 3
    assert "cross_entropy" in lines[1]
    assert gg.load(lines[-1])(torch.zeros(1, 2)).shape == (1, 2)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 3
    # again: nothing is left to do, and nothing changes
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    assert main(["train", *SMALL, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_the_printed_settings_can_be_given_back(tmp_path, capsys):
    words = [
        "--recipe",
        "joo2023-lenet-l2-cosine",
        "--terms.l2_cosine.eps=8/255",
        "--lr",
        "2e-3",
        "--nesterov",
        "false",
    ]
    assert main(["train", *words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(printed)
    expected = recipe(
        "joo2023-lenet-l2-cosine", lr=2e-3, nesterov=False, terms={"l2_cosine": {"eps": 8 / 255}}
    )
    assert settings_from(yaml.safe_load(printed)) == expected
    assert main(["train", "--config", str(tmp_path / "mine.yaml"), "--epochs", "7", "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == as_tree(expected) | {"epochs": 7}


def test_recipes_are_listed(capsys):
    assert main(["train", "--recipes"]) == 0
    assert "joo2023-resnet18-l2-cosine" in capsys.readouterr().out


BAD = {
    "nothing": ([], "Say what to train"),
    "unknown recipe": (["--recipe", "joo2023-lenet-l3"], "did you mean 'joo2023-lenet-l2'"),
    "unknown key": ([*SMALL, "--epoch", "3"], "did you mean 'epochs'"),
    "unknown nested key": ([*SMALL, "--terms.l2.wieght", "3"], "did you mean 'weight'"),
    "negative weight": ([*SMALL, "--terms.l2.weight", "-1"], "terms.l2.weight is -1"),
    "class count": ([*SMALL, "--model_settings.num_classes", "5"], "num_classes=2"),
    "unknown model": ([*SMALL, "--model", "mpl"], "did you mean 'mlp'"),
    "model setting": ([*SMALL, "--model_settings.hiden", "[3]"], "did you mean 'hidden'"),
    "data setting": ([*SMALL, "--data_settings.m", "3"], "no setting 'm'"),
    "wrong kind of model setting": ([*SMALL, "--model_settings.hidden", "3"], "has hidden=3; give"),
    "wrong kind of data setting": (
        [*SMALL, "--data_settings.n", "many"],
        "has n='many'; give a whole number",
    ),
    "wrong kind of term setting": ([*SMALL, "--terms.l2.eps", "big"], "has eps='big'; give a finite number"),
    "no value": ([*SMALL, "--milestones", "[3"], "is not a value"),
    "a value and its parts": ([*SMALL, "--terms", "none", "--terms.l2.weight", "1"], "leave one out"),
    "missing file": (["--config", "/nonexistent.yaml"], "/nonexistent.yaml"),
    "resume": ([*SMALL, "--resume", "perhaps"], "no resume 'perhaps'"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_mistake_is_one_sentence_exit_code_2_and_nothing_is_written(case, tmp_path, capsys):
    words, sentence = BAD[case]
    assert main(["train", *words, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip()
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def folder_words(path):
    images = ["--data", "folder", "--data_settings.path", str(path), "--data_settings.size", "8"]
    return [
        "--model",
        "lenet",
        "--model_settings.image_size",
        "8",
        *images,
        "--epochs",
        "1",
        "--device",
        "cpu",
    ]


def test_a_folder_of_images_trains_and_a_damaged_one_is_named_before_the_first_epoch(
    pictures, tmp_path, capsys
):
    out = ["--out", str(tmp_path / "run")]
    (pictures / "bee" / "9.png").write_bytes((pictures / "bee" / "0.png").read_bytes()[:40])
    assert main(["train", *folder_words(pictures), *out]) == 2
    assert "9.png cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    (pictures / "bee" / "9.png").unlink()
    assert main(["train", *folder_words(pictures), *out]) == 0


def test_a_folder_of_one_class_is_refused(pictures, tmp_path, capsys):
    for file in (pictures / "bee").iterdir():
        file.unlink()
    (pictures / "bee").rmdir()
    assert main(["train", *folder_words(pictures), "--out", str(tmp_path / "run")]) == 2
    assert "one class, 'ant'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_and_a_run_that_differs_are_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert main(["train", *SMALL, "--out", str(tmp_path / "file")]) == 2
    assert "is a file where a folder is needed" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"
    assert main(["train", *SMALL, "--out", str(tmp_path / "run")]) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert main(["train", *SMALL, "--lr", "0.5", "--out", str(tmp_path / "run")]) == 2
    assert "lr is 0.5 here and 0.001 there" in capsys.readouterr().err
    assert main(["train", *SMALL, "--resume", "never", "--out", str(tmp_path / "run")]) == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_sigterm_keeps_the_run_and_running_again_finishes_it(tmp_path):
    words = [
        *GYROGRAD,
        "train",
        *SMALL,
        "--epochs",
        "2000",
        "--checkpoint_epochs",
        "5000",
        "--out",
        str(tmp_path),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    log = tmp_path / "log.jsonl"
    while process.poll() is None and not log.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "was stopped in" in said
    assert "run it again" in said
    assert len(said.strip().splitlines()) == 1
    done = len(log.read_text().splitlines())
    assert 1 <= done < 2000
    last = str(done + 2)
    changed = ["--resume", "changed", "--epochs", last]
    assert main(["train", *SMALL, *changed, "--out", str(tmp_path)]) == 0
    assert [json.loads(line)["epoch"] for line in log.read_text().splitlines()] == list(range(1, done + 3))
