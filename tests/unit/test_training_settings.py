from __future__ import annotations

import importlib
import json
import math

import hypothesis
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.errors import UserError
from gyrograd.training import TrainSettings, settings_from
from gyrograd.training.loop import learning_rate
from gyrograd.training.settings import as_tree, first_difference, with_numbers
from gyrograd.training.snapshots import Snapshot, check_same_run

BAD = {
    "unknown key": ({"learning_rat": 1}, "no setting 'learning_rat'"),
    "near key": ({"batchsize": 1}, "did you mean 'batch_size'"),
    "negative rate": ({"lr": -1}, "lr is -1; give a rate above 0"),
    "nan": ({"lr": math.nan}, "lr is nan"),
    "word for a number": ({"epochs": "many"}, "epochs is 'many'; give a whole number"),
    "fraction of an epoch": ({"epochs": 1.5}, "epochs is 1.5; give a whole number"),
    "truth for a number": ({"lr": True}, "lr is True; give a number"),
    "no epochs": ({"epochs": 0}, "at least one epoch"),
    "optimizer": ({"optimizer": "adm"}, "did you mean 'adam'"),
    "schedule": ({"schedule": "cosin"}, "did you mean 'cosine'"),
    "precision": ({"precision": "fp8"}, "no precision 'fp8'"),
    "no milestones": ({"schedule": "multi_step"}, "needs milestones"),
    "milestones": ({"milestones": [3]}, "belong to schedule multi_step"),
    "odd milestones": ({"schedule": "multi_step", "milestones": [0.5]}, "give epochs"),
    "regularized_fraction": ({"regularized_fraction": 0}, "regularized_fraction is 0"),
    "ema": ({"ema": 1}, "ema is 1"),
    "clip": ({"clip": 0}, "null for no clipping"),
    "nesterov": ({"optimizer": "sgd", "momentum": 0}, "nesterov needs a momentum"),
    "terms": ({"terms": {"l2": 3}}, "terms.l2.weight 1"),
    "terms as a list": ({"terms": ["l2"]}, "terms is"),
    "seed": ({"seed": -1}, "seed is -1"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_mistake_is_one_sentence_that_names_the_setting(case):
    tree, sentence = BAD[case]
    with pytest.raises(UserError, match=sentence) as mistake:
        settings_from(tree)
    assert str(mistake.value).count("\n") == 0


def test_settings_survive_json_and_yaml():
    settings = TrainSettings(
        terms={"l2_cosine": {"l2": 0.1}},
        schedule="multi_step",
        milestones=(3, 5),
        test={"split": "test"},
        lr=0.1 + 0.2,
    )
    assert settings_from(json.loads(json.dumps(as_tree(settings)))) == settings
    assert settings_from(yaml.safe_load(yaml.safe_dump(as_tree(settings)))) == settings


def test_words_that_are_numbers_become_numbers():
    tree = {"a": "8/255", "b": ["1e-3", "2", "x/y", "1/0", "cuda:0", "-.5", True, None], "c": {"d": "1e-3/2"}}
    assert with_numbers(tree) == {
        "a": 8 / 255,
        "b": [1e-3, 2, "x/y", "1/0", "cuda:0", -0.5, True, None],
        "c": {"d": 5e-4},
    }
    assert isinstance(with_numbers("2"), int)


def test_a_term_set_to_null_is_taken_away():
    assert settings_from({"terms": {"l2": None, "cosine": {"weight": 2}}}).terms == {"cosine": {"weight": 2}}


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2)),
)
def test_the_first_difference_is_none_exactly_for_equal_trees(here, there):
    found = first_difference({"x": here}, {"x": there})
    assert (found is None) == (here == there)
    if found:
        key = found[0].removeprefix("x.")
        assert (here.get(key), there.get(key)) == found[1:]


def rates(settings, batches):
    return [learning_rate(settings, e, b, batches) for e in range(settings.epochs) for b in range(batches)]


def torch_rates(make, steps, per, lr):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler, out = make(optimizer), []
    for step in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (step + 1) % per == 0:
            scheduler.step()
    return out


@hypothesis.settings(max_examples=15)
@given(epochs=st.integers(2, 6), batches=st.integers(1, 4), lr=st.floats(1e-4, 1.0))
def test_rates_are_those_of_torchs_schedulers(epochs, batches, lr):
    S, steps = torch.optim.lr_scheduler, epochs * batches
    cases = [
        ({"schedule": "constant"}, lambda o: S.LambdaLR(o, lambda _: 1.0), 1),
        ({"schedule": "cosine"}, lambda o: S.CosineAnnealingLR(o, T_max=epochs), batches),
        ({"schedule": "cosine", "schedule_every": "step"}, lambda o: S.CosineAnnealingLR(o, T_max=steps), 1),
        (
            {"schedule": "multi_step", "milestones": (1, epochs - 1)},
            lambda o: S.MultiStepLR(o, [1, epochs - 1]),
            batches,
        ),
    ]
    if 0.3 * steps > 1:  # below, torch's own formula divides by less than nothing
        cases.append(({"schedule": "one_cycle"}, lambda o: S.OneCycleLR(o, max_lr=lr, total_steps=steps), 1))
    for words, make, per in cases:
        # torch's one-cycle refuses to be asked for a rate after its last
        known = steps - 1 if words["schedule"] == "one_cycle" else steps
        expected = torch_rates(make, known, per, lr)
        mine = rates(TrainSettings(epochs=epochs, lr=lr, **words), batches)
        assert mine[:known] == pytest.approx(expected, rel=1e-6, abs=1e-9), words


def test_warm_up_rises_step_by_step_to_the_scheduled_rate():
    settings = TrainSettings(epochs=4, lr=1.0, schedule="constant", warmup=1.5)
    assert rates(settings, 4)[:7] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1])


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("cookbook", "recipe"),
        ("files", "FilesOnDisk"),
        ("logs", "read_log"),
        ("schedules", "learning_rate"),
        ("splits", "held_out"),
        ("steps", "Step"),
        ("stopping", "Stopped"),
    ],
)
def test_a_module_that_was_merged_is_found_under_its_old_name(module, name):
    assert hasattr(importlib.import_module(f"gyrograd.training.{module}"), name)


def test_a_checkpoint_of_a_version_that_had_static_graph_goes_on(tmp_path):
    """The setting is gone; its value in an older file is no difference between two runs."""
    told = TrainSettings()
    note = {"settings": {**as_tree(told), "static_graph": False}, "data": "d"}
    check_same_run(tmp_path, Snapshot(note, {}), told, "d")
    note["settings"]["lr"] = 0.5
    with pytest.raises(UserError, match=r"lr is 0.001 here and 0.5 there"):
        check_same_run(tmp_path, Snapshot(note, {}), told, "d")


def test_a_checkpoint_of_a_version_that_had_no_cutout_goes_on_without_one(tmp_path):
    """A setting that came later had its default when the file was written."""
    older = {key: value for key, value in as_tree(TrainSettings()).items() if key != "cutout"}
    snapshot = Snapshot({"settings": older, "data": "d"}, {})
    check_same_run(tmp_path, snapshot, TrainSettings(), "d")
    with pytest.raises(UserError, match=r"cutout is 4 here and 0 there"):
        check_same_run(tmp_path, snapshot, TrainSettings(cutout=4), "d")
