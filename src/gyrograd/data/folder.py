"""A folder of images, with or without a sub-folder per class."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from gyrograd.data.dataset import SUBSET_STREAM, Dataset
from gyrograd.data.streamed import Blob, Streamed, is_large
from gyrograd.errors import UserError, did_you_mean
from gyrograd.numerics import random
from gyrograd.registry import register

Item = TypeVar("Item")
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
SPLITS = ("train", "val", "valid", "validation", "test")
OTHER_SPELLINGS = {*SPLITS, "training", "testing", "dev", "eval"}
"""What folders of splits are called elsewhere, in any case; here they would be taken for classes."""


@register("dataset", "folder", paper="own")
def folder(
    path: Path | str,
    split: str | None = None,
    size: int | tuple[int, int] = 32,
    resize: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    labelled: bool = True,
    numbered: bool = False,
) -> Dataset:
    """Your own images: a folder with a sub-folder per class, or (labelled=False) a folder of images.

    Grey, palette, 16-bit and EXIF-rotated images become upright 8-bit RGB; transparent pixels become white.

    Args:
        path: the folder; with a split, the folder that holds train/, val/ or test/.
        split: which of these to read; all of them share one list of classes.
        size: height and width of the returned images, or one number for squares.
        resize: length of the shorter side before the centre is cropped; by default as much as possible is kept.
        limit: read at most this many images, chosen by the seed.
        seed: which images the limit chooses.
        labelled: False for images without classes; every label is then 0, numbered or not.
        numbered: True if the sub-folders are named by the numbers of their classes (0000, 0007, ...) and some are
            missing; else labels number the existing folders.

    >>> import tempfile, gyrograd as gg
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as photos:
    ...     for name in ("cat", "dog"):
    ...         Path(photos, name).mkdir()
    ...         Image.new("RGB", (48, 40)).save(Path(photos, name, "1.png"))
    ...     data = gg.dataset("folder", path=photos, size=32)
    >>> data.images.shape, data.classes
    (torch.Size([2, 3, 32, 32]), ('cat', 'dog'))
    """
    home = home_of(Path(path).expanduser(), split)
    frame = (size, size) if isinstance(size, int) else size
    _check_sizes(frame, resize, limit)
    classes = class_names(home, split) if labelled else ("unlabelled",)
    if numbered and labelled:
        classes = _all_numbers(home, classes)
    found = files_with_labels(home, classes, labelled)
    if not found:
        raise UserError(f"There are no images in {home}; known endings are {', '.join(sorted(ENDINGS))}.")
    files, labels = zip(*choose(found, limit, seed), strict=True)
    images = read_images(files, frame, resize, doing=f"reading {home.name}")
    return Dataset(images, torch.tensor(labels), classes, f"folder {home}")


def read_images(
    files: Sequence[Path], size: tuple[int, int], resize: int | None = None, doing: str | None = None
) -> Tensor | Streamed:
    """The images as bytes, streamed if they are too many for memory. `doing` is the label of a progress bar."""
    if is_large(len(files), size):
        return Streamed(tuple(Blob(file) for file in files), size, resize)
    return torch.stack(
        [read_image(file, size, resize) for file in (_with_progress(files, doing) if doing else files)]
    )


def read_image(path: Path, size: tuple[int, int], resize: int | None = None) -> UInt8[Tensor, "3 h w"]:
    """One image as bytes: scaled by its shorter side, then cropped at the centre."""
    return decode_image(path, str(path), size, resize)


def decode_image(
    file: Path | BytesIO, name: str, size: tuple[int, int], resize: int | None = None
) -> UInt8[Tensor, "3 h w"]:
    """As `read_image`, for any file object; `name` is used in errors."""
    try:
        with Image.open(file) as opened:
            picture = _rgb(ImageOps.exif_transpose(opened), opened.format)
    except Exception as wrong:  # Pillow's readers raise all kinds of errors for damaged files
        # Pillow would name the address in memory of the bytes.
        why = "not in a format that is known" if isinstance(wrong, UnidentifiedImageError) else wrong
        raise UserError(f"{name} cannot be read as an image ({why}); repair it or remove it.") from None
    return torch.from_numpy(np.array(_resize_and_crop(picture, size, resize))).movedim(-1, 0).contiguous()


def _rgb(picture: Image.Image, format: str | None) -> Image.Image:
    if picture.mode == "I" and format not in {"PNG", "PPM"}:
        raise ValueError("its pixels are 32-bit whole numbers, whose range is unknown")
    if picture.mode.startswith("I"):
        # 16-bit grey: Pillow would clip instead of scale
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode == "F":
        raise ValueError("its pixels are floats, whose range is unknown")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def _resize_and_crop(picture: Image.Image, size: tuple[int, int], resize: int | None) -> Image.Image:
    (height, width), (w, h) = size, picture.size
    if resize is not None:
        wanted, given = resize, min(h, w)
    else:
        wanted, given = (height, h) if height * w >= width * h else (width, w)
    # the longer side is cut off and the margin rounded as torchvision's Resize and CenterCrop do
    wide, high = max(int(wanted * w / given), width), max(int(wanted * h / given), height)
    if (wide, high) != (w, h):
        picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = round((wide - width) / 2), round((high - height) / 2)
    return picture.crop((left, top, left + width, top + height))


def home_of(path: Path, split: str | None) -> Path:
    """The folder to read: it must exist and, if it has split folders, one must be named."""
    if not path.is_dir():
        raise UserError(f"There is no folder {path}; give the folder that holds the images.")
    splits = [child.name for child in _folders(path) if child.name in SPLITS]
    if split is None:
        if splits and len(splits) == len(_folders(path)):
            raise UserError(
                f"{path} holds the splits {', '.join(splits)}; say which, for example split={splits[0]}."
            )
        names = [child.name for child in _folders(path) if _folders(child)]
        if names and len(names) == len(_folders(path)) and {n.lower() for n in names} <= OTHER_SPELLINGS:
            raise UserError(
                f"{path} holds {', '.join(names)}, which look like splits, not classes; rename them train, val or test."
            )
        return path
    if not (path / split).is_dir():
        choices = splits or [child.name for child in _folders(path)]
        raise UserError(f"{path} has no split '{split}': {did_you_mean(split, choices)}")
    return path / split


def _check_sizes(frame: Sequence[int], resize: int | None, limit: int | None) -> None:
    if len(frame) != 2 or min(frame) < 1:
        raise UserError(f"The image size is {tuple(frame)}; give one positive number or (height, width).")
    if resize is not None and resize < max(frame):
        raise UserError(
            f"resize is {resize}, less than the size {max(frame)} cut out of it; give at least that."
        )
    if limit is not None and limit < 1:
        raise UserError(f"The limit is {limit}; give at least 1, or leave it out.")


def class_names(home: Path, split: str | None) -> tuple[str, ...]:
    """Class names: the sub-folders of all splits, so that a class missing in one does not shift labels."""
    homes = (
        [home]
        if split is None
        else [child for child in _folders(home.parent) if child.name in SPLITS] + [home]
    )
    names = sorted({child.name for place in homes for child in _folders(place)})
    if not names:
        plain = "has images but no class folders; put each class in its own or give labelled=False"
        raise UserError(
            f"{home} {plain if image_files(home) else 'is empty; put a folder for each class in it'}."
        )
    return tuple(names)


def _all_numbers(home: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The names, with missing numbers filled in, so that each class is at its number."""
    strange = [name for name in names if not re.fullmatch("[0-9]{1,6}", name)]
    at = {int(name): name for name in names if name not in strange}
    if strange or len(at) < len(names):
        wrong = f"is named '{strange[0]}'" if strange else "has the number of another"
        raise UserError(f"A class folder of {home} {wrong}; name each by its number, or leave out numbered.")
    return tuple(at.get(number, str(number)) for number in range(max(at) + 1))


