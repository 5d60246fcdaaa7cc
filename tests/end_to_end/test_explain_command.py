"""gyrograd explain: the pictures, the record and the table are those of the maps."""

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
from gyrograd.cli import explain
from gyrograd.cli.parsing import parse_call, several
from gyrograd.data.opening import open_data
from gyrograd.errors import UserError
from gyrograd.models import load
from gyrograd.numerics.maps import reduce
from gyrograd.reporting.pictures import LEAST_IMAGE, colour_map, overlay, png


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return bad_files.kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(autouse=True)
def _wired(monkeypatch):
    verbs = {**cli.verbs(), "explain": explain.explain}
    monkeypatch.setattr(cli, "verbs", lambda: verbs)


def pixels(path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)


def run(kit, out, *words) -> int:
    return cli.main(["explain", kit.model, kit.data, "--out", str(out), *words])


def test_record_and_pictures_are_those_of_the_maps(kit, tmp_path, capsys):
    assert run(kit, tmp_path, "--method", "gradient,ig(steps=4)", "--target", "label", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    model, data = load(kit.model), open_data(kit.data, size=8)
    x = data.pixels()
    record = records.read(tmp_path / "record.json")
    assert record.facts["complete"] is True
    assert record.values["label"] == data.labels.tolist() == record.values["target"]
    probability, predicted = model(x).softmax(1).max(1)
    assert record.values["predicted"] == predicted.tolist()
    np.testing.assert_allclose(record.values["probability"], probability.tolist(), rtol=1e-4)
    for word, method in (
        ("gradient", gg.attribution("gradient")),
        ("ig(steps=4)", gg.attribution("ig", steps=4)),
    ):
        maps = reduce(method(model, x, data.labels))
        np.testing.assert_allclose(record.values[f"{word}: total"], maps.sum((1, 2)).tolist(), rtol=1e-5)
        for row, example in enumerate(document["examples"]):
            seen = pixels(example["pictures"][word])[::28, ::28].sum(-1)
            assert seen.flat[int(maps[row].argmax())] == seen.max()
            assert pixels(example["pictures"][f"{word} overlay"]).shape == (224, 224, 3)
    assert [example["name"] for example in document["examples"]] == record.facts["names"]
    assert record.settings["methods"]["ig(steps=4)"] == repr(gg.attribution("ig", steps=4))


def test_all_makes_one_page_of_every_method_and_says_why_some_refused(kit, tmp_path, capsys):
    words = ["explain", str(kit.script), kit.data, "--size", "8", "--images", "2", "--out", str(tmp_path)]
    assert cli.main([*words, "--method", "all,lrp(gamma=0.1)", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    refused = set(document["refused"])
    assert {"attention_rollout", "gradient_x_attention"} <= refused
    used = {*gg.available("attribution"), "lrp(gamma=0.1)"} - refused - {"lrp"}
    assert {"gradient", "rise", "occlusion", "gradient_shap", "lrp(gamma=0.1)", "deep_lift"} <= used
    page = (tmp_path / "contact_sheet.html").read_text()
    assert document["sheet"] == str(tmp_path / "contact_sheet.html")
    # The images, a picture of each map, and the scale.
    assert page.count("data:image/png") == 2 + 2 * len(used) + 1
    for name in used | refused:
        name = name.partition("(")[0]
        assert gg.available("attribution")[name].label in page
    # These tiny photos are one superpixel each.
    assert page.count("The model has no attention") == len(refused - {"lime", "shap"})
    assert "500 passes" in page
    assert set(records.read(tmp_path / "record.json").settings["methods"]) == used


def test_a_method_that_was_named_and_refuses_is_an_error_as_before(kit, tmp_path, capsys):
    words = [
        "explain",
        str(kit.script),
        kit.data,
        "--size",
        "8",
        "--out",
        str(tmp_path),
        "--method",
        "attention_rollout",
    ]
    assert cli.main(words) == 2
    assert "has no attention" in capsys.readouterr().err


def test_results_do_not_depend_on_how_many_images_go_at_once(kit, tmp_path, monkeypatch):
    assert run(kit, tmp_path / "a", "--method", "gradient,smoothgrad(draws=3)") == 0
    monkeypatch.setattr(explain, "AT_ONCE", 4)
    assert run(kit, tmp_path / "b", "--method", "gradient,smoothgrad(draws=3)") == 0
    first, second = (records.read(tmp_path / name / "record.json") for name in "ab")
    assert first.examples == second.examples
    for key, column in first.values.items():
        np.testing.assert_allclose(column, second.values[key], rtol=1e-5)


def test_an_interruption_keeps_the_pictures_and_the_record_of_what_is_done(
    kit, tmp_path, monkeypatch, capsys
):
    part = explain._part

    def interrupted(here, methods, target, first):
        if first > 0:
            raise KeyboardInterrupt
        return part(here, methods, target, first)

    monkeypatch.setattr(explain, "AT_ONCE", 4)
    monkeypatch.setattr(explain, "_part", interrupted)
    assert run(kit, tmp_path) == 130
    record = records.read(tmp_path / "record.json")
    assert record.examples == [0, 1, 2, 3]
    assert record.facts["complete"] is False
    assert len(list(tmp_path.glob("*_gradient.png"))) == 4
    assert "finished results are kept" in capsys.readouterr().err


def test_the_table_names_images_and_classes_and_ends_with_the_overview(kit, tmp_path, capsys):
    assert run(kit, tmp_path, "--target", "1") == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()]
    assert rows[0] == ["image", "label", "prediction", "probability", "explained"]
    assert rows[1][:2] == ["ant/1.png", "ant"]
    assert rows[1][4] == "bee"
    assert rows[-1] == [str(tmp_path / "overview.png")]


def test_a_map_of_zeros_is_told(kit, tmp_path, capsys, monkeypatch):
    dead = tmp_path / "dead.py"
    dead.write_text(
        "from torch import nn\n"
        "def net():\n"
        "    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 3))\n"
        "    model[1].bias.data.fill_(-100.)\n"
        "    return model\n"
    )
    words = ["explain", f"{dead}:net", kit.data, "--size", "8", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0
    assert "gradient gave a map of zeros for 6 of 6 images" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--method", "gradeint"], "did you mean 'gradient'"),
        (["--method", "ig(stepz=4)"], "did you mean 'steps'"),
        (["--method", "gradient,gradient"], "names a method twice"),
        (["--method", ","], "No method is named"),
        (["--method", "ig(steps=4"], "bracket"),
        (["--method", "ig(4)"], "write setting=value"),
        (["--method", "ig steps=4"], "NAME(setting=value, ...)"),
        (["--target", "3"], "a class from 0 to 2"),
        (["--target", "lable"], "give predicted, label"),
        (["--target", "label", "--unlabelled"], "have no labels"),
        (["--method", "gradient,gbp(max_batch=0)"], "at least 1"),
    ],
)
def test_mistakes_are_one_sentence_and_nothing_is_written(words, sentence, kit, tmp_path, capsys):
    assert run(kit, tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_several_images_can_be_named(kit, tmp_path, capsys):
    pair = [f"{kit.data}/cat/1.png", f"{kit.data}/ant/2.png"]
    assert cli.main(["explain", kit.model, *pair, "--out", str(tmp_path), "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["examples"]]
    assert [name.rpartition("photos/")[2] for name in names] == ["cat/1.png", "ant/2.png"]


# --- pictures and words ---------------------------------------------------------------------------------


def test_an_overlay_shows_the_image_in_grey_where_the_map_is_zero():
    image = np.random.default_rng(0).random((6, 5, 3))
    map = np.zeros((6, 5))
    map[2, 3] = -4.0
    seen = overlay(image, map, 4.0)
    grey = image.mean(-1)
    elsewhere = map == 0
    np.testing.assert_allclose(seen[elsewhere], grey[elsewhere][:, None].repeat(3, 1))
    strongest = grey[2, 3] * LEAST_IMAGE + colour_map(map, 4.0)[2, 3] * (1 - LEAST_IMAGE)
    np.testing.assert_allclose(seen[2, 3], strongest)


@given(h=st.integers(1, 40), w=st.integers(1, 40))
def test_small_pictures_are_enlarged_by_whole_numbers(h, w, tmp_path_factory):
    picture = np.random.default_rng(h).random((h, w, 3))
    path = tmp_path_factory.mktemp("p") / "a.png"
    path.write_bytes(png(picture))
    read = pixels(path)
    times = read.shape[0] // h
    assert read.shape == (h * times, w * times, 3)
    assert max(read.shape) >= 224
    np.testing.assert_array_equal(read[::times, ::times], (picture * 255).round().astype(np.uint8))


MEAN_OTHERS = ("true", "false", "null", "yes", "no", "on", "off")
SETTINGS = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(),
              st.lists(st.integers(), max_size=3),
              st.from_regex(r"[b-z][a-z_]{0,8}", fullmatch=True).filter(lambda word: word not in MEAN_OTHERS)),
    max_size=3,
)  # fmt: skip


@given(settings=SETTINGS, others=st.lists(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), max_size=3))
def test_settings_are_read_as_they_were_written(settings, others):
    written = ", ".join(f"{key}={value}" for key, value in settings.items())
    text = f"method({written})"
    assert parse_call(text) == ("method", settings)
    names = list(dict.fromkeys([*others, text]))
    assert several(", ".join(names)) == names


def test_fractions_in_settings_are_numbers():
    assert parse_call("unigrad(eps=8/255)") == ("unigrad", {"eps": 8 / 255})
    with pytest.raises(UserError, match="8/0"):
        parse_call("unigrad(eps=8/0)")


def test_a_second_run_leaves_nothing_of_the_first_and_everything_else(kit, tmp_path):
    assert run(kit, tmp_path, "--method", "gradient,ig(steps=2)") == 0
    (tmp_path / "00000_mine.png").write_bytes(b"of the user")
    assert run(kit, tmp_path, "--method", "gradient", "--images", "1") == 0
    record = records.read(tmp_path / "record.json")
    listed = {name for row in record.facts["pictures"] for name in row.values()}
    assert {path.name for path in tmp_path.glob("*.png")} == listed | {"overview.png", "00000_mine.png"}
    assert len(listed) == 3


def test_a_record_of_another_verb_is_no_licence_to_remove(kit, tmp_path):
    (tmp_path / "photo.png").write_bytes(b"of the user")
    (tmp_path / "record.json").write_text(
        json.dumps({"name": "attack", "facts": {"pictures": [{"a": "photo.png"}]}})
    )
    assert run(kit, tmp_path, "--images", "1") == 0
    assert (tmp_path / "photo.png").exists()
