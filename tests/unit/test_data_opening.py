"""A text becomes the images it names, each with its own name and number."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import gyrograd as gg
from gyrograd.data import Dataset
from gyrograd.data.opening import (
    UNLABELLED,
    Choice,
    check_labels_fit,
    is_labelled,
    open_data,
    open_data_with_names,
)
from gyrograd.errors import UserError


def flat(path: Path, value: int) -> Path:
    """An image of one grey."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)
    return path


def values(data: Dataset) -> list[int]:
    return data.images[:, 0, 0, 0].tolist()


@pytest.fixture(autouse=True)
def _small_shapes(monkeypatch):
    monkeypatch.setattr(importlib.import_module("gyrograd.data.shapes"), "SIZES", {"train": 60, "test": 60})


@pytest.fixture
def labelled(tmp_path):
    for label, name in enumerate(("ant", "bee", "cat")):
        for i in range(4):
            flat(tmp_path / "photos" / name / f"{i}.png", 10 * label + i)
    return tmp_path / "photos"


@pytest.mark.parametrize("images", [1, 7, None])
def test_a_registered_set_gives_its_seeded_subset(images):
    whole = gg.dataset("shapes", split="test")
    found = open_data_with_names("shapes", Choice(images=images, seed=3))
    expected = whole if images is None else whole.subset(images, 3)
    assert torch.equal(found.data.images, expected.images)
    assert torch.equal(whole.images[list(found.index)], found.data.images)
    assert found.names[0] == f"shapes {found.index[0]}"
    assert is_labelled(found.data)


def test_more_images_than_there_are_is_all_of_them():
    assert len(open_data("shapes", images=10**6)) == 60


def test_the_split_of_a_set_is_test_unless_another_is_named():
    train = open_data("shapes", images=2, split="train")
    assert torch.equal(train.images, gg.dataset("shapes", split="train").subset(2).images)


def test_a_set_is_scaled_when_another_size_is_asked_for():
    data, own = open_data("shapes", images=3, size=64), open_data("shapes", images=3)
    assert data.images.shape == (3, 3, 64, 64)
    assert data.masks.shape == (3, 64, 64)
    assert torch.equal(data.masks[:, ::2, ::2], own.masks)
    for image, small in zip(data.images, own.images, strict=True):
        # Pillow scales with a program of its own
        other = Image.fromarray(small.movedim(0, -1).numpy()).resize((64, 64), Image.Resampling.BILINEAR)
        assert np.abs(np.asarray(other).astype(int) - image.movedim(0, -1).numpy()).max() <= 1
    assert open_data("shapes", images=3, size=32).images.equal(own.images)


def test_labels_are_left_out_when_asked_to():
    data = open_data("shapes", images=5, labelled=False)
    assert data.classes == UNLABELLED
    assert data.labels.tolist() == [0] * 5
    assert not is_labelled(data)


def test_class_folders_are_labels(labelled):
    found = open_data_with_names(str(labelled), Choice(size=8))
    assert found.data.classes == ("ant", "bee", "cat")
    assert found.data.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.names[5] == "bee/1.png"
    assert found.index == tuple(range(12))


@pytest.mark.parametrize("images", [1, 5, 12, 40])
@pytest.mark.parametrize("seed", [0, 7])
def test_names_and_numbers_stay_with_their_images_under_a_limit(labelled, images, seed):
    everything = open_data_with_names(str(labelled), Choice(size=8))
    found = open_data_with_names(str(labelled), Choice(size=8, images=images, seed=seed))
    assert len(found.data) == min(images, 12)
    for value, name, number in zip(values(found.data), found.names, found.index, strict=True):
        assert value == 10 * ["ant", "bee", "cat"].index(name[:3]) + int(name[4])
        assert values(everything.data)[number] == value


def test_a_folder_of_images_has_no_labels(tmp_path):
    flat(tmp_path / "b.png", 2)
    flat(tmp_path / "a.png", 1)
    found = open_data_with_names(str(tmp_path), Choice(size=8))
    assert found.data.classes == UNLABELLED
    assert values(found.data) == [1, 2]
    assert found.names == ("a.png", "b.png")


