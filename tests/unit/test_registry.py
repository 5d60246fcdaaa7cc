from __future__ import annotations

import pytest

from gyrograd import registry
from gyrograd.errors import UserError, did_you_mean


@pytest.fixture
def scratch(monkeypatch):
    """A registry of its own: what a test registers is gone afterwards."""
    registry.available("kernel")
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def test_a_registered_factory_is_built_by_name_and_by_alias(scratch):
    @registry.register("kernel", "spike", paper="own", aliases=("peak",))
    def spike(height: float = 1.0) -> float:
        """A spike."""
        return height

    assert registry.make("kernel", "spike", height=2.0) == registry.make("kernel", "peak", height=2.0) == 2.0
    assert registry.available("kernel")["spike"].summary == "A spike."
    assert "peak" not in registry.available("kernel")


def test_a_name_or_alias_taken_twice_is_an_error(scratch):
    registry.register("kernel", "spike", paper="own", aliases=("peak",))(registry.Entry)
    with pytest.raises(RuntimeError, match="'peak' is registered twice: spike and summit"):
        registry.register("kernel", "summit", paper="own", aliases=("peak",))(registry.Entry)
    assert "summit" not in registry.available("kernel")


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: registry.available("kernle"), "no kind 'kernle': did you mean 'kernel'"),
        (lambda: registry.lookup("kernel", "gausian"), "no kernel 'gausian': did you mean 'gaussian'"),
        (lambda: registry.lookup("kernel", "zzz"), "known: "),
        (lambda: registry.make("kernel", "gaussian", sigm=1.0), "no setting 'sigm': did you mean 'sigma'"),
        (lambda: registry.make("kernel", "gaussian", 1.0, 2.0, 3.0), "its settings are sigma"),
    ],
)
def test_a_wrong_name_or_setting_names_the_nearest_right_one(call, sentence):
    with pytest.raises(UserError, match=sentence):
        call()


def test_suggestions_fall_back_to_the_list():
    assert did_you_mean("qqq", ["b", "a"]) == "known: a, b."
    assert did_you_mean("q", []) == "there are none."


def test_facts_are_found_again_from_what_was_built():
    assert registry.fact("regularizer", registry.make("regularizer", "adversarial"), "capturable")
    assert not registry.fact("regularizer", registry.make("regularizer", "l2"), "capturable")
    assert registry.fact("attribution", registry.make("attribution", "unigrad"), "passes") == "draws"


def test_functions_that_build_one_class_and_disagree_leave_a_fact_open(scratch):
    class Built: ...

    def one() -> Built:
        """One."""
        return Built()

    def other() -> Built:
        """Other."""
        return Built()

    one.__annotations__ = other.__annotations__ = {"return": Built}
    registry.register("regularizer", "one of two", paper="own", capturable=True, second_order=False)(one)
    assert registry.fact("regularizer", Built(), "capturable")
    registry.register("regularizer", "other of two", paper="own", second_order=False)(other)
    assert not registry.fact("regularizer", Built(), "capturable")
    assert not registry.fact("regularizer", Built(), "second_order")


def test_an_object_that_is_not_registered_says_facts_itself_or_gets_the_careful_ones():
    class Own:
        replaces_cross_entropy = True

    assert registry.fact("regularizer", Own(), "replaces_cross_entropy")
    assert registry.fact("regularizer", Own(), "second_order")
    assert not registry.fact("regularizer", Own(), "capturable")


def test_lists_for_people_begin_with_what_is_best_known():
    names = [entry.name for entry in registry.in_order("attribution")]
    assert names[:2] == ["gradient", "input_x_gradient"]
    assert sorted(names) == list(registry.available("attribution"))


def test_a_label_is_as_written_or_the_name_with_spaces():
    assert registry.label_of("attribution", "smoothgrad") == "SmoothGrad"
    assert registry.label_of("metric", "rank_correlation") == "Rank correlation"
    assert registry.label_of("attribution", "my own") == "my own"
