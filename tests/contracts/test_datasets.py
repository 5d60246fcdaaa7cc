"""What every data set promises; those that read files get small made ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import gyrograd as gg
from gyrograd.errors import UserError

MADE = {"shapes": {"n": 60}, "toy2d": {"n": 60}}
NAMES = sorted(gg.available("dataset"))
every_made = pytest.mark.parametrize("name", sorted(MADE))


@pytest.fixture
def pictures(tmp_path):
    """Two classes of three pictures."""
    generator = np.random.default_rng(0)
    for label in ("ant", "bee"):
        (tmp_path / label).mkdir()
        for i in range(3):
            Image.fromarray(generator.integers(0, 255, (40, 36, 3), dtype=np.uint8)).save(
                tmp_path / label / f"{i}.png"
            )
    return tmp_path


def test_every_data_set_is_covered_here():
    assert set(NAMES) == {*MADE, "cifar10", "folder"}


@every_made
def test_the_seed_fixes_every_byte(name):
    first, second, other = (gg.dataset(name, seed=seed, **MADE[name]) for seed in (0, 0, 1))
    assert first.digest() == second.digest() != other.digest()


@every_made
def test_train_and_test_share_no_example(name):
    train, test = (gg.dataset(name, split=split, **MADE[name]).images for split in ("train", "test"))
    assert not any((train == image).flatten(1).all(1).any() for image in test)


@every_made
def test_all_classes_occur_and_subsets_are_nested(name):
    data = gg.dataset(name, **MADE[name])
    assert set(data.labels.tolist()) == set(range(len(data.classes)))
    assert torch.equal(data.subset(20, seed=5).images[:8], data.subset(8, seed=5).images)


def test_a_folder_gives_pixels_in_the_unit_box(pictures):
    data = gg.dataset("folder", path=pictures, size=16)
    x = data.pixels()
    assert x.shape == (6, 3, 16, 16)
    assert data.classes == ("ant", "bee")
    assert 0 <= float(x.min()) <= float(x.max()) <= 1


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("cifar10", {"split": "test", "root": "/nonexistent"}, "gyrograd data fetch cifar10"),
        ("folder", {"path": "/nonexistent"}, "/nonexistent"),
        ("shapes", {"split": "tset"}, "did you mean 'test'"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(name, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        gg.dataset(name, **settings)