def test_class_folders_without_labels_are_all_read(labelled):
    data = open_data(str(labelled), size=8, labelled=False)
    assert data.classes == UNLABELLED
    assert sorted(values(data)) == sorted(10 * label + i for label in range(3) for i in range(4))


def test_single_images_come_in_the_order_they_are_given(labelled):
    words = [str(labelled / "cat" / "3.png"), str(labelled / "ant" / "0.png")]
    found = open_data_with_names(words, Choice(size=8))
    assert values(found.data) == [23, 0]
    assert found.names == tuple(words)
    assert values(open_data(words[0], size=8)) == [23]


def test_a_pattern_gives_its_matches_sorted_and_none_twice(labelled):
    assert values(open_data(f"{labelled}/*/2.png", size=8)) == [2, 12, 22]
    assert values(open_data([f"{labelled}/*/2.png", str(labelled / "ant" / "2.png")], size=8)) == [2, 12, 22]


def test_a_folder_with_the_name_of_a_set_is_reached_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flat(tmp_path / "shapes" / "a.png", 9)
    assert values(open_data("./shapes", size=8)) == [9]
    assert open_data("shapes", images=1).classes != UNLABELLED


def test_a_file_with_brackets_in_its_name_is_no_pattern(tmp_path):
    assert values(open_data(str(flat(tmp_path / "a[1].png", 5)), size=8)) == [5]


@given(k=st.integers(1, 20))
def test_labels_fit_exactly_the_models_that_have_their_classes(k):
    data = Dataset(
        torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 9]), tuple("abcdefghij"), "ten"
    )
    if k >= 10:
        check_labels_fit(data, k)
    else:
        with pytest.raises(UserError, match=f"10 classes and the model {k}"):
            check_labels_fit(data, k)
    check_labels_fit(Dataset(data.images, data.labels * 0, UNLABELLED, "none"), 1)


@pytest.mark.parametrize(
    ("names", "k", "fits"),
    [
        (("0000", "0003", "0007"), 1000, False),
        (("0002", "0003", "0004"), 1000, False),
        (("0000", "0003", "0007"), 3, True),
        (("0000", "0001", "0002"), 1000, True),
        (("1", "2", "3"), 1000, True),
        (("ant", "3", "7"), 1000, True),
    ],
)
def test_folders_that_are_some_of_a_models_class_numbers_are_not_counted_in_silence(names, k, fits):
    data = Dataset(torch.zeros(3, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 1, 2]), names, "three")
    if fits:
        check_labels_fit(data, k)
        return
    with pytest.raises(UserError, match="make an empty folder for each missing number"):
        check_labels_fit(data, k)


def test_empty_folders_give_the_others_their_numbers(tmp_path):
    flat(tmp_path / "0002" / "a.png", 5)
    for number in range(4):
        (tmp_path / f"000{number}").mkdir(exist_ok=True)
    data = open_data(str(tmp_path), size=8)
    assert data.labels.tolist() == [2]
    check_labels_fit(data, 10)


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("shapes", {"split": "tset"}, "did you mean 'test'"),
        ("PHOTOS", {"size": None}, "say it with --size"),
        ("PHOTOS/ant/0.png", {"size": 8, "split": "test"}, "neither labels nor splits"),
        ("PHOTOS/ant/0.png", {"size": 8, "labelled": True}, "neither labels nor splits"),
        ("PHOTOS/ant", {"size": 8, "labelled": True}, "has images but no class folders"),
        ("PHOTOS/dog", {"size": 8}, "no file, folder or data set"),
        ("PHOTOS", {"size": -1}, "The size is -1"),
        ("PHOTOS", {"size": 8, "images": -1}, "-1 images"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(labelled, text, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        open_data(text.replace("PHOTOS", str(labelled)), **settings)


def test_a_folder_among_several_paths_is_refused(labelled):
    with pytest.raises(UserError, match="a folder among several paths"):
        open_data([str(labelled), str(labelled / "ant" / "0.png")], size=8)
