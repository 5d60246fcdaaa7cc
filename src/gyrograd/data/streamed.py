"""Images that are read on demand: folders, tar files and tables larger than memory.

A `Streamed` takes the place of a data set's image tensor: it has a shape, a type and a device, and indexing it decodes
only those images. The same index gives the same bytes in any process, so order, seeds and resuming work as for a set in
memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gyrograd.errors import UserError

STREAM_ABOVE = 1 << 30
"""Bytes of decoded images above which a folder is streamed; $GYROGRAD_STREAM_ABOVE overrides it."""
DECODERS = 4
"""Threads that decode; Pillow releases Python's lock while it works."""


@runtime_checkable
class Encoded(Protocol):
    """Place of an image's encoded bytes; its text is the image's name."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class Blob:
    """Place of an image's bytes: a file, or a part of one (a member of a tar file)."""

    path: Path
    start: int = 0
    length: int | None = None
    name: str = ""

    def read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                return file.read() if self.length is None else file.read(self.length)
        except OSError as wrong:
            raise UserError(
                f"{self} cannot be read ({wrong.strerror}); the images must stay in place while they are measured."
            ) from None

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else str(self.path)


@dataclass(frozen=True, eq=False)
class Streamed:
    """Images that are decoded when they are indexed.

    `dtype` uint8: bytes; a float: pixels in [0, 1].
    """

    blobs: tuple[Encoded, ...]
    size: tuple[int, int]
    resize: int | None = None
    dtype: torch.dtype = torch.uint8
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.blobs), 3, *self.size))

    @property
    def ndim(self) -> int:
        return 4

    def dim(self) -> int:
        return 4

    def __len__(self) -> int:
        return len(self.blobs)

    def __getitem__(self, index: Int[Tensor, " n"] | Bool[Tensor, " every"] | slice | int) -> Tensor:
        if isinstance(index, int):
            return self[torch.tensor([index])][0]
        chosen = self.rows(index).blobs
        with ThreadPoolExecutor(min(DECODERS, len(chosen) or 1)) as threads:
            images = list(threads.map(self._decode, chosen))
        bytes_ = torch.stack(images) if images else torch.zeros(0, 3, *self.size, dtype=torch.uint8)
        if self.dtype != torch.uint8:
            # In float32 first, as for a set in memory, for any precision of the model.
            bytes_ = (bytes_.to(torch.float32) / 255).to(self.dtype)
        return bytes_.to(self.device)

    def rows(self, index: Int[Tensor, " n"] | Bool[Tensor, " every"] | slice) -> Streamed:
        """These images, not yet read."""
        if isinstance(index, slice):
            return replace(self, blobs=self.blobs[index])
        # A tensor of numbers is indexed, so that flags choose images here as they do of a set in memory.
        numbers = torch.arange(len(self))[index.cpu()]
        return replace(self, blobs=tuple(self.blobs[i] for i in numbers.tolist()))

    def to(self, kind: torch.device | str | torch.dtype) -> Streamed:
        """The same on another device, or as pixels of a floating type."""
        if isinstance(kind, torch.dtype):
            return replace(self, dtype=kind)
        return replace(self, device=torch.device(kind))

    def split(self, size: int) -> Iterator[Tensor]:
        """All images, `size` at a time."""
        return (self[slice(first, first + size)] for first in range(0, len(self), size))

    def digest(self) -> str:
        """The sha256 of the files and of their crop, without decoding them."""
        total = hashlib.sha256(f"{self.size} {self.resize} {len(self)}".encode())
        for blob in self.blobs:
            total.update(hashlib.sha256(blob.read()).digest())
        return total.hexdigest()

    def _decode(self, blob: Encoded) -> Tensor:
        from gyrograd.data.folder import decode_image  # here, because that module imports this one

        return decode_image(io.BytesIO(blob.read()), str(blob), self.size, self.resize)


def is_large(images: int, size: tuple[int, int]) -> bool:
    """True if the decoded images are too large to be held in memory."""
    most = os.environ.get("GYROGRAD_STREAM_ABOVE", str(STREAM_ABOVE))
    if not most.isdecimal():
        raise UserError(f"GYROGRAD_STREAM_ABOVE is '{most}'; give a number of bytes.")
    return images * 3 * size[0] * size[1] > int(most)


def tar_members(files: Sequence[Path]) -> list[tuple[Blob, int | None]]:
    """The images of WebDataset tar files with their classes: KEY.jpg with KEY.cls or KEY.json.

    Image and class of a key may be anywhere in the same file. Without classes each image has None.
    """
    found: list[tuple[Blob, int | None]] = []
    for path in files:
        images, classes = _members(path)
        found += [(blob, classes.get(key)) for key, blob in sorted(images.items())]
    return found


def _members(path: Path) -> tuple[dict[str, Blob], dict[str, int]]:
    from gyrograd.data.folder import ENDINGS

    images: dict[str, Blob] = {}
    classes: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as tar:  # uncompressed only, so that a member can be read by its offset
            for member in tar:
                if not member.isfile():
                    continue
                # WebDataset: the key ends at the first dot of the file's name
                name = PurePosixPath(member.name)
                stem, _, ending = name.name.partition(".")
                key = str(name.parent / stem)
                if f".{ending.lower().rpartition('.')[2]}" in ENDINGS:
                    images[key] = Blob(path, member.offset_data, member.size, member.name)
                elif ending in ("cls", "json"):
                    file = tar.extractfile(member)
                    assert file is not None
                    classes |= _class_of(key, ending, file.read(), path)
    except tarfile.TarError as wrong:
        raise UserError(
            f"{path} cannot be read as a tar file ({wrong}); give uncompressed .tar files of images."
        ) from None
    except OSError as wrong:
        raise UserError(f"{path} cannot be read ({wrong.strerror}); check the path.") from None
    return images, classes


def _class_of(key: str, ending: str, content: bytes, path: Path) -> dict[str, int]:
    """The class in this member, if any: KEY.cls is a number, KEY.json may have "label" or "cls"."""
    try:
        if ending == "cls":
            return {key: int(content)}
        found = json.loads(content)
        named = [found[name] for name in ("label", "cls") if isinstance(found, dict) and name in found]
        return {key: int(named[0])} if named else {}
    except (ValueError, TypeError):
        raise UserError(
            f"{path} has no number in {key}.{ending}; write the number of the class there."
        ) from None
