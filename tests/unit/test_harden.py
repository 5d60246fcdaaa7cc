"""Hardening an existing classifier: what is kept, what stops it, what it says, and that a kill costs nothing."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import signal
from dataclasses import replace

import numpy as np
import pages
import pytest
import torch
from children import CLEAN
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import gyrograd as gg
from gyrograd import hardening
from gyrograd.audit import Preset
from gyrograd.cli import harden as verb
from gyrograd.data import Dataset
from gyrograd.errors import UserError
from gyrograd.hardening import card, harden, pipeline
from gyrograd.hardening.card import Outcome, card_of, card_text
from gyrograd.hardening.scores import MethodScore
from gyrograd.hardening.search import (
    Try,
    best_of,
    first_strength,
    next_strength,
    objective_settings,
    strength_in_words,
    strength_limit,
    with_strength,
)
from gyrograd.metrics import TopKIntersection
from gyrograd.models import load_state
from gyrograd.reporting.wording import overlap
from gyrograd.training import Stopped, TrainSettings, fit, splits
from gyrograd.training.building import Split, held_out, split_of
from gyrograd.training.tables import across, difference, interval

SIDE = 8
JUDGE = Preset(
    methods=("gradient",), attacks=("auto",), eps=16 / 255, curve=(8 / 255,), steps=3, draws=1, points=3,
    bound_images=1, bound_draws=1, flag_images=4, pictures=1,
)  # fmt: skip
HOW = {
    "objective": objective_settings("steady", eps=6 / 255, curvature=1e-4),
    "preset": JUDGE,
    "images": 20,
    "tries": 2,
    "batch_size": 16,
    "lr": 1e-2,
    "max_accuracy_loss": 0.2,
    "device": "cpu",
}


class Small(nn.Module):
    """A net of the user's own, whose parameters all begin with one word."""

    def __init__(self, activation: nn.Module | None = None, classes: int = 3) -> None:
        super().__init__()
        act = activation or nn.Softplus(50)
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            act,
            nn.Conv2d(8, 8, 3, stride=2),
            act,
            nn.Flatten(),
            nn.Linear(72, classes),
        )

    def forward(self, x):
        return self.net(x)


