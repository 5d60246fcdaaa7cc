"""gyrograd bench: every line is timed, and a mistake is a sentence."""

from __future__ import annotations

import json

from gyrograd import cli
from gyrograd.cli import bench


def test_every_job_is_timed_and_training_leaves_the_net_alone(capsys):
    words = ["bench", "--batch", "2", "--side", "8", "--repeats", "2", "--json", "--device", "cpu"]
    assert cli.main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["what"] for row in rows] == [
        "forward", *bench.METHODS, "attack step on gradient", *bench.ALIGNED
    ]  # fmt: skip
    assert all(0 < row["fastest"] <= row["seconds"] <= row["slowest"] for row in rows)


def test_the_table_names_model_and_size(capsys, monkeypatch):
    monkeypatch.setattr(bench, "_jobs", lambda *_: [bench.TimedWork("nothing", lambda: None)])
    assert cli.main(["bench", "--model", "mlp"]) == 0
    assert "mlp, 16 images of 32 px" in capsys.readouterr().out


def test_a_size_of_zero_is_refused(capsys):
    assert cli.main(["bench", "--batch", "0"]) == 2
    assert "batch is 0; give at least 1." in capsys.readouterr().err
