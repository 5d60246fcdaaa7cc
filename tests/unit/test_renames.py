"""Old public names keep working, and each says what it is called now."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass, fields, replace

import pytest

from gyrograd.audit.presets import preset_of
from gyrograd.renames import old_fields, with_new_names


@old_fields(part="share")
@dataclass(frozen=True)
class Settings:
    share: float = 1.0
    seed: int = 0


OLD = {
    "gyrograd": {"predicted": "gyrograd.predict"},
    "gyrograd.attributions": {"predicted": "gyrograd.predict"},
    "gyrograd.metrics": {"suspicions": "gyrograd.metrics.raised_flags"},
    "gyrograd.metrics.suspicion": {"zero_derivative": "gyrograd.metrics.sanity_checks.zero_derivative"},
    "gyrograd.models": {"opened": "gyrograd.models.open_model", "rebuilt": "gyrograd.models.rebuild"},
    "gyrograd.occupancy": {
        "sole_writer": "gyrograd.occupancy.exclusive_folder",
        "in_turn": "gyrograd.occupancy.wait_for_lock",
    },
    "gyrograd.training.harden": {"harden": "gyrograd.hardening.harden"},
}
"""What was renamed, by the module that had the old name."""


@pytest.mark.parametrize(("home", "old"), [(home, old) for home, names in OLD.items() for old in names])
def test_an_old_name_works_and_says_what_it_is_called_now(home, old):
    place, _, new = OLD[home][old].rpartition(".")
    with pytest.warns(FutureWarning, match=r"is now gyrograd\.\w+.*; the old name goes with the next"):
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