def stripes(n: int, seed: int = 0) -> Dataset:
    """Noisy images of three classes: bright rows above, in the middle, below."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    images = random.integers(0, 160, (n, 3, SIDE, SIDE), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, 2 * label + 1 : 2 * label + 3] += 80
    return Dataset(
        torch.from_numpy(images), torch.from_numpy(labels), ("above", "middle", "below"), "stripes"
    )


TRAIN, TEST = stripes(96), stripes(45, seed=1)


def trained(activation: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = Small(activation)
    with torch.no_grad():
        # a rugged net: its gradient turns within the noise
        for layer in (model.net[0], model.net[2]):
            layer.weight.mul_(3)
    fit(model, TRAIN, TrainSettings(epochs=8, batch_size=16, lr=3e-3, device="cpu"))
    return model


def without_pages(patch) -> None:
    """Audits write no page here: drawing it takes longer than all else, and its own tests look at it."""
    from gyrograd.reporting import card as page

    patch(page, "write_report", lambda card, folder: folder / "report.html")


@pytest.fixture(scope="module", autouse=True)
def _without_pages():
    with pytest.MonkeyPatch.context() as patch:
        without_pages(patch.setattr)
        yield


@pytest.fixture(scope="module")
def model():
    return trained()


@pytest.fixture(scope="module")
def done(model, tmp_path_factory):
    return harden(model, TRAIN, test=TEST, out=tmp_path_factory.mktemp("done"), epochs=4, **HOW)


@pytest.fixture
def audits_at_hand(done, monkeypatch):
    """The audits of `done` in place of new ones, for what an audit does not decide: the same try is the best."""
    best = f"{done.card['chosen']:.6g}"
    monkeypatch.setattr(
        pipeline,
        "audit",
        lambda model, data, *, out, **_: done.after if out.parent.name == best else done.before,
    )


def folder_of(data: Dataset, home) -> None:
    for i, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        place = home / data.classes[int(label)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i:03d}.png")


def kept(model) -> float:
    """The share of the gradient map's top tenth that stays under attack at the audit's radii, on its images."""
    data = TEST.subset(20, 0)
    found = gg.attack("auto", eps=(1 / 255, 8 / 255, 16 / 255), steps=3)(
        model, gg.attribution("gradient"), data.pixels(), data.labels
    )
    return float(torch.stack([TopKIntersection(k=6)(hit.map_clean, hit.map) for hit in found]).mean())


def test_explanations_hold_further_and_the_given_model_is_left_as_it_was(model, done):
    before, after = kept(model), kept(done.model)
    assert after > before + 0.05
    assert done.better
    # not the same random starts, so near and not equal
    assert done.card["columns"]["kept"]["before"]["value"] == pytest.approx(before, abs=0.1)
    assert done.card["columns"]["kept"]["after"]["value"] == pytest.approx(after, abs=0.1)
    assert not done.model.training
    again = trained()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_of_the_tries_within_the_limit_the_one_that_holds_furthest_is_kept(done):
    start = done.card["columns"]["accuracy"]["before"]["value"]
    assert [t["strength"] for t in done.card["tries"]] == pytest.approx([6, 12])
    held = [t for t in done.card["tries"] if start - t["accuracy"] <= 0.2 + 1e-9]
    chosen = max(held, key=lambda t: t["kept"])
    assert done.card["chosen"] == chosen["strength"]
    assert done.card["columns"]["kept"]["after"]["value"] == pytest.approx(chosen["kept"])
    there = load_file(done.path.parent / "tries" / f"{chosen['strength']:g}" / "weights.safetensors")
    assert all(torch.equal(value, there[key]) for key, value in done.model.state_dict().items())
    right = (done.model(TEST.pixels()).argmax(1) == TEST.labels).double()
    assert chosen["accuracy"] == pytest.approx(float(right.mean()))
    change = done.card["columns"]["accuracy"]["difference"]["value"]
    assert change == pytest.approx(chosen["accuracy"] - start)


def test_the_same_audit_judges_before_and_after(done):
    for found, folder in ((done.before, "before"), (done.after, "after")):
        there = json.loads((done.path.parent / folder / "card.json").read_text())
        assert there["data"]["sha256"] == found.document["data"]["sha256"]
    one, other = (
        {name: value for name, value in card.document["settings"].items() if name != "notes"}
        for card in (done.before, done.after)
    )
    assert one == other
    assert one["attacks"] == ["auto"]
    assert done.before.document["model"]["sha256"] != done.after.document["model"]["sha256"]
    radius = done.after.document["methods"][0]["columns"]["steady_radius"]
    assert done.card["columns"]["steady_radius"]["after"] == radius


def test_a_foreign_model_is_saved_under_its_own_names(done):
    twin = Small()
    twin.load_state_dict(load_file(done.path))
    assert torch.equal(twin.eval()(TEST.pixels()), done.model(TEST.pixels()))


def test_the_card_is_on_disk_in_both_forms_and_says_what_was_gained_at_what_price(done):
    folder = done.path.parent
    assert json.loads((folder / "card.json").read_text()) == done.card
    text = (folder / "card.md").read_text()
    assert text == card_text(done.card)
    for words in ("| accuracy |", "radius, /255", "top kept", "| kept |", "stripes, as given"):
        assert words in text
    page = pages.read((folder / "report.html").read_text())
    assert page.complaints == []
    shown = " ".join(page.text.split())
    assert shown.index(done.card["verdict"][0]) < shown.index("Before and after")
    for name in ("the net as it came", "the hardened net"):
        assert re.search(rf"Gradient on {name} attacked: \d+ % of its top pixels stay", shown)
    assert not re.search(r"\bimage \d", shown)  # the images have their names
    said = " ".join(done.card["verdict"])
    assert "hold better under attack: averaged over the radii attacked, with Gradient" in said
    assert re.search(r"Half of them stay up to \S+ .*, before up to ", said)
    assert "Accuracy " in said
    assert "the limit is 20 points" in said
    assert "cosine" not in said


def test_a_checkpoint_of_gyrograd_comes_back_as_one(tmp_path, audits_at_hand):
    net = gg.model("lenet", num_classes=3, image_size=SIDE, seed=0)
    fit(net, TRAIN, TrainSettings(epochs=2, batch_size=16, device="cpu"))
    gg.save(tmp_path / "net.safetensors", net)
    done = harden(
        str(tmp_path / "net.safetensors"),
        TRAIN,
        test=TEST,
        out=tmp_path / "out",
        epochs=1,
        **HOW | {"tries": 1},
    )
    again = gg.load(done.path)
    assert torch.equal(again(TEST.pixels()), done.model(TEST.pixels()))


def test_where_no_try_is_within_the_limit_the_start_is_kept_and_the_card_says_what_to_do(
    model, tmp_path, audits_at_hand
):
    wild = HOW | {
        "lr": 1.0,
        "max_accuracy_loss": 0.05,
        "objective": objective_settings("steady", eps=6 / 255, curvature=0.0),
        "images": 4,
    }
    done = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=1, loss_limit=1e30, **wild)
    assert "4 images are few: intervals over fewer than 10 are too narrow to go by." in done.card["notes"]
    assert [t["strength"] for t in done.card["tries"]] == pytest.approx([6, 3])
    assert not any(t["holds"] for t in done.card["tries"])
    assert done.card["chosen"] is None
    assert not done.better
    said = " ".join(done.card["verdict"])
    assert "No try kept accuracy within 5 points" in said
    assert "--max_accuracy_loss 0.1" in said
    assert "--epochs 2" in said
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), done.model.parameters(), strict=True))
    assert done.after is None


def test_where_nothing_holds_further_the_start_is_kept_and_the_card_says_what_to_do(model, tmp_path):
    still = HOW | {"lr": 1e-9, "tries": 1}
    done = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=1, **still)
    assert not done.better
    assert done.card["chosen"] is None
    assert "do not hold significantly further" in done.card["verdict"][0]
    assert "--eps 12/255" in done.card["verdict"][-1]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), done.model.parameters(), strict=True))


@given(
    limit=st.floats(0.05, 40),
    first=st.floats(0.25, 4),
    most=st.integers(1, 8),
)
def test_the_search_ends_near_the_strongest_that_holds(limit, first, most):
    """A net that holds up to `limit`: what is kept holds, and more tries come nearer."""
    tried = []
    while (strength := next_strength(tried, first, most)) is not None:
        tried.append(Try(strength, 0.0, strength <= limit))
    assert 1 <= len(tried) <= most
    assert len({t.strength for t in tried}) == len(tried)
    best = best_of(tried)
    if best is None:
        assert limit < first / 2 ** (most - 1)
    else:
        failed = [t.strength for t in tried if not t.holds]
        assert best.strength <= limit
        assert len(tried) == most or min(failed) <= 1.2 * best.strength


def test_a_failure_below_what_holds_does_not_mislead_the_search():
    tried = [Try(1.0, 0.9, True), Try(0.5, 0.8, False), Try(2.0, 0.8, False)]
    assert next_strength(tried, 1.0, 9) == 1.5


def test_the_search_ends_below_a_radius_of_the_whole_range_of_pixels():
    terms = objective_settings("steady", eps=100 / 255)["terms"]
    tried = [Try(100.0, 0.9, True), Try(200.0, 0.9, True)]
    assert next_strength(tried, 100.0, 9, strength_limit(terms)) is None
    assert next_strength(tried[:1], 100.0, 9, strength_limit(terms)) == 200
    assert strength_limit({"madry": {"norm": "l2"}}) == strength_limit({"l2": {}}) == math.inf


def test_strength_is_the_radius_of_the_adversarial_term_or_the_weight_of_others():
    steady = objective_settings("steady", eps=1 / 255)["terms"]
    assert with_strength(steady, 0.5) == {
        **steady,
        "adversarial": {**steady["adversarial"], "eps": 0.5 / 255},
    }
    aligned = objective_settings("l2_cosine", l2=0.3)["terms"]
    assert with_strength(aligned, 0.5) == {"l2_cosine": {**aligned["l2_cosine"], "weight": 0.5}}
    assert first_strength(steady) == pytest.approx(1)
    assert first_strength(aligned) == 1


def test_an_adversarial_term_may_have_its_own_name_and_radius():
    for name in ("adversarial", "madry"):
        assert first_strength({name: {}}) == pytest.approx(8)  # the regulariser's own 8/255
        assert with_strength({name: {"steps": 1}}, 2.0) == {name: {"steps": 1, "eps": 2 / 255}}
        assert strength_in_words({name: {}}, 2.0) == "radius 2/255"


def harden_until_killed(model, out, place):
    call = pipeline.EpochReporter.__call__

    def judged(watch, entry, net):
        call(watch, entry, net)
        if (watch.number, entry["epoch"]) == place:
            os.kill(os.getpid(), signal.SIGKILL)

    pipeline.EpochReporter.__call__ = judged
    without_pages(setattr)
    harden(model, TRAIN, test=TEST, out=out, epochs=4, **HOW)


def untimed(document):
    return {key: value for key, value in document.items() if key not in ("seconds", "verdict")}


def test_killed_after_an_epoch_of_any_try_it_ends_with_the_same_bytes(model, done, tmp_path):
    """A child process is killed at the end of an epoch of the first and of the second try; the same call goes on."""
    for place in ((1, 1), (2, 1)):
        child = CLEAN.Process(target=harden_until_killed, args=(model, tmp_path, place))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    assert (tmp_path / "tries/6/result.json").exists()
    again = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=4, **HOW)
    assert again.path.read_bytes() == done.path.read_bytes()
    assert again.after.records == done.after.records
    assert untimed(again.card) == untimed(done.card)


def test_an_interrupt_ends_it_with_a_checkpoint_and_the_call_goes_on(
    model, done, tmp_path, monkeypatch, audits_at_hand
):
    call = pipeline.EpochReporter.__call__

    def interrupted(watch, entry, net):
        os.kill(os.getpid(), signal.SIGINT)
        return call(watch, entry, net)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.EpochReporter, "__call__", interrupted)
        with pytest.raises(Stopped, match="run it again") as stopped:
            harden(model, TRAIN, test=TEST, out=tmp_path, epochs=4, **HOW)
    assert stopped.value.exit_code == 130
    again = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=4, **HOW)
    assert again.path.read_bytes() == done.path.read_bytes()


def test_a_finished_run_is_read_and_nothing_is_trained_again(model, done, monkeypatch):
    def work(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(pipeline, "fit", work)
    again = harden(model, TRAIN, test=TEST, out=done.path.parent, epochs=4, **HOW)
    assert untimed(again.card) == untimed(done.card)


def test_other_settings_or_other_weights_in_the_same_folder_are_refused(model, done):
    folder, kept = done.path.parent, done.path.read_bytes()
    with pytest.raises(UserError, match="belongs to another run: lr is"):
        harden(model, TRAIN, test=TEST, out=folder, epochs=4, **HOW | {"lr": 1e-5})
    other = copy.deepcopy(model)
    other.net[-1].bias.data += 1e-3
    with pytest.raises(UserError, match="belongs to another run: start is"):
        harden(other, TRAIN, test=TEST, out=folder, epochs=4, **HOW)
    with pytest.raises(UserError, match="preset.steps is 9 here and 3 there"):
        harden(model, TRAIN, test=TEST, out=folder, epochs=4, **HOW | {"preset": replace(JUDGE, steps=9)})
    with pytest.raises(UserError, match="max_accuracy_loss"):
        harden(model, TRAIN, test=TEST, out=folder, epochs=4, **HOW | {"max_accuracy_loss": 0.5})
    assert done.path.read_bytes() == kept


def test_a_relu_net_is_hardened_without_the_curvature_penalty_and_the_card_says_so(tmp_path, audits_at_hand):
    net = trained(nn.ReLU())
    done = harden(net, TRAIN, test=TEST, out=tmp_path, epochs=4, **HOW | {"tries": 1})
    assert set(done.card["settings"]["terms"]) == {"adversarial"}
    assert any("curvature penalty is left out: the net is piecewise linear" in n for n in done.card["notes"])


def test_the_old_objective_is_still_there(model, tmp_path, audits_at_hand):
    how = HOW | {"objective": objective_settings("l2_cosine", cosine=3.0, eps=16 / 255), "tries": 1}
    done = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=1, **how)
    assert set(done.card["settings"]["terms"]) == {"l2_cosine"}
    assert done.card["tries"][0]["words"] == "1 times the weights"


class Pair(nn.Module):
    """A net that returns more than logits."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.body = core

    def forward(self, x):
        return self.body(x), x.mean()


