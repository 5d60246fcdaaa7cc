"""Values as they are written on the command line: one reader for brackets, `reproduce --train` and `train --key`."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.cli.parsing import parse_call, pixel_radius, settings, value
from gyrograd.cli.train import free_settings
from gyrograd.errors import UserError

WRITTEN = {
    "true": True,
    "True": True,
    "false": False,
    "None": None,
    "null": None,
    "12": 12,
    "1e-3": 1e-3,
    "8/255": 8 / 255,
    "-1 / 4": -0.25,
    "[1e-3, 8/255]": [1e-3, 8 / 255],
    "[4, 8]": [4, 8],
    "(4, 8)": (4, 8),
    "{l2: 0.1, eps: 4/255}": {"l2": 0.1, "eps": 4 / 255},
    "one_cycle": "one_cycle",
    "cuda:1": "cuda:1",
    "a/b": "a/b",
    "1.2.3": "1.2.3",
    "'8/255'": "8/255",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_value_means_the_same_wherever_it_is_written(text):
    expected = WRITTEN[text]
    assert (value(text), type(value(text))) == (expected, type(expected))
    assert parse_call(f"name(first=1, key={text})") == ("name", {"first": 1, "key": expected})
    assert settings(f"first=1,key={text}") == {"first": 1, "key": expected}
    _, given_free = free_settings(["--first", "1", "--key", text])
    assert given_free["settings"] == {"first": 1, "key": expected}


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.just("word"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(tree=TREES)
def test_what_python_prints_and_what_yaml_prints_are_read_back(tree):
    assert value(repr(tree)) == tree
    line = yaml.safe_dump(tree, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
    assert value(line) == tree


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("epochs", "'epochs' is not a setting; write setting=value between commas, such as epochs=12"),
        ("epochs=", "'epochs=' is not a setting"),
        ("a.b=1", "'a.b=1' is not a setting"),
        ("lr=1,lr=2", "gives lr twice; leave one out"),
        ("lr=[", "opens a bracket that is not closed"),
        ("lr={a: 1", "opens a bracket that is not closed"),
        ("lr=*x", "is not a value; write a number, a word, .* or put it in quotes"),
        ("lr=1/0", "'1/0' is not a number; write it as 8/255"),
    ],
)
def test_settings_that_are_none_are_one_sentence(text, sentence):
    with pytest.raises(UserError, match=sentence):
        settings(text, such_as="epochs=12")


def test_a_radius_in_grey_levels_is_refused_with_the_way_to_write_it() -> None:
    assert pixel_radius("8/255") == 8 / 255
    assert pixel_radius(1) == 1
    with pytest.raises(UserError, match=r"A radius is '8' and pixels lie in \[0, 1\]; write 8/255"):
        pixel_radius("8")
