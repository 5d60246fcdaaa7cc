"""Images in Parquet and Arrow files, in the form in which Hugging Face `datasets` writes them, read on demand.

An image is a column of encoded bytes (PNG, JPEG), alone or as the field `bytes` of a struct, or the path of a file in
the field `path`; its class is a column of
numbers or names. The schema's metadata tell which columns they are and the names of the classes; without metadata
columns are found by their types and names.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from gyrograd.data.folder import ENDINGS as IMAGE_ENDINGS
from gyrograd.errors import UserError

T = TypeVar("T")

ENDINGS = (".parquet", ".arrow")
SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files that tell the folder of `save_to_disk`: of one split, or of several in sub-folders."""
DATA = "data"
"""The sub-folder of Parquet files in a repository of the Hugging Face Hub."""
IMAGE_NAMES = ("image", "img", "images")
LABEL_NAMES = ("label", "labels", "class", "cls", "target", "fine_label")
SPLITS = ("test", "validation", "valid", "val", "dev", "train")
"""Names of splits, in the order in which one is chosen."""
MAX_OPEN = 64
"""Most files that are kept open."""
KEPT_BYTES = 1 << 28
"""Most bytes of groups of rows in memory, of all Parquet files together; the last group is kept at any size."""


@dataclass(frozen=True)
class Row:
    """Place of an image's bytes: a row of a file."""

    path: Path
    number: int
    column: str

    def read(self) -> bytes:
        value = _reading(self.path, self._value)
        content = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(content, bytes):
            return content
        # `to_parquet` leaves images that it was given as files where they are.
        file = value.get("path") if isinstance(value, dict) else None
        if not isinstance(file, str):
            raise UserError(f"{self} holds no image; leave out rows without one.")
        try:
            return (self.path.parent / file).read_bytes()
        except OSError as wrong:
            raise UserError(
                f"{self} names {file}, which cannot be read ({wrong.strerror}); put the image there, or write the "
                "file again with its images inside: save_to_disk of Hugging Face datasets does."
            ) from None

    def _value(self) -> Any:
        found = self.path.stat()
        # With its time and size, since a file that is written again must not be read from memory.
        return _open(self.path, self.column, found.st_mtime_ns, found.st_size).value(self.number)

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


@dataclass(frozen=True)
class Rows:
    """Images of files, their labels (None: unknown) and the names of the classes, if the files have names."""

    images: list[Row]
    labels: list[int | None]
    names: tuple[str, ...] | None


def holds_tables(path: Path) -> bool:
    """True for a folder that `datasets` saved, or that holds Parquet files and no folders of images beside them."""
    if any((path / name).is_file() for name in (SAVED, SAVED_SPLITS)):
        return True
    children = [child for child in path.iterdir() if child.name[0] != "."]
    others = [child for child in children if child.is_dir() and child.name != DATA]
    files = [] if others else _parquet_files(path)
    beside = next((child for child in children if child.suffix.lower() in IMAGE_ENDINGS), None)
    if beside is not None and any(file.parent == path for file in files):
        raise UserError(
            f"{path} holds both images and Parquet files; give those that you mean, as '{path}/*.parquet' or "
            f"'{path}/*{beside.suffix}'."
        )
    return bool(files)


def files_in(folder: Path, split: str | None) -> list[Path]:
    """The files of a split in such a folder; without a split that of the first name in `SPLITS`."""
    if (folder / SAVED).is_file():
        if split is not None:
            raise UserError(f"{folder} is a single split; leave out --split, or give the folder above it.")
        return _saved_files(folder)
    by_split = files_by_split(folder)
    if split is None and not (folder / SAVED_SPLITS).is_file() and not set(by_split) & set(SPLITS):
        return _parquet_files(folder)  # names that tell no split: parts of one set
    return by_split[_chosen(split, by_split, folder)]


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """The files of every split in such a folder; empty for a folder that was saved as a single one."""
    if (folder / SAVED).is_file():
        return {}
    if (folder / SAVED_SPLITS).is_file():
        return {child.name: _saved_files(child) for child in folder.iterdir() if (child / SAVED).is_file()}
    by_split: dict[str, list[Path]] = {}
    for file in _parquet_files(folder):
        # train-00000-of-00002, but also train_1 and cifar_train, which must not be read as parts of one set
        words = re.split("[^a-z]+", file.stem.lower())
        name = next((word for word in words if word in SPLITS), file.stem.split("-")[0])
        by_split.setdefault(name, []).append(file)
    return by_split