def files_with_labels(home: Path, classes: Sequence[str], labelled: bool) -> list[tuple[Path, int]]:
    """Every image with the number of its class, or 0 without labels."""
    if not labelled:
        return [(file, 0) for file in image_files(home)]
    return [(file, label) for label, name in enumerate(classes) for file in image_files(home / name)]


def _folders(path: Path) -> list[Path]:
    return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))


def image_files(path: Path) -> list[Path]:
    """Image files at any depth, sorted, without hidden ones and those in hidden folders (.ipynb_checkpoints)."""
    if not path.is_dir():
        return []
    files = (file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    return sorted(file for file in files if not any(part[0] == "." for part in file.relative_to(path).parts))


def choose(found: list[tuple[Item, int]], limit: int | None, seed: int) -> list[tuple[Item, int]]:
    """At most `limit` of them, by the seed, in the order they were found."""
    if limit is None or limit >= len(found):
        return found
    order = random.permutation(random.keys(seed, 1), len(found), stream=SUBSET_STREAM)[0, :limit]
    return [found[i] for i in sorted(order.tolist())]


def _with_progress(files: Sequence[Path], doing: str) -> Iterable[Path]:
    """The files, with a progress bar if there are many and a terminal shows it."""
    if len(files) < 200 or not sys.stderr.isatty():
        return files
    from rich.console import Console
    from rich.progress import track

    return track(files, doing, console=Console(stderr=True), transient=True)
