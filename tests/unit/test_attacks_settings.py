"""Settings and their sentences, protocols, restoring labels, surrogates, transfer, and what is saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from attacked_nets import EPS, pictures, trained
from nets import batch, net
from PIL import Image
from small_attributions import small

import gyrograd as gg
from gyrograd import records
from gyrograd.attacks import AttackResult, MassCenter, Noise, TargetedMap, TopK, transfer
from gyrograd.errors import UserError

GRADIENT = gg.attribution("gradient")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("top_k", {"eps": -1.0}, "finite radius of at least 0"),
        ("top_k", {"eps": []}, "at least one radius"),
        ("top_k", {"norm": "linf2"}, "did you mean 'linf'"),
        ("top_k", {"steps": 0}, "steps is 0; give at least 1"),
        ("top_k", {"restarts": 0}, "restarts is 0; give at least 1"),
        ("top_k", {"step_size": 0.0}, "length above 0"),
        ("top_k", {"stepper": "adm"}, "top_k has no stepper 'adm': did you mean 'adam'"),
        ("top_k", {"selection": "last", "restarts": 2}, "set selection='best' or restarts=1"),
        ("top_k", {"protocol": "papr"}, "did you mean 'paper'"),
        ("untargeted_map", {"protocol": "reference"}, "untargeted_map has no protocol 'reference'"),
        ("top_k", {"k": 0}, "at least 1"),
        ("top_k", {"mask": "moving"}, "fixed, recomputed"),
        ("top_k", {"penalty": -1.0}, "weight of at least 0"),
        ("top_k", {"constraint": "soft"}, "set restore=False"),
        ("targeted_map", {"goal": "fame"}, "did you mean 'frame'"),
        ("random", {"draws": 0}, "at least 1"),
        ("random", {"like": "topk"}, "did you mean 'top_k'"),
        ("random", {"fill": "corner"}, "surface, volume"),
        ("pgd", {"loss": "margins"}, "did you mean 'margin'"),
        ("pgd", {"max_batch": 0}, "max_batch is 0"),
        ("pgd", {"stepsize": 1.0}, "did you mean 'step_size'"),
    ],
)
def test_a_wrong_setting_gives_a_sentence(name, settings, words):
    with pytest.raises(UserError, match=words.replace("(", "\\(")):
        gg.attack(name, **settings)


def test_a_goal_that_does_not_fit_gives_a_sentence():
    x, target = batch(2)
    for goal in (torch.ones(5, 5), torch.ones(3, 12, 12)):
        with pytest.raises(UserError, match="a map for each image, or images"):
            gg.attack("targeted_map", goal=goal)(net("lenet"), GRADIENT, x, target)
    with pytest.raises(UserError, match="k from 1 to 144"):
        gg.attack("top_k", k=145)(net("lenet"), GRADIENT, x, target)


def test_inference_mode_is_refused_with_the_fix():
    x, target = batch(1)
    with torch.inference_mode(), pytest.raises(UserError, match="use torch.no_grad"):
        gg.attack("pgd")(net("lenet"), GRADIENT, x, target)


def test_protocols_fill_in_what_is_left_open_and_print_it():
    reference = TargetedMap(protocol="reference")
    assert (reference.stepper, reference.selection, reference.constraint) == ("adam", "last", "soft")
    assert (reference.steps, reference.penalty, reference.penalty_on) == (100, 0.5, "logits")
    paper = TargetedMap(protocol="paper")
    assert (paper.stepper, paper.selection, paper.constraint, paper.penalty) == ("sign", "best", "hard", 0.0)
    assert TopK(protocol="paper").projection == "rescale"
    assert TopK(protocol="paper").explained == "prediction"
    assert TopK(protocol="reference").mask == "recomputed"
    assert TopK(protocol="paper", steps=7).steps == 7
    assert MassCenter(protocol="paper").truncated is True
    assert MassCenter().truncated is False
    assert "stepper='adam'" in repr(reference)


def test_settings_with_maps_are_equal_by_their_values():
    one, same, other = (TargetedMap(goal=torch.full((4, 4), v)) for v in (1.0, 1.0, 2.0))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other


def test_the_class_explained_can_be_the_prediction_and_the_result_says_where_that_differs():
    x, target = batch(4)
    model = net("lenet")
    predicted = model(x).argmax(1)
    hit = gg.attack("top_k", steps=1, explained="prediction")(model, GRADIENT, x, target)
    assert torch.equal(hit.target, predicted)
    wrong = int((predicted != target).sum())
    assert wrong > 0
    assert f"explained the prediction, which is not the target: {wrong} of 4 images" in hit.flags
    assert torch.equal(gg.attack("top_k", steps=1)(model, GRADIENT, x, target).target, target)


def test_a_goal_for_each_image_goes_with_its_image_in_every_part_of_the_batch():
    x, target = batch(5)
    goal, _ = batch(5, seed=8)
    for goals in (goal, goal.sum(1)):
        whole = TargetedMap(goal=goals, steps=2)(net("lenet"), GRADIENT, x, target)
        parts = TargetedMap(goal=goals, steps=2, max_batch=2)(net("lenet"), GRADIENT, x, target)
        torch.testing.assert_close(parts.x, whole.x)
        torch.testing.assert_close(parts.value, whole.value)
        alone = TargetedMap(goal=goals[3:4], steps=2)(net("lenet"), GRADIENT, x[3:4], target[3:4])
        torch.testing.assert_close(alone.value[0], whole.value[3])


def test_the_box_of_an_image_or_of_the_batch_is_narrower_than_the_unit_box():
    x, target = batch(3)
    x = 0.3 + 0.2 * x
    x[2] += 0.3
    for box, low, high in (("image", x.amin((1, 2, 3)), x.amax((1, 2, 3))), ("batch", x.min(), x.max())):
        hit = TargetedMap(box=box, eps=0.2, steps=4)(net("lenet"), GRADIENT, x, target)
        assert (hit.x.amin((1, 2, 3)) >= low - 1e-12).all()
        assert (hit.x.amax((1, 2, 3)) <= high + 1e-12).all()
    free = TargetedMap(eps=0.2, steps=4)(net("lenet"), GRADIENT, x, target)
    assert free.x.max() > x.max() + 0.1


def test_restoring_brings_lost_labels_back_so_that_more_images_are_moved():
    x, y = pictures("test", 32)
    moved = {}
    for restore in (True, False):
        hit = TopK(eps=2 * EPS, steps=12, restore=restore)(trained(), GRADIENT, x, y)
        assert hit.prediction_kept.all()
        moved[restore] = hit.value.mean()
    assert moved[True] < moved[False]


def test_without_the_label_check_labels_are_lost():
    x, y = pictures("test", 32)
    hit = TopK(eps=2 * EPS, steps=10, restore=False, constraint="soft")(trained(), GRADIENT, x, y)
    assert not hit.prediction_kept.all()


def test_the_last_iterate_is_returned_even_if_an_earlier_one_was_better():
    x, target = batch(4)
    settings = {
        "steps": 6,
        "eps": 0.3,
        "step_size": 0.2,
        "restore": False,
        "constraint": "soft",
        "trace": True,
    }
    last = TopK(selection="last", **settings)(net("lenet"), GRADIENT, x, target)
    best = TopK(selection="best", **settings)(net("lenet"), GRADIENT, x, target)
    assert last.trace.shape == (7, 4)
    torch.testing.assert_close(last.value, last.trace[-1])
    torch.testing.assert_close(best.value, best.trace.amin(0))
    assert (best.value < last.value).any()


def test_a_penalty_holds_the_logits():
    x, target = batch(3)
    model = net("lenet")
    change = []
    for penalty in (0.0, 100.0):
        attack = TargetedMap(
            steps=10, eps=0.05, penalty=penalty, selection="last", constraint="soft", restore=False
        )
        hit = attack(model, GRADIENT, x, target)
        change.append((model(hit.x) - model(x)).square().mean())
    assert change[1] < 0.2 * change[0]


def test_noise_of_one_draw_is_taken_as_it_comes_and_of_many_the_best():
    x, y = pictures("test", 16)
    top = TopK(eps=EPS)
    one, many = (Noise(eps=EPS, like=top, draws=n)(trained(), GRADIENT, x, y) for n in (1, 20))
    assert (many.value <= many.start).all()
    assert many.prediction_kept.all()
    assert (many.value <= one.value).float().mean() > 0.9
    assert (one.value > one.start).any()
    inside = (x > EPS).flatten(1).all(1) & (x < 1 - EPS).flatten(1).all(1)
    assert inside.any()
    assert (one.budget_used[inside] > 0.999).all()
    assert (many.budget_used[inside & ~many.unmoved] > 0.999).all()
    assert (one.steps == 0).all()


def black_box(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """A map of a user's own function, which takes no `create_graph`."""
    return small("lime")(model, x, target)


