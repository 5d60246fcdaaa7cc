"""What the page computes and says: the library's own numbers, plain words, and no text that could be code."""

from __future__ import annotations

import io
import re
import signal
import socket
import sys
import zipfile
from dataclasses import dataclass, replace

import numpy as np
import pages
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import gyrograd as gg
from gyrograd import registry
from gyrograd.attributions.settings import passes_of
from gyrograd.cli import explore as verb
from gyrograd.data import Dataset
from gyrograd.data.opening import NamedData
from gyrograd.errors import UserError
from gyrograd.explorer import (
    Net,
    Plan,
    Stopped,
    attack_image,
    compare_models,
    explain_image,
    make_stage,
    markup,
    open_stage,
)
from gyrograd.explorer.page import KEPT_ANSWERS, OWN_CHOICE, Answers, Wish, gradio, watch_of
from gyrograd.explorer.pictures import archive_of_attacks, archive_of_maps, array_of
from gyrograd.explorer.scenes import ON_THE_WAY, opening_image
from gyrograd.explorer.server import check_free, ended_in_order, serve
from gyrograd.explorer.sessions import Sessions
from gyrograd.explorer.watching import Watched, unwatched
from gyrograd.explorer.wording import (
    MEANINGS,
    NAMES,
    attack_sentence,
    figures,
    flag_sentence,
    percent,
    verdict,
)
from gyrograd.metrics import MapSimilarity, TopKIntersection
from gyrograd.numerics import bfloat16
from gyrograd.numerics.maps import reduce
from gyrograd.parsing import parse_call
from gyrograd.registry import fact
from gyrograd.reporting.pictures import png

SIDE = 16
HOSTILE = "<script>alert(1)</script>\"' onload=x &lt; 猫"
PLAN = Plan(eps=16 / 255, steps=3)


def small_net(seed: int, activation: type[nn.Module] = nn.Softplus) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(3, 6, 3, padding=1), activation(), nn.Conv2d(6, 6, 3, padding=1), activation()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6 * SIDE * SIDE, 4)).eval()


def small_data(classes: tuple[str, ...] = ("ant", "bee", "cow", "dog")) -> NamedData:
    """Blocks of colour, which LIME and SHAP can tell apart."""
    blocks = torch.randint(
        0, 256, (5, 3, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.uint8
    )
    images = blocks.repeat_interleave(SIDE // 4, 2).repeat_interleave(SIDE // 4, 3)
    data = Dataset(images, torch.arange(5) % 4, classes, "farm")
    return NamedData(data, tuple(f"farm {number}" for number in range(5)), tuple(range(5)))


@pytest.fixture
def stage():
    return make_stage({"soft": small_net(0), "other": small_net(1)}, small_data(), seed=7)


@pytest.fixture
def net(stage):
    return stage.net("soft")


@pytest.fixture
def x(stage):
    return stage.image(2)


@pytest.fixture
def scene(net, x):
    return attack_image(net, x, None, PLAN, seed=7)


@pytest.fixture
def flat():
    """A linear model: its gradient is the same everywhere, and it has no activations."""
    torch.manual_seed(0)
    return Net(
        "flat", nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 4)).eval(), ("a", "b", "c", "d")
    )


def held(net: Net, x: torch.Tensor, kept: float, name: str = "a", same: bool = True):
    """A scene whose numbers are given."""
    scene = attack_image(net, x, None, replace(PLAN, eps=0.0))
    hit = replace(scene.hit, prediction_kept=torch.tensor([same]))
    return replace(scene, kept=kept, hit=hit, net=replace(net, name=name))


def test_maps_are_those_of_the_library_for_the_predicted_class(net, x):
    found = explain_image(net, x, None, ["gradient", "smoothgrad"])
    choice = net.model(x).argmax(1)
    assert found.target.number == int(choice)
    for name in ("gradient", "smoothgrad"):
        assert torch.equal(found.maps[name], reduce(gg.attribution(name)(net.model, x, choice))[0])


