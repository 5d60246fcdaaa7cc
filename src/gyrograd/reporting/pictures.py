"""The pictures of a card: images and maps of the worst attacks."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gyrograd.errors import UserError
from gyrograd.reporting.figures import MAP_COLOURS, Array, picture_grid

ARRAYS = ("image", "attacked", "map_clean", "map_attacked")
SIGNED = ("signed_clean", "signed_attacked")
"""The same maps with their sign, summed over channels; older cards do not have them."""
BEST = "best_"
"""Prefix of the arrays of the recommended method, attacked on the same image."""
OPTIONAL = (*SIGNED, *(BEST + key for key in (*ARRAYS[1:], *SIGNED)))
SCALE_END = 99.5
"""Percentile at which the scale of a map ends, because a single bright pixel would leave all others black."""
SIDE = 160
"""Smallest side in pixels, so that small images are not blurred when enlarged."""
FILE_SIDE = 224
"""The same for picture files; enlarged by whole numbers, so that each pixel is a square."""
LARGEST_ARRAY = 2**28
"""Most elements of an array of pictures."""
LEAST_IMAGE = 0.15
"""Share of the grey image that is visible under the strongest values of a map."""
SIGN_COLOURS = "RdBu_r"
"""Colour map of signed maps: blue against the class, white zero, red for the class."""

Views = dict[str, tuple[str, str]]
"""A map before and after an attack as data URLs: "overlay", "map" and, for signed maps, "sign"."""


@dataclass(frozen=True)
class AttackPictures:
    """The pictures of one attack as data URLs; `best`: another, recommended method under its own attack."""

    image: str
    attacked: str
    difference: str
    views: Views
    best: Views | None = None


def load_arrays(name: str | None, folder: Path) -> dict[str, Array] | str:
    """The arrays of the card's pictures, or a sentence that says why there are none."""
    if name is None:
        return "This audit kept no pictures."
    path = folder / Path(name).name
    _refuse_objects(path)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in (*ARRAYS, *OPTIONAL) if key in stored.files}
            # A header may claim any size, so the number of elements is limited before reading.
            if any(array.size > LARGEST_ARRAY or array.dtype.kind not in "fiub" for array in arrays.values()):
                raise ValueError
    except FileNotFoundError:
        return f"The pictures are not here: {path.name} is missing; run the audit again to have them."
    except Exception:  # a damaged archive can raise almost anything
        return f"The pictures cannot be read: {path.name} is damaged; run the audit again to have them."
    return _fitting(arrays, path.name)


def _refuse_objects(path: Path) -> None:
    """Refuse a pickle, or an archive of Python objects, because reading it could run code."""
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
        return  # missing or damaged; reported when it is read
    if start[:1] == b"\x80" or any(b"'descr': '|O'" in header for header in described):
        raise UserError(
            f"{path} holds Python objects, which could run code, not pictures; run the audit again to have them."
        )


def _fitting(arrays: dict[str, Array], name: str) -> dict[str, Array] | str:
    missing = [key for key in ARRAYS if key not in arrays]
    if missing:
        return f"The pictures are not complete: {name} lacks {', '.join(missing)}; run the audit again."
    shape = arrays["image"].shape
    same = all(
        array.shape == (shape if key in ("image", "attacked", f"{BEST}attacked") else shape[:3])
        for key, array in arrays.items()
    )
    if len(shape) != 4 or shape[3] != 3 or not same:
        return (
            f"The pictures do not fit one another: {name} holds images of shape {shape}; run the audit again."
        )
    return arrays


def attack_pictures(arrays: dict[str, Array], row: int, eps: float | None = None) -> AttackPictures | None:
    """The pictures of one row; None if the arrays do not have that row. `eps`: the largest allowed change."""
    if not 0 <= row < len(arrays["image"]):
        return None
    at = {key: np.nan_to_num(array[row].astype(float)) for key, array in arrays.items()}
    best = {key.removeprefix(BEST): array for key, array in at.items() if key.startswith(BEST)}
    has_best = all(key in best for key in ARRAYS[1:]) and best["map_clean"].any()
    return AttackPictures(
        data_address(at["image"]),
        data_address(at["attacked"]),
        data_address(difference(at["image"], at["attacked"], eps)),
        views(at),
        views(best | {"image": at["image"]}) if has_best else None,
    )


def views(at: Mapping[str, Array]) -> Views:
    """A map before and after: over its image, alone, and with its sign if there is one."""
    pairs = [(at["image"], at["map_clean"]), (at["attacked"], at["map_attacked"])]
    drawn = {
        "overlay": [overlay(image, map) for image, map in pairs],
        "map": [colour_map(map, scale_end(map)) for _, map in pairs],
    }
    if all(key in at for key in SIGNED) and any((at[key] < 0).any() for key in SIGNED):
        drawn["sign"] = [signed_colours(at[key]) for key in SIGNED]
    return {name: (data_address(before), data_address(after)) for name, (before, after) in drawn.items()}


