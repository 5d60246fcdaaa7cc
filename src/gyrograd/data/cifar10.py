"""CIFAR-10 from files on disk: the pickled folder torchvision downloads, or the official binary one."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gyrograd.data.dataset import Dataset
from gyrograd.errors import UserError, did_you_mean
from gyrograd.registry import register

Bytes: TypeAlias = NDArray[np.uint8]

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BINARY, PICKLED = "cifar-10-batches-bin", "cifar-10-batches-py"
SHAPE = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32
FILES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}

# md5 of the official files by folder; any other means other pixels, labels or order.
MD5: dict[str, dict[str, str]] = {
    BINARY: {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    PICKLED: {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",  # not read here; torchvision wants it
    },
}


def data_root() -> Path:
    """Where data sets are kept: $GYROGRAD_DATA, or ~/.cache/gyrograd."""
    return Path(os.environ.get("GYROGRAD_DATA") or "~/.cache/gyrograd").expanduser()


@register("dataset", "cifar10", paper="Krizhevsky 2009")
def cifar10(split: str = "train", root: Path | str | None = None, n: int | None = None) -> Dataset:
    """CIFAR-10, 50,000 train and 10,000 test photographs of 32 x 32 pixels in ten classes.

    Args:
        split: train or test.
        root: the folder that holds cifar-10-batches-bin or cifar-10-batches-py; $GYROGRAD_DATA or
            ~/.cache/gyrograd by default.
        n: how many images, drawn as by `subset(n)`, which audits use too; default: all.

    >>> import gyrograd as gg
    >>> try:
    ...     gg.dataset("cifar10", split="validation")
    ... except gg.UserError as error:
    ...     print(error)
    cifar10 has no split 'validation': known: test, train.
    """
    if split not in FILES:
        raise UserError(f"cifar10 has no split '{split}': {did_you_mean(split, FILES)}")
    home = home_folder(root)
    suffix = ".bin" if home.name == BINARY else ""
    parts = [read_batch(home / f"{name}{suffix}") for name in FILES[split]]
    images, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    whole = Dataset(torch.from_numpy(images), torch.from_numpy(labels), CLASSES, f"cifar10 {split}")
    return whole if n is None else whole.subset(n)


def home_folder(root: Path | str | None = None) -> Path:
    """The folder of CIFAR-10 under a root; the binary one if there are both."""
    root = data_root() if root is None else Path(root).expanduser()
    for name in (BINARY, PICKLED):
        if (root / name).is_dir():
            return root / name
    raise UserError(
        f"CIFAR-10 is not in {root}: run `gyrograd data fetch cifar10`, "
        f"or put the folder {PICKLED} or {BINARY} there."
    )


def read_batch(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """Images and labels of one official file, md5 checked."""
    decode = from_records if path.parent.name == BINARY else from_pickle
    images, labels = decode(read_verified(path), path)
    return images, labels.astype(np.int64)


def read_verified(path: Path) -> bytes:
    """The bytes of an official file; a wrong md5 is an error."""
    again = f"delete {path.parent} and run `gyrograd data fetch cifar10`"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"CIFAR-10 is not complete, {path} is missing: {again}.") from None
    if path.parent.name == BINARY and len(content) % RECORD:
        raise UserError(
            f"{path} is cut short ({len(content):,} bytes, not a whole number of images): {again}."
        )
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5[path.parent.name][path.name]:
        raise UserError(f"{path} is damaged (its md5 is not that of the official file): {again}.")
    return content


def from_records(content: bytes, path: Path) -> tuple[Bytes, Bytes]:
    """Images and labels of binary records: a label byte, then the red, green and blue planes."""
    if not content or len(content) % RECORD:
        raise UserError(
            f"{path} does not hold whole records of {RECORD} bytes; give an official CIFAR-10 file."
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0]


def to_records(images: Bytes, labels: Bytes) -> bytes:
    """The binary records of these images: the inverse of `from_records`."""
    return np.concatenate((labels[:, None].astype(np.uint8), images.reshape(len(images), -1)), 1).tobytes()


def from_pickle(content: bytes, path: Path) -> tuple[Bytes, Bytes]:
    """Images and labels of a pickled batch; only numpy arrays are unpickled, and no code runs."""
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        images = np.asarray(batch["data"], np.uint8).reshape(-1, *SHAPE)
        labels = np.asarray(batch["labels"], np.uint8)
    except (pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError) as wrong:
        raise UserError(
            f"{path} is not a CIFAR-10 batch ({wrong or 'it is cut short'}); run `gyrograd data fetch cifar10`."
        ) from None
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """Unpickles only numpy arrays, under numpy's old and new module names."""

    def find_class(self, module: str, name: str) -> Any:
        rebuild = np.empty(0).__reduce__()[0]
        admitted = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("numpy.core.multiarray", "_reconstruct"): rebuild,
            ("numpy._core.multiarray", "_reconstruct"): rebuild,
        }
        if (module, name) not in admitted:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return admitted[module, name]
