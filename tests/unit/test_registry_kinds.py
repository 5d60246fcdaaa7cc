"""A setting is of the kind it is declared with, or one sentence names that kind."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.registry import MAX_INTEGER, UNBOUNDED, available, kinds, make

NAN, INF = float("nan"), float("inf")
WRONG = [
    ("attribution", "smoothgrad", {"sigma": NAN}, "sigma=nan; give a finite number, such as 0.1"),
    ("attribution", "smoothgrad", {"sigma": INF}, "sigma=inf; give a finite number"),
    ("attribution", "smoothgrad", {"sigma": True}, "sigma=True; give a finite number"),
    ("attribution", "smoothgrad", {"draws": 1.5}, "draws=1.5; give a whole number, such as 50"),
    ("attribution", "smoothgrad", {"draws": True}, "draws=True; give a whole number"),
    ("attribution", "smoothgrad", {"draws": 1e8}, "draws=100000000, which would not finish"),
    ("attribution", "ig", {"steps": "abc"}, "steps='abc'; give a whole number, such as 50"),
    ("attribution", "ig", {"steps": 10**15}, "would not finish; give at most 1,000,000"),
    ("attribution", "ig", {"times_input": 1}, "times_input=1; give True or False"),
    ("attribution", "ig", {"baseline": (0.1, NAN, 0.2)}, "baseline=.0.1, nan, 0.2.; give a word or"),
    ("attribution", "ig", {"baseline": True}, "baseline=True; give a word or a finite number"),
    ("attribution", "lime", {"segments": 0}, "segments=0; give a word or a Tensor, such as 'quickshift'"),
    ("attribution", "lrp", {"gamma": "much"}, "gamma='much'; give a finite number or None"),
    ("attack", "untargeted_map", {"step_size": NAN}, "step_size=nan"),
    ("attack", "untargeted_map", {"eps": (0.1, INF)}, "eps=.0.1, inf."),
    ("attack", "untargeted_map", {"restarts": True}, "restarts=True; give a whole number"),
    ("metric", "rps", {"eps": "wide"}, "eps='wide'; give a finite number"),
    ("regularizer", "l2_cosine", {"l2": NAN}, "l2=nan"),
    ("kernel", "gaussian", {"sigma": False}, "sigma=False; give a finite number"),
]


@pytest.mark.parametrize(("kind", "name", "settings", "words"), WRONG)
def test_a_value_of_another_kind_is_refused_with_the_kind_it_should_be(kind, name, settings, words):
    with pytest.raises(UserError, match=words) as caught:
        make(kind, name, **settings)
    assert "\n" not in str(caught.value)


def test_whole_numbers_may_be_written_as_floats_or_come_from_numpy():
    assert gg.attribution("ig", steps=1e2) == gg.attribution("ig", steps=100)
    assert gg.attribution("ig", steps=np.int64(7)).steps == 7
    assert gg.attribution("smoothgrad", sigma=np.float32(0.5)).kernel.sigma == 0.5


@pytest.mark.parametrize("kind", kinds())
def test_no_count_is_endless_and_no_number_is_a_truth_value(kind):
    for name, entry in available(kind).items():
        parameters = inspect.signature(entry.factory).parameters.values()
        needed = {p.name: "x" for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
        for parameter in (p for p in parameters if type(p.default) in (int, float)):
            with pytest.raises(UserError, match=f"{parameter.name}=True"):
                make(kind, name, **needed, **{parameter.name: True})
            if type(parameter.default) is int and parameter.name not in UNBOUNDED:
                with pytest.raises(UserError, match="would not finish"):
                    make(kind, name, **needed, **{parameter.name: MAX_INTEGER + 1})


@pytest.mark.parametrize("kind", ["attribution", "attack", "metric", "kernel"])
def test_every_default_is_of_its_declared_kind(kind):
    for name, entry in available(kind).items():
        parameters = inspect.signature(entry.factory).parameters.values()
        made = make(kind, name, **{p.name: p.default for p in parameters if p.default is not p.empty})
        assert made == make(kind, name)