def scale_end(map: Array) -> float:
    """The value at which the scale of a map ends; 1 for a map of zeros.

    Each map has its own scale, because only the ranking of its pixels matters; on a common scale, an attack that makes
    a map ten times as large would leave the clean map black.
    """
    end = float(np.percentile(np.abs(map), SCALE_END))
    return end if end > 0 else float(np.abs(map).max(initial=0.0)) or 1.0


def shared_scale(clean: Array, moved: Array) -> float:
    """The value at which a common scale of both maps ends; 1 for maps of zeros."""
    return scale_end(np.stack([clean, moved]))


def difference(image: Array, attacked: Array, eps: float | None = None) -> Array:
    """The change by the attack, mean over colours: black and white are a change of `eps`, or the largest change."""
    change = (attacked - image).mean(-1, keepdims=True)
    largest = eps or float(np.abs(change).max(initial=0.0)) or 1.0
    grey: Array = (0.5 + 0.5 * change / largest).clip(0, 1).repeat(3, -1)
    return grey


def signed_colours(map: Array) -> Array:
    """Colours of a signed map: blue below zero, white at zero, red above, symmetric."""
    from matplotlib import colormaps

    end = scale_end(map)
    colours: Array = colormaps[SIGN_COLOURS](0.5 + 0.5 * (map / end).clip(-1, 1))[..., :3]
    return colours


def colour_map(map: Array, end: float) -> Array:
    """Colours of a map; values from `end` on are brightest."""
    from matplotlib import colormaps

    colours: Array = colormaps[MAP_COLOURS]((np.abs(map) / end).clip(0, 1))[..., :3]
    return colours


def overlay(image: Array, map: Array, end: float | None = None) -> Array:
    """The map's colours over the grey image; stronger values hide more of it, values from `end` on are brightest.

    By default the map has its own scale.
    """
    end = scale_end(map) if end is None else end
    strength = (np.abs(map) / end).clip(0, 1)[..., None] * (1 - LEAST_IMAGE)
    mixed: Array = image.mean(-1, keepdims=True) * (1 - strength) + colour_map(map, end) * strength
    return mixed


def png(picture: Array) -> bytes:
    """A picture `h w 3` in [0, 1] as a PNG file, enlarged if it is small."""
    encoded = io.BytesIO()
    _enlarge(picture, FILE_SIDE).save(encoded, "PNG")
    return encoded.getvalue()


def _enlarge(picture: Array, side: int) -> Any:
    """The picture as a PIL image, enlarged by a whole number until its longer side has at least `side` pixels."""
    from PIL import Image

    levels = (np.nan_to_num(picture).clip(0, 1) * 255).round().astype(np.uint8)
    times = max(1, -(-side // max(1, *levels.shape[:2])))
    return Image.fromarray(levels.repeat(times, 0).repeat(times, 1))


def scale_bar() -> str:
    """A colour bar of maps, from zero to the end of the scale."""
    return data_address(colour_map(np.linspace(0, 1, 128)[None], 1.0), grow=False)


def sign_bar() -> str:
    """A colour bar of signed maps."""
    return data_address(signed_colours(np.linspace(-1, 1, 128)[None]), grow=False)


def attack_sheet(
    arrays: dict[str, Array], rows: list[int], titles: list[str], eps: float | None = None
) -> bytes:
    """The attacks as one PNG file, one row each."""
    chosen = [[np.nan_to_num(arrays[key][row].astype(float)) for key in ARRAYS] for row in rows]
    images, attacked, clean, moved = ([parts[at] for parts in chosen] for at in range(len(ARRAYS)))
    columns = {
        "image": images,
        "attacked": attacked,
        "what changed": [difference(*pair, eps) for pair in zip(images, attacked, strict=True)],
        "map before": list(map(overlay, images, clean)),
        "map after": list(map(overlay, attacked, moved)),
    }
    return picture_grid(columns, titles)


def data_address(picture: Array, grow: bool = True) -> str:
    """A picture `h w 3` in [0, 1] as a data URL.

    Small pictures become PNG, enlarged with `grow` so that each pixel is a square; large ones become JPEG, because a
    page shows dozens of them.
    """
    image, buffer = _enlarge(picture, SIDE if grow else 0), io.BytesIO()
    kind = "jpeg" if grow and image.width == picture.shape[1] else "png"
    # Not `optimize=True`: a PNG takes nine times as long to be 3 % smaller.
    image.save(buffer, kind, **({"quality": 90} if kind == "jpeg" else {}))
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
