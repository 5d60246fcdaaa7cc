from __future__ import annotations

import hashlib
import importlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import gyrograd as gg
from gyrograd.data.cifar10 import (
    BINARY,
    FILES,
    PICKLED,
    RECORD,
    data_root,
    from_pickle,
    from_records,
    to_records,
)
from gyrograd.errors import UserError

# The package gives the factory the module's name, so the module is reached by import_module.
module = importlib.import_module("gyrograd.data.cifar10")
N = 4


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(name) + sum(name.encode()))
    return rng.integers(0, 256, (N, 3, 32, 32), np.uint8), rng.integers(0, 10, N, np.uint8)


def records_byte_by_byte(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The official layout spelt out: label, then red, green, blue, each row after row."""
    out = bytearray()
    for image, label in zip(images, labels, strict=True):
        out.append(int(label))
        for plane in image:
            for row in plane:
                out.extend(int(value) for value in row)
    return bytes(out)


def python2_pickle(images: np.ndarray, labels: np.ndarray) -> bytes:
    """A batch as Python 2 pickled it, opcode by opcode: byte strings, and numpy under its old module name."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING

    dtype = (
        b"cnumpy\ndtype\n("
        + text(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    shape = b"(" + b"".join(b"J" + struct.pack("<i", side) for side in (len(images), 3072)) + b"t"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
        b"(K\x01" + shape + dtype + b"\x89" + text(images.tobytes()) + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def put(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny CIFAR-10 under root, with the md5 table of its files."""
    home = root / kind
    home.mkdir(parents=True)
    table = {}
    for name in (*FILES["train"], *FILES["test"]):
        content = records_byte_by_byte(*batch(name)) if kind == BINARY else python2_pickle(*batch(name))
        file = name + (".bin" if kind == BINARY else "")
        (home / file).write_bytes(content)
        table[file] = hashlib.md5(content).hexdigest()
    monkeypatch.setitem(module.MD5, kind, table)
    return home


@pytest.mark.parametrize("kind", [BINARY, PICKLED])
def test_both_folders_give_images_labels_and_order(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, kind, monkeypatch)
    for split, names in FILES.items():
        data = gg.dataset("cifar10", split=split, root=tmp_path)
        assert torch.equal(data.images, torch.from_numpy(np.concatenate([batch(name)[0] for name in names])))
        assert data.labels.tolist() == np.concatenate([batch(name)[1] for name in names]).tolist()
        assert data.labels.dtype == torch.int64
        assert data.classes[3] == "cat"
        few = gg.dataset("cifar10", split=split, root=tmp_path, n=2)
        assert torch.equal(few.images, data.subset(2).images)
        assert torch.equal(few.labels, data.subset(2).labels)


def test_records_go_there_and_back() -> None:
    images, labels = batch("any")
    content = to_records(images, labels)
    assert content == records_byte_by_byte(images, labels)
    again = from_records(content, Path("any"))
    assert np.array_equal(again[0], images)
    assert np.array_equal(again[1], labels)


def test_a_batch_pickled_by_a_new_python_is_read_too() -> None:
    images, labels = batch("new")
    content = pickle.dumps({"data": images.reshape(N, -1), "labels": labels.tolist()}, protocol=4)
    again = from_pickle(content, Path("new"))
    assert np.array_equal(again[0], images)
    assert np.array_equal(again[1], labels)


class Malice:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    content = pickle.dumps({"data": Malice(marker), "labels": []}, protocol=protocol)
    pickle.loads(content)
    assert marker.exists(), "the attack itself must work, or this test shows nothing"
    marker.unlink()
    with pytest.raises(UserError, match=r"is not a CIFAR-10 batch \(it asks for "):
        from_pickle(content, tmp_path / "data_batch_1")
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        python2_pickle(*batch("x"))[:-500],
        pickle.dumps([1, 2]),
        pickle.dumps({"data": [1, 2, 3], "labels": [1]}),
        pickle.dumps({"labels": [1]}),
    ],
)
def test_a_damaged_pickle_gives_one_sentence(content: bytes) -> None:
    with pytest.raises(
        UserError, match=r"data_batch_1 is not a CIFAR-10 batch .* run `gyrograd data fetch cifar10`"
    ):
        from_pickle(content, Path("data_batch_1"))


def test_a_missing_data_set_names_the_command_and_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        gg.dataset("cifar10", root=tmp_path)
    assert str(caught.value) == (
        f"CIFAR-10 is not in {tmp_path}: run `gyrograd data fetch cifar10`, "
        "or put the folder cifar-10-batches-py or cifar-10-batches-bin there."
    )


def test_a_file_cut_short_changed_or_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = put(tmp_path, BINARY, monkeypatch)
    whole = (home / "test_batch.bin").read_bytes()
    for content, message in (
        (whole[:-1], r"test_batch.bin is cut short \(12,291 bytes"),
        (whole[:-RECORD], "test_batch.bin is damaged .its md5"),
        (bytes([whole[0] ^ 1]) + whole[1:], "test_batch.bin is damaged .its md5"),
    ):
        (home / "test_batch.bin").write_bytes(content)
        with pytest.raises(UserError, match=message):
            gg.dataset("cifar10", split="test", root=tmp_path)
    (home / "test_batch.bin").unlink()
    with pytest.raises(UserError, match=r"CIFAR-10 is not complete, .*test_batch.bin is missing"):
        gg.dataset("cifar10", split="test", root=tmp_path)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(UserError, match=r"cifar10 has no split 'trian': did you mean 'train'?"):
        gg.dataset("cifar10", split="trian")


def test_the_data_root_is_the_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYROGRAD_DATA", "~/here")
    assert data_root() == Path.home() / "here"
    monkeypatch.delenv("GYROGRAD_DATA")
    assert data_root() == Path.home() / ".cache" / "gyrograd"


def test_the_root_variable_is_where_cifar10_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, BINARY, monkeypatch)
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    assert len(gg.dataset("cifar10", split="test")) == N
