"""When a run's files are written, and that they fit together however it ends. The clock is the tests' own."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import time

import pytest
import small_training
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import net, pictures

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models.checkpoints import facts
from gyrograd.training import Stopped, TrainSettings, fit, read_log, runs, snapshots
from gyrograd.training.loop import Step, TrainingProgress
from gyrograd.training.runs import LOG, PAUSE, FilesOnDisk
from gyrograd.training.snapshots import NAME, Snapshot, finite, read

BEST = "best.safetensors"


class Clock:
    """Seconds pass in steps and in fsyncs, as many as the test says, and nowhere else."""

    def __init__(self, monkeypatch, *, step=0.1, fsync=0.02):
        self.now, self.written = 0.0, 0.0
        real_step, real_fsync = Step.__call__, os.fsync

        def stepped(this, *batch):
            self.now += step
            return real_step(this, *batch)

        def synced(handle):
            self.now, self.written = self.now + fsync, self.written + fsync
            real_fsync(handle)

        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(Step, "__call__", stepped)
        monkeypatch.setattr(os, "fsync", synced)


class Killed(BaseException):
    """What a kill -9 leaves on disk, without the process."""


def points(n=40, seed=0):
    return gg.dataset("toy2d", n=n, seed=seed)


def trained(out, *, epochs=4, how=None, **changes):
    """A small net on points, four steps an epoch."""
    model = gg.model("mlp", in_features=2, hidden=[4], num_classes=2, seed=0)
    settings = TrainSettings(epochs=epochs, batch_size=10, lr=1e-2, device="cpu", **changes)
    return fit(model, points(), settings, test=points(30, 1), out=out, **(how or {}))


@pytest.fixture(autouse=True)
def better_every_epoch(monkeypatch):
    """Accuracy rises all the time: every epoch is the best."""
    rising = itertools.count(1)
    monkeypatch.setattr(runs.TrainingRun, "accuracy", lambda run, data: next(rising) / 1000)


def best_in(out):
    return facts(out / BEST)["epoch"] if (out / BEST).exists() else None


def noted_best(out):
    note = read(out / NAME).note
    return None if note["best"] is None else note["best"]["epoch"]


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.001, 2)), min_size=1, max_size=60),
)
@settings(deadline=None, max_examples=50)
def test_writing_takes_at_most_a_fiftieth_of_the_time_whatever_epochs_and_disk(epochs):
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now[0])
        written, costs = FilesOnDisk(), []
        for seconds, cost in epochs:
            now[0] += seconds
            if written.may_write():
                with written.timed():
                    now[0] += cost
                costs.append(cost)
    # the last one has not been made up for yet
    assert sum(costs[:-1]) <= now[0] / PAUSE + 1e-9
    assert costs


def test_an_epoch_that_is_long_enough_is_always_a_time_to_write(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    written = FilesOnDisk()
    for _ in range(5):
        assert written.may_write()
        with written.timed():
            now[0] += 0.5
        now[0] += PAUSE * 0.5 - 0.1
        assert not written.may_write()
        now[0] += 0.2


def test_a_writing_that_fails_does_not_count():
    written = FilesOnDisk()
    with pytest.raises(UserError), written.timed():
        raise UserError("full")
    assert written == FilesOnDisk()


def test_short_epochs_spend_a_fiftieth_on_all_files_together(tmp_path, monkeypatch):
    clock, marks = Clock(monkeypatch), []
    trained(tmp_path, epochs=60, how={"on_epoch": lambda *_: marks.append((clock.now, clock.written))})
    (_, first), (now, last) = marks[0], marks[-1]
    assert first == pytest.approx(0.02)  # the checkpoint before the first step
    assert 0.06 < last - first <= now / PAUSE
    assert [entry["epoch"] for entry in read_log(tmp_path)] == list(range(1, 61))
    assert best_in(tmp_path) == noted_best(tmp_path) == 60


def test_after_long_epochs_every_file_is_of_that_epoch(tmp_path, monkeypatch):
    Clock(monkeypatch, step=15.0, fsync=0.2)
    seen = []

    def look(entry, model):
        if entry["epoch"] > 1:
            seen.append((read(tmp_path / NAME).note["epoch"], best_in(tmp_path), len(read_log(tmp_path))))

    trained(tmp_path, epochs=5, how={"on_epoch": look}, checkpoint_seconds=1e9)
    assert seen == [(epoch, epoch, epoch) for epoch in (1, 2, 3, 4)]


def test_the_log_does_not_wait_for_checkpoints_that_are_asked_for_seldom(tmp_path, monkeypatch):
    Clock(monkeypatch, step=15.0, fsync=0.2)
    seen = []

    def look(entry, model):
        lines = len(read_log(tmp_path)) if (tmp_path / LOG).exists() else 0
        seen.append((read(tmp_path / NAME).note["epoch"], best_in(tmp_path), lines))

    trained(tmp_path, epochs=6, how={"on_epoch": look}, checkpoint_seconds=1e9, checkpoint_epochs=3)
    assert seen == [(0, None, 0), (0, None, 1), (0, None, 2), (3, 3, 3), (3, 3, 4), (3, 3, 5)]


def test_checkpoint_seconds_count_from_the_checkpoint_and_not_from_the_log(tmp_path, monkeypatch):
    Clock(monkeypatch, step=15.0, fsync=0.0)
    seen = []
    trained(
        tmp_path,
        epochs=4,
        how={"on_epoch": lambda *_: seen.append(read(tmp_path / NAME).note["epoch"])},
        checkpoint_seconds=100,
        checkpoint_epochs=9,
    )
    assert seen == [0, 1, 1, 3]  # 60 s an epoch: checkpoints inside the second and the fourth


def test_a_stop_writes_everything_that_short_epochs_had_put_off(tmp_path, monkeypatch):
    Clock(monkeypatch, step=1e-3, fsync=1.0)

    def ask(entry, model):
        if entry["epoch"] == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="epoch 8, step 1"):
        trained(tmp_path, epochs=9, how={"on_epoch": ask})
    assert read(tmp_path / NAME).note["epoch"] == 7
    assert best_in(tmp_path) == noted_best(tmp_path) == 7
    assert len(read_log(tmp_path)) == 7


def test_the_log_counts_the_seconds_of_an_epoch_before_and_after_an_interruption(tmp_path, monkeypatch):
    Clock(monkeypatch, step=15.0, fsync=0.0)
    real, calls = Step.__call__, []

    def interrupted(this, *batch):
        calls.append(1)
        if len(calls) == 7:  # the third of four steps of the second epoch
            os.kill(os.getpid(), signal.SIGTERM)
        return real(this, *batch)

    monkeypatch.setattr(Step, "__call__", interrupted)
    with pytest.raises(Stopped, match="stopped in epoch 2, step 3"):
        trained(tmp_path, epochs=3)
    trained(tmp_path, epochs=3)
    assert [entry["seconds"] for entry in read_log(tmp_path)] == [60.0, 60.0, 60.0]


def test_an_error_leaves_the_log_whole_and_the_best_model_with_its_checkpoint(tmp_path, monkeypatch):
    Clock(monkeypatch, step=1e-3, fsync=1.0)

    def fail(entry, model):
        if entry["epoch"] == 7:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        trained(tmp_path, epochs=9, how={"on_epoch": fail})
    assert len(read_log(tmp_path)) == 6
    assert best_in(tmp_path) == noted_best(tmp_path)
    # what the log has beyond the checkpoint is taken back before the run goes on
    lines = []
    trained(tmp_path, epochs=9, how={"on_epoch": lambda *_: lines.append(len(read_log(tmp_path)))})
    assert lines == [0] * 9
    assert len(read_log(tmp_path)) == 9


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("what", ["checkpoint", "best", "log"])
def test_killed_before_any_file_a_run_goes_on_to_the_same_best_model(tmp_path, monkeypatch, what, at):
    """Every second epoch is written; the kill comes right before the at-th writing of one of the files."""
    monkeypatch.setattr(runs, "PAUSE", 0)
    often = {"checkpoint_epochs": 2, "epochs": 8}
    owner, name = {"checkpoint": (snapshots, "write"), "best": (runs, "save"), "log": (runs, "replace_file")}[
        what
    ]
    real, calls = getattr(owner, name), []

    def killed(*given, **named):
        calls.append(1)
        if len(calls) == at + (what == "checkpoint"):  # the first checkpoint holds no step
            raise Killed
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        # a killed process writes no log on its way out
        patch.setattr(
            runs.TrainingRun, "_write_log", writes_no_more(runs.TrainingRun._write_log, calls, at, what)
        )
        with pytest.raises(Killed):
            trained(tmp_path / "killed", **often)
    out = tmp_path / "killed"
    on_disk, noted, epoch = best_in(out), noted_best(out), read(out / NAME).note["epoch"]
    assert on_disk == noted or (what == "best" and (on_disk or 0) < noted)
    seen = []
    look = {"on_epoch": lambda *_: seen.append((best_in(out), len(read_log(out)) if epoch else 0))}
    trained(out, how=look, **often)
    assert [*seen, (best_in(out), 8)][0] == (noted, epoch)
    assert len(read_log(out)) == 8


def writes_no_more(real, calls, at, what):
    def write(run, place):
        if len(calls) < at + (what == "checkpoint"):
            real(run, place)

    return write


def test_the_best_model_of_a_killed_run_has_the_weights_of_its_epoch(tmp_path, monkeypatch):
    def broken(*given, **named):
        raise Killed

    whole = tmp_path / "whole"
    how = {"on_epoch": lambda entry, model: entry["epoch"] == 3}
    trained(whole, epochs=5, how=how)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "save", broken)
        with pytest.raises(Killed):
            trained(tmp_path / "killed", epochs=5, how=how)
    assert not (tmp_path / "killed" / BEST).exists()
    done = trained(tmp_path / "killed", epochs=5, how=how)
    mine, its = (gg.load(out / BEST).state_dict() for out in (tmp_path / "killed", whole))
    assert all(torch.equal(mine[key], its[key]) for key in its)
    assert all(torch.equal(done.model.state_dict()[key], its[key]) for key in its)


def test_writing_the_best_model_leaves_the_run_as_it_was(tmp_path, monkeypatch):
    """In the middle of an epoch, with averaged weights: the model wears the best ones only for the writing."""
    models = []
    for pause, seconds in ((0, 0), (1e9, 1e9)):
        monkeypatch.setattr(runs, "PAUSE", pause)
        out = tmp_path / str(pause)
        models.append(trained(out, ema=0.9, checkpoint_seconds=seconds).model.state_dict())
        models.append(gg.load(out / BEST).state_dict())
    for other in models[1:]:
        assert all(torch.equal(models[0][key], other[key]) for key in other)


def test_a_full_disk_at_the_best_model_is_a_sentence_and_nothing_is_lost(tmp_path, monkeypatch):
    real = runs.save

    def full(*given, **named):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(runs, "save", full)
    with pytest.raises(
        UserError, match=r"best.safetensors cannot be written \(the disk is full\); make room"
    ):
        trained(tmp_path, epochs=1)
    monkeypatch.setattr(runs, "save", real)
    trained(tmp_path, epochs=1)
    assert best_in(tmp_path) == 1


def test_a_net_that_no_file_could_build_again_has_no_best_file(tmp_path):
    fit(net(), pictures(), small_training.settings(epochs=1), test=pictures(6, 1), out=tmp_path)
    assert not (tmp_path / BEST).exists()
    assert not [key for key in read(tmp_path / NAME).tensors if key.startswith("best.")]


@given(
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]),
    st.lists(st.integers(0, 4), min_size=0, max_size=3),
    st.sampled_from([None, float("nan"), float("inf"), -float("inf")]),
    st.integers(0, 1000),
)
@settings(deadline=None, max_examples=50)
def test_one_number_that_is_none_is_found_wherever_it_stands(dtype, shape, bad, where):
    value = torch.full(shape, 3e38 if dtype.is_floating_point else 1).to(dtype)
    if bad is not None and dtype.is_floating_point and value.numel():
        value.view(-1)[where % value.numel()] = bad
    tensors = {"before": torch.ones(2), "value": value, "after": torch.zeros(1, dtype=torch.int64)}
    assert finite(Snapshot({}, tensors)) == bool(value.isfinite().all())


def test_what_is_taken_does_not_change_with_the_run():
    model = net().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    place = TrainingProgress()
    now = snapshots.take(
        model, optimizer, None, place, small_training.settings(), snapshots.fingerprint(pictures())
    )
    before = {key: value.clone() for key, value in now.tensors.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert all(torch.equal(now.tensors[key], before[key]) for key in before)
    assert all(value.is_contiguous() for value in now.tensors.values())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_read_from_a_file_has_its_state_laid_out_as_the_weights(kind):
    # A fused optimizer on CUDA refuses anything else, so a run that trains channels last could not go on.
    model = net().to(memory_format=torch.channels_last)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    data = pictures()
    torch.nn.functional.cross_entropy(model(data.pixels()), data.labels).backward()
    optimizer.step()
    settings, mark = small_training.settings(), snapshots.fingerprint(data)
    now = snapshots.take(model, optimizer, None, TrainingProgress(), settings, mark)
    fresh = net().to(memory_format=torch.channels_last)
    restored = kind(fresh.parameters(), lr=0.1, **options)
    snapshots.restore(now, fresh, restored, None)
    moments = 0
    for weight, old in zip(restored.state, optimizer.state.values(), strict=True):
        for name, value in restored.state[weight].items():
            assert torch.equal(value, old[name])
            if value.shape == weight.shape:
                assert value.stride() == weight.stride()
                moments += 1
    assert moments >= len(list(fresh.parameters()))


def test_outside_a_terminal_a_long_run_prints_the_time_left_once(tmp_path, monkeypatch, capsys):
    Clock(monkeypatch, step=60.0, fsync=0.0)
    trained(tmp_path, epochs=20)
    assert capsys.readouterr().err == "gyrograd: training: about 78 minutes on this machine.\n"
    Clock(monkeypatch, step=0.01, fsync=0.0)
    trained(None, epochs=2)
    assert capsys.readouterr().err == ""
