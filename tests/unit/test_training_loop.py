from __future__ import annotations

import copy
import errno
import json
import os
import signal
import threading
from dataclasses import replace
from functools import partial

import pytest
import small_training
import torch
from small_training import net, pictures
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.training import (
    Objective,
    Stopped,
    Term,
    TrainSettings,
    fit,
    predictions,
    read_log,
    runs,
    steady_settings,
    train,
)
from gyrograd.training.loop import Average, Step
from gyrograd.training.snapshots import NAME, read

settings = small_training.settings


def weights(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def fitted(out=None, *, seed=0, data=None, how=None, **changes):
    model = net()
    done = fit(model, data or pictures(), settings(seed=seed, **changes), out=out, **(how or {}))
    return weights(model), done


class Trouble:
    """A regulariser of value 0 that does something at its n-th call."""

    def __init__(self, at, deed):
        self.calls, self.at, self.deed = 0, at, deed

    def __call__(self, model, x, y, *, seed=None):
        self.calls += 1
        value = torch.zeros(len(x))
        return value if self.calls != self.at else self.deed(value)


def with_trouble(at, deed):
    return {"objective": Objective({"trouble": Term(Trouble(at, deed))})}


@pytest.fixture(scope="module")
def whole():
    """The run that nothing interrupts."""
    return fitted()


def test_the_same_seed_gives_the_same_weights_bit_for_bit_and_leaves_the_generators_alone(whole):
    before = torch.get_rng_state()
    torch.rand(3)
    moved = torch.get_rng_state()
    again, done = fitted()
    assert torch.equal(torch.get_rng_state(), moved)
    assert not torch.equal(before, moved)
    assert equal(again, whole[0])
    assert [e["losses"] for e in done.history] == [e["losses"] for e in whole[1].history]
    other, _ = fitted(seed=1)
    assert not any(torch.equal(other[k], again[k]) for k in other if k.endswith("weight"))


def test_the_loss_falls_and_the_net_learns():
    data = pictures()
    model = net(dropout=0.0)
    done = fit(model, data, settings(terms={}, epochs=25, ema=0.0, zoom=1.0, label_smoothing=0.0), test=data)
    losses = [entry["losses"]["loss"] for entry in done.history]
    assert losses[-1] < 0.5 * losses[0]
    assert done.history[-1]["accuracy"] > 0.9
    assert done.history[-1]["accuracy"] == float((predictions(model, data) == data.labels).double().mean())
    assert not model.training


def test_order_and_draws_do_not_depend_on_the_batch_size():
    """With a rate of almost nothing the mean losses of an epoch are those of one model, however it is cut."""
    calm = {"lr": 1e-30, "ema": 0.0, "regularized_fraction": 1.0, "epochs": 1, "warmup": 0.0}
    means = []
    for size in (6, 16, 48):
        model = net(batchnorm=False, dropout=0.0)
        done = fit(model, pictures(), settings(batch_size=size, **calm))
        means.append(done.history[0]["losses"])
    for other in means[1:]:
        assert other == pytest.approx(means[0], rel=1e-5)


def test_order_and_draws_change_from_epoch_to_epoch_and_every_example_comes_once():
    seen = []

    def watcher(model, x, y, *, seed=None):
        seen.append((x.detach().clone(), y, seed))
        return torch.zeros(len(x))

    data = pictures()
    plain = {
        "crop": 0,
        "flip": False,
        "zoom": 1.0,
        "regularized_fraction": 1.0,
        "epochs": 2,
        "batch_size": 48,
    }
    fitted(how={"objective": Objective({"watcher": Term(watcher)})}, data=data, **plain)
    (x1, y1, keys1), (x2, y2, keys2) = seen
    assert not torch.equal(x1, x2)
    for x, y in ((x1, y1), (x2, y2)):
        assert torch.equal(x.flatten(1).sum(1).sort().values, data.pixels().flatten(1).sum(1).sort().values)
        assert y.sum() == data.labels.sum()
    assert len(keys1.unique()) == 48
    assert not set(keys1.tolist()) & set(keys2.tolist())


def test_the_log_has_a_line_an_epoch_and_the_best_epoch_is_kept(tmp_path):
    quick = settings(
        model="mlp", model_settings={"in_features": 2, "hidden": [4]}, data="toy2d", data_settings={"n": 40},
        test={"split": "test", "n": 30}, terms={}, crop=0, flip=False, zoom=1.0, regularized_fraction=1.0,
    )  # fmt: skip
    done = train(quick, tmp_path)
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert entries == done.history == read_log(tmp_path)
    assert [entry["epoch"] for entry in entries] == [1, 2, 3, 4]
    assert set(entries[0]) == {"epoch", "step", "lr", "losses", "seconds", "accuracy"}
    assert set(entries[0]["losses"]) == {"loss", "cross_entropy"}
    test = gg.dataset("toy2d", split="test", n=30)
    for name, epoch in (("model", entries[-1]), ("best", max(entries, key=lambda e: e["accuracy"]))):
        kept = gg.load(tmp_path / f"{name}.safetensors")
        assert float((predictions(kept, test) == test.labels).double().mean()) == epoch["accuracy"]
    assert done.best["accuracy"] == max(entry["accuracy"] for entry in entries)


def test_of_equal_epochs_the_first_is_the_best():
    # So slow that no prediction changes, and no BatchNorm whose statistics would change them.
    data, slow = pictures(), settings(lr=1e-12, terms={}, epochs=2)
    done = fit(net(batchnorm=False), data, slow, test=data)
    assert len({entry["accuracy"] for entry in done.history}) == 1
    assert done.best["epoch"] == 1


def test_an_average_of_weights_soon_forgets_the_first():
    model = torch.nn.Linear(1, 1, bias=False)
    average = Average(model, 0.999)
    first = model.weight.item()
    with torch.no_grad():
        model.weight.add_(1)
    left = 1.0
    for step in range(20):
        average.update(model, step)
        left *= (1 + step) / (10 + step)  # of the way from the first weight to this one
    assert average.values["weight"].item() == pytest.approx(first + 1 - left, abs=1e-5)
    average.update(model, 10**6)
    assert average.values["weight"].item() == pytest.approx(first + 1 - 0.999 * left, abs=1e-5)


def test_the_averaged_weights_are_what_is_measured_and_kept(whole):
    plain, _ = fitted(ema=0.0)
    averaged, _ = whole
    assert not torch.equal(plain["0.weight"], averaged["0.weight"])
    assert torch.equal(plain["1.num_batches_tracked"], averaged["1.num_batches_tracked"])
    seen = []
    fitted(how={"on_epoch": lambda entry, model: seen.append(weights(model))})
    assert equal(seen[-1], averaged)


def test_an_epochs_caller_can_end_the_run_for_good(tmp_path):
    _, done = fitted(tmp_path, how={"on_epoch": lambda entry, model: entry["epoch"] == 2})
    assert [entry["epoch"] for entry in done.history] == [1, 2]
    _, again = fitted(tmp_path, how={"on_epoch": lambda entry, model: pytest.fail("trained on")})
    assert again.history == done.history


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_step_and_the_resumed_run_ends_bit_equal(
    tmp_path, whole, monkeypatch, number, code
):
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    real, calls = Step.__call__, []

    def signalled(self, *batch):
        calls.append(1)
        if len(calls) == 8:
            os.kill(os.getpid(), number)
        return real(self, *batch)

    monkeypatch.setattr(Step, "__call__", signalled)
    with pytest.raises(Stopped, match=r"epoch 2, step 3.*run it again") as stopped:
        fitted(tmp_path, checkpoint_epochs=9)
    assert stopped.value.exit_code == code
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    note = read(tmp_path / NAME).note
    assert (note["epoch"], note["batch"]) == (1, 3)
    final, done = fitted(tmp_path, checkpoint_epochs=9)
    assert equal(final, whole[0])
    assert [e["losses"] for e in done.history] == [e["losses"] for e in whole[1].history]
    assert len(calls) == 20


def test_outside_the_main_thread_signals_are_left_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(fitted(epochs=1)))
    thread.start()
    thread.join()
    assert len(results) == 1


