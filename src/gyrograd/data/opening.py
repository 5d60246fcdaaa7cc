"""Open images by one text: a registered set, a folder, images, or files that hold images (tar, Parquet, Arrow)."""

from __future__ import annotations

import glob
import inspect
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from gyrograd.data import parquet
from gyrograd.data.dataset import Dataset
from gyrograd.data.folder import (
    ENDINGS,
    choose,
    class_names,
    files_with_labels,
    folder,
    home_of,
    image_files,
    read_images,
)
from gyrograd.data.streamed import Encoded, Streamed, tar_members
from gyrograd.errors import UserError, did_you_mean
from gyrograd.registry import Settings, available, lookup, make

UNLABELLED = ("unlabelled",)
"""Classes of images without labels; every label is then 0."""

MAX_CLASSES = 1_000_000
"""Labels from here on are no numbers of classes but something else, such as an identity or a time."""


@dataclass(frozen=True)
class Choice:
    """Which images to open, and at what size; `open_data` documents the fields."""

    images: int | None = None
    size: int | None = None
    split: str | None = None
    seed: int = 0
    labelled: bool | None = None

    def __post_init__(self) -> None:
        if self.images is not None and self.images < 1:
            raise UserError(f"{self.images} images were asked for; give at least 1, or leave it out for all.")
        if self.size is not None and self.size < 1:
            raise UserError(f"The size is {self.size}; give the side of the images in pixels, such as 32.")

    @property
    def side(self) -> int:
        """The size, which files need."""
        if self.size is None:
            raise UserError(
                "The model does not tell which size of images it was made for; say it with --size, such as --size 224."
            )
        return self.size


@dataclass(frozen=True, eq=False)
class NamedData:
    """Images, with the name (file, or set and number) and the number in the whole set of each."""

    data: Dataset
    names: tuple[str, ...]
    index: tuple[int, ...]


def open_data(
    text: str | Sequence[str],
    *,
    images: int | None = None,
    size: int | None = None,
    split: str | None = None,
    seed: int = 0,
    labelled: bool | None = None,
) -> Dataset:
    """Open a registered set (`shapes`), a folder, an image, a pattern (`photos/*.png`), or several of them.

    Tar files in WebDataset's form, Parquet files, and folders that Hugging Face `datasets` saved are read on demand.

    Args:
        text: what to open; write `./` before a path that could be the name of a set.
        images: most images, chosen by the seed; default: all.
        size: side of the square images; needed for files, while sets have a default.
        split: default: `test`, for a set that has one.
        seed: which images are chosen.
        labelled: True if the sub-folders of a folder are its classes, False to ignore labels; default: True if there
            are sub-folders with images. Without labels the classes are `UNLABELLED`.
    """
    return open_data_with_names(text, Choice(images, size, split, seed, labelled)).data


def open_data_with_names(text: str | Sequence[str], choice: Choice) -> NamedData:
    """As `open_data`, with the name and number of each image."""
    paths = [text] if isinstance(text, str) else list(text)
    if len(paths) == 1 and is_registered(paths[0]):
        return _from_registry(paths[0], choice)
    with warnings.catch_warnings():
        # Pillow warns above 90 megapixels and refuses twice that; the refusal is enough.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        tars = [path for path in paths if path.endswith(".tar")]
        if tars and len(tars) == len(paths):
            return _from_tars(paths, choice)
        if all(path.endswith(parquet.ENDINGS) for path in paths):
            return _from_tables(paths, choice)
        if len(paths) == 1 and Path(paths[0]).expanduser().is_dir():
            place = Path(paths[0]).expanduser()
            return _from_tables(paths, choice) if parquet.holds_tables(place) else _from_folder(place, choice)
        return _from_files(paths, choice)


def is_registered(text: str) -> bool:
    """True if this is the name of a set, not a path."""
    return text in {key for entry in available("dataset").values() for key in (entry.name, *entry.aliases)}


def is_labelled(data: Dataset) -> bool:
    """True if the set has labels."""
    return data.classes != UNLABELLED


def check_labels_fit(data: Dataset, classes: int) -> None:
    """Refuse labels outside the model's classes."""
    if is_labelled(data) and int(data.labels.max()) >= classes:
        raise UserError(
            f"{data.name} has {len(data.classes)} classes and the model {classes}; give a model of these classes, "
            "or leave the labels out with --unlabelled."
        )
    if is_labelled(data) and len(data.classes) < classes and _are_numbers_with_gaps(data.classes):
        raise UserError(
            f"The numbered folders of {data.name} have gaps ({len(data.classes)} of the model's {classes} classes), so "
            "a label would be a folder's position and not its number; make an empty folder for each missing number, or "
            "leave the labels out with --unlabelled."
        )


