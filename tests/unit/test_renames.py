"""Old public names keep working, and each says what it is called now."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import yaml

from gyrograd.audit.presets import preset_of
from gyrograd.cli import main
from gyrograd.errors import UserError
from gyrograd.experiments.nets import Net, checked_changes, net_key
from gyrograd.renames import old_fields, with_new_names
from gyrograd.training import Objective, TrainSettings, settings_from
from gyrograd.training.settings import as_tree, merge_settings
from gyrograd.training.snapshots import Snapshot, check_same_run


@old_fields(part="share")
@dataclass(frozen=True)
class Settings:
    share: float = 1.0
    seed: int = 0


OLD = {
    "gyrograd": {"predicted": "gyrograd.predict"},
    "gyrograd.attributions": {"predicted": "gyrograd.predict"},
    "gyrograd.experiments": {
        "Found": "gyrograd.experiments.ExperimentOutput",
        "Given": "gyrograd.experiments.PretrainedNet",
        "Judged": "gyrograd.experiments.ClaimVerdict",
        "Run": "gyrograd.experiments.ExperimentContext",
        "Subject": "gyrograd.experiments.TrainedNet",
        "judged": "gyrograd.experiments.judge_claims",
        "picked": "gyrograd.experiments.pick_evenly",
        "trained": "gyrograd.experiments.train_or_load",
    },
    "gyrograd.explorer": {
        "Attacked": "gyrograd.explorer.AttackScene",
        "Explained": "gyrograd.explorer.MapsScene",
        "attacked": "gyrograd.explorer.attack_image",
        "compared": "gyrograd.explorer.compare_models",
        "explained": "gyrograd.explorer.explain_image",
        "opened_stage": "gyrograd.explorer.open_stage",
        "staged": "gyrograd.explorer.make_stage",
    },
    "gyrograd.metrics": {
        "suspicions": "gyrograd.metrics.raised_flags",
        "PixelGame": "gyrograd.metrics.InsertionCurve",
    },
    "gyrograd.metrics.suspicion": {"zero_derivative": "gyrograd.metrics.sanity_checks.zero_derivative"},
    "gyrograd.models": {"opened": "gyrograd.models.open_model", "rebuilt": "gyrograd.models.rebuild"},
    "gyrograd.occupancy": {
        "sole_writer": "gyrograd.occupancy.exclusive_folder",
        "in_turn": "gyrograd.occupancy.wait_for_lock",
    },
    "gyrograd.reporting": {
        "compared": "gyrograd.reporting.compare_audits",
        "found_audits": "gyrograd.reporting.find_audits",
    },
    "gyrograd.theory": {"measured": "gyrograd.theory.estimates"},
    "gyrograd.theory.measured": {"steepest": "gyrograd.theory.estimates.steepest"},
    "gyrograd.training.harden": {"harden": "gyrograd.hardening.harden"},
}
"""What was renamed, by the module that had the old name."""


@pytest.mark.parametrize(("home", "old"), [(home, old) for home, names in OLD.items() for old in names])
def test_an_old_name_works_and_says_what_it_is_called_now(home, old):
    place, _, new = OLD[home][old].rpartition(".")
    with pytest.warns(FutureWarning, match=r"is now gyrograd\.\w+.*; the next release drops the old name"):
        found = getattr(importlib.import_module(home), old)
    assert found is getattr(importlib.import_module(place), new)


@pytest.mark.parametrize("home", OLD)
def test_a_name_that_never_was_is_still_missing(home):
    for name in ("predictd", "__predictd__"):
        with pytest.raises(
            ImportError, match=f"cannot import name '{name}' from '{home}|has no attribute '{name}'"
        ):
            exec(f"from {home} import {name}")


def test_a_renamed_field_is_taken_and_read_under_its_old_name():
    with pytest.warns(FutureWarning, match="part is now share"):
        given = Settings(part=0.5)
    assert given == Settings(share=0.5)
    with pytest.warns(FutureWarning, match="part is now share"):
        assert given.part == 0.5
    with pytest.warns(FutureWarning, match="part is now share"):
        assert replace(given, part=0.25) == Settings(share=0.25)
    assert [field.name for field in fields(Settings)] == ["share", "seed"]


def test_what_an_earlier_version_wrote_is_read_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_new_names({"part": 0.5, "seed": 1}, {"part": "share"}) == {"share": 0.5, "seed": 1}
        assert Settings(0.5, seed=1).share == 0.5


def test_a_preset_takes_and_shows_kept_as_its_top_fraction():
    with pytest.warns(FutureWarning, match="kept is now top_fraction"):
        changed = preset_of("quick", kept=0.2)
    assert changed == preset_of("quick", top_fraction=0.2)
    with pytest.warns(FutureWarning, match="kept is now top_fraction"):
        assert changed.kept == 0.2


NEW_SETTINGS = {"regularized_fraction": 0.25, "regularize_every": 2}
OLD_SETTINGS = {"part": 0.25, "every": 2}


@pytest.mark.parametrize("make", [TrainSettings, Objective])
def test_training_takes_and_shows_part_and_every_under_their_new_names(make):
    with pytest.warns(FutureWarning, match="is now regulariz"):
        made = make(**OLD_SETTINGS)
    assert made == make(**NEW_SETTINGS)
    with pytest.warns(FutureWarning, match="every is now regularize_every"):
        assert made.every == 2


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_of_two_layers_of_settings_the_upper_one_decides_under_either_name():
    for under, over in [
        ({"part": 0.5}, {"regularized_fraction": 0.25}),
        ({"regularized_fraction": 0.5}, {"part": 0.25}),
    ]:
        assert settings_from(merge_settings(under, over)).regularized_fraction == 0.25
    term = {"terms": {"mine": {"part": 3}}}  # a term's own setting of the name is none of ours
    assert merge_settings(term, {"part": 0.25})["terms"] == term["terms"]


def test_a_checkpoint_with_the_old_names_belongs_to_the_same_run():
    settings = TrainSettings(**NEW_SETTINGS)
    before = {key: value for key, value in as_tree(settings).items() if key not in NEW_SETTINGS}
    note = {"settings": before | OLD_SETTINGS, "data": "d"}
    check_same_run(Path("x"), Snapshot(note, {}), settings, "d")
    with pytest.raises(UserError, match="regularize_every is 3 here and 2 there"):
        check_same_run(Path("x"), Snapshot(note, {}), replace(settings, regularize_every=3), "d")


def test_nets_of_an_experiment_that_were_trained_under_the_old_names_are_found():
    net = Net("l2", {"name": "lenet"}, {"epochs": 1}, {"lr": 0.1, **NEW_SETTINGS})
    assert net_key(net) == "0a73ed2224d7"  # as of the last version with the old names


@pytest.mark.filterwarnings("default::FutureWarning")
def test_the_command_line_takes_old_options_and_says_the_new_ones(capsys, tmp_path):
    assert main(["train", "--recipe", "shapes-ce", "--part", "0.5", "--print_config"]) == 0
    said = capsys.readouterr()
    assert yaml.safe_load(said.out)["regularized_fraction"] == 0.5
    assert said.err.splitlines() == [
        "gyrograd: part is now regularized_fraction; the next release drops the old name."
    ]
    (tmp_path / "own.yaml").write_text("part: 0.125\n")
    for words in (["--part", "0.125"], ["--config", str(tmp_path / "own.yaml")]):
        # steady has no such setting: the sentence shows that the value arrived under its new name
        assert main(["harden", "torchvision:resnet18", "shapes", *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert "part is now regularized_fraction" in lines[0]
        assert lines[1].startswith("gyrograd: regularized_fraction belongs to the objective l2_cosine")
    with pytest.warns(FutureWarning, match="every is now regularize_every"):
        assert checked_changes({"every": 3, "lr": 0.1}) == {"lr": 0.1, "regularize_every": 3}
