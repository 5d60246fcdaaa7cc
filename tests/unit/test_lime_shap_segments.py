"""Segments, baselines, coalitions, and the promises LIME and SHAP make beside their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import batch, net
from skimage.segmentation import quickshift
from torch import nn

import gyrograd as gg
from gyrograd.attributions.baselines import baseline_of
from gyrograd.attributions.lime import Lime
from gyrograd.attributions.segments import distinct, every_coalition, segment, worths
from gyrograd.attributions.shap import Shap
from gyrograd.errors import UserError
from gyrograd.numerics.checks import try_model

both = pytest.mark.parametrize("make", [Lime, Shap])
CPU = torch.device("cpu")
FULL = torch.OutOfMemoryError("CUDA out of memory")


def smooth_images(b: int = 3, side: int = 32, channels: int = 3) -> torch.Tensor:
    """Blobs of colour: images that fall into superpixels."""
    coarse = torch.rand(b, channels, 6, 6, generator=torch.Generator().manual_seed(1))
    return nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)


class Counting(nn.Module):
    """Notes the size of each batch; refuses those above a limit as a full device does."""

    def __init__(self, core, limit=10**9, wrong=FULL):
        super().__init__()
        self.core, self.limit, self.wrong, self.sizes = core, limit, wrong, []

    def forward(self, x):
        self.sizes.append(len(x))
        if len(x) > self.limit:
            raise self.wrong
        return self.core(x)


def test_grid_cells_are_rectangles_counted_row_by_row():
    labels = segment(torch.zeros(2, 3, 7, 9), "grid", grid=3)
    for i in range(7):
        for j in range(9):
            assert labels[0, i, j] == (i * 3 // 7) * 3 + j * 3 // 9
    assert torch.equal(labels[0], labels[1])


def test_pixels_are_segments_of_their_own():
    labels = segment(torch.zeros(2, 1, 3, 4), "pixels")
    assert torch.equal(labels[1].flatten(), torch.arange(12))


def test_given_segments_are_numbered_without_gaps_for_each_image():
    given = torch.tensor([[[7, 7], [3, 9]], [[5, 5], [5, 2]]])
    labels = segment(torch.zeros(2, 3, 2, 2), given)
    assert labels.tolist() == [[[1, 1], [0, 2]], [[1, 1], [1, 0]]]
    assert torch.equal(segment(torch.zeros(2, 3, 2, 2), given[0])[1], labels[0])


def test_quickshift_is_that_of_tan2023_image_by_image():
    x = smooth_images()
    labels = segment(x)
    for image, mine in zip(x, labels, strict=True):
        pixels = image.permute(1, 2, 0).double().numpy()
        theirs = quickshift(pixels, kernel_size=1, max_dist=200, ratio=0.1, rng=0)
        assert np.array_equal(mine.numpy(), theirs)
        assert torch.equal(mine.unique(), torch.arange(int(mine.max()) + 1))
    assert len({int(one.max()) for one in labels}) > 1
    assert torch.equal(segment(x[1:2])[0], labels[1])


def test_quickshift_settings_reach_it():
    x = smooth_images(1)
    assert segment(x, max_dist=4.0).max() > segment(x).max()
    assert not torch.equal(segment(x, kernel_size=3.0), segment(x))
    assert not torch.equal(segment(x, ratio=1.0), segment(x))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_quickshift_takes_any_number_of_channels_and_cuts_noise_to_the_box(channels):
    x = smooth_images(2, 24, channels) * 1.4 - 0.2
    labels = segment(x)
    assert labels.shape == (2, 24, 24)
    assert labels.max() >= 1
    assert torch.equal(labels, segment(x.clamp(0, 1)))


def test_a_grey_image_has_the_segments_of_its_colour_copy():
    x = smooth_images(2, 24, 1)
    assert torch.equal(segment(x), segment(x.expand(2, 3, 24, 24)))


@both
def test_a_model_in_training_mode_is_explained_in_eval_mode_and_left_as_it_was(make):
    x, target = batch(2)
    explain, model = make(segments="grid", grid=3), net("residual")
    calm = explain(model, x, target)
    assert torch.equal(explain(model.train(), x, target), calm)
    assert model.training
    assert model.bn1.training


def test_baselines():
    x, _ = batch(2)
    assert torch.equal(baseline_of(x, "zero"), torch.zeros_like(x))
    assert torch.equal(baseline_of(x, 0.5), torch.full_like(x, 0.5))
    assert torch.equal(baseline_of(x, x[0]), torch.stack([x[0], x[0]]))
    for i in range(2):
        for c in range(3):
            assert (baseline_of(x, "mean")[i, c] - x[i, c].mean()).abs().max() < 1e-12
    blurred = baseline_of(x, "blur")
    assert blurred.shape == x.shape
    assert 0.01 < blurred.std() < x.std() / 3
    flat = torch.full_like(x, 0.3)
    torch.testing.assert_close(baseline_of(flat, "blur"), flat)


@pytest.mark.parametrize("quantity", ["logit", "log_probability"])
def test_worths_of_a_net_in_single_precision_are_in_double(quantity):
    model, (x, target) = net("lenet").float(), batch(2)
    x, rows = x.float(), [every_coalition(4, CPU)] * 2
    values = torch.stack(
        worths(model, x, torch.zeros_like(x), segment(x, "grid", grid=2), rows, target, quantity)
    )
    assert values.dtype == torch.float64
    whole = model(x).double()
    expected = whole if quantity == "logit" else whole.log_softmax(1)
    torch.testing.assert_close(values[:, -1], expected.gather(1, target[:, None])[:, 0], rtol=0, atol=1e-5)


def test_every_coalition_is_there_once_from_empty_to_whole():
    rows = every_coalition(5, CPU)
    assert len({tuple(row.tolist()) for row in rows}) == 32
    assert not rows[0].any()
    assert rows[-1].all()


def test_distinct_coalitions_keep_their_counts():
    drawn = torch.tensor([[1, 0], [1, 1], [1, 0], [1, 0]]).bool()
    rows, counts = distinct(drawn)
    assert dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True)) == {(1, 0): 3.0, (1, 1): 1.0}


def test_a_worth_is_the_models_value_of_the_masked_image():
    x, target = batch(3)
    model, fill = net("lenet"), baseline_of(x, "mean")
    labels = torch.stack([segment(x[:1], "grid", grid=g)[0] for g in (2, 3, 2)])
    rows = [
        torch.rand(n, s, generator=torch.Generator().manual_seed(n)) < 0.5
        for n, s in ((5, 4), (7, 9), (3, 4))
    ]
    values = worths(model, x, fill, labels, rows, target, "probability", max_batch=4)
    for i in range(3):
        for row, value in zip(rows[i], values[i], strict=True):
            image = x[i].clone()
            for s, kept in enumerate(row):
                if not kept:
                    image[:, labels[i] == s] = fill[i][:, labels[i] == s]
            expected = model(image[None]).softmax(1)[0, target[i]]
            torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-12)


@both
def test_a_pixel_carries_the_coefficient_of_its_segment_in_every_channel(make):
    x, target = batch(3)
    labels = segment(x, "grid", grid=3)
    maps = make(segments=labels)(net("lenet"), x, target)
    for i in range(3):
        values = [maps[i][:, labels[i] == s] for s in range(9)]
        assert all((v == v.flatten()[0]).all() for v in values)
        assert len({v.flatten()[0].item() for v in values}) == 9


@both
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_superpixels_of_different_number_agree_in_batches_of_1_7_and_64(make, precision):
    x = smooth_images(64, 16).to(precision)
    target = torch.arange(64) % 5
    model = nn.Sequential(nn.AdaptiveAvgPool2d(12), net("lenet").to(precision))
    explain = make(draws=12, max_dist=20.0)
    assert len(set(segment(x, max_dist=20.0).flatten(1).amax(1).tolist())) > 3
    whole = explain(model, x, target)
    allowed = {torch.float32: 1e-4, torch.float64: 1e-11}[precision] * whole.abs().max()
    for size, rows in ((1, 8), (7, 64)):
        parts = [explain(model, x[i : i + size], target[i : i + size]) for i in range(0, rows, size)]
        found = torch.cat(parts)
        assert (found - whole[: len(found)]).abs().max() <= allowed


@both
@pytest.mark.parametrize("segments", ["grid", "pixels", "quickshift"])
def test_the_same_seed_gives_the_same_map_and_another_a_different_one(make, segments):
    x = smooth_images(2, 16)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(12), net("lenet").float())
    target = torch.tensor([0, 1])
    maps = [
        make(segments=segments, grid=4, seed=s, draws=9, max_dist=20.0)(model, x, target) for s in (0, 0, 1)
    ]
    assert torch.equal(maps[0], maps[1])
    assert not torch.allclose(maps[0], maps[2])


@both
def test_flat_inputs_are_explained_feature_by_feature(make):
    model = nn.Linear(4, 2, bias=False).double()
    x = torch.tensor([[0.5, 1.0, -1.0, 2.0]]).double()
    settings = {"ridge": 0.0} if make is Lime else {}
    maps = make(segments="pixels", sampling="enumerate", **settings)(model, x, torch.tensor([1]))
    torch.testing.assert_close(maps, (model.weight[1:] * x).detach())


@both
def test_an_input_that_wants_a_gradient_gets_a_map_without_graph(make):
    x, target = batch(2)
    settings = {"distance": "l2", "width": 9.0} if make is Lime else {}
    maps = make(segments="grid", grid=3, baseline="mean", **settings)(
        net("lenet"), x.requires_grad_(), target
    )
    assert not maps.requires_grad


@both
def test_a_repeated_coalition_costs_one_forward(make):
    x, target = batch(1)
    model = Counting(net("lenet"))
    try_model(model, x)
    model.sizes.clear()
    make(segments="grid", grid=2, draws=500)(model, x, target)
    assert sum(model.sizes) <= 16


@both
def test_full_memory_halves_the_forward_batch_and_keeps_the_map(make):
    x, target = batch(3)
    explain = make(segments="grid", grid=3, draws=50, max_batch=64)
    tight = Counting(net("lenet"), limit=20)
    try_model(tight, x)
    tight.sizes.clear()
    torch.testing.assert_close(
        explain(tight, x, target), explain(net("lenet"), x, target), rtol=1e-9, atol=1e-11
    )
    assert tight.sizes[:4] == [64, 32, 16, 16]


def test_the_words_of_a_full_cpu_halve_the_batch_too():
    x, target = batch(1)
    words = RuntimeError(
        "[enforce fail] DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."
    )
    tight = Counting(net("lenet"), limit=20, wrong=words)
    Lime(segments="grid", grid=3)(tight, x, target)
    assert max(tight.sizes[-3:]) <= 20


@pytest.mark.parametrize(
    ("limit", "wrong"), [(0, torch.OutOfMemoryError("full")), (4, RuntimeError("broken"))]
)
def test_what_halving_cannot_mend_is_raised(limit, wrong):
    x, target = batch(1)
    with pytest.raises(type(wrong), match=str(wrong)):
        Lime(segments="grid", grid=3)(Counting(net("lenet"), limit, wrong), x, target)


@both
def test_a_smoothed_model_counts_its_own_draws_against_the_budget(make):
    x, target = batch(2)
    core = Counting(net("lenet"))
    calm = gg.smoothed(core, gg.kernel("gaussian", sigma=0.1), draws=8, seed=0)
    explain = make(segments="grid", grid=3, draws=20, max_batch=32)
    maps = explain(calm, x, target)
    assert max(core.sizes) <= 32
    plain = explain(net("lenet"), x, target)
    assert 1e-4 < (maps - plain).abs().max() < plain.abs().max()


@both
def test_settings_with_tensors_are_equal_by_value(make):
    labels = torch.arange(4).reshape(2, 2)
    one, same = make(segments=labels), make(segments=labels.clone())
    assert one == same
    assert hash(one) == hash(same)
    assert one != make(segments=labels.flip(0))
    assert one != make(segments="grid")
    assert make() != make(seed=1)
    assert Lime() != Shap()


@both
def test_one_segment_is_refused(make):
    x, target = batch(3)
    labels = segment(x, "grid", grid=2).clone()
    labels[1] = 4
    with pytest.raises(UserError, match=r"image 1 as a single segment.*finer segments"):
        make(segments=labels)(net("lenet"), x, target)


def test_a_kernel_that_sees_no_perturbed_image_is_refused_and_the_width_it_names_works():
    x, target = batch(1)
    settings = {"segments": "grid", "grid": 3, "distance": "l2"}
    with pytest.raises(UserError, match=r"width 0\.25 gives no perturbed image any weight") as complaint:
        Lime(**settings)(net("lenet"), x, target)
    width = float(str(complaint.value).rstrip(".").split()[-1])
    assert Lime(width=width, **settings)(net("lenet"), x, target).abs().sum() > 0


@both
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"segments": "quikshift"}, "no segmentation 'quikshift': did you mean 'quickshift'"),
        ({"baseline": "blurr"}, "no baseline 'blurr': did you mean 'blur'"),
        ({"quantity": "logits"}, "no quantity 'logits': did you mean 'logit'"),
        ({"sampling": "enumerated"}, "no sampling 'enumerated': did you mean 'enumerate'"),
        ({"draws": 0}, "draws=0.*1 or more"),
        ({"max_batch": 0}, "max_batch=0.*1 or more"),
    ],
)
def test_a_wrong_setting_names_the_fix(make, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        make(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kernel": "expo"}, "no kernel 'expo'"),
        ({"distance": "cosin"}, "did you mean 'cosine'"),
        ({"reduction": "means"}, "did you mean 'mean'"),
        ({"width": 0.0}, "width above 0"),
        ({"width": float("nan")}, "width above 0"),
        ({"ridge": -1.0}, "ridge of 0 or more"),
    ],
)
def test_a_wrong_setting_of_lime_names_the_fix(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Lime(**settings)


@both
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"segments": "grid", "grid": 13}, "does not fit 12 x 12 pixels; give 1 to 12"),
        ({"segments": "grid", "grid": 4, "sampling": "enumerate"}, "at most 12 segments and an image has 16"),
        ({"segments": torch.zeros(12, 12)}, r"whole numbers shaped \(12, 12\) or \(2, 12, 12\)"),
        ({"segments": torch.zeros(3, 12, 12).long()}, r"whole numbers shaped \(12, 12\)"),
        ({"segments": "grid", "baseline": torch.zeros(5)}, r"shaped \(5,\) and does not broadcast"),
    ],
)
def test_a_setting_that_does_not_fit_the_images_names_the_fix(make, settings, sentence):
    x, target = batch(2)
    with pytest.raises(UserError, match=sentence):
        make(**settings)(net("lenet"), x, target)


@both
def test_a_blurred_baseline_is_refused_for_flat_inputs(make):
    with pytest.raises(UserError, match="use baseline='zero'"):
        make(segments="pixels", baseline="blur")(nn.Linear(6, 2), torch.rand(2, 6), torch.tensor([0, 1]))


@both
def test_each_feature_of_a_flat_input_is_a_part(make):
    model, x, target = nn.Linear(6, 2), torch.rand(2, 6), torch.tensor([0, 1])
    torch.testing.assert_close(
        make()(model, x, target), make(segments="pixels")(model, x, target), rtol=0, atol=0
    )


@both
def test_an_image_of_one_segment_has_a_constant_map_where_that_is_allowed(make):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).double()
    x, target = torch.rand(2, 3, 2, 2, dtype=torch.float64), torch.tensor([0, 1])
    segments = torch.stack([torch.arange(4).reshape(2, 2), torch.zeros(2, 2, dtype=torch.int64)])
    map = make(segments=segments, allow_single=True)(model, x, target)
    assert len(map[0].unique()) == 4
    assert len(map[1].unique()) == 1
    if make is Shap:
        gain = (model(x) - model(torch.zeros_like(x)))[1, 1]
        torch.testing.assert_close(map[1, 0, 0, 0], gain.detach())