def read_rows(files: Sequence[Path], others: Sequence[Path] = ()) -> Rows:
    """All rows of these files, in order; only their labels are read.

    `others` are files of other splits: a class whose name is missing in one split must not shift the labels of it.
    """
    images: list[Row] = []
    values: list[Any] = []
    names: tuple[str, ...] | None = None
    for number, file in enumerate(files):
        image, label, own_names = _columns(file)
        if number and own_names != names:
            raise UserError(f"{file} names other classes than {files[0]}; give files of one data set.")
        names = own_names
        found = _labels(file, label)
        values += found
        images += [Row(file, row, image) for row in range(len(found))]
    words = sorted({value for value in values if isinstance(value, str)})
    if words:
        for file in others:
            found = _labels(file, label) if label in _schema(file).names else []
            words = sorted({*words, *(value for value in found if isinstance(value, str))})
        values = [words.index(value) if isinstance(value, str) else None for value in values]
        names = tuple(words)
    return Rows(images, [_class(value) for value in values], names)


def _class(value: Any) -> int | None:
    """The number of a class; None if it is unknown, which Hugging Face marks by -1."""
    # pandas turns a column of integers into floats when a row is missing.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and value >= 0 else None


def _parquet_files(folder: Path) -> list[Path]:
    # Not in any depth, which would go through every image of a large folder.
    found = sorted(folder.glob("*.parquet")) or sorted(folder.glob(f"{DATA}/*.parquet"))
    return [file for file in found if file.name[0] != "."]


def _saved_files(folder: Path) -> list[Path]:
    try:
        listed = json.loads((folder / SAVED).read_text(encoding="utf-8"))["_data_files"]
        files = [folder / Path(one["filename"]).name for one in listed]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / SAVED} is damaged; save the data set again with save_to_disk.") from None
    return files


def _chosen(split: str | None, known: dict[str, Any], folder: Path) -> str:
    """The split to read, if there is one of that name."""
    if split is None:
        split = next((name for name in SPLITS if name in known), None)
    if split is None or split not in known:
        raise UserError(
            f"{folder} has the splits {', '.join(sorted(known)) or 'none'}; choose one with --split NAME."
        )
    return split


@dataclass(eq=False)
class _Column:
    """A column of a file, read where it is asked for.

    An Arrow file is mapped into memory. A Parquet file is read in groups of rows: `starts` has the first row of each.
    """

    rows: Any
    starts: list[int] | None = None
    key: tuple[Any, ...] = ()

    def value(self, number: int) -> Any:
        if self.starts is None:
            return self.rows[number].as_py()
        which = bisect_right(self.starts, number) - 1
        group = _groups.find(
            (*self.key, which), lambda: self.rows.read_row_group(which, columns=[self.key[1]]).column(0)
        )
        return group[number - self.starts[which]].as_py()


@dataclass(eq=False)
class _Groups:
    """The groups of rows that were used last, of all files: training reads images in random order."""

    kept: OrderedDict[tuple[Any, ...], Any] = field(default_factory=OrderedDict)
    size: int = 0
    lock: Lock = field(default_factory=Lock)

    def find(self, key: tuple[Any, ...], read: Callable[[], Any]) -> Any:
        with self.lock:  # several threads decode, and one group serves them all
            if key not in self.kept:
                self.kept[key] = read()
                self.size += self.kept[key].nbytes
                while self.size > KEPT_BYTES and len(self.kept) > 1:
                    self.size -= self.kept.popitem(last=False)[1].nbytes
            self.kept.move_to_end(key)
            return self.kept[key]


_groups = _Groups()


