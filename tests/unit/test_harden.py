"""Hardening an existing classifier: what is kept, what stops it, what it says, and that a kill costs nothing."""

from __future__ import annotations

import copy
import json
import os
import signal

import numpy as np
import pytest
import small_training
import torch
from children import CLEAN
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import gyrograd as gg
from gyrograd import records
from gyrograd.cli import harden as verb
from gyrograd.data import Dataset
from gyrograd.errors import UserError
from gyrograd.models import load_state
from gyrograd.training import Stopped, TrainSettings, fit, splits
from gyrograd.training import harden as module
from gyrograd.training.harden import harden
from gyrograd.training.hardened import card_text
from gyrograd.training.measuring import Measuring
from gyrograd.training.splits import held_out, split_of
from gyrograd.training.tables import across, difference, interval

SIDE = 8
QUICK = Measuring(images=12, draws=3, attack_steps=3, eps=32 / 255)
TERMS = {"l2_cosine": {"cosine": 3.0, "eps": 16 / 255}}
HOW = {
    "terms": TERMS,
    "measuring": QUICK,
    "batch_size": 16,
    "lr": 3e-3,
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


@pytest.fixture(scope="module")
def model():
    return trained()


@pytest.fixture(scope="module")
def done(model, tmp_path_factory):
    return harden(model, TRAIN, test=TEST, out=tmp_path_factory.mktemp("done"), epochs=3, **HOW)


def folder_of(data: Dataset, home) -> None:
    for i, (image, label) in enumerate(zip(data.images, data.labels, strict=True)):
        place = home / data.classes[int(label)]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{i:03d}.png")


def rps(model, data: Dataset) -> float:
    some = data.chosen(QUICK.images, QUICK.seed)
    metric = gg.metric("rps", eps=QUICK.eps, draws=QUICK.draws)
    keys = gg.numerics.random.keys(QUICK.seed, len(data))[some]
    return float(
        metric(model, gg.attribution("gradient"), data.pixels(some), data.labels[some], seed=keys).mean()
    )


def test_explanations_hold_stiller_and_the_given_model_is_left_as_it_was(model, done):
    before, after = rps(model, TEST), rps(done.model, TEST)
    assert after > before + 0.005
    assert done.better
    assert done.card["columns"]["rps"]["before"]["value"] == pytest.approx(before, abs=1e-5)
    assert done.card["columns"]["rps"]["after"]["value"] == pytest.approx(after, abs=1e-5)
    assert not done.model.training
    again = trained()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_chosen_epoch_has_the_highest_rps_within_the_limit(done):
    start = done.card["columns"]["accuracy"]["before"]["value"]
    within = {e["epoch"]: e["rps"] for e in done.card["epochs"] if start - e["accuracy"] <= 0.2 + 1e-9}
    within[0] = done.card["columns"]["rps"]["before"]["value"]
    assert done.card["chosen_epoch"] == max(within, key=within.__getitem__)
    assert done.card["columns"]["rps"]["after"]["value"] == pytest.approx(within[done.card["chosen_epoch"]])


def test_every_image_has_its_own_numbers_in_the_records(done):
    for record in (done.before, done.after):
        assert record.examples == list(range(len(TEST)))
        assert set(record.values) == {"accuracy", "rps", "insertion", "pixels_kept", "cosine_kept"}
        assert None not in record.values["accuracy"]
        for key in ("rps", "insertion", "pixels_kept"):
            assert sum(value is not None for value in record.values[key]) == QUICK.images
    right = (done.model(TEST.pixels()).argmax(1) == TEST.labels).double().tolist()
    assert done.after.values["accuracy"] == right
    change = np.array(done.after.values["accuracy"]) - np.array(done.before.values["accuracy"])
    assert done.card["columns"]["accuracy"]["difference"]["value"] == pytest.approx(change.mean())


def test_a_foreign_model_is_saved_under_its_own_names(done):
    twin = Small()
    twin.load_state_dict(load_file(done.path))
    assert torch.equal(twin.eval()(TEST.pixels()), done.model(TEST.pixels()))


def test_the_card_is_on_disk_in_both_forms(done):
    folder = done.path.parent
    assert json.loads((folder / "card.json").read_text()) == done.card
    text = (folder / "card.md").read_text()
    assert text == card_text(done.card)
    for words in (
        "| accuracy |",
        "Grad RPS",
        "pixels kept, attacked",
        "chosen",
        "stripes, as given",
    ):
        assert words in text
    assert records.read(folder / "after.json") == done.after


def test_a_checkpoint_of_gyrograd_comes_back_as_one(tmp_path):
    net = gg.model("lenet", num_classes=3, image_size=SIDE, seed=0)
    fit(net, TRAIN, TrainSettings(epochs=2, batch_size=16, device="cpu"))
    gg.save(tmp_path / "net.safetensors", net)
    done = harden(str(tmp_path / "net.safetensors"), TRAIN, test=TEST, out=tmp_path / "out", epochs=1, **HOW)
    again = gg.load(done.path)
    assert torch.equal(again(TEST.pixels()), done.model(TEST.pixels()))


def test_a_loss_beyond_the_limit_stops_it_and_the_start_is_kept(model, tmp_path):
    wild = HOW | {"lr": 2.0, "clip": None, "max_accuracy_loss": 0.05, "optimizer": "sgd", "loss_limit": 1e30}
    done = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=4, **wild)
    assert len(done.card["epochs"]) == 1
    assert done.card["chosen_epoch"] == 0
    assert not done.better
    assert "Stopped after epoch 1" in " ".join(done.card["verdict"])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), done.model.parameters(), strict=True))
    assert done.after is done.before