def test_a_black_box_is_refused_and_the_setting_named():
    x, target = batch(1)
    with pytest.raises(
        UserError, match="black_box has no derivative to x for top_k to follow; .*transfer_from='gradient'"
    ):
        gg.attack("top_k", steps=1)(net("lenet"), black_box, x, target)


def test_a_black_box_is_attacked_through_a_surrogate_and_judged_by_itself():
    x, target = batch(2)
    model, lime = net("lenet"), gg.attribution(black_box)
    hit = gg.attack("top_k", steps=3, eps=0.1, transfer_from="gradient")(model, lime, x, target)
    through = gg.attack("top_k", steps=3, eps=0.1)(model, GRADIENT, x, target)
    assert torch.equal(hit.x, through.x)
    torch.testing.assert_close(hit.map, lime(model, hit.x, target))
    torch.testing.assert_close(hit.map_clean, lime(model, x, target))
    assert any(flag.startswith("transfer: searched through Gradient(") for flag in hit.flags)
    noise = Noise(eps=0.1, like=TopK())(model, lime, x, target)
    torch.testing.assert_close(noise.map, lime(model, noise.x, target))


def test_transfer_takes_one_radius():
    x, target = batch(1)
    with pytest.raises(UserError, match="one eps at a time"):
        transfer(net("lenet"), TopK(eps=[0.1, 0.2], steps=1), GRADIENT, {}, x, target)