@lru_cache(maxsize=MAX_OPEN)
def _open(path: Path, column: str, *changed: int) -> _Column:
    if path.suffix == ".arrow":
        return _Column(_mapped(path).column(column))
    file = _pyarrow("parquet").ParquetFile(path)
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    return _Column(file, [0, *accumulate(sizes)][:-1], (path, column, *changed))


def _columns(path: Path) -> tuple[str, str | None, tuple[str, ...] | None]:
    """The columns of images and labels, and the names of the classes."""
    arrow = _pyarrow()
    schema = _schema(path)
    features = _features(schema)
    kinds = {name: f.get("_type") for name, f in features.items() if isinstance(f, dict)}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    if not images:
        binary = arrow.types.is_binary, arrow.types.is_large_binary
        for column in schema:
            inner = (
                [f for f in column.type if f.name == "bytes"]
                if arrow.types.is_struct(column.type)
                else [column]
            )
            if any(is_bytes(each.type) for each in inner for is_bytes in binary):
                images.append(column.name)
    if not images:
        raise UserError(
            f"{path} has no column of images, only {', '.join(schema.names)}; an image is encoded bytes (PNG, JPEG), "
            "not an array of numbers: a column of bytes, or a struct with the field 'bytes'."
        )

    def only(role: str, chosen: Sequence[str]) -> list[str]:
        """The chosen column, unless there are several: nobody knows which is meant."""
        columns = [name for name in schema.names if name in chosen]  # a name can stand there twice
        if len(columns) > 1:
            raise UserError(
                f"{path} has {len(columns)} columns that could be the {role}: {', '.join(columns)}; rename the one "
                f"that you mean to '{role}', or leave the others out."
            )
        return columns

    classes = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    known = [name for name in LABEL_NAMES if name in schema.names]
    best = [name for name in known if name in classes][:1] or classes or known[:1]
    label = next(iter(only("label", best)), None)
    names = features.get(label, {}).get("names") if label in classes else None
    (image,) = only("image", [name for name in IMAGE_NAMES if name in images][:1] or images)
    return image, label, tuple(map(str, names)) if isinstance(names, list) else None


def _schema(path: Path) -> Any:
    def read() -> Any:
        return _mapped(path).schema if path.suffix == ".arrow" else _pyarrow("parquet").read_schema(path)

    return _reading(path, read)


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face says of the columns; empty if it says nothing that can be read."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    known = features if isinstance(features, dict) else {}
    return {name: feature for name, feature in known.items() if name in schema.names}


def _labels(path: Path, label: str | None) -> list[Any]:
    """The label of every row, None without a label column."""

    def read() -> list[Any]:
        if path.suffix == ".arrow":
            table = _mapped(path)
            return [None] * table.num_rows if label is None else table.column(label).to_pylist()
        parquet = _pyarrow("parquet")
        if label is None:
            return [None] * parquet.read_metadata(path).num_rows
        values: list[Any] = parquet.read_table(path, columns=[label]).column(0).to_pylist()
        return values

    return _reading(path, read)


def _mapped(path: Path) -> Any:
    """The table of an Arrow file, in either of its two formats."""
    arrow, ipc = _pyarrow(), _pyarrow("ipc")
    source = arrow.memory_map(str(path))
    try:
        return ipc.open_stream(source).read_all()
    except arrow.ArrowInvalid:
        source.seek(0)
        return ipc.open_file(source).read_all()


def _reading(path: Path, read: Callable[[], T]) -> T:
    """`read()`, with errors of the file as one sentence."""
    arrow = _pyarrow()
    try:
        return read()
    except UserError:
        raise  # it is a ValueError, and says what to do already
    except (arrow.ArrowException, OSError, ValueError, LookupError) as wrong:
        kind = "an Arrow" if path.suffix == ".arrow" else "a Parquet"
        reason = " ".join(str(wrong).split())[:120]
        raise UserError(f"{path} cannot be read as {kind} file ({reason}); write it again.") from None


def _pyarrow(part: str = "") -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet and Arrow files need pyarrow: pip install 'gyrograd[parquet]'.") from None
    return getattr(pyarrow, part) if part else pyarrow