def _are_numbers_with_gaps(names: Sequence[str]) -> bool:
    """True if the names are numbers with gaps; numbers from 0 or 1 on without a gap are classes in their order."""
    if not all(name.isascii() and name.isdigit() for name in names):
        return False
    numbers = sorted(int(name) for name in names)
    return numbers[0] > 1 or numbers[-1] - numbers[0] != len(numbers) - 1


def _from_registry(name: str, choice: Choice) -> NamedData:
    entry = lookup("dataset", name)
    takes = inspect.signature(entry.factory).parameters
    if "path" in takes:
        raise UserError(f"'{name}' reads your own images: give the path of the folder itself.")
    if choice.split is not None and "split" not in takes:
        raise UserError(f"{name} has no splits; leave out --split.")
    settings: Settings = {"split": choice.split or "test"} if "split" in takes else {}
    whole: Dataset = make("dataset", name, **settings)
    if whole.images.ndim != 4:
        raise UserError(f"{name} holds points, not images; give a set of images, such as shapes.")
    some = min(choice.images or len(whole), len(whole))
    index = whole.chosen(some, choice.seed) if choice.images else torch.arange(len(whole))
    data = _resize(whole.rows(index), choice.size)
    if choice.labelled is False:
        data = replace(data, labels=torch.zeros_like(data.labels), classes=UNLABELLED)
    numbers = tuple(int(i) for i in index)
    return NamedData(data, tuple(f"{entry.name} {i}" for i in numbers), numbers)


def _from_folder(path: Path, choice: Choice) -> NamedData:
    home, split, images, seed = home_of(path, choice.split), choice.split, choice.images, choice.seed
    labelled = _has_classes(home) if choice.labelled is None else choice.labelled
    classes = class_names(home, split) if labelled else UNLABELLED
    found = files_with_labels(home, classes, labelled)
    table = None if found else min(home.rglob("*.parquet"), default=None)
    if table is not None:
        raise UserError(
            f"There are no images in {home}, but Parquet files in {table.parent}; give that folder."
        )
    data = folder(path, split, choice.side, limit=images, seed=seed, labelled=labelled)
    number = {file: i for i, (file, _) in enumerate(found)}
    files = [file for file, _ in choose(found, images, seed)]
    return NamedData(
        data, tuple(str(file.relative_to(home)) for file in files), tuple(number[file] for file in files)
    )


def _from_files(paths: Sequence[str], choice: Choice) -> NamedData:
    files = [file for path in paths for file in _matching(path)]
    if choice.labelled or choice.split is not None:
        raise UserError(
            "Single images have neither labels nor splits; give the folder that holds the classes."
        )
    number = {file: i for i, file in enumerate(files)}
    taken = [file for file, _ in choose([(file, 0) for file in number], choice.images, choice.seed)]
    images, labels = (
        read_images(taken, (choice.side, choice.side)),
        torch.zeros(len(taken), dtype=torch.int64),
    )
    data = Dataset(images, labels, UNLABELLED, _name_of_files(taken))
    return NamedData(data, tuple(str(file) for file in taken), tuple(number[file] for file in taken))


def _from_tars(paths: Sequence[str], choice: Choice) -> NamedData:
    """WebDataset tar files, streamed; their classes are numbers."""
    if choice.split is not None:
        raise UserError("Tar files have no splits; give those of the split you mean, such as 'val-*.tar'.")
    found = tar_members([file for path in paths for file in _matching(path)])
    if not found:
        raise UserError(
            f"There are no images in {', '.join(paths)}; known endings are {', '.join(sorted(ENDINGS))}."
        )
    return _streamed(found, None, paths, choice, "KEY.cls beside KEY.jpg")


def _from_tables(paths: Sequence[str], choice: Choice) -> NamedData:
    """Parquet or Arrow files, or a folder of them, streamed."""
    place = Path(paths[0]).expanduser()
    others: list[Path] = []
    if place.is_dir():
        files = parquet.files_in(place, choice.split)
        splits = parquet.files_by_split(place).values()
        others = [file for found in splits for file in found if file not in files]
    elif choice.split is not None:
        raise UserError(
            f"Single files have no splits; give those of the split you mean, such as '{choice.split}-*.parquet'."
        )
    else:
        files = [file for path in paths for file in _matching(path)]
    found = parquet.read_rows(files, others)
    if not found.images:
        raise UserError(f"There are no rows in {', '.join(paths)}; give files with images.")
    pairs = list(zip(found.images, found.labels, strict=True))
    return _streamed(pairs, found.names, paths, choice, "a column 'label' of numbers or names")


