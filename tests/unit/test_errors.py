"""The sentences about names that do not exist."""

from __future__ import annotations

import pytest

from gyrograd.errors import UserError, check_name


def test_a_name_that_exists_is_let_through():
    check_name("rule", "left", ("left", "right"))
    check_name("rule", "right", iter(["left", "right"]))


def test_a_near_miss_is_told_the_nearest_name():
    with pytest.raises(UserError, match=r"^There is no path rule 'rihgt': did you mean 'right'\?$"):
        check_name("path rule", "rihgt", {"left": 1, "right": 2})


@pytest.mark.parametrize(
    ("choices", "end"), [(("right", "left"), r"known: left, right\."), ((), r"there are none\.")]
)
def test_a_name_like_no_other_is_told_them_all(choices, end):
    with pytest.raises(UserError, match=rf"^There is no rule 'xyz': {end}$"):
        check_name("rule", "xyz", iter(choices))


def test_of_very_many_names_some_are_told_and_how_many_there_are():
    names = [f"name{i:02}" for i in range(43)]
    with pytest.raises(
        UserError, match=r"^There is no recipe '!!': known: name00, .*, name09 and 33 more\.$"
    ):
        check_name("recipe", "!!", names)
