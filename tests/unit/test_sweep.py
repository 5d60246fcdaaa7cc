"""Sweeps in process: the trials of a grid, joo2023's choice, resuming, and mistakes."""

from __future__ import annotations

import json
import re
import sys

import pytest
import small_training
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tiny_sweeps import GRID, base, write_images

import gyrograd as gg
from gyrograd import records
from gyrograd.cli import sweep as verb
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.records import Record
from gyrograd.training import sweep as module
from gyrograd.training import trials
from gyrograd.training.clusters import Cluster
from gyrograd.training.runs import Stopped
from gyrograd.training.sweep import choose_point, sweep
from gyrograd.training.trials import REFERENCE, Measuring, run_trial, trials_of

QUICK = Measuring(images=6, draws=2)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def swept(images, tmp_path_factory):
    """Two points and cross-entropy, two seeds."""
    grid = {"terms.l2_cosine.cosine": [0.5, 5.0]}
    return sweep(
        base(images, epochs=1), grid, out=tmp_path_factory.mktemp("swept"), seeds=[0, 1], measuring=QUICK
    )


def plan(images, tmp_path, grid=GRID, seeds=(0,), **changes):
    return trials_of(base(images, **changes), grid, list(seeds), QUICK, tmp_path)


def test_an_images_noise_is_its_own_whatever_else_is_measured():
    model, data = gg.model("lenet", image_size=8, seed=0).eval(), small_training.pictures(12)
    found = Measuring(images=4, draws=2, batch_size=3).measure(model, data)["rps"]
    metric, keys = gg.metric("rps", draws=2), random.keys(0, 12)
    rows = [row for row, value in enumerate(found) if value is not None]
    assert len(rows) == 4
    for row in rows:
        x, y = data.pixels(torch.tensor([row])), data.labels[row : row + 1]
        alone = metric(model, gg.attribution("gradient"), x, y, seed=keys[row : row + 1])
        assert found[row] == pytest.approx(alone.item(), abs=1e-5)


def test_a_grid_times_seeds_and_cross_entropy_with_every_seed(images, tmp_path):
    found = plan(images, tmp_path, seeds=(0, 3))
    assert len(found) == (2 * 2 + 1) * 2
    assert [trial.point for trial in found[:2]] == [REFERENCE] * 2
    assert [trial.settings.terms for trial in found[:2]] == [{}, {}]
    assert {
        (t.settings.terms["l2_cosine"]["l2"], t.settings.terms["l2_cosine"]["cosine"]) for t in found[2:]
    } == {(a, b) for a in (0.01, 0.1) for b in (0.5, 1.0)}
    assert {trial.settings.seed for trial in found} == {0, 3}
    assert len({trial.folder for trial in found}) == len(found)


def test_a_larger_grid_finds_the_folders_of_a_smaller_one(images, tmp_path):
    small = plan(images, tmp_path, grid={"terms.l2.weight": [0.1], "lr": [1e-3]})
    large = plan(images, tmp_path, grid={"terms.l2.weight": [1, 0.1], "lr": ["1e-2", "1e-3"]}, device="auto")
    assert {trial.name for trial in small} < {trial.name for trial in large}


def test_a_point_that_says_the_same_as_cross_entropy_is_cross_entropy(images, tmp_path):
    found = plan(images, tmp_path, grid={"terms.l2_cosine": [None, {"l2": 0.1}]}, terms={"l2_cosine": {}})
    assert [trial.point for trial in found] == [REFERENCE, 'l2_cosine={"l2": 0.1}']


def test_cross_entropy_stays_first_where_a_later_point_equals_it(images, tmp_path):
    """The first point is the one that others are compared with."""
    found = plan(images, tmp_path, grid={"lr": [0.5, 0.25]}, terms={}, lr=0.25)
    assert [trial.point for trial in found] == [REFERENCE, "lr=0.5"]


