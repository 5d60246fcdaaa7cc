"""Augmentation against padding, cropping and flipping one image at a time in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyrograd.data import augment
from gyrograd.errors import UserError
from gyrograd.numerics import random


def slow_augment(images: np.ndarray, shifts: np.ndarray, mirrored: np.ndarray, pad: int) -> np.ndarray:
    b, c, h, w = images.shape
    out = np.zeros_like(images)
    for i in range(b):
        padded = np.zeros((c, h + 2 * pad, w + 2 * pad), images.dtype)
        padded[:, pad : pad + h, pad : pad + w] = images[i]
        top, left = shifts[i]
        crop = padded[:, top : top + h, left : left + w]
        out[i] = crop[:, :, ::-1] if mirrored[i] else crop
    return out


def pictures(b: int, c: int, h: int, w: int, dtype: torch.dtype) -> torch.Tensor:
    bytes_ = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (b, c, h, w), dtype=np.uint8))
    return bytes_ if dtype == torch.uint8 else bytes_.to(dtype) / 255


def check_against_the_slow_twin(images: torch.Tensor, seed: int, pad: int, flip: bool) -> None:
    keys = random.keys(seed, len(images))
    shifts = random.integers(keys, (2,), 2 * pad + 1, stream=0).numpy()
    mirrored = (random.integers(keys, (1,), 2, stream=1)[:, 0] == 1).numpy() & flip
    fast = augment(images, keys, pad=pad, flip=flip)
    assert fast.dtype == images.dtype
    np.testing.assert_array_equal(fast.numpy(), slow_augment(images.numpy(), shifts, mirrored, pad))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("h", "w"), [(6, 6), (5, 8)])
def test_augment_equals_pad_crop_and_flip_on_a_batch(h: int, w: int, flip: bool, dtype: torch.dtype) -> None:
    check_against_the_slow_twin(pictures(9, 3, h, w, dtype), seed=2, pad=3, flip=flip)


@given(
    b=st.integers(1, 5),
    h=st.integers(1, 7),
    w=st.integers(1, 7),
    pad=st.integers(0, 5),
    flip=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_augment_equals_pad_crop_and_flip_for_any_size(b, h, w, pad, flip, seed) -> None:
    check_against_the_slow_twin(pictures(b, 1, h, w, torch.uint8), seed, pad, flip)


def test_bytes_and_floats_are_augmented_alike() -> None:
    images, keys = pictures(8, 3, 9, 9, torch.uint8), random.keys(5, 8)
    assert torch.equal(augment(images, keys).float() / 255, augment(images.float() / 255, keys))


def test_an_image_is_augmented_alike_in_any_batch() -> None:
    images, keys = pictures(8, 3, 9, 9, torch.uint8), random.keys(5, 8)
    assert torch.equal(augment(images, keys)[3:6], augment(images[3:6], keys[3:6]))


def test_every_shift_and_both_sides_occur_equally_often() -> None:
    n, pad = 4000, 2
    spot = torch.zeros(n, 1, 9, 9)
    spot[:, 0, 4, 3] = 1  # off the middle, so that a mirrored image is told apart by its column alone
    out = augment(spot, random.keys(0, n), pad=pad)
    rows = out.sum((1, 3)).argmax(1).bincount(minlength=9)
    assert rows[:2].sum() == rows[7:].sum() == 0
    assert ((rows[2:7] - n / 5).abs() < 5 * (n * 0.16) ** 0.5).all()
    columns = out.sum((1, 2)).argmax(1).bincount(minlength=9).double()
    # straight: columns 1 .. 5; mirrored (3 becomes 5): columns 3 .. 7
    expected = torch.tensor([0, 1, 1, 2, 2, 2, 1, 1, 0]) * n / 10
    assert columns[0] == columns[8] == 0
    assert ((columns - expected).abs() < 5 * (n * 0.2) ** 0.5).all()


def test_no_padding_and_no_flip_change_nothing() -> None:
    images = pictures(3, 3, 5, 5, torch.uint8)
    assert torch.equal(augment(images, random.keys(1, 3), pad=0, flip=False), images)


def test_negative_padding_is_refused() -> None:
    with pytest.raises(UserError, match="The padding is -1; give 0"):
        augment(pictures(1, 3, 5, 5, torch.uint8), random.keys(1, 1), pad=-1)
