"""Verdicts: what a run says to a paper's number, and to its order of two."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.errors import UserError
from gyrograd.experiments.claims import (
    Claims,
    KnownError,
    Order,
    Value,
    count_verdicts,
    judge_claims,
    read_claims,
    verdict,
)
from gyrograd.experiments.results import Estimate, Quantity, Results

CE, L2 = Quantity("cifar", "ce", "rps"), Quantity("cifar", "l2", "rps")
numbers = st.floats(-10, 10)
widths = st.floats(0, 5)


def results(scale="paper", **estimates):
    named = {"ce": CE, "l2": L2}
    return Results("x", scale, {}, {named[name]: estimate for name, estimate in estimates.items()})


def around(value, half):
    return Estimate(float(value - half), float(value), float(value + half), 100)


@given(ours=numbers, half=widths, reported=numbers, within=widths, spread=widths)
def test_a_value_is_confirmed_within_its_tolerance_and_else_asked_of_the_interval(
    ours, half, reported, within, spread
):
    found = verdict(Value(CE, reported, within, spread), results(ce=around(ours, half)), "values").verdict
    if abs(ours - reported) <= within:
        assert found == "confirmed"
    elif ours - half <= reported + spread and ours + half >= reported - spread:
        assert found == "within interval"
    else:
        assert found == "not confirmed"


@given(low=numbers, high=numbers, half=widths, other=widths)
def test_an_order_is_confirmed_only_where_the_intervals_do_not_touch(low, high, half, other):
    claim = Order(CE, L2, "l2 above ce")
    found = verdict(claim, results(ce=around(low, half), l2=around(high, other)), "orders").verdict
    assert (found == "confirmed") == (low + half < high - other)
    assert (found == "not confirmed") == (high + other < low - half)


@given(low=numbers, high=numbers, half=widths)
def test_an_order_and_its_reverse_are_never_both_confirmed(low, high, half):
    ours = results(ce=around(low, half), l2=around(high, half))
    there, back = (verdict(Order(a, b, ""), ours, "orders").verdict for a, b in ((CE, L2), (L2, CE)))
    assert {there, back} in ({"confirmed", "not confirmed"}, {"inconclusive"})


@pytest.mark.parametrize(
    ("scale", "why"),
    [
        ("small", "the scale 'small' is smaller than the paper's"),
        ("paper", "the nets were trained in another way than the paper's"),
    ],
)
@pytest.mark.parametrize(
    ("compares", "value", "order"),
    [
        ("nothing", "not comparable", "not comparable"),
        ("orders", "not comparable", "confirmed"),
        ("values", "confirmed", "confirmed"),
    ],
)
def test_a_scale_says_what_can_be_compared(compares, value, order, scale, why):
    ours = results(scale, ce=around(1, 0.1), l2=around(2, 0.1))
    for claim, expected in ((Value(CE, 1.0, 0.1), value), (Order(CE, L2, ""), order)):
        found = verdict(claim, ours, compares)
        assert found.verdict == expected
        assert (found.why == why) == (expected == "not comparable")


@pytest.mark.parametrize(
    ("from_files", "why"),
    [
        (("ce", "l2"), ""),
        (("ce",), "one net is public, the other was trained here in another way"),
        ((), ""),
    ],
)
def test_a_public_net_is_compared_with_public_nets_only(from_files, why):
    ours = results("paper", ce=around(1, 0.1), l2=around(2, 0.1))
    weights = dict.fromkeys(from_files, "file")
    ours = replace(ours, settings={"sizes": {"cifar": {"model": {"weights": weights}}}})
    order = verdict(Order(CE, L2, ""), ours, "values")
    assert (order.verdict, why) == (("not comparable", order.why) if why else ("confirmed", ""))
    value = verdict(Value(CE, 1.0, 0.1), ours, "values")
    public = "the net is a public one, not the paper's own"
    assert (value.verdict, value.why == public) == (
        ("not comparable", True) if "ce" in from_files else ("confirmed", False)
    )


def test_a_known_error_comes_before_every_number_and_gives_its_reason():
    error = KnownError("the code cuts the skips", setting="ci*", column="rp?")
    for claim in (Value(CE, 1.0, 0.1), Order(CE, L2, "")):
        found = verdict(claim, results(ce=around(1, 0.1), l2=around(2, 0.1)), "values", [error])
        assert (found.verdict, found.why) == ("not comparable", "the code cuts the skips")
    other = KnownError("elsewhere", setting="imagenet*")
    assert verdict(Value(CE, 1.0, 0.1), results(ce=around(1, 0.1)), "values", [other]).verdict == "confirmed"


def test_what_was_not_measured_or_has_no_interval_is_not_comparable():
    missing = verdict(Order(CE, L2, ""), results(ce=around(1, 0.1)), "values")
    assert (missing.verdict, missing.why) == ("not comparable", "not measured in this run")
    single = Estimate(-math.inf, 1.0, math.inf, 1)
    assert verdict(Value(CE, 1.0, 0.1), results(ce=single), "values").why == "one image has no interval"


@pytest.mark.parametrize(("accuracy", "expected"), [(12, "not comparable"), (40, "confirmed")])
def test_a_net_at_chance_confirms_nothing(accuracy, expected):
    ours = results(ce=around(1, 0.1), l2=around(2, 0.1))
    learnt = {Quantity("cifar", "ce", "accuracy"): around(accuracy, 6)}
    ours = Results("x", "paper", {"chance": {"cifar": 10.0}}, ours.estimates | learnt)
    found = verdict(Order(CE, L2, ""), ours, "orders")
    assert found.verdict == expected
    assert ("ce has not learnt" in found.why) == (expected == "not comparable")


@pytest.mark.parametrize(("row", "column"), [("ssr 1", "test accuracy"), ("ssr 1 model", "accuracy")])
def test_a_map_of_a_net_at_chance_confirms_nothing(row, column):
    """wang2020 and tan2023 have a row per net and map; the accuracy is in the row of the net."""
    low, high = Quantity("cifar", "ssr 1 sm", "k-in"), Quantity("cifar", "ssr 1 sg", "k-in")
    accuracy = {Quantity("cifar", row, column): around(12, 6)}
    ours = {low: around(1, 0.1), high: around(2, 0.1), **accuracy}
    found = verdict(Order(low, high, ""), Results("x", "paper", {"chance": {"cifar": 10.0}}, ours), "orders")
    assert (found.verdict, "ssr 1 sm has not learnt" in found.why) == ("not comparable", True)


TOML = """
[[tolerance]]
column = "rps"
row = "ce"
within = 0.03
[[tolerance]]
column = "rps"
within = 0.02
[[values]]
experiment = "one-*"
setting = "cifar"
columns = ["rps", "rps 4"]
[values.rows]
ce = [0.76, nan]
l2 = [0.88, nan]
[values.spread]
l2 = [0.01, 0.0]
[[order]]
experiment = "one-table"
setting = "cifar"
column = "rps"
rising = ["ce", "l2", "both"]
[[order]]
setting = "cifar"
row = "ce"
rising_columns = ["criterion", "bound"]
text = "the bound holds"
[[known_error]]
why = "cut"
column = "gbp *"
[[note]]
experiment = "two-*"
text = "for the other"
"""


def test_a_file_is_read_into_values_pairs_errors_and_notes(tmp_path):
    path = tmp_path / "claims.toml"
    path.write_text(TOML)
    claims = read_claims(path, "one-table")
    values = [claim for claim in claims.claims if isinstance(claim, Value)]
    assert [(v.quantity.row, v.reported, v.within, v.spread) for v in values] == [
        ("ce", 0.76, 0.03, 0.0),
        ("l2", 0.88, 0.02, 0.01),
    ]
    orders = [claim for claim in claims.claims if isinstance(claim, Order)]
    assert [(o.lower.row, o.higher.row) for o in orders[:2]] == [("ce", "l2"), ("l2", "both")]
    assert orders[0].text == "l2 above ce, rps"
    assert (orders[2].lower.column, orders[2].higher.column, orders[2].text) == (
        "criterion",
        "bound",
        "the bound holds",
    )
    assert claims.known_errors == (KnownError("cut", column="gbp *"),)
    assert claims.notes == ()
    assert read_claims(path, "two-table").notes == ("for the other",)
    assert len(read_claims(path, "two-table").claims) == 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("ce = [0.76, nan]", "ce = [0.76]", "row 'ce': 1 numbers and 2 deviations for 2 columns"),
        ("[0.76, nan]", "[0.76, 0.9]", "no tolerance for the column 'rps 4'"),
    ],
)
def test_a_file_that_does_not_fit_together_is_refused(tmp_path, old, new, sentence):
    path = tmp_path / "claims.toml"
    path.write_text(TOML.replace(old, new))
    with pytest.raises(UserError, match=sentence):
        read_claims(path, "one-table")


def test_every_verdict_is_counted_those_nobody_got_too():
    claims = Claims((Value(CE, 1.0, 0.1), Value(CE, 5.0, 0.1), Order(CE, L2, "")))
    found = judge_claims(claims, results(ce=around(1, 0.1), l2=around(2, 0.1)), "values")
    assert count_verdicts(found) == {
        "confirmed": 2,
        "within interval": 0,
        "inconclusive": 0,
        "not confirmed": 1,
        "not comparable": 0,
    }


def test_an_order_whose_intervals_touch_is_also_told_seed_by_seed():
    lower = Estimate(0.7, 0.8, 0.9, 100, by_seed=(0.75, 0.8, 0.85))
    higher = Estimate(0.72, 0.82, 0.92, 100, by_seed=(0.77, 0.81, 0.88))
    judgement = verdict(Order(CE, L2, ""), results(ce=lower, l2=higher), "orders")
    assert judgement.verdict == "inconclusive"
    # mean 0.02, deviation 0.01, Student's quantile 4.303 of three seeds: half a width of 0.0248
    assert judgement.why == "the intervals touch; seed by seed 0.02 apart [-0.00484, 0.0448]"
    alone = verdict(Order(CE, L2, ""), results(ce=around(1, 1), l2=around(1, 1)), "orders")
    assert alone.why == "the intervals touch"
