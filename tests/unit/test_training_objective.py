from __future__ import annotations

import zlib
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from small_training import net, pictures

import gyrograd as gg
from gyrograd.data.dataset import cut_out, zoom_in
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.training import Objective, Term, TrainSettings, objective_of
from gyrograd.training.processes import Share


@pytest.fixture
def batch():
    data = pictures(13)
    return data.pixels(), data.labels, random.keys(3, 13)


def calm(**settings):
    return net(batchnorm=False, dropout=0.0, **settings)


def gradients(model, total):
    return torch.autograd.grad(total, list(model.parameters()))


def close(a, b, rtol=1e-5):
    return all(torch.allclose(x, y, rtol=rtol, atol=1e-7) for x, y in zip(a, b, strict=True))


def test_the_parts_add_up_and_each_is_its_weighted_mean(batch):
    x, y, keys = batch
    model = calm()
    terms = {"l2_cosine": {"weight": 2, "l2": 0.3, "cosine": 0.5}, "max_entropy": {"weight": 0.1}}
    total, parts = objective_of(TrainSettings(terms=terms))(model, x, y, seed=keys)
    assert list(parts) == ["loss", "cross_entropy", "l2_cosine.l2", "l2_cosine.cosine", "max_entropy"]
    assert float(total.detach()) == pytest.approx(
        sum(float(v) for k, v in parts.items() if k != "loss"), rel=1e-5
    )
    assert float(parts["cross_entropy"]) == pytest.approx(
        float(F.cross_entropy(model(x), y).detach()), rel=1e-5
    )
    entropy = 0.1 * gg.regularizer("max_entropy")(model, x, y).mean()
    assert float(parts["max_entropy"]) == pytest.approx(float(entropy.detach()), rel=1e-5)
    assert not any(value.requires_grad for value in parts.values())


def test_the_shared_clean_gradient_is_the_terms_own(batch):
    """For the whole batch it comes from the cross-entropy's pass; with the same draws nothing may change."""
    x, y, keys = batch
    for batchnorm in (False, True):
        model = net(batchnorm=batchnorm, dropout=0.0)
        align = gg.regularizer("l2_cosine", l2=0.3, cosine=0.5)
        mine, _ = Objective({"a": Term(align)})(model, x, y, seed=keys)
        own = random.subkeys(keys, zlib.crc32(b"a"))
        expected = F.cross_entropy(model(x), y) + align(model, x, y, seed=own).mean()
        assert close(gradients(model, mine), gradients(model, expected), rtol=1e-4)
        assert x.grad is None
        assert not x.requires_grad


def test_part_regularises_the_first_rows_only(batch):
    x, y, keys = batch
    model = calm()
    seen = []

    def watcher(model, x, y, *, seed=None):
        seen.append((x, seed))
        return model(x).square().sum(1)

    _, parts = Objective({"w": Term(watcher, 3.0)}, regularized_fraction=0.4)(model, x, y, seed=keys)
    assert torch.equal(seen[0][0], x[:5])
    assert len(seen[0][1]) == 5
    assert float(parts["w"]) == pytest.approx(
        3 * float(model(x[:5]).square().sum(1).mean().detach()), rel=1e-5
    )


def test_a_term_that_takes_the_place_of_cross_entropy_sees_the_whole_batch(batch):
    x, y, keys = batch
    terms = {"adversarial": {"eps": 0.01, "steps": 2}}
    alone = objective_of(TrainSettings(terms=terms, regularized_fraction=0.5))
    beside = objective_of(
        TrainSettings(terms={"adversarial": {**terms["adversarial"], "weight": 0.5}}, cross_entropy=0.5)
    )
    assert (alone.clean_weight, beside.clean_weight) == (0.0, 0.5)
    _, parts = alone(calm(), x, y, seed=keys)
    assert list(parts) == ["loss", "adversarial"]
    expected = gg.regularizer("adversarial", eps=0.01, steps=2)(calm(), x, y, seed=keys).mean()
    assert float(parts["adversarial"]) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert "cross_entropy" in beside(calm(), x, y, seed=keys)[1]


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_the_shares_of_several_processes_add_up_to_the_whole(batch, processes, part):
    x, y, keys = batch
    model = calm()
    objective = objective_of(
        TrainSettings(terms={"l2_cosine": {}}, regularized_fraction=part, label_smoothing=0.1)
    )
    whole, parts = objective(model, x, y, seed=keys)
    shares = []
    for index in range(processes):
        share = Share(index, processes)
        rows = slice(index, None, processes)
        shares.append(objective(model, x[rows], y[rows], seed=keys[rows], share=share, whole=len(x)))
    summed = sum(total for total, _ in shares)
    assert close(gradients(model, summed), gradients(model, whole), rtol=1e-4)
    for name, value in parts.items():
        assert float(sum(p[name] for _, p in shares)) == pytest.approx(float(value), rel=1e-5)


