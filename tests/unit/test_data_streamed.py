"""Images that are read when asked for give the same numbers as those held in memory, one part at a time."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from small_audits import SMALL, small_net
from tiny_sweeps import CLASSES, SIDE, base, write_images

from gyrograd.audit import audit
from gyrograd.data import Dataset, batches, folder
from gyrograd.data.opening import Choice, open_data, open_data_with_names
from gyrograd.data.streamed import Blob, Streamed
from gyrograd.errors import UserError
from gyrograd.numerics.checks import TRIAL_ROWS
from gyrograd.training import TrainSettings, train


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def both(home: Path, monkeypatch: pytest.MonkeyPatch, size: int = SIDE) -> tuple[Dataset, Dataset]:
    """The same folder in memory and streamed."""
    held = folder(home, "test", size)
    monkeypatch.setenv("GYROGRAD_STREAM_ABOVE", "0")
    return held, folder(home, "test", size)


def test_a_streamed_folder_gives_the_same_batches_in_the_same_order(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, streamed = both(home, monkeypatch)
    assert isinstance(streamed.images, Streamed)
    assert repr(held) == repr(streamed)
    for ours, theirs in zip(
        batches(held, 7, shuffle_seed=3), batches(streamed, 7, shuffle_seed=3), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    few = [data.subset(5, seed=1) for data in (held, streamed)]
    assert torch.equal(few[0].pixels(), few[1].pixels())
    assert torch.equal(held.pixels(), streamed.pixels())
    assert torch.equal(held.images[-2], streamed.images[-2])
    second = held.labels == 1
    assert torch.equal(held.pixels(second), streamed.pixels(second))
    assert torch.equal(held.rows(second).pixels(), streamed.rows(second).pixels())
    assert streamed.digest() != few[1].digest()


def test_an_audit_reads_no_more_than_a_shard_at_once_and_gives_the_same_numbers(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, streamed = both(home, monkeypatch, size=10)
    most = 0
    read = Streamed.__getitem__

    def counted(self: Streamed, index: slice | torch.Tensor | int) -> torch.Tensor:
        nonlocal most
        images = read(self, index)
        most = max(most, 1 if isinstance(index, int) else len(images))
        return images

    monkeypatch.setattr(Streamed, "__getitem__", counted)
    settings = {"preset": SMALL, "attacks": ["top_k"], "sweep": {}, "methods": ["gradient"]}
    one, two = (audit(small_net(), data, **settings) for data in (held, streamed))
    assert {name: r.values for name, r in one.records.items()} == {
        name: r.values for name, r in two.records.items()
    }
    assert one.document["accuracy"] == two.document["accuracy"]
    assert most <= max(SMALL.flag_images, TRIAL_ROWS) < len(held)


def test_training_on_a_streamed_folder_gives_the_same_weights(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainSettings(**base(home, epochs=1))
    one = train(settings, tmp_path / "held")
    monkeypatch.setenv("GYROGRAD_STREAM_ABOVE", "0")
    two = train(settings, tmp_path / "streamed")
    for ours, theirs in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def write_tar(path: Path, home: Path, *, classes: str | None) -> Path:
    """The test images of a folder in WebDataset's form."""
    with tarfile.open(path, "w") as tar:

        def add(name: str, content: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        for file in sorted((home / "test").rglob("*.png")):
            label = CLASSES.index(file.parent.name)
            if classes == "cls":
                add(f"{file.stem}.cls", str(label).encode())
            elif classes == "json":
                add(f"{file.stem}.json", json.dumps({"label": label}).encode())
            add(f"{file.stem}.png", file.read_bytes())
    return path


@pytest.mark.parametrize("classes", ["cls", "json"])
def test_tar_files_in_webdatasets_form_hold_the_same_images_and_classes(
    home: Path, tmp_path: Path, classes: str
) -> None:
    data = open_data(str(write_tar(tmp_path / "a.tar", home, classes=classes)), size=SIDE)
    held = folder(home, "test", SIDE)
    assert isinstance(data.images, Streamed)
    by_name = {int(file.stem): i for i, file in enumerate(sorted((home / "test").rglob("*.png")))}
    order = torch.tensor([by_name[i] for i in sorted(by_name)])
    assert torch.equal(data.pixels(), held.pixels(order))
    assert torch.equal(data.labels, held.labels[order])


def test_some_images_of_tar_files_are_chosen_by_the_seed_and_keep_their_numbers(
    home: Path, tmp_path: Path
) -> None:
    path = str(write_tar(tmp_path / "a.tar", home, classes=None))
    some, all_ = (
        open_data_with_names(path, Choice(size=SIDE, images=5, seed=2)),
        open_data_with_names(path, Choice(size=SIDE)),
    )
    assert all_.data.classes == ("unlabelled",)
    assert torch.equal(some.data.pixels(), all_.data.pixels(torch.tensor(some.index)))
    with pytest.raises(UserError, match="no class .*--unlabelled"):
        open_data(path, size=SIDE, labelled=True)
    with pytest.raises(UserError, match="no splits"):
        open_data(path, size=SIDE, split="test")


def test_what_cannot_be_read_is_one_sentence(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no tar" * 200)
    with pytest.raises(UserError, match="cannot be read as a tar file"):
        open_data(str(tmp_path / "bad.tar"), size=SIDE)
    gone = Streamed((Blob(tmp_path / "gone.png"),), (8, 8))
    with pytest.raises(UserError, match="gone.png cannot be read"):
        gone[:1]
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UserError, match="text.png cannot be read as an image"):
        Streamed((Blob(tmp_path / "text.png"),), (8, 8))[:1]
