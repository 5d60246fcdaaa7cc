"""What every experiment promises: it runs at `smoke`, keeps what it measured, and shows no number without interval."""

from __future__ import annotations

import json
import math
import re
import tomllib
from fnmatch import fnmatchcase
from typing import Any

import pytest
from smoke_runs import WITH_PAGES

import gyrograd as gg
from gyrograd.experiments import read_results, render
from gyrograd.experiments.engine import HOME, verdicts_of
from gyrograd.experiments.scales import SCALES, read_scale
from gyrograd.registry import lookup

NAMES = sorted(gg.available("experiment"))
PAPERS = sorted({gg.available("experiment")[name].paper for name in NAMES})
every_experiment = pytest.mark.parametrize("name", NAMES)
every_paper = pytest.mark.parametrize("paper", PAPERS)


@pytest.fixture(scope="module")
def outcome(smoke_runs) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((smoke_runs / "outcome.json").read_text(encoding="utf-8"))
    return found


@every_experiment
def test_it_runs_at_smoke_and_every_number_has_an_interval(name, smoke_runs, outcome):
    assert name not in outcome["errors"], outcome["errors"][name]
    results = read_results(smoke_runs / "smoke" / name)
    assert results.estimates
    for quantity, estimate in results.estimates.items():
        assert math.isfinite(estimate.value), quantity
        assert estimate.low <= estimate.value <= estimate.high, quantity
        assert estimate.bounded, quantity


@every_experiment
def test_its_claims_are_about_numbers_it_measures(name, smoke_runs):
    """A column misspelt in claims.toml would be "not measured" for ever."""
    results = read_results(smoke_runs / "smoke" / name)
    claims, verdicts = verdicts_of(results)
    assert len(verdicts) == len(claims.claims)
    for judgement in verdicts:
        claim = judgement.claim
        for q in (claim.quantity,) if hasattr(claim, "quantity") else (claim.lower, claim.higher):
            if q.row in results.rows(q.setting):
                curve = [c for c in results.columns(q.setting) if "@" in c]
                assert q.column in results.columns(q.setting) or ("@" in q.column and curve), q
    assert {judgement.verdict for judgement in verdicts} <= {"not comparable"}


@every_experiment
def test_a_second_run_gives_the_same_numbers(name, smoke_runs):
    first, second = (
        json.loads(path.read_text(encoding="utf-8"))
        for path in (smoke_runs / f"{name}.first.json", smoke_runs / "smoke" / name / "results.json")
    )
    assert second["values"] == first["values"]
    assert second["facts"]["intervals"] == first["facts"]["intervals"]


def test_a_second_run_measures_and_trains_nothing(outcome):
    assert outcome["changed"] == []


@every_experiment
def test_its_page_comes_from_its_files_alone_and_shows_every_number_with_its_interval(
    name, smoke_runs, tmp_path
):
    source = smoke_runs / "smoke" / name
    for file in ("results.json", "pictures.npz"):
        if (source / file).exists():
            (tmp_path / file).write_bytes((source / file).read_bytes())
    html = render(tmp_path).read_text(encoding="utf-8")
    if name in WITH_PAGES:
        assert html == (source / "index.html").read_text(encoding="utf-8")
    tables = re.findall(r"<td>(-?\d[^<]*)</td>", html)
    assert all("[" in cell or re.fullmatch(r"-?[\d.]+( ± [\d.]+)?", cell) for cell in tables)
    assert f"gyrograd reproduce {name} --scale smoke" in re.sub("<[^>]*>", "", html)
    entry = lookup("experiment", name)
    assert f"{entry.paper} {entry.equation}" in html
    assert ("data:image/png" in html) == ("figure" in name)


@every_paper
def test_scales_set_sizes_only_and_no_setting_of_smoke_or_small_is_missing_at_paper(paper):
    path = HOME / paper / "scales.toml"
    scales = {name: read_scale(path, name) for name in SCALES}
    assert [scales[name].compares for name in SCALES] == ["nothing", "orders", "values"]
    for scale in ("smoke", "small"):
        assert scales[scale].settings
        assert set(scales[scale].settings) <= set(scales["paper"].settings)


@every_paper
def test_every_claim_belongs_to_an_experiment_of_its_paper(paper):
    document = tomllib.loads((HOME / paper / "claims.toml").read_text(encoding="utf-8"))
    assert document["paper"] == paper
    for entry in document.get("values", []) + document.get("order", []):
        mine = [name for name in NAMES if fnmatchcase(name, entry["experiment"])]
        assert mine, entry["experiment"]
        assert {lookup("experiment", name).paper for name in mine} == {paper}
