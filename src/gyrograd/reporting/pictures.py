"""The pictures beside a card: images and maps of the worst attacks, as PNG on one shared scale."""

from __future__ import annotations

import base64
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gyrograd.errors import UserError
from gyrograd.reporting.figures import MAP_COLOURS, picture_grid

Array = NDArray[Any]

ARRAYS = ("image", "attacked", "map_clean", "map_attacked")
SCALE_END = 99.5
"""Percentile of the two maps at which their shared scale ends: one bright pixel would leave all others black."""
CHANGE = 20
"""How often the difference of the images is enlarged; grey is no change."""
SIDE = 160
"""Pixels a side at least, so that small images are not smeared when they are shown large."""
FILE_SIDE = 224
"""The same for a picture that is a file of its own; enlarged by whole numbers, so that each pixel is a square."""
LARGEST_ARRAY = 2**28
"""Elements of an array of pictures."""
LEAST_IMAGE = 0.15
"""Share of the grey image that shows through where the map is strongest."""


@dataclass(frozen=True)
class AttackPictures:
    """One attack as PNG data addresses; `scale` is where the maps' shared scale ends."""

    image: str
    attacked: str
    difference: str
    map_clean: str
    map_attacked: str
    scale: float


def load_arrays(name: str | None, folder: Path) -> dict[str, Array] | str:
    """The arrays of the card's pictures, or the sentence that says why there are none."""
    if name is None:
        return "This audit kept no pictures."
    path = folder / Path(name).name
    _refuse_objects(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in ARRAYS if key in stored.files}
            # An array may say any size; what is read is bounded by what a report could show.
            if any(array.size > LARGEST_ARRAY or array.dtype.kind not in "fiub" for array in arrays.values()):
                raise ValueError
    except FileNotFoundError:
        return f"The pictures are not here: {path.name} is missing; run the audit again to have them."
    except Exception:  # a damaged archive fails in whatever way its bytes lead to
        return f"The pictures cannot be read: {path.name} is damaged; run the audit again to have them."
    return _fitting(arrays, path.name)


def _refuse_objects(path: Path) -> None:
    """Refuse a pickle, and an archive of Python objects: reading them would run what they say."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
        described = []
        if start == b"PK":
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist()[:64]:
                    with archive.open(name) as member:
                        described.append(member.read(256))
    except Exception:
        return  # not there or damaged: found again by who reads it
    if start[:1] == b"\x80" or any(b"'descr': '|O'" in header for header in described):
        raise UserError(
            f"{path} holds Python objects, which could run code, not pictures; run the audit again to have them."
        )


def _fitting(arrays: dict[str, Array], name: str) -> dict[str, Array] | str:
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        return f"The pictures are not complete: {name} lacks {', '.join(missing)}; run the audit again."
    shape = arrays["image"].shape
    same = arrays["attacked"].shape == shape and all(
        arrays[key].shape == shape[:3] for key in ("map_clean", "map_attacked")
    )
    if len(shape) != 4 or shape[3] != 3 or not same:
        return (
            f"The pictures do not fit one another: {name} holds images of shape {shape}; run the audit again."
        )
    return arrays


def attack_pictures(arrays: dict[str, Array], row: int) -> AttackPictures | None:
    """The five pictures of one row; None where the arrays do not have that row."""
    if not 0 <= row < len(arrays["image"]):
        return None
    image, attacked, clean, moved = (np.nan_to_num(arrays[key][row].astype(float)) for key in ARRAYS)
    end = shared_scale(clean, moved)
    return AttackPictures(
        data_address(image),
        data_address(attacked),
        data_address(difference(image, attacked)),
        data_address(coloured(clean, end)),
        data_address(coloured(moved, end)),
        end,
    )


def shared_scale(clean: Array, moved: Array) -> float:
    """Where the scale of both maps ends; 1 for maps of zeros."""
    both = np.abs(np.stack([clean, moved]))
    end = float(np.percentile(both, SCALE_END))
    return end if end > 0 else float(both.max()) or 1.0


def difference(image: Array, attacked: Array) -> Array:
    """What the attack changed, enlarged, around grey."""
    return ((attacked - image) * CHANGE + 0.5).clip(0, 1)


def coloured(map: Array, end: float) -> Array:
    """A map as colours; `end` and beyond are brightest."""
    from matplotlib import colormaps

    colours: Array = colormaps[MAP_COLOURS]((np.abs(map) / end).clip(0, 1))[..., :3]
    return colours


def overlay(image: Array, map: Array, end: float) -> Array:
    """The map's colours over the image in grey, the stronger the less of the image is seen; `end` is brightest."""
    strength = (np.abs(map) / end).clip(0, 1)[..., None] * (1 - LEAST_IMAGE)
    mixed: Array = image.mean(-1, keepdims=True) * (1 - strength) + coloured(map, end) * strength
    return mixed


def png(picture: Array) -> bytes:
    """A picture `h w 3` in [0, 1] as a PNG file, enlarged if it is small."""
    from PIL import Image

    levels = (np.nan_to_num(picture).clip(0, 1) * 255).round().astype(np.uint8)
    times = max(1, -(-FILE_SIDE // max(levels.shape[:2])))
    encoded = io.BytesIO()
    Image.fromarray(levels.repeat(times, 0).repeat(times, 1)).save(encoded, "PNG")
    return encoded.getvalue()


def scale_bar() -> str:
    """The map colours from zero to the end of the scale."""
    return data_address(coloured(np.linspace(0, 1, 128)[None], 1.0), grow=False)


def attack_sheet(arrays: dict[str, Array], rows: list[int], titles: list[str]) -> bytes:
    """The attacks below one another as one PNG file, a row each."""
    chosen = [[np.nan_to_num(arrays[key][row].astype(float)) for key in ARRAYS] for row in rows]
    images, attacked, clean, moved = ([parts[at] for parts in chosen] for at in range(len(ARRAYS)))
    ends = [shared_scale(*maps) for maps in zip(clean, moved, strict=True)]
    columns = {
        "image": images,
        "attacked": attacked,
        f"difference x {CHANGE}": [difference(*pair) for pair in zip(images, attacked, strict=True)],
        "map before": [coloured(*map) for map in zip(clean, ends, strict=True)],
        "map after": [coloured(*map) for map in zip(moved, ends, strict=True)],
    }
    return picture_grid({"": columns}, titles)


def data_address(picture: Array, grow: bool = True) -> str:
    """A picture `h w 3` in [0, 1] as PNG inside an address; `grow` enlarges small ones, each pixel a square."""
    from PIL import Image

    image = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    times = -(-SIDE // max(1, max(image.size))) if grow else 1
    if times > 1:
        image = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