def test_best_prefers_stillness_within_the_limit_and_the_start_among_equals(tmp_path):
    job = module.Job.__new__(module.Job)
    object.__setattr__(job, "out", tmp_path)
    start = {"accuracy": [1.0] * 10, "rps": [0.5] * 10}
    watch = module.Watch(job, start, floor=0.9 - module.ROUNDING)
    for epoch, (accuracy, calm) in enumerate([(1.0, 0.5), (0.9, 0.7), (0.8, 0.9), (1.0, 0.7)], start=1):
        columns = {
            "accuracy": [1.0] * round(10 * accuracy) + [0.0] * round(10 - 10 * accuracy),
            "rps": [calm] * 10,
        }
        records.write(watch._path(epoch), records.Record("e", {}, list(range(10)), columns))
    assert [watch.best(last) for last in range(5)] == [0, 0, 2, 2, 2]


def harden_until_killed(model, out, epoch):
    call = module.Watch.__call__

    def judged(watch, entry, net):
        call(watch, entry, net)
        if entry["epoch"] == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    module.Watch.__call__ = judged
    harden(model, TRAIN, test=TEST, out=out, epochs=3, **HOW)


def test_killed_after_any_epoch_it_ends_with_the_same_bytes(model, done, tmp_path):
    """A child process is killed at the end of epoch 1, 2, ...; the same call then goes on."""
    for epoch in (1, 2):
        child = CLEAN.Process(target=harden_until_killed, args=(model, tmp_path, epoch))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    again = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=3, **HOW)
    assert again.path.read_bytes() == done.path.read_bytes()
    assert again.after == done.after
    untimed = [
        {**card, "epochs": [{**e, "seconds": 0} for e in card["epochs"]]} for card in (again.card, done.card)
    ]
    assert untimed[0] == untimed[1]


def test_an_interrupt_ends_it_with_a_checkpoint_and_the_call_goes_on(model, done, tmp_path, monkeypatch):
    call = module.Watch.__call__

    def interrupted(watch, entry, net):
        os.kill(os.getpid(), signal.SIGINT)
        return call(watch, entry, net)

    with monkeypatch.context() as patch:
        patch.setattr(module.Watch, "__call__", interrupted)
        with pytest.raises(Stopped, match="run it again") as stopped:
            harden(model, TRAIN, test=TEST, out=tmp_path, epochs=3, **HOW)
    assert stopped.value.exit_code == 130
    again = harden(model, TRAIN, test=TEST, out=tmp_path, epochs=3, **HOW)
    assert again.path.read_bytes() == done.path.read_bytes()


def test_other_settings_or_other_weights_in_the_same_folder_are_refused(model, done):
    folder, kept = done.path.parent, done.path.read_bytes()
    with pytest.raises(UserError, match="belongs to another run: lr is"):
        harden(model, TRAIN, test=TEST, out=folder, epochs=3, **HOW | {"lr": 1e-5})
    other = copy.deepcopy(model)
    other.net[-1].bias.data += 1e-3
    with pytest.raises(UserError, match="belongs to another run: start is"):
        harden(other, TRAIN, test=TEST, out=folder, epochs=3, **HOW)
    with pytest.raises(UserError, match="max_accuracy_loss"):
        harden(model, TRAIN, test=TEST, out=folder, epochs=3, **HOW | {"max_accuracy_loss": 0.5})
    assert done.path.read_bytes() == kept


def test_a_relu_net_is_hardened_and_the_card_says_what_that_means(tmp_path):
    net = trained(nn.ReLU())
    done = harden(net, TRAIN, test=TEST, out=tmp_path, epochs=2, **HOW)
    assert rps(done.model, TEST) > rps(net, TEST)
    assert any(
        "piecewise linear" in note and "Second order derivatives" in note for note in done.card["notes"]
    )


