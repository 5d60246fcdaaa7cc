"""Many nets on one leaderboard: each in a process of its own, and one that fails stops nobody."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "leaderboard_nets.py"


@pytest.fixture(scope="module")
def bench():
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("leaderboard_nets", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def options(bench, tmp_path):
    return argparse.Namespace(
        images=4,
        attacked=2,
        certify=0,
        radii="2,8",
        mean_steps=None,
        steps=3,
        methods="gradient,lrp",
        workers=2,
        limit=60,
        out=tmp_path,
    )


def test_a_folder_stands_for_its_checkpoints_and_a_word_may_carry_options(bench, tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.safetensors").touch()
    words = ["cifar10/lenet-ce", str(tmp_path), "resnet20,weights=r.pt,normalize=imagenet,name=public"]
    assert list(bench.all_nets(words)) == ["lenet-ce", "a", "b", "public"]
    assert bench.parsed(words[2]) == (
        "resnet20",
        {"weights": "r.pt", "normalize": "imagenet", "name": "public"},
    )
    assert list(bench.all_nets([str(tmp_path / "a.safetensors"), str(tmp_path)])) == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "why"),
    [(["x/net.pt", "y/net.pt"], "both called net.pt"), (["net,layers=3"], "layers is no option of a net")],
)
def test_what_cannot_be_meant_is_one_sentence(bench, words, why):
    with pytest.raises(SystemExit, match=why):
        bench.parsed(bench.all_nets(words)[words[0].split(",")[0]])


def test_a_net_that_fails_or_hangs_stops_nobody(bench, options, monkeypatch, capsys):
    def run(command, stdout, **_):
        name = command[-1]
        stdout.write(f"about {name}\n")
        stdout.flush()
        if name == "slow":
            raise subprocess.TimeoutExpired(command, 60)
        return subprocess.CompletedProcess(command, int(name == "bad"))

    monkeypatch.setattr(subprocess, "run", run)
    assert bench.run_all(["bad", "good", "slow"], options, 3) == ["bad", "slow"]
    told = capsys.readouterr().out
    assert "bad failed (1): about bad" in told
    assert "slow failed (late)" in told
    assert "good done" in told


def test_only_finished_nets_with_these_settings_are_skipped(bench, options):
    place = options.out / "audits" / "net" / "card.json"
    place.parent.mkdir(parents=True)
    settings = json.loads(json.dumps(bench.asdict(bench.preset_of(options))))
    card = {"settings": settings, "complete": True, "data": {"images": 4}}
    for change, finished in (
        ({}, True),
        ({"complete": False}, False),
        ({"data": {"images": 5}}, False),
        ({"settings": settings | {"steps": 4}}, False),
        ({"settings": settings | {"curve": [2 / 255]}}, False),
    ):
        place.write_text(json.dumps(card | change))
        assert bench.is_finished(options, "net") is finished
    assert not bench.is_finished(options, "another")