def test_path_and_smooth_maps_are_attacked_a_few_examples_at_a_time():
    x, target = batch(3)
    for name in ("integrated_gradients", "smoothgrad"):
        whole = TargetedMap(steps=2)(net("lenet"), small(name), x, target)
        parts = TargetedMap(steps=2, max_batch=7)(net("lenet"), small(name), x, target)
        torch.testing.assert_close(parts.x, whole.x)
        assert (whole.value < whole.start).all()


def saved(tmp_path) -> tuple[AttackResult, dict]:
    x, target = batch(2)
    hit = gg.attack("top_k", steps=2, eps=0.2)(net("lenet"), GRADIENT, x, target)
    path = hit.save(tmp_path / "hits", examples=[7, 4])
    return hit, json.loads(path.read_text())


def test_saving_writes_a_pair_of_pictures_for_image_and_map_and_a_record(tmp_path):
    hit, _ = saved(tmp_path)
    kinds = ("clean", "attacked", "map_clean", "map_attacked")
    files = {f"{i:05d}_{kind}.png" for i in (7, 4) for kind in kinds} | {"record.json"}
    assert {path.name for path in (tmp_path / "hits").iterdir()} == files
    pixels = np.asarray(Image.open(tmp_path / "hits" / "00004_attacked.png"))
    assert np.array_equal(pixels, (hit.x[1] * 255).round().byte().permute(1, 2, 0).numpy())
    grey = np.asarray(Image.open(tmp_path / "hits" / "00007_map_clean.png"))
    map = hit.map_clean[0].abs().sum(0)
    shown = 255 * (map / map.flatten().quantile(0.995)).clamp(0, 1)
    assert np.abs(grey - shown.numpy()).max() < 0.51  # bytes


def test_the_record_holds_every_number_the_settings_and_the_flags(tmp_path):
    hit, _ = saved(tmp_path)
    record = records.read(tmp_path / "hits" / "record.json")
    assert record.examples == [7, 4]
    assert record.values["value"] == hit.value.tolist()
    assert record.values["prediction_kept"] == hit.prediction_kept.double().tolist()
    assert record.settings["eps"] == 0.2
    assert record.settings["mask"] == "fixed"
    assert record.facts["flags"] == list(hit.flags)
    assert record.name == "attack top_k"


def test_saving_under_too_few_names_is_refused_before_anything_is_written(tmp_path):
    x, target = batch(2)
    hit = gg.attack("random")(net("lenet"), GRADIENT, x, target)
    with pytest.raises(UserError, match="give one index for each"):
        hit.save(tmp_path / "none", examples=[1])
    assert not (tmp_path / "none").exists()
