"""gyrograd attack: what is written and printed is what the attack did."""

from __future__ import annotations

import json

import bad_files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gyrograd as gg
from gyrograd import cli, records
from gyrograd.cli import attack
from gyrograd.cli.parsing import radii, radius
from gyrograd.data.opening import open_data
from gyrograd.errors import UserError
from gyrograd.models import load
from gyrograd.numerics.similarity import cosine


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return bad_files.kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(autouse=True)
def _wired(monkeypatch):
    verbs = {**cli.verbs(), "attack": attack.attack}
    monkeypatch.setattr(cli, "verbs", lambda: verbs)


def run(kit, out, *words) -> int:
    return cli.main(["attack", kit.model, kit.data, "--out", str(out), "--steps", "3", *words])


def test_the_record_is_that_of_the_attack_itself(kit, tmp_path, capsys):
    assert run(kit, tmp_path, "--eps", "16/255", "--target", "label", "--seed", "4", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    model, data = load(kit.model), open_data(kit.data, size=8)
    method = gg.attribution("gradient")
    # auto is the attack by which explanations are judged, so it is the default
    hit = gg.attack("auto", eps=16 / 255, steps=3)(model, method, data.pixels(), data.labels, seed=4)
    record = records.read(tmp_path / "record.json")
    assert record.settings["eps"] == pytest.approx(16 / 255)
    for key in ("start", "value", "linf", "budget_used"):
        np.testing.assert_allclose(record.values[key], getattr(hit, key).tolist(), rtol=1e-5)
    expected = cosine(hit.map_clean, hit.map).tolist()
    np.testing.assert_allclose(record.values["cosine"], expected, rtol=1e-5)
    found = document["summary"]["cosine"]
    assert found["value"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert found["low"] <= found["value"] <= found["high"]
    assert document["summary"]["prediction_kept"]["value"] == hit.prediction_kept.double().mean()
    assert [one["cosine"] for one in document["examples"]] == record.values["cosine"]
    assert set(hit.flags) <= set(document["flags"])


def pixels(path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)


def test_the_attacked_picture_is_the_attacked_image(kit, tmp_path):
    assert run(kit, tmp_path) == 0
    for index in range(6):
        clean, attacked = (pixels(tmp_path / f"{index:05d}_{what}.png") for what in ("clean", "attacked"))
        assert 0 < np.abs(clean - attacked).max() <= 8
    assert (tmp_path / "00000_map_attacked.png").is_file()


def test_results_do_not_depend_on_how_many_images_go_at_once(kit, tmp_path, monkeypatch):
    words = ("--attack", "untargeted_map", "--seed", "2")
    assert run(kit, tmp_path / "a", *words) == 0
    monkeypatch.setattr(attack, "AT_ONCE", 4)
    assert run(kit, tmp_path / "b", *words) == 0
    first, second = (records.read(tmp_path / name / "record.json") for name in "ab")
    assert first.facts["flags"] == second.facts["flags"]
    for key, column in first.values.items():
        np.testing.assert_allclose(column, second.values[key], rtol=1e-4, atol=1e-6)


def test_an_interruption_keeps_the_pictures_and_the_record_of_what_is_done(
    kit, tmp_path, monkeypatch, capsys
):
    part = attack._part

    def interrupted(here, attacker, explainer, target, first, streams):
        if first > 0:
            raise KeyboardInterrupt
        return part(here, attacker, explainer, target, first, streams)

    monkeypatch.setattr(attack, "AT_ONCE", 4)
    monkeypatch.setattr(attack, "_part", interrupted)
    assert run(kit, tmp_path) == 130
    record = records.read(tmp_path / "record.json")
    assert record.examples == [0, 1, 2, 3]
    assert record.facts["complete"] is False
    assert "cosine" in record.values
    assert len(list(tmp_path.glob("*_attacked.png"))) == 8  # image and map of each
    assert "finished results are kept" in capsys.readouterr().err


def test_where_the_search_has_nothing_to_follow_no_number_stands_for_robustness(kit, tmp_path, capsys):
    words = ["attack", str(kit.script), kit.data, "--size", "8", "--steps", "2", "--out", str(tmp_path)]
    assert cli.main([*words, "--attack", "targeted_map"]) == 0
    said = capsys.readouterr().out
    assert "objective before" in said
    assert "none: no image could be searched" in said
    assert "zero derivative" in said
    assert records.read(tmp_path / "record.json").values["cosine"] == [None] * 6


def test_one_image_has_no_interval(kit, tmp_path, capsys):
    assert run(kit, tmp_path, "--images", "1") == 0
    said = capsys.readouterr().out
    assert said.count("(one image, no interval)") == 6
    assert "eps 0.03137 (8/255), 1 image:" in said
    assert "top pixels kept, before" in said
    assert "top pixels kept, after" in said
    assert said.splitlines()[-1] == str(tmp_path / "overview.png")


def test_settings_in_brackets_reach_the_attack_and_the_method(kit, tmp_path):
    words = ("--attack", "top_k(k=5, restarts=2)", "--method", "ig(steps=3)", "--norm", "l2", "--eps", "1.5")
    assert run(kit, tmp_path, *words) == 0
    settings = records.read(tmp_path / "record.json").settings
    assert (settings["k"], settings["restarts"], settings["norm"], settings["eps"]) == (5, 2, "l2", 1.5)
    assert settings["method"] == repr(gg.attribution("ig", steps=3))


def test_flags_of_parts_are_added_up():
    parts = [
        records.Record("a", {}, list(range(3)), {}, {"flags": ["stood still: 1 of 3 images", "on a twin"]}),
        records.Record("a", {}, list(range(2)), {}, {"flags": ["stood still: 2 of 2 images", "on a twin"]}),
    ]
    assert attack._flags(parts) == ["stood still: 3 of 5 images", "on a twin"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--eps", "8"], "write 8/255"),
        (["--eps", "8/0"], "write it as 8/255"),
        (["--eps", "a lot"], "write it as 8/255"),
        (["--eps=-1/255"], "at least 0"),
        (["--eps", "nan"], "finite"),
        (["--attack", "targetted_map"], "did you mean 'targeted_map'"),
        (["--attack", "top_k(k=0)"], "at least 1"),
        (["--attack", "top_k(k=65)"], "from 1 to 64"),
        (["--attack", "targeted_map(eps=[0.1,0.2])"], "one at a time"),
        (["--norm", "l3"], "l3"),
        (["--steps", "0"], "at least 1"),
        (["--method", "gradeint"], "did you mean 'gradient'"),
        (["--attack", "random"], "has no setting 'steps'"),
        (["--target", "3"], "a class from 0 to 2"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(words, sentence, kit, tmp_path, capsys):
    assert run(kit, tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@given(above=st.integers(0, 255), below=st.integers(1, 255))
def test_a_radius_is_the_fraction_that_was_written(above, below):
    assert radius(f"{above}/{below}") == above / below
    assert radius(f" {above} / {below} ") == above / below
    assert radius(repr(above / below)) == radius(above / below) == above / below
    assert radii(f"{above}/{below},0.5") == (above / below, 0.5)


@given(text=st.text(alphabet="abc/.-+ ", max_size=6))
def test_what_is_no_radius_is_refused(text):
    with pytest.raises(UserError, match="A radius is"):
        radius(text)