def test_a_chosen_class_is_explained_in_place_of_the_prediction(net, x):
    other = (int(net.model(x).argmax()) + 1) % 4
    found = explain_image(net, x, other, ["gradient"])
    map = reduce(gg.attribution("gradient")(net.model, x, torch.tensor([other])))[0]
    assert torch.equal(found.maps["gradient"], map)
    assert found.target.label == net.classes[other]
    assert found.target.probability == pytest.approx(
        float(net.model(x).softmax(1)[0, other].detach()), rel=1e-4
    )
    assert "the class chosen here" in markup.maps_page(found)


def test_a_method_that_cannot_explain_leaves_its_sentence_and_the_others_go_on(flat, x):
    found = explain_image(flat, x, None, ["guided_backprop", "gradient"])
    assert list(found.maps) == ["gradient"]
    assert "Guided Backprop is left out: " in markup.maps_page(found)


@pytest.mark.parametrize("name", sorted(gg.available("attack")))
def test_every_attack_gives_the_numbers_of_its_own_call(name, net, x):
    plan = replace(PLAN, attack=name)
    found = attack_image(net, x, None, plan, seed=7)
    steps = {} if name == "random" else {"steps": plan.steps}
    gradient, choice = gg.attribution("gradient"), net.model(x).argmax(1)
    hit = gg.attack(name, eps=plan.eps, **steps)(net.model, gradient, x, choice, seed=7)
    assert torch.equal(found.hit.x, hit.x)
    assert torch.equal(found.hit.map, hit.map)
    assert found.cosine == float(MapSimilarity()(hit.map_clean, hit.map))
    assert found.kept == float(TopKIntersection(k=round(0.1 * SIDE * SIDE))(hit.map_clean, hit.map))
    assert found.before.number == int(choice)
    assert found.after.number == int(net.model(hit.x).argmax())
    shares = net.model(hit.x).softmax(1)[0].detach()
    assert found.after.probability == pytest.approx(float(shares.max()), rel=1e-4)
    assert found.before_after == pytest.approx(float(shares[choice]), rel=1e-4)


@pytest.mark.parametrize("method", ["integrated_gradients(steps=16)", "smoothgrad(draws=2)"])
def test_an_attack_that_is_watched_takes_the_same_cheaper_steps(method, net, x, monkeypatch):
    monkeypatch.setattr(bfloat16, "is_fast_in_bfloat16", lambda: True)
    shares, (name, settings) = [], parse_call(method)
    plan = replace(PLAN, attack="auto", method=method, steps=6)
    watch = lambda share, _: shares.append(share)  # noqa: E731
    found = attack_image(net, x, None, plan, seed=7, watch=watch)
    attack = gg.attack("auto", eps=plan.eps, steps=6)
    hit = attack(net.model, gg.attribution(name, **settings), x, net.model(x).argmax(1), seed=7)
    assert torch.equal(found.hit.x, hit.x)
    assert max(shares) == 1.0