def test_a_model_with_several_outputs_is_trained_through_its_logits(model, tmp_path, audits_at_hand):
    done = harden(Pair(model), TRAIN, test=TEST, out=tmp_path, epochs=1, **HOW | {"tries": 1})
    assert isinstance(done.model(TEST.pixels()), tuple)
    assert "body.net.0.weight" in load_file(done.path)
    assert any("several outputs" in note for note in done.card["notes"])


def test_a_folder_without_splits_has_a_fifth_of_each_class_held_out(tmp_path):
    folder_of(stripes(30), tmp_path / "images")
    split = split_of(str(tmp_path / "images"), size=SIDE)
    assert split.test.labels.bincount().tolist() == [2, 2, 2]
    assert split.train.labels.bincount().tolist() == [8, 8, 8]
    assert "6 of 30 images" in split.how
    assert "20% of each class" in split.how
    seen = {image.numpy().tobytes() for image in split.train.images}
    assert not seen & {image.numpy().tobytes() for image in split.test.images}


def test_of_a_folder_that_holds_train_alone_a_fifth_is_held_out(tmp_path):
    folder_of(stripes(30), tmp_path / "train")
    split = split_of(str(tmp_path), size=SIDE)
    assert (len(split.train), len(split.test), len(split.train.classes)) == (24, 6, 3)


