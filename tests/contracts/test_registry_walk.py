"""Every entry of every kind: documented, listed by the command line, and under a contract suite."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import gyrograd as gg
from gyrograd.cli import main

PAPERS = re.compile(r"own|joo2023|wang2020|tan2023|[A-Z][\w-]+( et al\.)? \d{4}")
SUITES = {
    "attribution": "test_attributions.py",
    "attack": "test_attacks.py",
    "metric": "test_metrics.py",
    "kernel": "test_kernels.py",
    "model": "test_models.py",
    "dataset": "test_datasets.py",
    "regularizer": "test_regularizers.py",
    "experiment": "test_experiments.py",
}
every_kind = pytest.mark.parametrize("kind", gg.kinds())


@every_kind
def test_every_entry_is_documented_and_names_its_paper(kind):
    for entry in gg.available(kind).values():
        assert len(entry.summary) > 20, entry.name
        assert entry.summary.endswith((".", ":")), entry.name
        assert PAPERS.fullmatch(entry.paper), entry.name
        assert entry.paper in {"own"} or entry.equation or " " in entry.paper, entry.name


@every_kind
def test_every_entry_is_listed_by_the_command_line(kind, capsys):
    assert main(["list", kind, "--json"]) == 0
    listed = {row["name"] for row in json.loads(capsys.readouterr().out)[kind]}
    assert listed == set(gg.available(kind))
    assert main(["list", kind]) == 0
    table = capsys.readouterr().out
    assert all(name.split("_")[0] in table for name in listed)


@every_kind
def test_every_kind_has_a_contract_suite_that_walks_the_registry(kind):
    suite = Path(__file__).parent / SUITES[kind]
    assert f'available("{kind}")' in suite.read_text(encoding="utf-8")


def test_a_command_run_from_python_leaves_the_processors_denormals_alone(capsys):
    assert main(["list", "kernel"]) == 0
    assert sys.float_info.min / 4 > 0