def test_a_terms_draws_do_not_depend_on_its_neighbours(batch):
    x, y, keys = batch
    model = calm()
    alone = objective_of(TrainSettings(terms={"cosine": {}}))
    beside = objective_of(TrainSettings(terms={"max_entropy": {}, "cosine": {}}))
    assert alone(model, x, y, seed=keys)[1]["cosine"] == beside(model, x, y, seed=keys)[1]["cosine"]


def test_a_regulariser_with_a_weight_of_its_own_takes_it():
    objective = objective_of(TrainSettings(terms={"iga": {"weight": 0.25}, "l2": {"weight": 0.25}}))
    assert (objective.terms["iga"].weight, objective.terms["iga"].regularizer.weight) == (1.0, 0.25)
    assert objective.terms["l2"].weight == 0.25


def test_second_order_is_what_differentiates_a_gradient():
    first = {"adversarial": {}, "max_entropy": {}}
    assert not objective_of(TrainSettings(terms=first)).second_order
    for name in ("l2", "cosine", "hessian", "ssr", "ig_norm", "iga"):
        assert objective_of(TrainSettings(terms={name: {}})).second_order, name


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"l2": {"weight": -1}}, r"terms.l2.weight is -1"),
        ({"iga": {"weight": -1}}, r"terms.iga.weight is -1"),
        ({"l2": {"weight": "much"}}, r"terms.l2.weight is 'much'"),
        ({"l2_cosin": {}}, "did you mean 'l2_cosine'"),
        ({"l2": {"epps": 1}}, "did you mean 'eps'"),
    ],
)
def test_terms_that_do_not_exist_or_fit_are_named(terms, sentence):
    with pytest.raises(UserError, match=sentence):
        objective_of(TrainSettings(terms=terms))


def test_zoom_moves_down_by_its_third_draw_and_right_by_its_fourth():
    n, side = 50, 32
    place = torch.linspace(-1, 1, side, dtype=torch.float64)
    columns, rows = place.expand(n, side, side), place[:, None].expand(n, side, side)
    seen = zoom_in(torch.stack([columns, rows], 1), random.keys(0, n), 0.3)
    u = random.uniform(random.keys(0, n), (4,), stream=2, dtype=torch.float64)
    area, ratio = 0.3 + 0.7 * u[:, 0], (4 / 3) ** (2 * u[:, 1] - 1)
    wide, high = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    centre = torch.stack([(1 - wide) * (2 * u[:, 3] - 1), (1 - high) * (2 * u[:, 2] - 1)], 1)
    # A ramp's mean is its value in the middle; the border's half pixels are worth less than a hundredth.
    torch.testing.assert_close(seen.mean((2, 3)), centre * side / (side - 1), rtol=0, atol=0.01)


def test_zoom_shows_a_part_of_each_image_by_its_key(batch):
    x, _, keys = batch
    out = zoom_in(x, keys, 0.3)
    assert out.shape == x.shape
    torch.testing.assert_close(out[4:7], zoom_in(x[4:7], keys[4:7], 0.3), rtol=0, atol=1e-4)
    assert not torch.allclose(out, x)
    # columns of a ramp stay a ramp of smaller range, inside the image's own values
    ramp = torch.linspace(0, 1, 16).expand(200, 1, 16, 16)
    seen = zoom_in(ramp, random.keys(0, 200), 0.1)
    width = seen[:, 0, 8, -1] - seen[:, 0, 8, 0]
    assert (width > 0).all()
    assert (width <= 1 + 1e-5).all()
    assert seen.min() >= -1e-5
    assert seen.max() <= 1 + 1e-5
    assert float(width.min()) < 0.45
    assert float(width.max()) > 0.85
    assert torch.allclose(zoom_in(ramp[:4], random.keys(1, 4), 1.0 - 1e-9).mean(), ramp.mean(), atol=0.1)


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_blanks_one_square_around_a_random_pixel_with_the_mean_colour(side):
    n, h, w = 400, 7, 11
    x = torch.rand(n, 3, h, w, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = random.keys(0, n)
    out = cut_out(x, keys, side)
    row = random.integers(keys, (1,), h, stream=5)[:, 0]
    column = random.integers(keys, (1,), w, stream=6)[:, 0]
    expected = x.clone()
    for image, (down, right) in enumerate(zip(row.tolist(), column.tolist(), strict=True)):
        rows = slice(max(0, down - side // 2), down - side // 2 + side)
        columns = slice(max(0, right - side // 2), right - side // 2 + side)
        expected[image, :, rows, columns] = x[image].mean((1, 2))[:, None, None]
    torch.testing.assert_close(out, expected)
    assert {(a, b) for a, b in zip(row.tolist(), column.tolist(), strict=True)} == set(
        product(range(h), range(w))
    )
    torch.testing.assert_close(cut_out(x[5:9], keys[5:9], side), out[5:9])  # whatever else is in the batch