def _streamed(
    found: Sequence[tuple[Encoded, int | None]],
    names: tuple[str, ...] | None,
    paths: Sequence[str],
    choice: Choice,
    form: str,
) -> NamedData:
    """The chosen images, read on demand. Without names classes are numbers; `form` says where a class is written."""
    without = sum(label is None for _, label in found)
    known = not without
    if choice.labelled and not known:
        raise UserError(f"Some images of {paths[0]} have no class ({form}); give --unlabelled.")
    if choice.labelled is None and 0 < without < len(found):
        print(
            f"gyrograd: {without:,} of {len(found):,} images of {paths[0]} have no class, so all count as unlabelled; "
            "remove those without a class to use the others'.",
            file=sys.stderr,
        )
    use = known if choice.labelled is None else choice.labelled
    every = [(number, (label or 0) if use else 0) for number, (_, label) in enumerate(found)]
    largest = max(label for _, label in every)
    if use and names is None and largest >= MAX_CLASSES:
        raise UserError(
            f"{paths[0]} has the label {largest}, and a class is a number below {MAX_CLASSES:,}; correct it, or leave "
            "the labels out with --unlabelled."
        )
    if use and names is not None and largest >= len(names):
        raise UserError(
            f"{paths[0]} has the label {largest} and names of {len(names)} classes; write it again."
        )
    taken = choose(every, choice.images, choice.seed)
    places = tuple(found[number][0] for number, _ in taken)
    images = Streamed(places, (choice.side, choice.side))
    labels = torch.tensor([label for _, label in taken])
    classes = (names or tuple(str(i) for i in range(largest + 1))) if use else UNLABELLED
    data = Dataset(images, labels, classes, _name_of_files(Path(path) for path in paths))
    return NamedData(data, tuple(str(place) for place in places), tuple(number for number, _ in taken))


def _matching(path: str) -> list[Path]:
    """The file of this name, or the files that match the pattern."""
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    if place.is_dir():
        raise UserError(f"{place} is a folder among several paths; give one folder, or images alone.")
    found = sorted(Path(name) for name in glob.glob(str(place), recursive=True) if Path(name).is_file())
    if not found:
        raise UserError(f"There is no file, folder or data set '{path}': {_hint(path)}")
    return found


def _hint(path: str) -> str:
    """The nearest name next to a missing path, or among the sets."""
    place = Path(path).expanduser()
    sets = set(available("dataset")) - {"folder", "toy2d"}
    if place.parent == Path() and not place.suffix:
        return did_you_mean(path, sets)
    if not place.parent.is_dir():
        return f"there is no folder {place.parent}."
    return did_you_mean(place.name, {child.name for child in place.parent.iterdir()})


def _name_of_files(files: Iterable[Path]) -> str:
    names = [str(file) for file in files]
    return names[0] if len(names) == 1 else f"{len(names)} images ({names[0]}, ...)"


def _has_classes(home: Path) -> bool:
    """True if sub-folders are classes; images next to them are an error, because it is not clear which is meant."""
    children = [child for child in home.iterdir() if not child.name.startswith(".")]
    folders = [child for child in children if child.is_dir() and image_files(child)]
    beside = {file for file in image_files(home) if file.parent == home}
    if folders and beside:
        raise UserError(
            f"{home} holds both images and folders of images; move the images into a folder of their class, "
            "or read all without labels: --unlabelled."
        )
    return bool(folders)


def _resize(data: Dataset, size: int | None) -> Dataset:
    """The same images at another size: bilinear, without aliasing; masks by the nearest pixel."""
    if size is None or tuple(data.images.shape[2:]) == (size, size):
        return data
    images = data.images if isinstance(data.images, Tensor) else data.images[:]
    scaled = F.interpolate(images.float(), (size, size), mode="bilinear", antialias=True)
    masks = None
    if data.masks is not None:
        masks = F.interpolate(data.masks[:, None].float(), (size, size))[:, 0] > 0.5
    return replace(data, images=scaled.round().clamp(0, 255).byte(), masks=masks)