def test_the_seed_is_that_of_the_attack(net, x):
    plan = replace(PLAN, attack="random")
    one, same, other = (attack_image(net, x, None, plan, seed=seed).hit.x for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.fixture
def black_box(monkeypatch):
    """The name of a registered method that cannot be differentiated."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))

    @registry.register("attribution", "black_box", paper="own")
    @dataclass(frozen=True)
    class BlackBox:
        def __call__(self, model, x, target, *, create_graph=False):
            if create_graph:
                raise gg.UserError("BlackBox has no derivative; attack it by transfer.")
            return gg.attribution("occlusion", patch=4)(model, x, target)

    return "black_box"


def test_a_map_without_derivative_is_attacked_through_the_gradient(net, x, black_box):
    found = attack_image(net, x, None, replace(PLAN, method=black_box, attack="targeted_map"), seed=7)
    attack = gg.attack("targeted_map", eps=PLAN.eps, steps=3, transfer_from="gradient")
    hit = attack(net.model, gg.attribution(black_box), x, net.model(x).argmax(1), seed=7)
    assert torch.equal(found.hit.x, hit.x)
    assert torch.equal(found.hit.map, hit.map)
    assert any("no derivative" in flag_sentence(flag) for flag in found.hit.flags)


def test_a_watched_map_of_forward_passes_is_searched_like_the_map_itself(net, x):
    watched = Watched(gg.attribution("occlusion"), unwatched, 3)
    assert fact("attribution", watched, "forward_only")
    assert passes_of(watched) == passes_of(gg.attribution("occlusion")) > 1
    assert not fact("attribution", Watched(gg.attribution("gradient"), unwatched, 3), "forward_only")


def test_the_way_leads_from_the_clean_map_to_the_attacked_one(scene):
    assert tuple(point.share for point in scene.way) == ON_THE_WAY
    assert torch.equal(scene.way[0].map, reduce(scene.hit.map_clean)[0])
    assert torch.equal(scene.way[-1].map, reduce(scene.hit.map)[0])
    assert scene.way[0].predicted == scene.before
    assert scene.way[-1].predicted == scene.after


def test_nothing_moves_at_eps_zero(net, x):
    found = attack_image(net, x, None, replace(PLAN, eps=0.0))
    assert torch.equal(found.hit.x, x)
    assert (found.kept, found.prediction_kept, float(found.hit.budget_used)) == (1.0, True, 0.0)
    assert found.cosine == pytest.approx(1.0, rel=1e-5)


def test_a_search_without_a_derivative_claims_nothing(flat, stage, x):
    """The gradient of a linear model is the same everywhere."""
    torch.manual_seed(0)
    flat = Net(
        "flat", nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 4)).eval(), ("a", "b", "c", "d")
    )
    found = attack_image(flat, x, None, PLAN)
    assert (found.kept, found.cosine) == (None, None)
    html = markup.attack_page(found)
    assert "no sign of robustness" in html
    assert "says nothing about how steady" in html
    assert re.search(r'data-number="kept" data-model="0"><b>–</b>', html)
    assert "No comparison: on flat" in verdict((found, attack_image(stage.nets[0], x, None, PLAN)))


def test_a_net_with_kinks_is_said_to_be_searched_on_a_twin(x):
    kinked = make_stage({"relu": small_net(0, nn.ReLU)}, small_data()).nets[0]
    assert "so it was searched on a Softplus twin" in markup.attack_page(attack_image(kinked, x, None, PLAN))


def test_every_model_is_attacked_for_itself(stage, x):
    both = compare_models(stage.nets, x, None, PLAN, seed=7)
    alone = [attack_image(net, x, None, PLAN, seed=7) for net in stage.nets]
    for one, other in zip(both, alone, strict=True):
        assert torch.equal(one.hit.x, other.hit.x)
        assert figures(one) == figures(other)
    assert not torch.equal(both[0].hit.x, both[1].hit.x)


def test_progress_rises_to_the_end_and_names_the_model(stage, x):
    told = []
    compare_models(stage.nets, x, None, PLAN, watch=lambda share, what: told.append((share, what)))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {what.partition(":")[0] for _, what in told} == {"soft", "other"}
    assert told[-1][1] == "other: step 3 of 3"


def test_progress_of_a_transferred_attack_does_not_fall_back(net, x, black_box):
    shares = []
    attack_image(net, x, None, replace(PLAN, method=black_box), watch=lambda share, _: shares.append(share))
    assert shares == sorted(shares)
    assert max(shares) == 1.0


def test_a_stop_ends_the_attack_and_leaves_the_model_as_it_was(net, x):
    def stop_at_two(share: float, what: str) -> None:
        if what.startswith("step 2"):
            raise Stopped(what)

    with pytest.raises(Stopped, match="step 2 of 50"):
        attack_image(net, x, None, replace(PLAN, steps=50), watch=stop_at_two)
    assert all(weight.requires_grad for weight in net.model.parameters())
    assert not net.model._forward_hooks
    before = attack_image(net, x, None, PLAN, seed=7)
    assert figures(before) == figures(attack_image(net, x, None, PLAN, seed=7))


def test_watching_keeps_the_record_of_the_attribution():
    gradient = gg.attribution("gradient")
    assert repr(Watched(gradient, lambda share, what: None, 3)) == repr(gradient)


def test_small_pictures_are_enlarged_by_whole_pixels():
    picture = np.random.default_rng(0).random((SIDE, SIDE, 3))
    drawn = np.asarray(Image.open(io.BytesIO(png(picture))))
    assert drawn.shape == (224, 224, 3)
    np.testing.assert_array_equal(drawn[::14, ::14], (picture * 255).round().astype(np.uint8))


def test_archives_hold_pictures_and_record_and_repeat(net, x, scene, stage):
    maps = archive_of_maps(explain_image(net, x, None, ["gradient", "lrp"]))
    names = ["image.png", "gradient.png", "gradient_overlay.png", "lrp.png", "lrp_overlay.png"]
    assert zipfile.ZipFile(io.BytesIO(maps)).namelist() == names
    attack = archive_of_attacks((scene,))
    assert {"record.json", "sheet.png", "00000_attacked.png"} <= set(
        zipfile.ZipFile(io.BytesIO(attack)).namelist()
    )
    assert attack == archive_of_attacks((scene,))
    both = archive_of_attacks(compare_models(stage.nets, x, None, PLAN))
    assert {"soft/record.json", "other/record.json"} <= set(zipfile.ZipFile(io.BytesIO(both)).namelist())


def test_no_name_can_leave_the_folder_of_an_archive(scene):
    sly = tuple(replace(scene, net=replace(scene.net, name=name)) for name in ("../../up", "/root"))
    names = zipfile.ZipFile(io.BytesIO(archive_of_attacks(sly))).namelist()
    assert not any(name.startswith(("/", ".")) or ".." in name for name in names)


def test_pages_are_valid_and_fetch_nothing(stage, x, net, scene, tmp_path):
    shown = [
        markup.maps_page(explain_image(net, x, None, ["gradient"])),
        markup.attack_page(scene),
        markup.comparison_page(compare_models(stage.nets, x, None, PLAN)),
        markup.meanings_page(),
        Answers(stage, Sessions(tmp_path)).preview(1, None),
    ]
    for html in shown:
        assert pages.read(html).complaints == []
    # A comparison draws no picture of what changed, so it explains none.
    assert ["What changed is drawn" in html for html in shown] == [False, True, False, True, False]


def test_hostile_names_stay_text(x):
    classes = tuple(f"{HOSTILE}{number}" for number in range(4))
    wild = make_stage(
        {HOSTILE: small_net(0), f"b{HOSTILE}": small_net(1)}, small_data(classes), notes=(HOSTILE,)
    )
    both = compare_models(wild.nets, x, None, PLAN)
    shown = [
        markup.maps_page(explain_image(wild.nets[0], x, None, ["gradient"])),
        markup.attack_page(both[0]),
        markup.comparison_page(both),
        markup.notes_page(wild),
        markup.problem(HOSTILE),
        markup.preview(x, HOSTILE, []),
    ]
    for html in shown:
        read = pages.read(html)
        assert read.complaints == []
        assert "script" not in {tag for tag, _ in read.tags}
        assert HOSTILE in read.text


def test_the_exact_numbers_stand_in_the_page(scene):
    html = markup.attack_page(scene)
    for key, value in (("kept", scene.kept), ("cosine", scene.cosine)):
        written = re.search(rf'data-number="{key}" data-model="0" data-value="([^"]+)"', html)
        assert written
        assert float(written[1]) == value


def test_a_map_of_zeros_is_said_to_be_one(x):
    still = small_net(0)
    still[-1].weight.data.zero_()
    found = explain_image(make_stage({"still": still}, small_data()).nets[0], x, None, ["gradient"])
    assert found.empty == ("gradient",)
    assert "map of zeros" in markup.maps_page(found)


@given(st.floats(0, 1))
def test_a_probability_below_one_is_never_written_as_certain(share):
    assert (percent(share) == "100.0\u00a0%") == (share == 1)


def test_one_image_is_read_with_care(net, x):
    moved, stayed, lost = held(net, x, 0.2), held(net, x, 0.8), held(net, x, 0.2, same=False)
    assert "cannot be trusted" in attack_sentence(moved)
    assert "stayed where they were" in attack_sentence(stayed)
    assert "prediction changed" in attack_sentence(lost)


def test_the_verdict_names_the_stiller_model_only_where_the_gap_is_plain(net, x):
    a, b, close = held(net, x, 0.3, "a"), held(net, x, 0.6, "b"), held(net, x, 0.33, "c")
    assert verdict((a, b)).startswith(
        "b keeps more of its map on this image. Top pixels kept: b 60\u00a0%, a 30\u00a0%."
    )
    assert verdict((b, a)) == verdict((a, b))
    assert verdict((a, close)).startswith("About level on this image.")
    assert verdict((held(net, x, 0.1, "a", same=False), b)).endswith("The prediction changed on a.")


def test_maps_of_different_classes_are_not_compared_without_a_word(net, x):
    plan = replace(PLAN, eps=0.0)
    one, other = (attack_image(net, x, number, plan) for number in (0, 1))
    assert "different classes (ant, bee)" in verdict((one, other))
    assert "different" not in verdict((one, one))


def test_every_number_attack_and_method_has_plain_words():
    assert set(NAMES) == set(MEANINGS)
    for kind in ("attack", "attribution"):
        assert all(entry.about for entry in gg.available(kind).values())


def test_an_unknown_flag_is_shown_as_it_is():
    assert flag_sentence("something new: 1 of 1 images") == "something new: 1 of 1 images"


def sentence_of(act):
    with pytest.raises(UserError) as caught:
        act()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    return sentence


def test_mistakes_on_the_page_are_sentences_that_name_the_fix(stage, net, x, tmp_path):
    broken = tmp_path / "photo.png"
    broken.write_bytes(b"not a picture")
    assert "one from 0 to 3" in sentence_of(lambda: explain_image(net, x, 9, ["gradient"]))
    assert "one from 0 to 3" in sentence_of(lambda: attack_image(net, x, 4, PLAN))
    assert "at least one" in sentence_of(lambda: explain_image(net, x, None, []))
    assert "did you mean 'soft'" in sentence_of(lambda: stage.net("sof"))
    assert "0 to 4" in sentence_of(lambda: stage.image(5))
    assert "0 to 4" in sentence_of(lambda: stage.image(-1))
    assert sentence_of(lambda: stage.image_of_file(broken)).startswith(
        "photo.png cannot be read as an image;"
    )
    assert "255/255" in sentence_of(lambda: Plan(eps=2.0))
    assert "at least 1" in sentence_of(lambda: Plan(steps=0))
    assert "did you mean 'top_k'" in sentence_of(lambda: Plan(attack="topk"))
    same = Answers(stage, Sessions(tmp_path))
    assert "choose two" in sentence_of(
        lambda: same.compare(print, 0, None, OWN_CHOICE, "soft", "soft", "gradient", "", "top_k", 4, 3)
    )


def test_a_file_is_fitted_to_the_images_of_the_set(stage, tmp_path):
    wide = np.zeros((20, 40, 3), np.uint8)
    wide[:, 10:30] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    fitted = stage.image_of_file(tmp_path / "wide.png")
    assert fitted.shape == (1, 3, SIDE, SIDE)
    assert torch.allclose(fitted[..., 2:-2], torch.tensor(200 / 255))


def test_buttons_pass_their_controls_on(stage, tmp_path):
    answers = Answers(stage, Sessions(tmp_path))
    html, archive = answers.attack(
        lambda share, what: None, 2, None, OWN_CHOICE, "other", "gradient", "", "top_k", 16, 3
    )
    plan = Plan("gradient", "top_k", 16 / 255, 3)
    scene = attack_image(stage.net("other"), stage.image(2), None, plan, seed=7)
    assert html == markup.attack_page(scene)
    assert archive == archive_of_attacks((scene,))
    html, _ = answers.explain(lambda share, what: None, 2, None, 1, "soft", ["gradient"])
    assert html == markup.maps_page(explain_image(stage.net("soft"), stage.image(2), 1, ["gradient"]))
    path = answers.write_archive(archive, "attack.zip")
    assert zipfile.ZipFile(path).testzip() is None


def test_settings_of_methods_reach_the_maps(stage, net, x, tmp_path):
    answers = Answers(stage, Sessions(tmp_path))
    word = "smoothgrad(sigma=0.3, draws=2)"
    plan = Plan(word, "targeted_map", 16 / 255, 3)
    scene = attack_image(net, x, None, plan, seed=7)
    noisy = gg.attribution("smoothgrad", sigma=0.3, draws=2)
    choice = net.model(x).argmax(1)
    assert torch.equal(scene.hit.map_clean, noisy(net.model, x, choice))
    values = (2, None, OWN_CHOICE, "soft", "smoothgrad", "sigma=0.3, draws=2", "targeted_map", 16, 3)
    html, _ = answers.attack(print, *values)
    assert html == markup.attack_page(scene)
    assert "Targeted map on SmoothGrad (sigma=0.3, draws=2)" in html
    html, packed = answers.explain(
        lambda share, what: None, 2, None, OWN_CHOICE, "soft", ["gradient", "smoothgrad"], word
    )
    assert html == markup.maps_page(explain_image(net, x, None, ["gradient", word]))
    assert "smoothgrad_sigma_0.3__draws_2.png" in zipfile.ZipFile(io.BytesIO(packed)).namelist()
    assert "check its box" in sentence_of(
        lambda: answers.explain(print, 2, None, OWN_CHOICE, "soft", ["gradient"], word)
    )
    assert "did you mean 'sigma'" in sentence_of(lambda: Plan("smoothgrad(sigm=1)"))


def test_the_page_opens_on_an_image_that_is_labelled_rightly_and_moves_far(stage, net):
    x = stage.data.pixels(torch.arange(5))
    plan = Plan(attack="targeted_map", eps=64 / 255, steps=3)
    kept = [
        attack_image(net, x[place : place + 1], None, replace(plan, steps=10), seed=7).kept
        for place in range(5)
    ]
    order = sorted(range(5), key=lambda place: kept[place])
    assert kept[order[0]] < kept[order[1]] < kept[order[2]]
    labels = net.model(x).argmax(1)
    labels[order[0]] = (labels[order[0]] + 1) % 4  # the one that moves furthest is labelled wrongly
    alone = replace(stage, nets=(net,), data=replace(stage.data, labels=labels))
    assert opening_image(alone, plan) == order[1]


def test_a_large_image_is_not_attacked_before_the_page_opens(monkeypatch, stage):
    monkeypatch.setattr("gyrograd.explorer.scenes.LARGEST_TRIED", SIDE - 1)
    monkeypatch.setattr("gyrograd.explorer.scenes.attack_of", lambda plan: pytest.fail("attacked"))
    assert opening_image(stage, PLAN) in range(len(stage.data))


def test_the_same_question_is_computed_once_and_few_answers_are_kept(stage, tmp_path):
    answers, asked = Answers(stage, Sessions(tmp_path)), []

    def answer(watch, *values):
        asked.append(values)
        return str(values), b""

    for number in (1, 1, *range(2, KEPT_ANSWERS + 2), 1):
        assert answers.cached_or_computed(answer, print, number)[0] == str((number,))
    assert [values[0] for values in asked] == [1, *range(2, KEPT_ANSWERS + 2), 1]


def test_work_that_is_out_of_date_ends(net, x):
    wanted = Wish()
    wanted.ask("attack")
    watch = watch_of(wanted, "attack", lambda share, desc: None)
    watch(0.0, "step 1")
    wanted.ask("compare")
    watch(0.1, "step 2")
    wanted.ask("attack", ("another image",))
    with pytest.raises(Stopped):
        watch(0.2, "step 3")


def test_labels_are_named_where_they_mean_something(stage):
    assert stage.label(1) == "bee"
    assert stage.nets[0].classes == ("ant", "bee", "cow", "dog")
    drawings = open_stage(["lenet"], None)
    assert drawings.label(0) is None
    assert drawings.nets[0].classes[3] == "class 3"
    said = markup.notes_page(drawings)
    assert "drag in an image" in said
    assert "no trained weights" in said


def test_models_must_be_told_apart(tmp_path):
    assert "named twice" in sentence_of(lambda: open_stage(["lenet", "lenet"], "shapes"))
    assert "fits one model" in sentence_of(
        lambda: open_stage(["lenet", "mlp"], "shapes", weights=tmp_path / "w.pt")
    )
    assert "such as cifar10/lenet-ce" in sentence_of(lambda: open_stage([], "shapes"))


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert sentence_of(gradio) == "The page needs Gradio: pip install 'gyrograd[explore]'."


def test_a_port_that_cannot_be_had_is_a_sentence(stage):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert sentence_of(lambda: serve(stage, port=port)).startswith(
            f"Port {port} is in use; give another:"
        )
    check_free("127.0.0.1", port)
    assert "1024 to 65535" in sentence_of(lambda: check_free("127.0.0.1", 70000))
    assert "no address '203.0.113.9'" in sentence_of(lambda: check_free("203.0.113.9", port))


def test_a_terminated_page_puts_away_what_it_holds():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ended_in_order():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.fixture
def served(monkeypatch, tmp_path):
    """The stage the verb would show, with nothing shown and nets for drawings that need no training."""
    found: dict[str, object] = {"trained": []}

    def untrained(name, images, epochs, seed):
        found["trained"].append(name)  # type: ignore[attr-defined]
        return gg.model("lenet", activation="softplus", seed=seed), 0.0

    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    monkeypatch.setattr("gyrograd.cli.demo.train_net", untrained)
    monkeypatch.setattr(
        "gyrograd.explorer.server.serve", lambda stage, **how: found.update(stage=stage, **how)
    )
    return found


def test_without_words_two_nets_are_trained_on_drawings_once(served):
    verb.explore([], port=7861)
    assert [net.name for net in served["stage"].nets] == ["cross-entropy", "steady"]
    assert served["stage"].data.name == "shapes test"
    assert (served["host"], served["port"], served["open"]) == ("127.0.0.1", 7861, False)
    first = served["stage"].nets[0].model.state_dict()
    verb.explore([], port=7861)
    assert served["trained"] == ["cross-entropy", "steady"]
    again = served["stage"].nets[0].model.state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_with_cifar10_on_disk_the_zoo_is_shown(served, monkeypatch, tmp_path):
    asked = {}
    monkeypatch.setattr("gyrograd.explorer.open_stage", lambda *words, **how: asked.update(words=words))
    (tmp_path / "cifar-10-batches-bin").mkdir()
    verb.explore([], port=7861)
    assert asked["words"] == (["cifar10/lenet-ce", "cifar10/lenet-l2-cosine"], "cifar10")
    verb.explore(["lenet"], port=7861)
    assert asked["words"] == (["lenet"], None)


def test_arrays_of_maps_leave_no_tensor(scene):
    assert isinstance(array_of(reduce(scene.hit.map)[0]), np.ndarray)


def test_a_question_that_is_being_computed_is_not_begun_again_and_one_that_is_over_is():
    wish = Wish()
    wish.ask("attack", (1, "gradient"))
    first = wish.number("attack")
    wish.ask("attack", (1, "gradient"))
    assert wish.number("attack") == first
    wish.ask("attack", (2, "gradient"))
    second = wish.number("attack")
    assert second > first
    wish.answered["attack"] = second
    wish.ask("attack", (2, "gradient"))
    third = wish.number("attack")
    assert third > second
    wish.stop()
    wish.ask("attack", (2, "gradient"))
    assert wish.number("attack") > third
