"""Localisation, sparseness, parameter randomisation and ROAD: literal twins in float64, and Quantus where they meet."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net
from scipy.stats import spearmanr

import gyrograd as gg
from gyrograd.metrics.localization import mask_of_boxes
from gyrograd.metrics.road import impute_pixels
from gyrograd.numerics import random

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import quantus
    from quantus.functions.perturb_func import noisy_linear_imputation

pytestmark = pytest.mark.filterwarnings("ignore")  # Quantus' own warnings are not about our code
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
LIKE_QUANTUS = {"rtol": 1e-4, "atol": 1e-5}


class Given:
    """An attribution that returns the maps it was given."""

    def __init__(self, map):
        self.map = map

    def __call__(self, model, x, target, *, create_graph=False):
        return self.map


def maps_and_masks(seed, b=3):
    keys = random.keys(seed, b)
    map = random.normal(keys, (3, 12, 12), dtype=torch.float64)
    mask = random.uniform(keys, (12, 12), stream=1) < 0.3
    mask[:, 4, 5] = True
    return map, mask


def measured(name, map, **more):
    x, target = batch(len(map))
    own = {key: more.pop(key) for key in list(more) if key not in ("mask", "boxes")}
    return gg.metric(name, **own)(net("lenet"), Given(map), x, target, **more)


@settings(max_examples=8)
@given(st.integers(0, 50))
def test_localisation_is_its_definition_pixel_by_pixel(seed):
    map, mask = maps_and_masks(seed)
    sizes = map.abs().sum(1).numpy()
    inside = mask.numpy()
    mass = [sum(s[i, j] for i, j in np.argwhere(m)) / s.sum() for s, m in zip(sizes, inside, strict=True)]
    strongest = [m[np.unravel_index(s.argmax(), s.shape)] for s, m in zip(sizes, inside, strict=True)]
    ranked = [np.argsort(-s.flatten(), kind="stable") for s in sizes]
    top = [m.flatten()[order[: m.sum()]].mean() for order, m in zip(ranked, inside, strict=True)]
    five = [m.flatten()[order[:5]].mean() for order, m in zip(ranked, inside, strict=True)]
    np.testing.assert_allclose(measured("mass_in_mask", map, mask=mask), mass, **CLOSE)
    np.testing.assert_array_equal(measured("pointing_game", map, mask=mask), np.array(strongest, float))
    np.testing.assert_allclose(measured("top_k_in_mask", map, mask=mask), top, **CLOSE)
    np.testing.assert_allclose(measured("top_k_in_mask", map, mask=mask, k=5), five, **CLOSE)


@settings(max_examples=8)
@given(st.integers(0, 50), st.floats(0.01, 100))
def test_localisation_and_sparseness_are_free_of_scale_and_in_their_range(seed, factor):
    map, mask = maps_and_masks(seed)
    for name, more in (
        ("mass_in_mask", {"mask": mask}),
        ("pointing_game", {"mask": mask}),
        ("top_k_in_mask", {"mask": mask}),
        ("sparseness", {}),
    ):
        values = measured(name, map, **more)
        assert ((values >= 0) & (values <= 1)).all()
        torch.testing.assert_close(measured(name, factor * map, **more), values)


@settings(max_examples=8)
@given(st.integers(0, 50))
def test_mass_in_an_object_and_outside_it_are_one(seed):
    map, mask = maps_and_masks(seed)
    both = measured("mass_in_mask", map, mask=mask) + measured("mass_in_mask", map, mask=~mask)
    torch.testing.assert_close(both, torch.ones(3, dtype=torch.float64))


def test_equally_strong_pixels_share_the_point_and_a_tolerance_widens_the_object():
    map = torch.zeros(1, 3, 12, 12, dtype=torch.float64)
    mask = torch.zeros(1, 12, 12, dtype=torch.bool)
    mask[0, 5, 5] = True
    assert measured("pointing_game", map, mask=mask).item() == pytest.approx(1 / 144)
    map[0, :, 5, 7] = 1.0
    assert measured("pointing_game", map, mask=mask).item() == 0
    assert measured("pointing_game", map, mask=mask, tolerance=1).item() == 0
    assert measured("pointing_game", map, mask=mask, tolerance=2).item() == 1
    map[0, :, 5, 5] = 1.0
    assert measured("pointing_game", map, mask=mask).item() == 0.5


def test_boxes_hold_left_and_top_and_end_before_right_and_bottom():
    boxes = torch.tensor([[1.0, 2.0, 3.0, 5.0]])
    mask = mask_of_boxes(boxes, 6, 4)
    assert {tuple(place) for place in mask[0].nonzero().tolist()} == {
        (r, c) for r in (2, 3, 4) for c in (1, 2)
    }
    map, _ = maps_and_masks(3, b=1)
    torch.testing.assert_close(
        measured("mass_in_mask", map, boxes=boxes),
        measured("mass_in_mask", map, mask=mask_of_boxes(boxes, 12, 12)),
    )


def test_masks_that_do_not_fit_are_refused_in_a_sentence():
    map, mask = maps_and_masks(0)
    for more, said in (
        ({}, "pass metric"),
        ({"mask": mask, "boxes": torch.zeros(3, 4)}, "pass metric"),
        ({"mask": mask[:2]}, "give (3, 12, 12)"),
        ({"mask": mask * 2}, "other values than 0 and 1"),
        ({"mask": mask & False}, "Image 0 has no pixel"),
        ({"boxes": torch.zeros(3, 3)}, "give (3, 4)"),
    ):
        with pytest.raises(gg.UserError) as caught:
            measured("mass_in_mask", map, **more)
        assert said in str(caught.value)
    torch.testing.assert_close(
        measured("mass_in_mask", map, mask=mask[:, None].float()), measured("mass_in_mask", map, mask=mask)
    )


def test_an_audit_that_has_no_masks_says_so():
    from gyrograd.measurement.plan import registered

    with pytest.raises(gg.UserError, match="call gg.metric"):
        registered("pointing_game")


@settings(max_examples=8)
@given(st.integers(0, 50))
def test_sparseness_is_half_the_mean_difference_over_the_mean(seed):
    map, _ = maps_and_masks(seed)
    sizes = map.abs().sum(1).flatten(1).numpy()
    gini = [np.abs(s[:, None] - s[None]).mean() / (2 * s.mean()) for s in sizes]
    np.testing.assert_allclose(measured("sparseness", map), gini, **CLOSE)


def test_sparseness_of_known_maps():
    flat, one = torch.ones(1, 3, 12, 12, dtype=torch.float64), torch.zeros(1, 3, 12, 12, dtype=torch.float64)
    assert measured("sparseness", flat).item() == pytest.approx(0, abs=1e-12)
    assert measured("sparseness", one).item() == 0
    one[0, 0, 3, 3] = -5.0
    assert measured("sparseness", one).item() == pytest.approx(1 - 1 / 144)


def shuffled_by_hand(model, names, seed):
    """The model with these layers' tensors in the order that their streams say."""
    twin = copy.deepcopy(model)
    every = [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]
    for name in names:
        for number, weight in enumerate(twin.get_submodule(name).parameters(recurse=False)):
            stream = 1000 * every.index(name) + number
            order = random.permutation(random.keys(seed, 1), weight.numel(), stream=stream)[0]
            weight.data = weight.data.flatten()[order].view_as(weight)
    return every, twin


