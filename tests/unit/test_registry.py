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
    registry.register("kernel", "spike", paper="own", aliases=("peak",))(dict)
    with pytest.raises(RuntimeError, match="'peak' is registered twice: spike and summit"):
        registry.register("kernel", "summit", paper="own", aliases=("peak",))(dict)
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
