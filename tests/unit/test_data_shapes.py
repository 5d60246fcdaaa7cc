from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

import gyrograd as gg
from gyrograd.data import Dataset
from gyrograd.data.shapes import BLOCK, DIGESTS, OUTLINES, Difficulty, _block, _coverage, _noise, shapes
from gyrograd.errors import UserError


@pytest.fixture(scope="module")
def test_set() -> Dataset:
    return gg.dataset("shapes", split="test")


def test_the_default_set_is_the_same_bytes_everywhere(test_set) -> None:
    assert test_set.digest() == DIGESTS["test"]


def test_the_set_is_ten_classes_of_small_colour_pictures_with_masks(test_set) -> None:
    assert test_set.images.shape == (1500, 3, 32, 32)
    assert test_set.images.dtype == torch.uint8
    assert test_set.masks.shape == (1500, 32, 32)
    assert test_set.labels.bincount().tolist() == [150] * 10
    assert test_set.classes == tuple(OUTLINES)


def test_a_larger_set_extends_a_smaller_one() -> None:
    small, large = shapes(n=BLOCK // 2 + 3), shapes(n=2 * BLOCK + 1)
    assert len(small) == BLOCK // 2 + 3
    assert len(large) == 2 * BLOCK + 1
    assert torch.equal(small.images, large.images[: len(small)])
    assert torch.equal(small.labels, large.labels[: len(small)])
    assert torch.equal(small.masks, large.masks[: len(small)])


def test_splits_seeds_and_blocks_share_no_picture() -> None:
    parts = [shapes("train", 2 * BLOCK), shapes("test", 2 * BLOCK), shapes("train", 2 * BLOCK, seed=1)]
    pictures = torch.cat([part.images for part in parts]).flatten(1)
    assert len({bytes(picture.tolist()) for picture in pictures}) == 6 * BLOCK


def test_masks_cover_a_fair_part_of_the_picture_and_never_its_rim(test_set) -> None:
    share = test_set.masks.double().mean((1, 2))
    assert share.min() > 0.03
    assert share.max() < 0.6
    rim = test_set.masks.clone()
    rim[:, 1:-1, 1:-1] = False
    assert rim.double().mean() < 1e-3


def test_the_object_differs_from_its_background_and_the_mask_is_where_it_does() -> None:
    """Without texture, clutter and noise the object is exactly the pixels that differ from the corner."""
    plain = Difficulty(texture=0.0, noise=0.0, distractors=0)
    data = shapes("test", 200, difficulty=plain)
    pixels = data.pixels()
    away = (pixels - pixels[:, :, :1, :1]).abs().amax(1)
    peak = away.amax((1, 2), keepdim=True)
    # half covered is half the contrast; a byte's rounding apart
    unsure = (away - peak / 2).abs() < 2 / 255
    assert torch.equal((away > peak / 2) | unsure, data.masks | unsure)
    assert unsure.double().mean() < 0.02
    assert (peak > 0.1).all()


def test_the_background_does_not_know_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same block with the labels turned round: pixels that neither object covers are equal."""
    module = importlib.import_module("gyrograd.data.shapes")
    quiet = Difficulty(noise=0.0)
    images, labels, _ = _block((0, 0, 0), quiet)
    covered = _coverage((0, 0, 0), labels, quiet) > 0
    monkeypatch.setattr(module, "_balanced_labels", lambda key: (labels + 3) % 10)
    others, turned, _ = _block((0, 0, 0), quiet)
    covered |= _coverage((0, 0, 0), turned, quiet) > 0
    free = np.broadcast_to(~covered[:, None], images.shape)
    assert free.mean() > 0.4
    assert np.array_equal(images[free], others[free])
    assert not np.array_equal(images, others)


def test_the_rim_of_the_picture_tells_nothing_of_the_class(test_set) -> None:
    """A nearest-centre classifier on the outermost pixels stays at chance (10 %) on fresh pictures."""
    train, test = shapes("train", 1500), test_set

    def rim(data) -> torch.Tensor:
        pixels = data.pixels()
        sides = (pixels[:, :, 0], pixels[:, :, -1], pixels[:, :, :, 0], pixels[:, :, :, -1])
        return torch.cat([side.flatten(1) for side in sides], 1)

    centres = torch.stack([rim(train)[train.labels == k].mean(0) for k in range(10)])
    accuracy = (torch.cdist(rim(test), centres).argmin(1) == test.labels).double().mean()
    assert 0.07 < accuracy < 0.13


def test_noise_is_centred_has_its_sigma_and_is_not_correlated() -> None:
    noise = _noise((0, 0, 0), 0.05)
    assert abs(noise.mean()) < 5 * 0.05 / noise.size**0.5
    assert noise.std() == pytest.approx(0.05, rel=0.01)
    assert abs((noise[..., 1:] * noise[..., :-1]).mean()) < 5 * 0.05**2 / noise.size**0.5


def test_position_size_and_turn_follow_the_difficulty() -> None:
    labels = np.zeros(BLOCK, np.int64)
    small = _coverage((0, 0, 0), labels, Difficulty(radius=(4.0, 4.0), drift=0.0, turn=0.0))
    assert np.array_equal(small, np.broadcast_to(small[:1], small.shape))
    area = small[0].sum()
    assert area == pytest.approx(np.pi * (0.95 * 4) ** 2, rel=0.03)
    roaming = _coverage((0, 0, 0), labels, Difficulty(radius=(4.0, 4.0), drift=1.0))
    rows = (roaming.sum(2) * (np.arange(32) + 0.5)).sum(1) / roaming.sum((1, 2))
    assert rows.min() < 8
    assert rows.max() > 24


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    np.random.seed(3)
    first = shapes(n=10)
    np.random.seed(4)
    torch.manual_seed(4)
    state = np.random.get_state()[1].copy()
    assert shapes(n=10).digest() == first.digest()
    assert np.array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "trian"}, r"shapes has no split 'trian': did you mean 'train'\?"),
        ({"n": 0}, r"shapes was asked for n=0, seed=0; give n >= 1 and a seed from 0 to 2\*\*32 - 1\."),
        ({"seed": -1}, "give n >= 1 and a seed from 0"),
        ({"seed": 2**32}, "give n >= 1 and a seed from 0"),
        ({"number": 3}, "dataset 'shapes' has no setting 'number'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        gg.dataset("shapes", **settings)