@pytest.mark.parametrize("order", ["cascading", "bottom_up", "independent"])
def test_layers_are_randomised_in_their_order_and_maps_compared_by_rank(order):
    x, target = batch(2)
    model, gradient = net("lenet"), gg.attribution("gradient")
    metric = gg.metric("parameter_randomization", order=order, weights_seed=4)
    curve = metric.curve(model, gradient, x, target)
    names = shuffled_by_hand(model, [], 4)[0]
    turns = names[::-1] if order == "cascading" else names
    for stage, name in enumerate(turns):
        gone = [name] if order == "independent" else turns[: stage + 1]
        twin = shuffled_by_hand(model, gone, 4)[1]
        for row in range(2):
            one, other = (
                gradient(m, x[row : row + 1], target[row : row + 1]).abs().sum(1).flatten().numpy()
                for m in (model, twin)
            )
            assert float(curve[row, stage]) == pytest.approx(spearmanr(one, other).statistic, abs=1e-9)
    torch.testing.assert_close(metric(model, gradient, x, target), curve.mean(1))


def test_a_map_that_ignores_the_model_scores_one_and_the_model_stays_as_it_was():
    x, target = batch(2)
    model = net("lenet")
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def edges(model, x, target, *, create_graph=False):
        return x - x.roll(1, 3)

    for how in ("shuffled", "reset"):
        metric = gg.metric("parameter_randomization", weights=how)
        torch.testing.assert_close(metric(model, edges, x, target), torch.ones(2, dtype=x.dtype))
        assert (metric(model, gg.attribution("gradient"), x, target) < 0.9).all()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_layer_that_cannot_be_reset_names_the_way_out():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.weight * x

    model = torch.nn.Sequential(Scale(), torch.nn.Flatten(), torch.nn.Linear(432, 5)).double()
    x, target = batch(2)
    with pytest.raises(gg.UserError, match="give weights='shuffled'"):
        gg.metric("parameter_randomization", weights="reset")(model, gg.attribution("gradient"), x, target)


