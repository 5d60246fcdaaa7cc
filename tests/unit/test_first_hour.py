"""What somebody meets in the first hour with the Python interface."""

from __future__ import annotations

import doctest
import io
from dataclasses import replace
from functools import partial

import captum.attr
import numpy as np
import pytest
import torch
from PIL import Image

import gyrograd as gg
from gyrograd.attacks import auto
from gyrograd.attributions import function, settings
from gyrograd.audit.methods import methods_of
from gyrograd.audit.presets import PRESETS
from gyrograd.numerics.checks import check_rows
from gyrograd.reporting import sheet


@pytest.fixture(scope="module")
def net():
    return gg.model("lenet", num_classes=10, seed=0).eval()


@pytest.fixture(scope="module")
def x():
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


TARGET = torch.tensor([0, 1, 2])


def saliency(model, x, target):
    """As people write it: no create_graph, gradients expected to be on."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x).gather(1, target[:, None]).sum(), x)[0]


@pytest.mark.parametrize("module", [function, sheet, settings, auto])
def test_examples_in_the_documentation_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_completion_shows_what_there_is_and_nothing_else():
    assert {"audit", "load", "show", "smoothed", "attack"} <= set(dir(gg))
    assert {"importlib", "Any", "annotations", "make"}.isdisjoint(dir(gg))
    assert all(hasattr(gg, name) for name in dir(gg))


def test_a_data_set_prints_in_a_line():
    assert repr(gg.dataset("shapes", split="test")) == (
        "Dataset(shapes test: 1500 examples of 3 x 32 x 32, 10 classes)"
    )


def test_a_plain_function_explains_attacks_and_measures(net, x):
    mine = gg.attribution(saliency)
    with torch.no_grad():
        torch.testing.assert_close(mine(net, x, TARGET), gg.attribution("gradient")(net, x, TARGET))
    with pytest.raises(gg.UserError, match="saliency have no derivative"):
        mine(net, x, TARGET, create_graph=True)
    hit = gg.attack("auto", eps=8 / 255, steps=2)(net, mine, x, TARGET)
    assert (hit.value < hit.start).all()
    assert gg.metric("rps", draws=2)(net, mine, x, TARGET).shape == (3,)


def half_a_derivative(model, x, target):
    """As Captum's InputXGradient returns it: a graph to x, and none through the gradient."""
    x = x.clone().requires_grad_() if not x.requires_grad else x
    return x * torch.autograd.grad(model(x).gather(1, target[:, None]).sum(), x)[0]


def test_a_map_that_carries_half_a_derivative_is_not_differentiated(net, x):
    mine = gg.attribution(half_a_derivative)
    for name in ("top_k", "targeted_map"):
        with pytest.raises(
            gg.UserError, match="half_a_derivative has no derivative to x .* transfer_from='gradient'"
        ):
            gg.attack(name, eps=8 / 255, steps=2)(net, mine, x, TARGET)
        hit = gg.attack(name, eps=8 / 255, steps=2, transfer_from="gradient")(net, mine, x, TARGET)
        assert hit.value.isfinite().all()
        assert hit.map.isfinite().all()
    assert gg.attack("auto", eps=8 / 255, steps=2)(net, mine, x, TARGET).value.isfinite().all()


def test_a_function_that_keeps_its_graph_is_differentiated(net, x):
    def scaled(model, x, target, create_graph=False):
        return 2 * gg.attribution("gradient")(model, x, target, create_graph=create_graph)

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        gg.attribution(scaled)(net, leaf, TARGET, create_graph=True).square().sum(), leaf
    )
    map = gg.attribution("gradient")(net, leaf, TARGET, create_graph=True)
    torch.testing.assert_close(slope, torch.autograd.grad(4 * map.square().sum(), leaf)[0])
    assert not gg.attribution(scaled)(net, x, TARGET).requires_grad


def test_a_function_that_returns_no_map_is_told_so(net, x):
    for wrong in (lambda model, x, target: x.sum(1), lambda model, x, target: "a map"):
        with pytest.raises(gg.UserError, match="return a tensor shaped like them"):
            gg.attribution(wrong)(net, x, TARGET)


