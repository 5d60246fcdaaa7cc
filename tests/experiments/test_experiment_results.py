"""Numbers with their intervals: over images, over seeds, on disk and on the page."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.cli import reproduce
from gyrograd.errors import UserError
from gyrograd.experiments.claims import Claims, Order, Value, judge_claims
from gyrograd.experiments.codes import CODES
from gyrograd.experiments.report import column_groups, experiment_page, shown, summary_table
from gyrograd.experiments.results import (
    Estimate,
    Quantity,
    Results,
    estimate,
    estimates,
    read_results,
    write_results,
)
from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.records import Record
from gyrograd.reporting import Figure, Section, Table, page

columns = st.lists(st.floats(-100, 100), min_size=2, max_size=30)


@given(columns)
def test_one_seed_has_the_bootstrap_interval_of_its_images(values):
    ours, oracle = estimate([values]), bootstrap_interval(values)
    assert (ours.low, ours.value, ours.high) == pytest.approx((oracle.low, oracle.value, oracle.high))
    assert ours.by_seed == pytest.approx((np.mean(values),))


@given(columns, st.floats(0.01, 10))
def test_seeds_that_differ_widen_the_interval_by_students(values, apart):
    """Three seeds at value - apart, value, value + apart: deviation apart, t of two degrees 4.303."""
    seeds = [[value + shift for value in values] for shift in (-apart, 0.0, apart)]
    ours, alone = estimate(seeds), estimate([values])
    wobble = 4.303 * apart / np.sqrt(3)
    assert ours.value == pytest.approx(alone.value, abs=1e-9)
    assert ours.high - ours.value == pytest.approx(np.hypot(alone.high - alone.value, wobble), rel=1e-6)
    assert ours.value - ours.low == pytest.approx(np.hypot(alone.value - alone.low, wobble), rel=1e-6)


@pytest.mark.parametrize("seeds", [10, 11, 20])
def test_students_quantile_is_known_for_any_number_of_seeds(seeds):
    """Figure 6 of wang2020 has 11 nets. The means 0 and 1 in turn; every image is the same."""
    from scipy import stats

    ours = estimate([[float(seed % 2)] * 2 for seed in range(seeds)])
    half = stats.t.ppf(0.975, seeds - 1) * stats.sem([seed % 2 for seed in range(seeds)])
    assert ours.high - ours.value == pytest.approx(half, rel=1e-3)


def test_a_column_without_any_value_is_left_out_with_a_sentence(capsys):
    """Not an error, which would leave a run of many hours without a page."""
    record = Record("r", {}, [3, 5], {"k-in": [None, None], "moved": [0.0, 0.0]})
    assert list(estimates([("cifar", "natural sm", 0, record)])) == [Quantity("cifar", "natural sm", "moved")]
    assert "no image has a value in every seed: cifar | natural sm | k-in" in capsys.readouterr().err


def test_an_image_missing_in_one_seed_is_left_out_of_all_and_counted():
    ours = estimate([[1.0, None, 3.0], [1.0, 100.0, 3.0]])
    assert (ours.value, ours.images, ours.missing) == (2.0, 2, 1)


def test_a_number_says_that_most_images_have_no_value():
    ours = estimate([[0.25, 0.75, None, None, None]])
    assert shown(ours) == "0.500 [0.250, 0.750], 2 of 5 images"


def test_one_image_has_no_interval_and_says_so():
    ours = estimate([[0.5]])
    assert not ours.bounded
    assert "no interval" in shown(ours)


def test_seeds_of_different_images_are_refused():
    with pytest.raises(UserError, match="different images"):
        estimate([[1.0, 2.0], [1.0]])
    with pytest.raises(UserError, match="No image has a value in every seed"):
        estimate([[1.0, None], [None, 1.0]])


def test_records_of_seeds_meet_in_one_estimate_and_keep_the_order_of_rows():
    record = Record("r", {}, [3, 5], {"rps": [0.5, 0.7], "ins": [10.0, 20.0]})
    other = replace(record, values={"rps": [0.7, 0.9], "ins": [30.0, 40.0]})
    found = estimates([("cifar", "z", 0, record), ("cifar", "a", 0, record), ("cifar", "z", 1, other)])
    assert found[Quantity("cifar", "z", "rps")].by_seed == pytest.approx((0.6, 0.8))
    assert Results("x", "smoke", {}, found).rows("cifar") == ["z", "a"]


def example():
    quantities = {
        Quantity("cifar", "ce", "accuracy"): estimate([[100.0, 0.0, 100.0]]),
        Quantity("cifar", "ce", "grad rps"): estimate([[0.5, 0.6, 0.8], [0.4, 0.6, 0.7]]),
        Quantity("cifar", "ce", "grad ins"): estimate([[10.0, 30.0, 11.0]]),
        Quantity("cifar", "ce", "grad ins @0.5"): estimate([[10.0, 30.0, 77.7]]),
        Quantity("cifar", "l2", "grad rps"): estimate([[0.5]]),
    }
    sizes = {"cifar": {"images": 3, "model": {"name": "lenet", "beta": 3}, "why": "Small."}}
    facts = {
        "command": "gyrograd reproduce x",
        "hardware": "2 cores",
        "seconds": 4.2,
        "versions": {"torch": "2"},
    }
    pictures = {"cifar|image": np.zeros((1, 2, 2, 3), np.float32)}
    return Results("x", "smoke", {"sizes": sizes}, quantities, pictures, facts)


def test_what_is_written_is_read_back(tmp_path):
    ours = example()
    write_results(tmp_path, ours)
    back = read_results(tmp_path)
    assert back.estimates == ours.estimates
    assert list(back.estimates) == list(ours.estimates)
    assert (back.scale, back.settings, back.facts) == (ours.scale, ours.settings, ours.facts)
    assert back.pictures["cifar|image"].shape == (1, 2, 2, 3)


def test_no_number_of_a_table_is_without_its_interval():
    ours = example()
    table = summary_table(ours, Claims(), "cifar", ["accuracy", "grad rps", "grad ins"])
    cells = [cell for row in table.rows for cell in row[1:]]
    assert cells.count("not measured") == 2
    numbered = [cell for cell in cells if cell != "not measured"]
    assert len(numbered) == 4
    assert all(
        re.fullmatch(r"-?[\d.]+ \[(-?[\d.]+, -?[\d.]+|one image, no interval)\]", cell) for cell in numbered
    )


def test_a_row_of_which_nothing_was_measured_is_left_out():
    ours, claims = example(), Claims()
    assert [row[0] for row in summary_table(ours, claims, "cifar", ["accuracy"]).rows] == ["ce"]
    assert [row[0] for row in summary_table(ours, claims, "cifar", ["accuracy", "grad rps"]).rows] == [
        "ce",
        "l2",
    ]


def test_the_terminal_shows_numbers_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gyrograd.experiments.engine.verdicts_of", lambda results: (Claims(), ()))
    write_results(tmp_path, example())
    reproduce._print_results(tmp_path / "index.html")
    printed = capsys.readouterr().out
    assert "not measured" not in printed
    assert len(re.findall(r"^cifar +(ce|l2) ", printed, re.MULTILINE)) == 4


def test_the_terminal_shows_the_papers_numbers_first_and_the_rest_in_a_file(tmp_path, monkeypatch, capsys):
    many = {Quantity("cifar", f"row{i}", "grad rps"): Estimate(0.1, 0.2, 0.3, 5) for i in range(50)}
    claims = Claims((Value(Quantity("cifar", "row49", "grad rps"), 0.25, 0.1),))
    results = Results("x", "paper", {}, many)
    monkeypatch.setattr(
        "gyrograd.experiments.engine.verdicts_of",
        lambda results: (claims, judge_claims(claims, results, "values")),
    )
    write_results(tmp_path, results)
    reproduce._print_results(tmp_path / "index.html")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) <= 26
    assert printed[1].split()[:2] == ["cifar", "row49"]
    assert "50 numbers, 20 of them above" in " ".join(printed)
    lines = (tmp_path / "numbers.csv").read_text().splitlines()
    assert len(lines) == 51
    assert lines[-1] == "cifar,row49,grad rps,0.2,0.1,0.3,5,0,0.25,confirmed"


def test_a_page_begins_with_its_verdicts_and_its_figure_and_explains_its_codes():
    rows = {Quantity("s", "ce", "grad a-ins 4"): Estimate(0.7, 0.8, 0.9, 100)}
    ours = Results(
        "x", "paper", {}, rows, facts={"versions": {"gyrograd": "not installed, run from its source"}}
    )
    claims = Claims((Value(Quantity("s", "ce", "grad a-ins 4"), 0.8, 0.1),), notes=("A note.",))
    figure = Section("Curves", (), None, (Figure(b"png", "The curve."),))
    html = experiment_page(
        "T", ("About.", "More."), ours, claims, judge_claims(claims, ours, "values"), (figure,)
    )
    order = [
        "1 confirmed</span>",
        "About.",
        "<h2>Curves</h2>",
        "More.",
        "A note.",
        "Adversarial Insertion",
        "<h2>s</h2>",
    ]
    places = [html.index(words) for words in order]
    assert places == sorted(places)
    assert "not installed" not in html


def test_wide_tables_say_so():
    narrow, wide = (Section("h", (), Table(tuple("abcdefgh"[:n]), (tuple("12345678"[:n]),))) for n in (5, 6))
    assert "scroll the table sideways" not in page("T", (), (narrow,), ())
    assert "6 columns: if some are cut off, scroll the table sideways" in page("T", (), (wide,), ())


def test_every_code_of_a_claimed_column_is_explained():
    papers = Path(reproduce.__file__).parents[1] / "experiments"
    for paper in ("joo2023", "wang2020", "tan2023"):
        claims = tomllib.loads((papers / paper / "claims.toml").read_text(encoding="utf-8"))
        names = {name for table in claims["values"] for name in (*table["columns"], *table["rows"])}
        codes = {word for name in names for word in name.split() if word[0].isalpha()}
        plain = {"cosine", "correlation", "gradient", "of", "x1", "x2"}
        assert {word for word in codes if word not in CODES and "=" not in word} <= plain


def test_columns_of_one_attribution_stand_together_and_the_papers_come_first():
    claims = Claims((Value(Quantity("cifar", "ce", "grad ins"), 35.5, 3.0),))
    assert column_groups(example(), claims, "cifar") == [["grad ins", "grad rps"], ["accuracy"]]


def test_the_page_says_paper_ours_verdict_command_hardware_and_time():
    ours = example()
    value = Value(Quantity("cifar", "ce", "grad ins"), 35.5, 3.0, 0.7)
    order = Order(Quantity("cifar", "ce", "grad rps"), Quantity("cifar", "l2", "grad rps"), "l2 above ce")
    claims = Claims((value, order), notes=("Mind the gap.",))
    html = experiment_page("T", ("About.",), ours, claims, judge_claims(claims, ours, "values"), ())
    for words in (
        "17.0 [",
        "35.5 ± 0.7",
        "not confirmed",
        "one image has no interval",
        "l2 above ce",
        "gyrograd reproduce x",
        "2 cores",
        "4 s",
        "Mind the gap.",
        "lenet (beta 3)",
        "2 claims of the paper",
    ):
        assert words in html, words
    assert '<td class="left bad">not confirmed</td>' in html
    assert '<td class="words">one image has no interval</td>' in html
    assert "interval over images and seeds" in html
    rounds = replace(ours, settings={**ours.settings, "over": "rounds"})
    assert "interval over rounds" in experiment_page("T", (), rounds, claims, (), ())
    assert "77.7" not in html
    assert "39.2" not in html, "a point of a curve is not in a table"


def test_an_estimate_of_a_hundred_per_cent_reads_as_one():
    assert shown(Estimate(100.0, 100.0, 100.0, 5)) == "100.0 [100.0, 100.0]"
    assert shown(Estimate(0.1234, 0.2, 0.3, 5)) == "0.200 [0.123, 0.300]"


def test_claims_of_what_was_not_measured_are_counted_and_not_listed():
    here, there = Quantity("s", "ce", "rps"), Quantity("s", "l2", "rps")
    ours = Results("x", "paper", {}, {here: Estimate(0.7, 0.8, 0.9, 100)})
    claims = Claims((Value(here, 0.8, 0.1), Value(there, 0.85, 0.1)))
    html = experiment_page("T", (), ours, claims, judge_claims(claims, ours, "values"), ())
    assert "1 claim of the paper: 1 confirmed." in html
    assert "1 more are about what this run did not measure." in html
    assert "not measured in this run" not in html


def test_a_record_that_is_read_back_gives_the_columns_in_the_same_order():
    """Files sort their keys, so that a second run, which reads, would show another page than the first."""
    names = ["rps @ 16", "accuracy", "rps @ 2", "rps @ 0.5"]
    measured = Record("m", {}, [0, 1], {name: [1.0, 2.0] for name in names})
    read = Record("m", {}, [0, 1], {name: [1.0, 2.0] for name in sorted(names)})
    orders = [[q.column for q in estimates([("cifar10", "ce", 0, one)])] for one in (measured, read)]
    assert orders[0] == orders[1] == ["accuracy", "rps @ 0.5", "rps @ 2", "rps @ 16"]