NEIGHBOURS = {
    (i, j): (1 / 6 if 0 in (i, j) else 1 / 12) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0)
}


def solved(x, removed):
    """The linear system of the removed pixels written out and solved."""
    found = x.clone()
    for image, gone in enumerate(removed):
        places = [tuple(place) for place in gone.nonzero().tolist()]
        number = {place: n for n, place in enumerate(places)}
        for channel in range(x.shape[1]):
            matrix, wanted = np.zeros((len(places), len(places))), np.zeros(len(places))
            for (i, j), row in number.items():
                for (di, dj), weight in NEIGHBOURS.items():
                    there = (i + di, j + dj)
                    if 0 <= there[0] < x.shape[2] and 0 <= there[1] < x.shape[3]:
                        matrix[row, row] += weight
                        if there in number:
                            matrix[row, number[there]] -= weight
                        else:
                            wanted[row] += weight * float(x[image, channel, there[0], there[1]])
            for place, value in zip(places, np.linalg.solve(matrix, wanted), strict=True):
                found[image, channel, place[0], place[1]] = value
    return found


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_removed_pixels_are_the_solution_of_their_equations(share):
    keys = random.keys(1, 3)
    x = random.uniform(keys, (2, 7, 9), dtype=torch.float64)
    removed = random.uniform(keys, (7, 9), stream=1) < share
    removed[:, 3, 3], removed[:, 0, 0] = False, True
    torch.testing.assert_close(impute_pixels(x, removed), solved(x, removed), rtol=1e-9, atol=1e-10)


def test_the_imputation_is_that_of_quantus_inside_the_image():
    """At the border Quantus' equations leave out what lies outside, as ours do."""
    keys = random.keys(2, 1)
    x = random.uniform(keys, (3, 10, 10), dtype=torch.float64)
    removed = random.uniform(keys, (10, 10), stream=1) < 0.6
    theirs = noisy_linear_imputation(x[0].numpy(), removed[0].flatten().nonzero()[:, 0].numpy(), noise=0.0)
    np.testing.assert_allclose(
        impute_pixels(x, removed)[0].numpy(), theirs.reshape(3, 10, 10), rtol=1e-6, atol=1e-8
    )


@settings(max_examples=8)
@given(st.integers(0, 30))
def test_filled_pixels_lie_between_those_that_are_left(seed):
    keys = random.keys(seed, 2)
    x = random.uniform(keys, (1, 8, 8), dtype=torch.float64)
    removed = random.uniform(keys, (8, 8), stream=1) < 0.8
    removed[:, 2, 2] = False
    filled = impute_pixels(x, removed)
    for row in range(2):
        left = x[row, 0][~removed[row]]
        assert (filled[row] >= left.min() - 1e-9).all()
        assert (filled[row] <= left.max() + 1e-9).all()


