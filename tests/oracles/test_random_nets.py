"""Random nets: those on which a check failed once, and a few new ones whole. `make fuzz-nets` draws hundreds."""

from __future__ import annotations

import pytest
from fuzz import random_nets
from fuzz.random_nets import KEPT, drawn, tried


@pytest.mark.parametrize("kind", KEPT)
def test_what_failed_once_holds(kind):
    for seed in KEPT[kind]:
        tally = tried(seed, kind)
        assert tally is not None
        assert not tally.failures, (seed, tally.failures)


@pytest.mark.parametrize("seed", [1001, 1003, 1004, 1006, 1007, 1008])
def test_every_derivative_of_a_random_net_is_exact_or_refused(seed):
    tally = tried(seed)
    assert tally is not None
    assert not tally.failures, drawn(seed)[0].words
    assert tally.compared["one row, gradient"]


def test_the_harness_sees_a_wrong_derivative(monkeypatch):
    """A check that cannot fail is none."""
    true = random_nets.input_gradient
    monkeypatch.setattr(random_nets, "input_gradient", lambda f, x, **settings: 1.01 * true(f, x, **settings))
    tally = tried(1001, "gradient")
    assert tally is not None
    assert tally.failures
