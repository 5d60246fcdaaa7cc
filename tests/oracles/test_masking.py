"""Occlusion and RISE beside slow twins: one image at a time, pixel by pixel, as the papers print them; and Captum."""

from __future__ import annotations

import captum.attr as captum
import pytest
import torch
import torch.nn.functional as F
from nets import batch, net
from torch import Tensor

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.numerics import random


def occluded_by_hand(model, image: Tensor, c: int, patch: int, stride: int, fill: float) -> Tensor:
    side = image.shape[-1]
    starts = [0]
    while starts[-1] + patch < side:
        starts.append(starts[-1] + stride)
    total, times = torch.zeros(2, side, side, dtype=image.dtype)
    whole = model(image[None])[0, c]
    for top in starts:
        for left in starts:
            hidden = image.clone()
            hidden[:, top : top + patch, left : left + patch] = fill
            total[top : top + patch, left : left + patch] += whole - model(hidden[None])[0, c]
            times[top : top + patch, left : left + patch] += 1
    return total / times


@pytest.mark.parametrize(("patch", "stride", "fill"), [(4, 2, 0.0), (5, 3, 0.3), (12, 12, 0.0)])
def test_occlusion_is_the_mean_fall_over_the_patches_that_hide_a_pixel(patch, stride, fill):
    model, (x, target) = net("lenet"), batch(2)
    found = gg.attribution("occlusion", patch=patch, stride=stride, baseline=fill)(model, x, target)
    with torch.no_grad():
        for image, c, map in zip(x, target, found, strict=True):
            expected = occluded_by_hand(model, image, int(c), patch, stride, fill)
            torch.testing.assert_close(map, expected.expand_as(image))


def test_occlusion_agrees_with_captum():
    model, (x, target) = net("residual"), batch(2)
    own = gg.attribution("occlusion", patch=4, stride=2)(model, x, target)
    peer = captum.Occlusion(model).attribute(x, (3, 4, 4), strides=(3, 2, 2), target=target)
    torch.testing.assert_close(own.float(), peer)  # Captum adds up in single precision


def test_occlusion_by_default_takes_an_eighth_of_the_side_by_halves():
    x = torch.rand(1, 3, 32, 32)
    assert gg.attribution("occlusion")._patches(x).shape == (225, 32, 32)
    assert gg.attribution("occlusion")._patches(x).flatten(1).sum(1).unique().tolist() == [16.0]


def test_rise_is_the_weighted_sum_of_its_masks():
    model, (x, target) = net("lenet"), batch(2)
    rise = gg.attribution("rise", draws=12, grid=3, keep=0.4, baseline=0.2)
    masks = rise.masks(x)
    expected = torch.zeros_like(x)
    with torch.no_grad():
        for i, c in enumerate(target):
            for mask in masks:
                shown = model((x[i] * mask + (1 - mask) * 0.2)[None]).softmax(1)[0, c]
                expected[i] += shown * mask / (12 * 0.4)
    torch.testing.assert_close(rise(model, x, target), expected)


def test_rise_masks_are_moved_enlargements_of_small_tables():
    x = torch.rand(1, 3, 20, 20, dtype=torch.float64)
    masks = gg.attribution("rise", draws=4000, grid=4, keep=0.3).masks(x)
    assert masks.min() >= 0
    assert masks.max() <= 1 + 1e-6
    # Every pixel is kept with the same chance: five standard errors of 4000 masks, for the largest of 400.
    assert (masks.mean(0) - 0.3).abs().max() < 5 * (0.21 / 4000) ** 0.5
    # A table of 4 x 4 cells of 5 pixels: neighbouring pixels differ by at most a fifth.
    assert (masks[:, 1:] - masks[:, :-1]).abs().max() <= 0.2 + 1e-6
    assert len({tuple(mask.flatten().tolist()) for mask in masks[:50]}) == 50


def test_a_rise_mask_is_cut_out_of_the_enlarged_table_at_a_random_place():
    x = torch.rand(1, 3, 18, 20)
    masks = gg.attribution("rise", draws=6, grid=4, keep=0.3, seed=2).masks(x)
    key = random.keys(2, 1)
    tables = random.uniform(key, (6, 4, 4), stream=0)[0] < 0.3
    tops, lefts = (random.integers(key, (6,), 5, stream=stream)[0].tolist() for stream in (1, 2))
    assert len(set(tops)) > 1
    assert len(set(lefts)) > 1
    for mask, table, top, left in zip(masks, tables, tops, lefts, strict=True):
        large = F.interpolate(table.float()[None, None], (25, 25), mode="bilinear")[0, 0]
        torch.testing.assert_close(mask, large[top : top + 18, left : left + 20])


def test_rise_masks_are_those_of_the_seed_and_more_draws_keep_the_first():
    x = torch.rand(1, 3, 12, 12)
    few, more, other = (gg.attribution("rise", draws=n, seed=s).masks(x) for n, s in ((5, 0), (9, 0), (5, 1)))
    assert torch.equal(few, more[:5])
    assert not torch.equal(few, other)


@pytest.mark.parametrize("name", ["occlusion", "rise"])
def test_inputs_that_are_no_images_are_masked_feature_by_feature(name):
    model = torch.nn.Linear(6, 3).double()
    x = torch.rand(2, 6, dtype=torch.float64)
    map = gg.attribution(name, quantity="logit")(model, x, 1)
    assert map.shape == x.shape
    if name == "occlusion":
        torch.testing.assert_close(map, x * model.weight[1])


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("occlusion", {"patch": 0}, "give 1 or more"),
        ("occlusion", {"patch": 2, "stride": 3}, "never hidden"),
        ("occlusion", {"stride": 5}, "never hidden"),
        ("rise", {"keep": 1.0}, "between 0 and 1"),
        ("rise", {"draws": 0}, "give at least 1 for draws and grid"),
    ],
)
def test_settings_that_hide_nothing_are_refused(name, settings, sentence):
    x, target = batch(1)
    with pytest.raises(UserError, match=sentence):
        gg.attribution(name, **settings)(net("lenet"), x, target)