def test_a_loss_that_is_no_number_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "PAUSE", 0)
    with pytest.raises(
        UserError, match=r"diverged in epoch 2, step 5 .*trouble nan.*last good checkpoint is .* lower lr"
    ):
        fitted(tmp_path, how=with_trouble(8, lambda value: value + float("nan")))
    kept = read(tmp_path / NAME)
    assert (kept.note["epoch"], kept.note["batch"]) == (1, 0)
    assert all(value.isfinite().all() for value in kept.tensors.values())


def test_a_checkpoint_with_a_weight_that_is_no_number_is_not_written(tmp_path):
    """The loss is finite but its gradient is not: the square root's at zero."""
    model = net()

    def deed(value):
        return value + (0 * next(model.parameters()).sum()).sqrt()

    with pytest.raises(UserError, match="diverged"):
        fit(model, pictures(), settings(checkpoint_seconds=0), out=tmp_path, **with_trouble(4, deed))
    kept = read(tmp_path / NAME)
    assert kept.note["batch"] == 3
    assert all(value.isfinite().all() for value in kept.tensors.values())


def test_an_exploding_loss_stops_the_run(tmp_path):
    with pytest.raises(UserError, match=r"diverged in epoch 1, step 5 .*trouble"):
        fitted(tmp_path, how=with_trouble(2, lambda value: value + 1e9))
    with pytest.raises(UserError, match="try a lower lr"):
        fitted(how=with_trouble(2, lambda value: value + 1e9))


