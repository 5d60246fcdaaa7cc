"""Old public names keep working, and each says what it is called now."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace

import pytest

from gyrograd.renames import old_fields, old_module, old_names, with_new_names


@old_fields(part="share")
@dataclass(frozen=True)
class Settings:
    share: float = 1.0
    seed: int = 0


def test_a_renamed_function_is_found_under_its_old_name():
    find = old_names("gyrograd.numerics", likeness="gyrograd.numerics.similarity.cosine")
    with pytest.warns(FutureWarning, match=r"numerics.likeness is now .*similarity\.cosine;"):
        assert find("likeness").__name__ == "cosine"
    with pytest.raises(AttributeError, match="module 'gyrograd.numerics' has no attribute 'likenes'"):
        find("likenes")


def test_a_renamed_module_answers_for_its_names_and_not_for_those_of_the_import_system():
    find = old_module("gyrograd.wrong", "gyrograd.errors")
    with pytest.warns(FutureWarning, match=r"gyrograd\.wrong is now gyrograd\.errors"):
        assert find("UserError").__name__ == "UserError"
    with pytest.raises(AttributeError, match="__path__"):
        find("__path__")


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