def test_road_is_the_mean_probability_of_the_filled_images():
    x, target = batch(2)
    model, gradient = net("lenet"), gg.attribution("gradient")
    metric = gg.metric("road", ratios=(0.25, 0.75), sigma=0.05)
    order = gradient(model, x, target).abs().sum(1).flatten(1).argsort(dim=1, descending=True, stable=True)
    expected = []
    for number, share in enumerate((0.25, 0.75)):
        removed = (
            torch.zeros(2, 144, dtype=torch.bool)
            .scatter_(1, order[:, : int(share * 144)], True)
            .view(2, 12, 12)
        )
        noise = 0.05 * random.normal(random.keys(9, 2), (3, 12, 12), stream=number, dtype=x.dtype)
        filled = solved(x, removed) + removed[:, None] * noise
        expected.append(model(filled).softmax(1).gather(1, target[:, None])[:, 0])
    torch.testing.assert_close(
        metric.curve(model, gradient, x, target, seed=9),
        torch.stack(expected, 1).detach(),
        rtol=1e-8,
        atol=1e-9,
    )


def test_road_refuses_to_remove_everything():
    with pytest.raises(gg.UserError, match="below 1"):
        gg.metric("road", ratios=(1.0,))
    with pytest.raises(gg.UserError, match="remove fewer"):
        impute_pixels(torch.rand(1, 1, 4, 4), torch.ones(1, 4, 4, dtype=torch.bool))


def of_quantus(metric, map, mask=None):
    x, target = batch(len(map))
    more = {} if mask is None else {"s_batch": mask[:, None].numpy()}
    seen = map.abs().sum(1, keepdim=True)
    return metric(
        model=net("lenet"),
        x_batch=x.numpy(),
        y_batch=target.numpy(),
        a_batch=seen.numpy(),
        device="cpu",
        **more,
    )


PLAIN = {"disable_warnings": True, "normalise": False, "abs": True}


def test_localisation_and_sparseness_are_those_of_quantus():
    map, mask = maps_and_masks(11)
    pairs = {
        "mass_in_mask": quantus.RelevanceMassAccuracy(**PLAIN),
        "pointing_game": quantus.PointingGame(**PLAIN),
        "top_k_in_mask": quantus.RelevanceRankAccuracy(**PLAIN),
    }
    for name, theirs in pairs.items():
        ours = measured(name, map, mask=mask)
        np.testing.assert_allclose(ours, np.array(of_quantus(theirs, map, mask), float), **LIKE_QUANTUS)
    few = of_quantus(quantus.TopKIntersection(k=20, **PLAIN), map, mask)
    np.testing.assert_allclose(measured("top_k_in_mask", map, mask=mask, k=20), few, **LIKE_QUANTUS)
    np.testing.assert_allclose(
        measured("sparseness", map), of_quantus(quantus.Sparseness(**PLAIN), map), **LIKE_QUANTUS
    )


def test_randomised_layers_are_those_of_quantus():
    """With weights as layers draw them: Quantus seeds torch with its seed plus one before each layer."""
    x, target = batch(2)
    model, gradient = net("lenet"), gg.attribution("gradient")
    theirs = quantus.helpers.utils.get_wrapped_model(model, channel_first=True, softmax=False, device="cpu")
    ours = gg.metric("parameter_randomization", weights="reset", weights_seed=43)
    names = []
    for (name, twin), (their_name, their_twin) in zip(
        ours.stages(model), theirs.get_random_layer_generator(order="top_down", seed=42), strict=True
    ):
        names.append(name)
        assert name == their_name
        torch.testing.assert_close(gradient(twin, x, target), gradient(their_twin, x, target))
    assert names[0] == [name for name, _ in model.named_modules()][-1]