def test_a_full_disk_leaves_the_old_checkpoint_as_it_was(tmp_path, monkeypatch):
    fitted(tmp_path, epochs=1)
    before = (tmp_path / NAME).read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"the disk is full\); the one before is kept"):
        fitted(tmp_path, epochs=2, how={"resume": "changed"})
    monkeypatch.undo()
    assert (tmp_path / NAME).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {NAME, "log.jsonl"}


def test_a_folder_that_cannot_be_written_is_found_before_the_first_step(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        fitted(tmp_path / "file" / "run", how=with_trouble(1, lambda value: pytest.fail("it trained")))


def test_another_runs_folder_is_refused_with_the_first_difference(tmp_path):
    fitted(tmp_path, epochs=1)
    before = (tmp_path / NAME).read_bytes()
    with pytest.raises(UserError, match=r"another run: terms.l2_cosine.cosine is 0.7 here and 0.5 there"):
        fitted(tmp_path, epochs=1, terms={"l2_cosine": {"l2": 0.1, "cosine": 0.7}})
    with pytest.raises(UserError, match=r"the training data is"):
        fitted(tmp_path, epochs=1, data=pictures(seed=1))
    with pytest.raises(UserError, match=r"holds a run already"):
        fitted(tmp_path, epochs=1, how={"resume": "never"})
    with pytest.raises(UserError, match=r"no resume 'sometimes'"):
        fitted(tmp_path, epochs=1, how={"resume": "sometimes"})
    assert (tmp_path / NAME).read_bytes() == before


def test_a_run_that_took_no_step_does_not_bind_the_next(tmp_path):
    def refuse(value):
        raise UserError("no teacher")

    with pytest.raises(UserError, match="no teacher"):
        fitted(tmp_path, how=with_trouble(1, refuse))
    assert read(tmp_path / NAME).note["batch"] == 0
    _, done = fitted(tmp_path, epochs=1, lr=0.5)
    assert len(done.history) == 1


def test_settings_without_effect_may_differ_and_changed_ones_go_on_when_told_to(tmp_path):
    fitted(tmp_path, epochs=1)
    _, done = fitted(tmp_path, epochs=1, checkpoint_seconds=7.0, loss_limit=1e5)
    assert len(done.history) == 1
    _, done = fitted(tmp_path, epochs=3, how={"resume": "changed"})
    assert len(done.history) == 3


def test_labels_of_a_shorter_type_train_the_same_weights():
    data = pictures()
    short = replace(data, labels=data.labels.to(torch.int16))
    options = {"epochs": 1, "regularized_fraction": 1, "regularize_every": 1}
    assert equal(fitted(data=data, **options)[0], fitted(data=short, **options)[0])


@pytest.mark.parametrize(("before", "after"), [("sgd", "adam"), ("adam", "sgd")])
def test_a_run_resumed_with_another_optimizer_begins_its_state_afresh(tmp_path, before, after):
    fitted(tmp_path, epochs=1, optimizer=before)
    _, done = fitted(tmp_path, epochs=2, optimizer=after, how={"resume": "changed"})
    names = {key.rpartition(".")[2] for key in read(tmp_path / NAME).tensors if key.startswith("optimizer.")}
    assert len(done.history) == 2
    assert names == ({"momentum_buffer"} if after == "sgd" else {"step", "exp_avg", "exp_avg_sq"})


def test_a_file_that_is_no_checkpoint_is_named(tmp_path):
    (tmp_path / NAME).write_bytes(b"something else")
    with pytest.raises(UserError, match=r"checkpoint.safetensors is not a checkpoint"):
        fitted(tmp_path)


def test_precision_of_products_is_put_back():
    place = torch.backends.cudnn.conv
    before, seen = place.fp32_precision, []
    fitted(epochs=1, how={"on_epoch": lambda entry, model: seen.append(place.fp32_precision)})
    assert seen == ["ieee"]
    assert place.fp32_precision == before


BAD = {
    "classes": (
        {"model": lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))},
        "num_classes=3",
    ),
    "frozen": ({"model": lambda: net().requires_grad_(False)}, "no weights that learn; unfreeze some"),
    "no loss": ({"cross_entropy": 0, "terms": {}}, "Some steps have no loss"),
    "no loss in most steps": ({"cross_entropy": 0, "regularize_every": 2}, "or regularize_every 1"),
    "weight 0": ({"terms": {"adversarial": {"weight": 0}}}, "a term a weight"),
    "no cross-entropy to smooth": (
        {"label_smoothing": 0.1, "terms": {"adversarial": {}}},
        "label_smoothing 0.1 is for the clean cross-entropy",
    ),
    "bf16": ({"precision": "bf16"}, "differentiates a gradient.*allow_bf16"),
    "tf32 on a CPU": ({"precision": "tf32"}, "on cpu give fp32"),
    "crop": ({"crop": 8}, "give fewer pixels"),
    "cutout": ({"cutout": 9}, "give a smaller square"),
    "device": ({"device": "cuda:99"}, "no device 'cuda:99'"),
    "device name": ({"device": "gpu"}, "no device 'gpu'"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_what_cannot_train_is_refused_before_the_first_step(case, tmp_path):
    changes, sentence = BAD[case]
    model = dict(changes).pop("model", net)()
    changes = {key: value for key, value in changes.items() if key != "model"}
    with pytest.raises(UserError, match=sentence):
        fit(model, pictures(), settings(**changes), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_points_cannot_be_cropped_and_one_class_cannot_be_learnt():
    points = gg.dataset("toy2d", n=10)
    with pytest.raises(UserError, match="not made of images, so crop"):
        fit(gg.model("mlp"), points, settings(terms={}))
    data = pictures(6)
    one = type(data)(data.images, torch.zeros(6, dtype=torch.int64), ("row",), "one")
    with pytest.raises(UserError, match="one class"):
        fit(net(), one, settings())


def test_bf16_trains_first_order_objectives_and_others_when_allowed():
    _, done = fitted(epochs=1, precision="bf16", terms={"max_entropy": {}}, ema=0.0)
    _, allowed = fitted(epochs=1, precision="bf16", allow_bf16=True)
    for run in (done, allowed):
        assert all(torch.tensor(v).isfinite() for v in run.history[0]["losses"].values())


def test_a_start_gives_its_weights_and_must_fit(tmp_path):
    small = {"model": "mlp", "data": "toy2d", "data_settings": {"n": 20}, "terms": {}}
    calm = {
        "crop": 0,
        "flip": False,
        "zoom": 1.0,
        "regularized_fraction": 1.0,
        "lr": 1e-30,
        "warmup": 0.0,
        "ema": 0.0,
        "epochs": 1,
    }
    first = gg.model("mlp", seed=5)
    gg.save(tmp_path / "first.safetensors", first)
    done = train(settings(start=str(tmp_path / "first.safetensors"), **small, **calm), tmp_path / "run")
    assert equal(weights(done.model), weights(first))
    wide = {"model_settings": {"hidden": [7]}}
    with pytest.raises(UserError, match="do not fit"):
        train(settings(start=str(tmp_path / "first.safetensors"), **small, **calm, **wide), tmp_path / "wide")


def test_tensorboard_gets_every_epoch(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fitted(tmp_path, tensorboard=True, epochs=2)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("losses/loss")] == [1, 2]
    assert "losses/l2_cosine.cosine" in events.Tags()["scalars"]


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("images", "settings", "refused"),
    [
        (9, {}, True),
        (10, {}, False),
        (9, steady_settings(), True),
        (10, steady_settings(), False),
        (10, {"terms": {"l2_cosine": {}}, "regularized_fraction": 0.25}, True),
        (10, {"terms": {"l2_cosine": {}}, "regularized_fraction": 0.25, "fast": True}, False),
    ],
)
def test_a_last_batch_that_batchnorm_cannot_normalise_is_refused_before_the_first_step(
    images, settings, refused
):
    model, data = normed(), gg.dataset("shapes", n=images)
    before = copy.deepcopy(model.state_dict())
    call = partial(fit, model, data, TrainSettings(epochs=1, batch_size=8, **settings))
    if not refused:
        call()
        return
    with pytest.raises(
        UserError, match=f"of the {images} images, of which BatchNorm would normalise one alone"
    ):
        call()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class WithExtraState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = normed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.core(x)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 1}

    def set_extra_state(self, state: object) -> None: ...


@pytest.mark.parametrize(
    ("model", "words"),
    [(WithExtraState(), "holds '_extra_state', a dict"), (normed().double(), "give it weights of float32")],
)
def test_a_model_that_cannot_be_trained_or_written_is_refused_in_one_sentence(model, words):
    with pytest.raises(UserError, match=words):
        fit(model, gg.dataset("shapes", n=16), TrainSettings(epochs=1, batch_size=8))