BAD = {
    "empty grid": ({}, [0], {}, "The grid is empty"),
    "no values": ({"lr": []}, [0], {}, "give a list of values"),
    "one value": ({"lr": 0.1}, [0], {}, "give a list of values"),
    "a word": ({"optimizer": "adam"}, [0], {}, "give a list of values"),
    "unknown key": ({"learning": [1]}, [0], {}, "no setting 'learning'"),
    "near miss": ({"terms.l2_cosine.cosin": [1]}, [0], {}, "did you mean 'cosine'"),
    "unknown term": ({"terms.l2_cosin.l2": [1]}, [0], {}, "did you mean 'l2_cosine'"),
    "key below a number": ({"epochs.all": [1]}, [0], {}, "epochs is"),
    "negative weight": ({"terms.l2.weight": [-1]}, [0], {}, "weight is -1"),
    "seed in the grid": ({"seed": [0, 1]}, [0], {}, "give them as seeds"),
    "no seeds": ({"lr": [0.1]}, [], {}, "seeds is"),
    "a seed twice": ({"lr": [0.1]}, [1, 1], {}, "each once"),
    "no test images": ({"lr": [0.1]}, [0], {"test": None}, "needs test images"),
    "other test images": ({"data_settings.n": [50, 60]}, [0], {}, "changes the test images"),
    "negative limit": ({"lr": [0.1]}, [0], {"limit": -0.01}, "max_accuracy_loss is -0.01"),
    "negative retries": ({"lr": [0.1]}, [0], {"retries": -1}, "max_retries is -1"),
}