def test_a_class_called_train_is_no_split(tmp_path):
    data = stripes(30)
    folder_of(data, tmp_path)
    (tmp_path / data.classes[0]).rename(tmp_path / "train")
    assert "train" in split_of(str(tmp_path), size=SIDE).train.classes


def test_a_folder_with_splits_is_judged_on_its_own(tmp_path):
    folder_of(stripes(30), tmp_path / "train")
    folder_of(stripes(9, seed=2), tmp_path / "val")
    split = split_of(str(tmp_path), size=SIDE)
    assert (len(split.train), len(split.test)) == (30, 9)
    assert "val" in split.how


def test_a_registered_set_has_its_own_test_images(monkeypatch):
    asked = []

    def open_data(text, *, split, size):
        asked.append((text, split))
        return TRAIN if split == "train" else TEST

    monkeypatch.setattr(splits, "open_data", open_data)
    split = split_of("shapes")
    assert asked == [("shapes", "train"), ("shapes", "test")]
    assert (split.train, split.test, split.how) == (TRAIN, TEST, "the test split of shapes")


@given(
    counts=st.lists(st.integers(1, 12), min_size=2, max_size=4),
    share=st.floats(0.05, 0.9),
    seed=st.integers(0, 99),
)
def test_held_out_leaves_an_image_of_every_class_and_loses_none(counts, share, seed):
    labels = torch.tensor([label for label, n in enumerate(counts) for _ in range(n)])
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1)
    data = Dataset(images, labels, tuple("abcd"[: len(counts)]), "some")
    if max(counts) == 1:
        with pytest.raises(UserError, match="one image per class"):
            held_out(data, share=share, seed=seed)
        return
    split = held_out(data, share=share, seed=seed)
    both = torch.cat([split.train.images, split.test.images]).flatten().tolist()
    assert sorted(both) == list(range(len(labels)))
    assert split.train.labels.bincount(minlength=len(counts)).min() >= 1
    again = held_out(data, share=share, seed=seed)
    assert torch.equal(again.test.images, split.test.images)


