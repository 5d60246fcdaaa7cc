"""results/README.md says of every table and figure of the papers what the result files say.

And the scripts that write results/ compare like with like.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gyrograd import records
from gyrograd.data import shapes
from gyrograd.experiments.joo2023.figure2 import curves_drawn
from gyrograd.experiments.results import Quantity, read_results
from gyrograd.registry import available

ROOT = Path(__file__).parents[2]


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def paper_items() -> ModuleType:
    return benchmark("paper_items")


@pytest.fixture(scope="module")
def items_of_table1() -> ModuleType:
    return benchmark("items_of_table1")


def test_the_table_of_all_items_is_what_the_result_files_say(paper_items: ModuleType) -> None:
    table = paper_items.table()
    readme = (ROOT / "results/README.md").read_text(encoding="utf-8")
    assert f"{paper_items.BEGIN}{table}{paper_items.END}" in readme, "run python benchmarks/paper_items.py"
    for entry in available("experiment").values():
        assert (
            f"| {entry.paper} {entry.equation}: " in table or f"| {entry.paper} {entry.equation} |" in table
        )


def test_an_item_without_a_page_has_the_counts_of_the_small_runs(
    paper_items: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "small.md").write_text(
        "| `tan2023-figure4` | 58 | 2 | 4 | 0 |\n| `joo2023-figure3a` | 10 | - | 6 | 0 |\n"
    )
    lines = paper_items.table(tmp_path).splitlines()
    assert "| tan2023 Figure 4: [small](small.md) | small | 1 | 2 |  | 4 |  |  |" in lines
    assert "| joo2023 Figure 3a: [small](small.md) | small | 1 |  |  | 6 |  |  |" in lines
    assert "| tan2023 Figure 5 | not run |  |  |  |  |  |  |" in lines


def test_the_declared_times_are_the_measured_ones() -> None:
    """`gyrograd reproduce --list` shows them; results/ is not installed with the package."""
    text = (ROOT / "results/small.md").read_text(encoding="utf-8")
    small = {name: int(seconds) for name, seconds in re.findall(r"\| `([\w-]+)` \| (\d+) \|", text)}
    known = {name: entry.factory().took for name, entry in available("experiment").items()}
    assert {name: took["small"].seconds for name, took in known.items() if "small" in took} == small
    assert all(took["small"].nets_of in {"", *small} for name, took in known.items() if "small" in took)
    facts = [records.read(path).facts for path in ROOT.glob("results/*/results.json")]
    measured = {
        each["command"].removesuffix(" --device cuda").replace(" --seeds 3", ""): each for each in facts
    }
    runs = {name: took["paper"] for name, took in known.items() if "paper" in took}
    assert len(runs) == 10
    for name, run in runs.items():
        found = measured[f"gyrograd reproduce {name} --scale paper {run.options}".rstrip()]
        assert round(found["seconds"]) == run.seconds
        assert ("H200" in found["hardware"]) == (run.machine == "an H200")


def test_pages_with_the_numbers_of_table_1_have_them_still(items_of_table1: ModuleType) -> None:
    for item in items_of_table1.ITEMS:
        page = read_results(ROOT / "results" / (item.folder or item.name))
        made = items_of_table1.derived(item)
        assert (page.estimates, page.settings) == (made.estimates, made.settings), item
        assert page.facts["command"] == made.facts["command"]
        assert len(page.estimates) >= 12


def test_a_part_takes_the_columns_that_it_measures_and_no_others(items_of_table1: ModuleType) -> None:
    results = items_of_table1.derived(
        next(i for i in items_of_table1.ITEMS if i.name == "joo2023-appendix-figure2")
    )
    columns = {q.column for q in results.estimates if "@" not in q.column}
    assert columns == {
        *(f"grad rps {kind} 16" for kind in ("cosine", "pearson", "ssim")),
        *("grad a-ins 4", "grad a-ins 4, 20 shares", "grad attacked cosine 4", "grad label kept 4"),
    }
    source = read_results(ROOT / "results/joo2023-table1-printed")
    for row, own in {"ce": "ce", "l2": "l2 0.1", "l2_cosine": "l2_cosine 0.1 1"}.items():
        theirs = source.estimates[Quantity("cifar10-lenet", row, "grad a-ins 4")]
        assert results.estimates[Quantity("cifar10-lenet", own, "grad a-ins 4")] == theirs


def test_scale_reached_counts_the_nets_and_names_those_of_the_zoo(paper_items: ModuleType) -> None:
    grid = read_results(ROOT / "results/joo2023-appendix-table3")
    assert list(paper_items.reaches(grid)) == ["cifar10-lenet: 200 epochs, 3 of 36 nets, 10,000 images"]
    given = read_results(ROOT / "results/wang2020-table5")
    (line,) = paper_items.reaches(given)
    assert line.startswith("cifar10-zoo: nets of the zoo, ")


def test_curves_of_figure_2a_are_drawn_for_the_setting_that_was_run() -> None:
    results = read_results(ROOT / "results/joo2023-figure2a")
    (section,) = curves_drawn(results)
    assert results.measured_in == ["cifar10-resnet18-fast"]
    assert len(section.figures) == 1


@pytest.fixture(scope="module")
def frontier() -> ModuleType:
    return benchmark("frontier")


def explored(point: str, accuracy: float, kept: float, epochs: int = 40) -> dict[str, Any]:
    numbers = {"accuracy": {"mean": accuracy}, "gradient kept 4": {"mean": kept}}
    return {"net": "lenet", "point": point, "epochs": epochs, "attack": "auto, 20 steps", "numbers": numbers}


def test_the_frontiers_rule_compares_points_of_one_length_and_attack(frontier: ModuleType) -> None:
    """The same points trained for longer are more accurate and hold less: another kind, another choice."""
    short = [explored("ce", 82.0, 0.1), explored("adv1", 81.6, 0.3), explored("adv4", 75.0, 0.6)]
    long = [explored("ce", 87.0, 0.1, 200), explored("adv1", 86.0, 0.2, 200)]
    expected = {"lenet, 40 epochs, auto, 20 steps": "adv1", "lenet, 200 epochs, auto, 20 steps": "ce"}
    assert frontier.choices([*short, *long]) == expected
    kept = json.loads((ROOT / "results/frontier/explore.json").read_text(encoding="utf-8"))
    assert set(frontier.choices(kept).values()) == {"adv1.25+h", "taught3"}


def test_a_point_of_the_frontier_with_other_settings_is_not_taken_for_this_one(
    frontier: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "lenet-ce-s0.json").write_text(json.dumps(explored("ce", 82.0, 0.1) | {"stage": "final"}))
    asked = {"net": "lenet", "out": tmp_path, "epochs": 40, "stage": "final", "steps": 20}
    assert frontier.is_measured(argparse.Namespace(**asked), "ce", "0")
    assert not frontier.is_measured(argparse.Namespace(**asked), "ce", "1")
    with pytest.raises(SystemExit, match="has epochs 40, not 200; give another --out"):
        frontier.is_measured(argparse.Namespace(**asked | {"epochs": 200}), "ce", "0")


def test_the_frontiers_training_time_counts_what_came_before_an_interruption(
    frontier: ModuleType, tmp_path: Path
) -> None:
    """A second call finds the net trained; its own time is nothing."""
    words = {"points": "ce", "epochs": 1, "seeds": "0", "device": "cpu", "net": "lenet", "precision": None}
    few = shapes(split="train", n=10)
    here = argparse.Namespace(**words, teacher="")
    times = [frontier.trained(here, few, tmp_path)[1] for _ in range(2)]
    assert times[0] == times[1] > 0


def test_cells_of_other_radii_are_measured_again(tmp_path: Path) -> None:
    """The file of a cell is named without its radii: the first of 2, 4 and 8 was shown as that of 8 alone."""
    auto_attack = benchmark("auto_attack")
    here = argparse.Namespace(out=tmp_path, images=2, steps=3, restarts=1, eps=[2.0, 4.0, 8.0])
    cell = ("lenet", "gradient", "auto quick")
    assert auto_attack.finished(here, cell) is None
    found = {"cell": cell, "eps": [2.0, 4.0, 8.0], "kept": [[1.0], [0.5], [0.0]], "seconds": 1.0}
    records.write_text(auto_attack.path_of(here, cell), json.dumps(found))
    assert auto_attack.finished(here, cell)["kept"] == found["kept"]
    here.eps = [8.0]
    assert auto_attack.finished(here, cell) is None


def test_memory_of_a_training_step_is_over_that_of_cross_entropy_whatever_the_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training_cost = benchmark("training_cost")

    def way(name: str, *rest: Any) -> Any:
        made = training_cost.Way(name, None, (), 1, 10.0 if name == "cross-entropy" else 30.0, [])
        made.timed = lambda steps: made.times.append(1.0)
        return made

    monkeypatch.setattr(training_cost, "way", way)
    asked = argparse.Namespace(ways=["steady: one signed step"], repeats=1, steps=1)
    (row,) = training_cost.rows("lenet", asked)
    assert row["memory_ratio"] == 3.0