def test_an_audit_takes_a_plain_function(x):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Softplus(), torch.nn.Flatten(), torch.nn.Linear(144, 10)
    )
    few = {"attacks": ["untargeted_map"], "steps": 1, "draws": 2, "curve": (8 / 255,)}
    card = gg.audit(net, x[..., :8, :8], TARGET, preset="quick", methods={"mine": saliency}, **few)
    assert "mine" in card.summary()
    assert card._repr_html_().startswith('<iframe srcdoc="&lt;!doctype')


@pytest.mark.parametrize("name", ["rps", "insertion", "local_lipschitz", "infidelity"])
def test_images_from_0_to_255_are_refused_by_metrics(net, x, name):
    with pytest.raises(gg.UserError, match="divide by 255"):
        gg.metric(name)(net, gg.attribution("gradient"), 255 * x, TARGET)


@pytest.mark.parametrize("name", ["gradient", "smoothgrad", "lrp", "lime"])
def test_one_image_without_a_batch_axis_is_told_apart_by_a_model_at_first_sight(x, name):
    unseen = gg.model("lenet", num_classes=10, seed=0).eval()
    with pytest.raises(gg.UserError, match=r"give x\[None\]"):
        gg.attribution(name)(unseen, x[0], TARGET[:1])


def test_maps_are_shown_over_their_images(net, x, tmp_path):
    map = torch.zeros_like(x)
    map[:, :, :16] = 1.0  # the upper half
    path = gg.show(x, {"a": map, "b": -map}, labels=["one", "two", "three"]).save(tmp_path / "maps.png")
    picture = np.asarray(Image.open(path).convert("RGB")).astype(float)
    rows = picture[60 : picture.shape[0] // 3]  # the first row of pictures, below the titles
    cell = rows[:, int(0.4 * picture.shape[1]) : int(0.6 * picture.shape[1])]
    colourful = (cell.max(-1) - cell.min(-1)).mean(1)
    assert colourful[: len(cell) // 3].mean() > 10 * max(1.0, colourful[-len(cell) // 4 :].mean())


def test_an_attack_is_shown_before_and_after_each_map_on_its_own_scale(net, x):
    hit = gg.attack("random", eps=8 / 255)(net, gg.attribution("gradient"), x, TARGET)
    shown = gg.show(hit)
    assert Image.open(io.BytesIO(shown._repr_png_())).size[0] == 720
    assert (
        gg.show(x.repeat(4, 1, 1, 1), x.repeat(4, 1, 1, 1)).png != shown.png
    )  # twelve rows: the first eight
    map = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    weaker = replace(hit, map_clean=map / 20, map=map)  # on a common scale the map before would be dark
    picture = np.asarray(Image.open(io.BytesIO(gg.show(weaker).png)).convert("RGB")).astype(float)
    colourful = (picture.max(-1) - picture.min(-1)).mean(0)
    quarter = len(colourful) // 4
    before, after = colourful[2 * quarter : 3 * quarter].mean(), colourful[3 * quarter :].mean()
    assert 0.8 * after < before < 1.25 * after


def test_an_attack_shows_itself_in_a_notebook(net, x):
    hit = gg.attack("random", eps=8 / 255)(
        net, gg.attribution("gradient"), x.repeat(4, 1, 1, 1), TARGET.repeat(4)
    )
    html = hit._repr_html_()
    assert html.count("<tr>") == 1 + 8
    assert html.count("data:image/png;base64,") == 4 * 8
    assert "the first 8 of 12" in html
    assert "random, eps 8/255" in html
    assert "tensor(" not in html


def test_results_print_in_a_line_and_name_classes(x):
    """A notebook keeps the text beside the picture, and a terminal shows nothing else."""
    model = gg.load("cifar10/lenet-ce")
    hit = gg.attack("random", eps=8 / 255)(model, gg.attribution("gradient"), x, TARGET)
    assert repr(hit).startswith("AttackResult(random, eps 8/255: ")
    assert repr(hit).endswith(" of 3)")
    assert repr(gg.show(hit)) == "Sheet()"
    assert "explained: automobile" in hit._repr_html_()
    rows = torch.rand(3, 5)
    table = gg.attack("random", eps=0.1)(torch.nn.Linear(5, 3), gg.attribution("gradient"), rows, TARGET)
    assert table._repr_html_() is None  # no pictures: the line is shown


def test_a_single_bright_pixel_does_not_leave_an_attacked_map_black(net, x):
    hit = gg.attack("random", eps=8 / 255)(net, gg.attribution("gradient"), x, TARGET)
    map = torch.full_like(hit.map, 0.5)
    map[:, :, 0, 0] = 100
    shown = replace(hit, map_clean=map, map=map)._pictures(0)
    assert shown["map_clean"].median() > 0.9
    assert shown["map_attacked"].median() > 0.9


class Whole:
    """An object that is called, without create_graph."""

    def __call__(self, model, x, target):
        return saliency(model, x, target)


def test_an_attack_takes_a_function_or_an_object_as_it_is_and_other_things_are_refused(net, x):
    attack = gg.attack("auto", eps=8 / 255, steps=1)
    expected = attack(net, gg.attribution("gradient"), x, TARGET).map_clean
    for method in (saliency, partial(saliency), Whole()):
        torch.testing.assert_close(attack(net, method, x, TARGET).map_clean, expected)
    for wrong, why in (
        (captum.attr.Saliency(net), r"lambda model, x, target: Saliency\(model\)"),
        (3, "a name or a function"),
        (lambda model, x: x, r"does not take \(model, x, target\)"),
    ):
        with pytest.raises(gg.UserError, match=why):
            function.as_attribution(wrong)
    with pytest.raises(gg.UserError, match="Settings go with a name"):
        gg.attribution(saliency, steps=3)


def test_the_methods_of_an_audit_come_one_or_several_by_name_or_as_functions(net, x):
    def labels(methods):
        found, _ = methods_of(methods, PRESETS["glance"], net, x, TARGET, max_batch=8)
        return [method.label for method in found]

    assert labels("lrp") == labels(["lrp"]) == ["LRP"]
    assert labels(saliency) == labels([saliency]) == ["saliency"]
    assert labels([saliency, "smoothgrad"]) == ["saliency", "SmoothGrad"]  # the first one is compared with
    assert labels({"mine": partial(saliency), "other": "lrp"}) == ["mine", "other"]


def test_shapes_that_are_easily_mistaken_are_named(x):
    model = gg.load("cifar10/lenet-ce")  # normalises
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 10)
    )
    for other in (plain, model):
        with pytest.raises(gg.UserError, match=r"give x\[None\]"):
            gg.predict(other, x[0])
        with pytest.raises(gg.UserError, match=r"give x\[None\]"):
            gg.attribution("lrp")(other, x[0], torch.tensor([0, 1, 2, 3]))
        with pytest.raises(gg.UserError, match=r"give x\.permute\(0, 3, 1, 2\)"):
            gg.predict(other, x.permute(0, 2, 3, 1))
    with pytest.raises(gg.UserError, match="write eps=8 / 255"):
        gg.attack("random", eps=8)(model, gg.attribution("gradient"), x, TARGET)
    with pytest.raises(gg.UserError, match=r"x\.float\(\) / 255"):
        check_rows((255 * x).byte())


def test_what_cannot_be_shown_is_told_in_a_sentence(x):
    with pytest.raises(
        gg.UserError, match="NaN or infinite values, so a picture would look like an empty map"
    ):
        gg.show(x, x / 0)
    for wrong, why in (
        ({"x": x}, "no maps to show"),
        ({"x": x, "maps": x[:1]}, "maps shaped like the images"),
        ({"x": x[0], "maps": x[0]}, r"give x\[None\]"),
        ({"x": x[0, 0], "maps": x[0, 0]}, "give batch, channels"),
        ({"x": 255 * x, "maps": x}, "divide by 255"),
        ({"x": x, "maps": x, "labels": ["one"]}, "1 labels for 3 images"),
    ):
        with pytest.raises(gg.UserError, match=why):
            gg.show(**wrong)
