"""What classes are called: by the model, by a file, by the data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from torch import nn

import gyrograd as gg
from gyrograd.cli import _with_underscores
from gyrograd.cli.inputs import Opening, open_inputs
from gyrograd.data.cifar10 import CLASSES
from gyrograd.errors import UserError
from gyrograd.models import zoo
from gyrograd.models.class_names import class_names, label_notes, read_class_names

PETS = ("cat", "dog", "newt")


def net(**carried) -> nn.Module:
    inner = nn.Linear(2, 3)
    inner.__dict__.update(carried)
    return nn.Sequential(inner)


def test_a_hugging_face_configuration_names_the_classes():
    told = {2: "newt", 0: "cat", 1: "dog"}
    assert class_names(net(config=SimpleNamespace(id2label=told)), 3) == PETS
    as_read = {str(number): name for number, name in told.items()}
    assert class_names(net(config={"id2label": as_read}), 3) == PETS


def test_a_configuration_that_was_never_filled_in_or_has_other_classes_names_nothing():
    unfilled = {number: f"LABEL_{number}" for number in range(3)}
    assert class_names(net(config=SimpleNamespace(id2label=unfilled)), 3) is None
    assert class_names(net(config=SimpleNamespace(id2label={0: "cat", 1: "dog"})), 3) is None
    assert class_names(net(config=SimpleNamespace(id2label={0: "cat", 5: "dog", 7: "newt"})), 3) is None


def test_the_models_own_names_come_before_those_of_the_data():
    assert class_names(net(), 3, PETS) == PETS
    assert class_names(net(), 3, PETS[:2]) is None
    assert class_names(net(class_names=PETS), 3, ("a", "b", "c")) == PETS


def test_the_zoo_names_its_classes():
    names = class_names(gg.load("cifar10/lenet-ce"), 10, tuple("abcdefghij"))
    assert names is not None
    assert names[6] == "frog"


def test_every_model_of_the_zoo_has_names_for_its_classes():
    for name in zoo.names():
        assert list(zoo.card(name)["id2label"].values()) == list(CLASSES), name


def test_a_thousand_classes_of_torchvision_are_imagenets():
    model = gg.model("torchvision:squeezenet1_0", num_classes=1000)
    names = class_names(model, 1000)
    assert names is not None
    assert names[0] == "tench"
    assert len(set(names)) > 990
    assert class_names(gg.model("torchvision:squeezenet1_0", num_classes=7), 7) is None


@pytest.mark.parametrize(
    "text",
    [
        "cat\ndog\n\nnewt\n",
        json.dumps(PETS),
        json.dumps({"0": "cat", "1": "dog", "2": "newt"}),
        json.dumps({"architecture": "x", "id2label": {"0": "cat", "1": "dog", "2": "newt"}}),
    ],
)
def test_a_file_of_names_is_lines_or_json(tmp_path, text):
    path = tmp_path / "names"
    path.write_text(text, encoding="utf-8")
    assert read_class_names(path, 3) == PETS


def test_a_file_that_does_not_fit_is_one_sentence(tmp_path):
    path = tmp_path / "names"
    path.write_text("cat\ndog\n", encoding="utf-8")
    with pytest.raises(UserError, match="names 2 classes and the model has 3"):
        read_class_names(path, 3)
    path.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="holds no class names"):
        read_class_names(path, 3)
    path.write_text('{"cat": 0}', encoding="utf-8")
    with pytest.raises(UserError, match="holds no class names"):
        read_class_names(path, 3)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8 text"):
        read_class_names(path, 3)
    with pytest.raises(UserError, match="cannot be read"):
        read_class_names(tmp_path / "absent", 3)


def test_options_may_be_written_with_dashes():
    known = ("class_names", "out")
    assert _with_underscores("--class-names", known) == "--class_names"
    assert _with_underscores("--class-names=a-b.txt", known) == "--class_names=a-b.txt"
    assert _with_underscores("--what-ever", known) == "--what-ever"
    assert _with_underscores("class-names", known) == "class-names"


def test_classes_that_the_model_has_in_another_order_are_said_to_be(tmp_path: Path) -> None:
    for name in ("automobile", "ship"):  # classes 1 and 8 of CIFAR-10
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32)).save(tmp_path / name / "1.png")
    (note,) = open_inputs("cifar10/resnet20-ce", str(tmp_path), Opening()).notes
    assert "Class 0 of" in note
    assert "is automobile, which is class 1 of the model, so its labels may be wrong" in note


def test_an_audit_from_python_says_so_too_and_refuses_numbered_folders_with_gaps(tmp_path: Path) -> None:
    model = gg.load("cifar10/resnet20-ce")
    for numbers, names in (((1, 8), ("automobile", "ship")), ((3, 7), ("0003", "0007"))):
        for number, name in zip(numbers, names, strict=True):
            (tmp_path / str(names) / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / str(names) / name / "1.png")
    small = {
        "methods": ["gradient"],
        "steps": 1,
        "draws": 1,
        "points": 2,
        "sweep": {},
        "curve": (),
        "pictures": 1,
    }
    data = gg.dataset("folder", path=tmp_path / "('automobile', 'ship')")
    said = gg.audit(model, data, bound_images=1, flag_images=1, **small).summary()
    assert "is automobile, which is class 1 of the model" in " ".join(said.split())
    with pytest.raises(UserError, match="have gaps"):
        gg.audit(model, gg.dataset("folder", path=tmp_path / "('0003', '0007')"), **small)


def test_the_folders_of_imagenet_are_in_the_order_of_its_classes() -> None:
    model = gg.model("torchvision:squeezenet1_1")
    ids = [f"n{number:08d}" for number in range(1000)]
    assert label_notes(model, 1000, "val", ids) == ()
    (note,) = label_notes(model, 1000, "val", ids[:10])
    assert "The classes of val (n00000000, ...) are not those of the model (tench, ...)" in note