def test_a_missing_value_is_left_out_of_means_and_pairs():
    assert interval([None, None]) is None
    assert difference([1.0, None, 3.0], [None, 1.0, 1.0]).value == 2.0
    assert difference([None, 1.0], [1.0, None]) is None
    assert across([[1.0, None], [3.0, 4.0]]) == [2.0, None]


BAD = {
    "negative limit": ({"max_accuracy_loss": -0.1}, "max_accuracy_loss is -0.1"),
    "limit above one": ({"max_accuracy_loss": 2.0}, "max_accuracy_loss is 2.0"),
    "no epochs": ({"epochs": 0}, "epochs is 0"),
    "no tries": ({"tries": 0}, "tries is 0"),
    "no images": ({"images": 0}, "images is 0"),
    "unknown objective": ({"objective": "stedy"}, "did you mean 'steady'"),
    "negative seed": ({"seed": -1}, "seed is -1"),
    "unknown setting": ({"learning_rate": 1.0}, "no setting 'learning_rate'"),
    "unknown term": ({"terms": {"l2_cosin": {}}}, "did you mean 'l2_cosine'"),
    "negative weight": ({"terms": {"hessian": {"weight": -1.0}}}, "weight is -1"),
    "weights of a module": ({"classes": 3}, "are for a model given by name"),
    "no terms": ({"objective": {}}, "no term that makes explanations hold"),
    "unknown resume": ({"resume": "maybe"}, "no resume 'maybe'"),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_sentence_and_nothing_is_written(model, tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        harden(model, TRAIN, test=TEST, out=tmp_path / "out", **HOW | changes)
    assert not list(tmp_path.rglob("*.*"))


def test_data_that_cannot_be_used_is_refused(model, tmp_path):
    other = Dataset(TEST.images, TEST.labels, tuple(reversed(TEST.classes)), "other")
    with pytest.raises(UserError, match="different classes"):
        harden(model, TRAIN, test=other, out=tmp_path / "other", **HOW)
    one = Dataset(TRAIN.images, torch.zeros_like(TRAIN.labels), ("above",), "one kind")
    with pytest.raises(UserError, match="one class, 'above'"):
        harden(model, one, out=tmp_path, **HOW)
    folder_of(stripes(12), tmp_path / "images")
    for extra in ("middle", "below"):
        for file in (tmp_path / "images" / extra).iterdir():
            file.unlink()
        (tmp_path / "images" / extra).rmdir()
    with pytest.raises(UserError, match="one class, 'above'; training needs at least two"):
        harden(model, tmp_path / "images", size=SIDE, out=tmp_path / "out", **HOW)
    with pytest.raises(UserError, match="The model has 5 classes and stripes has 3"):
        harden(Small(classes=5), TRAIN, test=TEST, out=tmp_path / "out", **HOW)
    mixed = Dataset(TEST.images, (TEST.labels + 1) % 3, TEST.classes, "in another order")
    with pytest.raises(
        UserError,
        match="no more than chance.*order of the data's \\(above, middle, below; folders are sorted by name",
    ):
        harden(model, TRAIN, test=mixed, out=tmp_path / "out", **HOW)
    frozen = Small().requires_grad_(False)
    with pytest.raises(UserError, match="no weights that learn"):
        harden(frozen, TRAIN, test=TEST, out=tmp_path / "out", **HOW)


def test_a_file_where_the_folder_should_be_is_one_sentence(model, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UserError, match="cannot be written"):
        harden(model, TRAIN, test=TEST, out=tmp_path / "taken", **HOW)
    assert (tmp_path / "taken").read_text() == "mine"


SOURCE = """
import torch
from torch import nn

def net(num_classes=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(5), nn.Flatten(), nn.Linear(144, num_classes))
    with torch.no_grad():  # by hand: the brighter third has the larger logit
        model[0].weight.fill_(0.1)
        for label, rows in enumerate((slice(0, 2), slice(4, 6), slice(2, 4))):
            model[3].weight.view(num_classes, 4, 6, 6)[label, :, rows] += 0.5
    return model
"""


def test_the_command_hardens_a_users_own_file_and_prints_the_card(tmp_path, capsys, audits_at_hand):
    (tmp_path / "mine.py").write_text(SOURCE)
    folder_of(stripes(45), tmp_path / "images")
    words = {
        "out": tmp_path / "out",
        "epochs": 1,
        "tries": 1,
        "images": 6,
        "size": SIDE,
        "device": "cpu",
        "max_accuracy_loss": 1.0,
        "eps": "4/255",
        "normalize": "cifar10",
    }
    code = verb.harden(f"{tmp_path}/mine.py:net", str(tmp_path / "images"), **words)
    shown, said = capsys.readouterr()
    assert "try 1 of at most 1, radius 4/255: epoch 1 of 1, accuracy" in said
    assert code == (0 if json.loads((tmp_path / "out/card.json").read_text())["better"] else 1)
    assert "9 of 45 images" in " ".join(shown.split())
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(5), nn.Flatten(), nn.Linear(144, 3))
    load_state(own, tmp_path / "out/hardened.safetensors")
    verb.harden(f"{tmp_path}/mine.py:net", str(tmp_path / "images"), json=True, **words)
    assert json.loads(capsys.readouterr().out)["kind"] == "harden"


def test_an_eps_in_grey_levels_is_refused(tmp_path):
    with pytest.raises(UserError, match="write 8/255"):
        verb.harden("lenet", "shapes", eps="8", out=tmp_path)


def test_a_setting_of_the_other_objective_is_refused(tmp_path):
    with pytest.raises(UserError, match="l2 belongs to the objective l2_cosine"):
        verb.harden("lenet", "shapes", l2=0.1, out=tmp_path)
    with pytest.raises(UserError, match="curvature belongs to the objective steady"):
        verb.harden("lenet", "shapes", objective="l2_cosine", curvature=0.1, out=tmp_path)


def test_the_old_place_of_harden_keeps_working():
    with pytest.warns(FutureWarning, match=r"training\.harden\.harden is now gyrograd\.hardening\.harden"):
        from gyrograd.training.harden import harden as moved

    assert moved is hardening.harden is gg.harden


def outcome(done, before: list[float], after: list[float]) -> Outcome:
    """What a run would have found with these accuracies, image by image."""
    chosen = Try(8.0, sum(after) / len(after), True)
    return Outcome(
        "net", Split(TRAIN, TEST, "as given"), done.card["settings"], pipeline.audit_preset(JUDGE, 20), 0.2,
        [chosen], chosen, done.before, done.after, (before, after), 1.0, [], {8.0: 0.5},
    )  # fmt: skip


def test_a_fall_of_accuracy_is_called_a_fall(done):
    """Where accuracy falls the card says by how many points; a plus sign before a loss reads as a gain."""
    worse = card_of(outcome(done, [1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 0.0]))
    price = next(sentence for sentence in worse["verdict"] if sentence.startswith("Accuracy"))
    assert price.startswith("Accuracy falls by 25.0 points [")
    assert "+" not in price


def test_where_accuracy_rises_the_card_doubts_that_the_objective_alone_gained(done):
    doubt = "part of any gain may come from more training alone"
    for after, doubtful in (([1.0] * 20, True), ([0.0] * 10 + [1.0] * 10, False)):
        card = card_of(outcome(done, [0.0] * 10 + [1.0] * 10, after))
        assert any(doubt in sentence for sentence in card["verdict"]) is doubtful


def test_a_gain_that_may_be_chance_is_none(done, monkeypatch):
    values = {id(done.before): [0.1, 0.5, 0.3, 0.4], id(done.after): [0.5, 0.1, 0.6, 0.4]}
    monkeypatch.setattr(
        card,
        "best_score",
        lambda found, _: MethodScore("gradient", "Gradient", None, values[id(found)], [0.5] * 4),
    )
    found = outcome(done, [1.0] * 4, [1.0] * 4)
    assert found.gain.value > 0
    assert not found.better
    assert card_of(found)["chosen"] is None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((1, 2), (3, 4), False), ((3, 4), (1, 2), False), ((1, 3), (2, 4), True), ((1, 4), (2, 3), True)],
)
def test_radii_whose_intervals_overlap_are_said_to(one, other, expected):
    stats = [{"value": low, "low": low, "high": high, "n": 5} for low, high in (one, other)]
    assert overlap(*stats) is expected
    assert overlap(stats[0], None) is None
    assert overlap(stats[0], stats[1] | {"low": None}) is None


def test_maps_that_hold_further_are_named_where_the_recommended_one_does_not():
    def gain(label, low, high):
        return {"label": label, "difference": {"value": (low + high) / 2, "low": low, "high": high, "n": 9}}

    rows = [gain("LRP", 0.01, 0.03), gain("SmoothGrad", -0.01, 0.05), {"label": "SHAP", "difference": None}]
    assert card._others_that_gained(rows, "LRP") == []
    assert card._others_that_gained([gain("Gradient", 0.06, 0.12), *rows], "LRP") == [
        "Other maps hold further: Gradient (+9.0 [+6.0, +12.0] points). The weights of every try are in tries/."
    ]
