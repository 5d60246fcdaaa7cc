from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import config

from gyrograd.data import Dataset, batches, toy2d
from gyrograd.errors import UserError


def numbered(n: int = 20, masks: bool = False) -> Dataset:
    """Image i is filled with the byte i, so that any mix-up of rows shows."""
    rows = torch.arange(n)
    images = rows.to(torch.uint8)[:, None, None, None].expand(n, 3, 4, 5).clone()
    return Dataset(images, rows % 3, ("a", "b", "c"), "numbered", (images[:, 0] % 2 == 1) if masks else None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": torch.zeros(7, dtype=torch.int64)},
            "numbered has 20 images and 7 labels; give a label to each.",
        ),
        (
            {"labels": torch.full((20,), 3)},
            "numbered has labels from 3 to 3 and 3 classes; labels count from 0 to 2.",
        ),
        ({"labels": torch.arange(20) % 3 - 1}, "numbered has labels from -1 to 1 and 3 classes"),
        ({"labels": torch.zeros(20)}, "give whole numbers"),
        (
            {
                "images": torch.zeros(0, 3, 4, 5, dtype=torch.uint8),
                "labels": torch.zeros(0, dtype=torch.int64),
            },
            "numbered holds no examples; give at least one.",
        ),
        ({"masks": torch.zeros(20, 5, 4, dtype=torch.bool)}, r"give one mask per image, \(20, 4, 5\)"),
        ({"masks": torch.zeros(19, 4, 5, dtype=torch.bool)}, r"give one mask per image, \(20, 4, 5\)"),
    ],
)
def test_a_data_set_that_does_not_fit_together_is_refused_in_one_sentence(
    change: dict, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**vars(numbered()), **change}
    monkeypatch.setattr(config, "jaxtyping_disable", True)  # a user has no shape checks to stop him earlier
    with pytest.raises(UserError, match=message):
        Dataset(**fields)


@given(n=st.integers(1, 20), seed=st.integers(0, 2**40))
def test_a_subset_keeps_image_label_and_mask_together(n: int, seed: int) -> None:
    part = numbered(masks=True).subset(n, seed)
    rows = part.images[:, 0, 0, 0].long()
    assert len(part) == n == len(set(rows.tolist()))
    assert torch.equal(part.labels, rows % 3)
    assert part.masks is not None
    assert torch.equal(part.masks, (part.images[:, 0] % 2 == 1))


def test_a_larger_subset_extends_a_smaller_one_and_names_its_rows() -> None:
    data = numbered()
    assert torch.equal(data.subset(15, 4).images[:6], data.subset(6, 4).images)
    assert torch.equal(data.images[data.chosen(6, 4)], data.subset(6, 4).images)


def test_subsets_depend_on_the_seed_and_not_on_the_global_generator() -> None:
    data = numbered()
    state = torch.get_rng_state()
    first = data.chosen(20, 1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert torch.equal(data.chosen(20, 1), first)
    assert not torch.equal(data.chosen(20, 2), first)
    assert first.tolist() != list(range(20))


@pytest.mark.parametrize("n", [0, -1, 21])
def test_a_subset_of_impossible_size_is_refused(n: int) -> None:
    with pytest.raises(UserError, match=f"A subset of {n} cannot be taken from numbered: give 1 to 20."):
        numbered().subset(n)


def test_pixels_are_bytes_over_255() -> None:
    index = torch.tensor([17, 3, 3])
    pixels = numbered().pixels(index)
    assert pixels.dtype == torch.float32
    assert torch.equal(pixels[:, 1, 2, 3], torch.tensor([17, 3, 3]) / 255)
    assert numbered().pixels().shape == (20, 3, 4, 5)


def test_pixels_of_a_float_set_are_left_as_they_are() -> None:
    data = toy2d(n=10)
    assert torch.equal(data.pixels(torch.tensor([4])), data.images[4:5])


def test_moving_to_a_device_moves_everything_and_changes_nothing() -> None:
    data = numbered(masks=True)
    assert data.to("cpu").digest() == data.digest()
    moved = data.to(torch.device("cpu"))
    assert moved.masks is not None
    assert moved.name == data.name


def test_the_digest_sees_images_labels_and_masks() -> None:
    data = numbered(masks=True)
    one_pixel, one_label, one_mask = (vars(numbered(masks=True)).copy() for _ in range(3))
    one_pixel["images"][5, 1, 1, 1] += 1
    one_label["labels"][0] = 2
    one_mask["masks"][3, 0, 0] ^= True
    digests = {Dataset(**fields).digest() for fields in (one_pixel, one_label, one_mask)} | {data.digest()}
    assert len(digests) == 4


@given(size=st.integers(1, 25), seed=st.none() | st.integers(0, 1000), epoch=st.integers(0, 5))
def test_an_epoch_visits_every_example_once_in_an_order_free_of_the_batch_size(
    size: int, seed: int | None, epoch: int
) -> None:
    data = numbered()
    parts = list(batches(data, size, shuffle_seed=seed, epoch=epoch))
    index = torch.cat([rows for _, _, rows in parts])
    (_, _, whole), *_ = batches(data, 20, shuffle_seed=seed, epoch=epoch)
    assert torch.equal(index, whole)
    assert sorted(index.tolist()) == list(range(20))
    for images, labels, rows in parts:
        assert torch.equal(images, data.pixels(rows))
        assert torch.equal(labels, data.labels[rows])


def test_epochs_and_seeds_give_other_orders_and_no_seed_keeps_the_order() -> None:
    data = numbered()
    orders = [
        next(batches(data, 20, shuffle_seed=seed, epoch=epoch))[2] for seed in (0, 1) for epoch in (0, 1)
    ]
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert next(batches(data, 20))[2].tolist() == list(range(20))


def test_drop_last_leaves_out_only_the_short_batch() -> None:
    assert [len(rows) for _, _, rows in batches(numbered(), 6)] == [6, 6, 6, 2]
    assert [len(rows) for _, _, rows in batches(numbered(), 6, drop_last=True)] == [6, 6, 6]
    assert [len(rows) for _, _, rows in batches(numbered(), 5, drop_last=True)] == [5, 5, 5, 5]


def test_batches_that_cannot_be_made_are_refused_before_the_first_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"size is 0; give at least 1."):
        batches(numbered(), 0)
    with pytest.raises(UserError, match="drop_last leaves no batch: give a size up to 20"):
        batches(numbered(), 21, drop_last=True)