@pytest.mark.parametrize(("grid", "seeds", "changes", "words"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_sentence_and_nothing_is_written(images, tmp_path, grid, seeds, changes, words):
    changes = dict(changes)
    limit, retries = changes.pop("limit", 0.01), changes.pop("retries", None)
    with pytest.raises(UserError, match=words):
        sweep(
            base(images, **changes),
            grid,
            seeds=seeds,
            max_accuracy_loss=limit,
            out=tmp_path / "out",
            ray=None if retries is None else Cluster(max_retries=retries),
        )
    assert not (tmp_path / "out").exists()


def test_every_trial_is_a_record_with_a_number_for_each_image(swept):
    assert len(swept.records) == 6
    assert not swept.failures
    for name, record in swept.records.items():
        path = swept.path.parent / "trials" / name / "record.json"
        assert records.read(path) == record
        assert len(record.values["accuracy"]) == 24
        assert sum(value is not None for value in record.values["rps"]) == QUICK.images


def test_the_table_and_the_document_name_every_point_and_the_choice(swept):
    text = swept.path.read_text()
    document = json.loads((swept.path.parent / "sweep.json").read_text())
    assert [point["name"] for point in document["points"]] == [
        REFERENCE,
        "l2_cosine.cosine=0.5",
        "l2_cosine.cosine=5",
    ]
    assert document["points"][0]["seeds"] == 2
    assert swept.selection.sentence in text
    for point in document["points"]:
        assert f"| {point['name']} |" in text
        assert len(document["folders"][point["name"]]) == 2


def test_finished_trials_are_not_run_again(images, swept, monkeypatch):
    grid = {"terms.l2_cosine.cosine": [0.5, 5.0]}
    monkeypatch.setattr(module, "run_trial", lambda trial: pytest.fail(f"{trial.name} ran again"))
    again = sweep(base(images, epochs=1), grid, out=swept.path.parent, seeds=[0, 1], measuring=QUICK)
    assert again.records == swept.records
    assert again.selection == swept.selection


def test_other_measurements_of_a_trial_are_made_from_its_trained_model(images, swept, monkeypatch):
    """The run is finished, so `train` takes no step; the record is of the new images."""
    known = plan_of(swept, images)[0]
    other = trials.Trial(known.point, known.settings, Measuring(images=9, draws=2), known.out)
    assert other.folder == known.folder
    assert known.known() is not None
    assert other.known() is None
    record = run_trial(other, on_epoch=lambda entry, model: pytest.fail("trained again"))
    assert sum(value is not None for value in record.values["rps"]) == 9


def plan_of(swept, images):
    grid = {"terms.l2_cosine.cosine": [0.5, 5.0]}
    return trials_of(base(images, epochs=1), grid, [0, 1], QUICK, swept.path.parent)


def test_an_interrupted_sweep_goes_on_where_it_was(images, tmp_path, monkeypatch):
    grid, settings = {"terms.l2.weight": [0.1]}, base(images)
    whole = sweep(settings, grid, out=tmp_path / "whole", measuring=QUICK)
    epochs = []

    def interrupted(trial):
        def stop(entry, model):
            epochs.append((trial.point, entry["epoch"]))
            if trial.point != REFERENCE and entry["epoch"] == 1:
                raise Stopped("asked to stop", 2)

        return run_trial(trial, stop)

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_trial", interrupted)
        with pytest.raises(Stopped):
            sweep(settings, grid, out=tmp_path / "part", measuring=QUICK)
    assert epochs == [(REFERENCE, 1), (REFERENCE, 2), ("l2.weight=0.1", 1)]
    again = sweep(settings, grid, out=tmp_path / "part", measuring=QUICK)
    assert {name: record.values for name, record in again.records.items()} == {
        name: record.values for name, record in whole.records.items()
    }


def test_a_failed_trial_is_told_and_the_others_go_on(images, tmp_path):
    done = sweep(base(images, epochs=1), {"lr": [1e-3, 1000]}, out=tmp_path, measuring=QUICK)
    (failure,) = done.failures.values()
    assert "diverged" in failure
    assert "failed: Training diverged" in done.path.read_text()
    assert "--resume" not in done.path.read_text()  # advice for a run of its own
    assert done.selection.chosen != "lr=1000"
    assert len(done.records) == 1  # lr 1e-3 is the base's own: cross-entropy


def test_a_failed_reference_ends_the_sweep_with_its_sentence(images, tmp_path):
    settings = base(images, model_settings={"num_classes": 7, "image_size": 8})
    with pytest.raises(UserError, match="cross-entropy failed.*num_classes=3"):
        sweep(settings, {"terms.l2.weight": [1]}, out=tmp_path, measuring=QUICK)


def test_a_file_where_the_folder_should_be_is_one_sentence(images, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"):
        sweep(base(images), {"terms.l2.weight": [1]}, out=tmp_path / "taken", measuring=QUICK)
    assert (tmp_path / "taken").read_text() == "mine"


def record_of(accuracy: float, calm: float, n: int = 1000) -> Record:
    right = round(n * accuracy)
    return Record(
        "t", {}, list(range(n)), {"accuracy": [1.0] * right + [0.0] * (n - right), "rps": [calm] * n}
    )


@pytest.mark.parametrize(
    ("points", "chosen"),
    [
        # joo2023 LeNet (facts 1.9 of the appendix's tables): l2 0.1 and cosine 1 at 86.1 and .895 beside CE 86.8
        ({"ce": (0.868, 0.760), "a": (0.861, 0.895), "b": (0.863, 0.872), "c": (0.840, 0.950)}, "a"),
        ({"ce": (0.868, 0.760), "a": (0.858, 0.8)}, "a"),
        ({"ce": (0.868, 0.760), "a": (0.857, 0.9)}, None),
        ({"ce": (0.868, 0.760), "a": (0.868, 0.7), "b": (0.9, 0.71)}, "b"),
    ],
    ids=["joo2023", "exactly one point", "more than one point", "gains in accuracy"],
)
def test_the_highest_rps_within_one_point_of_cross_entropy_is_chosen(points, chosen):
    selection = choose_point({name: [record_of(*values)] for name, values in points.items()}, {})
    assert selection.chosen == chosen
    assert (chosen or "No point") in selection.sentence


def test_a_choice_that_gains_nothing_says_so():
    steadier = {"CE": [record_of(0.8, 0.5)], "a": [record_of(0.8, 0.6)]}
    alike = {"CE": [record_of(0.8, 0.6)], "a": [record_of(0.8, 0.6)]}
    doubt = "not significantly steadier than cross-entropy"
    assert doubt not in choose_point(steadier, {}).sentence
    assert doubt in choose_point(alike, {}).sentence


@given(
    points=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=2, max_size=6),
    limit=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_the_choice_is_that_of_a_literal_reading_of_the_rule(points, limit):
    found = {f"p{i}": [record_of(a / 50, r / 100, 50)] for i, (a, r) in enumerate(points)}
    selection = choose_point(found, {}, limit=limit)
    near = [r for a, r in points[1:] if points[0][0] - a <= round(50 * limit)]
    if not near:
        assert selection.chosen is None
    else:
        assert points[int(selection.chosen[1:])][1] == max(near)
        assert points[0][0] - points[int(selection.chosen[1:])][0] <= round(50 * limit)


def test_seeds_are_averaged_image_by_image_and_a_failed_seed_rules_a_point_out():
    found = {
        "ce": [record_of(0.9, 0.5), record_of(0.8, 0.7)],
        "a": [record_of(0.85, 0.8), record_of(0.85, 0.9)],
        "b": [record_of(1.0, 0.99)],
    }
    selection = choose_point(found, {"b": "its worker died."})
    ce, a, b = selection.points
    assert ce.accuracy.value == pytest.approx(0.85)
    assert ce.rps.value == pytest.approx(0.6)
    assert a.rps_change.value == pytest.approx(0.25)
    assert selection.chosen == "a"
    assert "failed: its worker died." in selection.table().markdown()
    assert b.seeds == 1


def test_the_command_reads_grid_and_seeds_from_its_file_and_prints_the_choice(images, tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text(
        yaml.safe_dump(base(images, epochs=1) | {"grid": {"terms.l2.weight": [0.1]}, "seeds": [2]})
    )
    limits = {"max_accuracy_loss": 1.0, "images": 6}
    assert verb.sweep(file, tmp_path / "out", **limits) == 0
    said = capsys.readouterr()
    assert "Chosen: l2.weight=0.1" in " ".join(said.out.split())
    assert "2/2 l2.weight=0.1, seed 2: accuracy" in said.err
    assert verb.sweep(file, tmp_path / "out", json=True, **limits) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["chosen"] == "l2.weight=0.1"
    assert said.err == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epochs: 1\n", "has no grid"),
        ("grid: 3\n", "is 3; give keys"),
        ("grid: {}\n", "The grid is empty"),
        ("grid: {lr: [1]}\nseeds: 3\n", "seeds of .* are 3"),
        ("grid: {lr: [1]}\nrecipe: shaeps-quick\n", "did you mean 'shapes-quick'"),
        ("grid: [\n", "not valid YAML"),
    ],
)
def test_a_file_with_a_mistake_is_one_sentence(tmp_path, text, words):
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(UserError, match=words):
        verb.sweep(tmp_path / "plan.yaml", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_ray_a_cluster_is_refused_with_a_sentence(images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'gyrograd\[ray\]'"):
        sweep(base(images), {"terms.l2.weight": [1]}, out=tmp_path, ray="local", measuring=QUICK)


def test_the_names_of_points_are_folded_and_never_cut(capsys, monkeypatch):
    from gyrograd.cli.terminal import print_table

    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("gyrograd.cli.terminal.Console.is_terminal", True)
    names = [f"terms.l2_cosine.l2=0.1,terms.l2_cosine.cosine={weight}" for weight in (1, 3)]
    rows = tuple((name, "1", "0.812 [0.790, 0.834]", "0.901 [0.890, 0.912]") for name in names)
    print_table(("point", "seeds", "accuracy", "Grad RPS"), rows)
    shown = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)
    assert "…" not in shown
    for name in names:
        assert name in "".join(line[:17].split(" ")[0] for line in shown.splitlines()), shown