class Pair(nn.Module):
    """A net that returns more than logits."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.body = core

    def forward(self, x):
        return self.body(x), x.mean()


def test_a_model_with_several_outputs_is_trained_through_its_logits(model, tmp_path):
    done = harden(Pair(model), TRAIN, test=TEST, out=tmp_path, epochs=1, **HOW)
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


def test_a_folder_with_splits_is_judged_on_its_own(tmp_path):
    folder_of(stripes(30), tmp_path / "train")
    folder_of(stripes(9, seed=2), tmp_path / "val")
    split = split_of(str(tmp_path), size=SIDE)
    assert (len(split.train), len(split.test)) == (30, 9)
    assert "val" in split.how


def test_a_registered_set_has_its_own_test_images(monkeypatch):
    asked = []

    def opened(text, *, split, size):
        asked.append((text, split))
        return TRAIN if split == "train" else TEST

    monkeypatch.setattr(splits, "opened", opened)
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
        with pytest.raises(UserError, match="one image a class"):
            held_out(data, share=share, seed=seed)
        return
    split = held_out(data, share=share, seed=seed)
    both = torch.cat([split.train.images, split.test.images]).flatten().tolist()
    assert sorted(both) == list(range(len(labels)))
    assert split.train.labels.bincount(minlength=len(counts)).min() >= 1
    again = held_out(data, share=share, seed=seed)
    assert torch.equal(again.test.images, split.test.images)


def test_measurements_do_not_depend_on_the_batch_size(model):
    one, other = (Measuring(images=12, draws=3, attack_steps=3, batch_size=size) for size in (5, 64))
    (a, _), (b, _) = one.full(model, TEST), other.full(model, TEST)
    for key in a:
        assert [v is None for v in a[key]] == [v is None for v in b[key]]
        assert np.allclose(
            [v for v in a[key] if v is not None], [v for v in b[key] if v is not None], atol=1e-4
        )


def test_a_missing_value_is_left_out_of_means_and_pairs():
    assert interval([None, None]) is None
    assert difference([1.0, None, 3.0], [None, 1.0, 1.0]).value == 2.0
    assert difference([None, 1.0], [1.0, None]) is None
    assert across([[1.0, None], [3.0, 4.0]]) == [2.0, None]


BAD = {
    "negative limit": ({"max_accuracy_loss": -0.1}, "max_accuracy_loss is -0.1"),
    "limit above one": ({"max_accuracy_loss": 2.0}, "max_accuracy_loss is 2.0"),
    "no epochs": ({"epochs": 0}, "epochs is 0"),
    "negative seed": ({"seed": -1}, "seed is -1"),
    "unknown setting": ({"learning_rate": 1.0}, "no setting 'learning_rate'"),
    "unknown term": ({"terms": {"l2_cosin": {}}}, "did you mean 'l2_cosine'"),
    "negative weight": ({"terms": {"l2_cosine": {"weight": -1.0}}}, "weight is -1"),
    "weights of a module": ({"classes": 3}, "belong to a model given by name"),
    "unknown resume": ({"resume": "maybe"}, "no resume 'maybe'"),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_a_mistake_is_one_sentence_and_nothing_is_written(model, tmp_path, changes, words):
    with pytest.raises(UserError, match=words):
        harden(model, TRAIN, test=TEST, out=tmp_path / "out", **HOW | changes)
    assert not list(tmp_path.rglob("*.*"))


def test_data_that_cannot_be_used_is_refused(model, tmp_path):
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
        match="no more than chance.*order of the data's \\(above, middle, below; a folder's go by name",
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


def test_the_command_hardens_a_users_own_file_and_prints_the_card(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(SOURCE)
    folder_of(stripes(45), tmp_path / "images")
    words = {
        "out": tmp_path / "out",
        "epochs": 1,
        "images": 6,
        "size": SIDE,
        "device": "cpu",
        "max_accuracy_loss": 1.0,
    }
    code = verb.harden(
        f"{tmp_path}/mine.py:net", str(tmp_path / "images"), normalize="cifar10", lr=1e-2, **words
    )
    shown, said = capsys.readouterr()
    assert "epoch 1: accuracy" in said
    assert code == (0 if json.loads((tmp_path / "out/card.json").read_text())["chosen_epoch"] else 1)
    assert "9 of 45 images" in shown
    assert "difference" in shown
    own = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softplus(5), nn.Flatten(), nn.Linear(144, 3))
    load_state(own, tmp_path / "out/hardened.safetensors")
    verb.harden(
        f"{tmp_path}/mine.py:net", str(tmp_path / "images"), normalize="cifar10", lr=1e-2, json=True, **words
    )
    assert json.loads(capsys.readouterr().out)["kind"] == "harden"


def test_remarks_say_of_which_model_they_are():
    assert module._told_apart(["a", "b"], ["b", "c"]) == ["b", "Before: a", "After: c"]
    assert module._told_apart(["a"], ["a"]) == ["a"]


def test_an_eps_in_grey_levels_is_refused(tmp_path):
    with pytest.raises(UserError, match="write 8/255"):
        verb.harden("lenet", "shapes", eps="8", out=tmp_path)


def test_an_attack_without_a_derivative_to_follow_measures_nothing():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        linear = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3)).eval()
    columns, flags = QUICK.full(linear, small_training.pictures(12))
    assert columns["pixels_kept"] == columns["cosine_kept"] == [None] * 12
    assert None not in columns["rps"]
    assert any("zero derivative" in flag for flag in flags)
