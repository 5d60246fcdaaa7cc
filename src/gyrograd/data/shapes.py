"""Synthetic pictures of ten shapes with exact object masks: a data set without a download.

Every number comes from raw PCG64 draws by addition, multiplication, division, square root and comparison, which IEEE
754 rounds exactly. There are no sines, no float sums over an axis and no library distributions, so a seed gives the
same bytes on every machine.

Images come in blocks with a random stream per block and purpose: the first n images do not depend on how many are
asked for, and the background does not depend on the label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gyrograd.data.dataset import Dataset
from gyrograd.errors import UserError, did_you_mean
from gyrograd.registry import register

Field: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = Callable[[Field, Field], Field]

SIDE = 32
BLOCK = 50
SPLITS = {"train": 0, "test": 1}
SIZES = {"train": 7000, "test": 1500}
# sha256 of the default sets (images, labels, masks); `gyrograd data check shapes` compares.
DIGESTS = {
    "train": "0f4cb40405b7b4df2a619fb52a78fc49ffdc738b96982cec4e3617839c5a7157",
    "test": "e5a8cf1556868de267a4dfea8178e9e1f6c1074facd13ec8b9b9a94f518d1cea",
}


@dataclass(frozen=True)
class Difficulty:
    """Difficulty of the pictures; the registered set uses the defaults.

    Lengths are in pixels, colours in [0, 1]. `drift` is the part of the free room the object's place takes,
    `turn` the tangent of half the largest rotation, `contrast` the largest channel difference between the
    object and its background's mean.
    """

    radius: tuple[float, float] = (8.0, 11.5)
    drift: float = 1.0
    turn: float = 0.2
    contrast: tuple[float, float] = (0.28, 0.75)
    texture: float = 0.2
    noise: float = 0.04
    distractors: int = 3


@register("dataset", "shapes", paper="own")
def shapes(
    split: str = "train",
    n: int | None = None,
    seed: int = 0,
    difficulty: Difficulty = Difficulty(),
) -> Dataset:
    """Ten shapes on textured backgrounds, 3 x 32 x 32, with object masks; generated when called.

    Args:
        split: train (7,000 images unless n says otherwise) or test (1,500); they share no random stream.
        n: how many images; a larger n extends a smaller one.
        seed: another seed gives other pictures of the same kind.
        difficulty: contrast, noise, size and clutter of the pictures.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=3)
    >>> data.images.shape, data.masks.shape, data.classes[int(data.labels[0])]
    (torch.Size([3, 3, 32, 32]), torch.Size([3, 32, 32]), 'ring')
    """
    if split not in SPLITS:
        raise UserError(f"shapes has no split '{split}': {did_you_mean(split, SPLITS)}")
    n = SIZES[split] if n is None else n
    if n < 1 or not 0 <= seed < 1 << 32:
        raise UserError(
            f"shapes was asked for n={n}, seed={seed}; give n >= 1 and a seed from 0 to 2**32 - 1."
        )
    blocks = [_block((seed, SPLITS[split], i), difficulty) for i in range(-(-n // BLOCK))]
    images, labels, masks = (torch.from_numpy(np.concatenate(part)[:n]) for part in zip(*blocks, strict=True))
    return Dataset(images, labels, tuple(OUTLINES), f"shapes {split}", masks)


def _block(
    key: tuple[int, ...], hard: Difficulty
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    labels = _balanced_labels(key)
    background, mean = _background(key, hard)
    coverage = _coverage(key, labels, hard)
    paint = _object_paint(key, mean, hard)
    picture = background + (paint - background) * coverage[:, None] + _noise(key, hard.noise)
    levels = np.floor(np.clip(picture, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)
    return levels, labels, coverage >= 0.5


# --- random numbers ---------------------------------------------------------------------------------------

LABELS, BACKGROUND, COARSE, FINE, CLUTTER, PLACE, PAINT, GRAIN, NOISE = range(9)


def _raw(key: tuple[int, ...], purpose: int, n: int) -> NDArray[np.uint64]:
    return np.random.PCG64(np.random.SeedSequence((*key, purpose))).random_raw(n)


def _uniforms(key: tuple[int, ...], purpose: int, *shape: int) -> Field:
    """A block's uniform numbers in [0, 1), `BLOCK *shape`: the top 53 bits of each draw."""
    draws = _raw(key, purpose, BLOCK * int(np.prod(shape)))
    return ((draws >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(BLOCK, *shape)


def _balanced_labels(key: tuple[int, ...]) -> NDArray[np.int64]:
    """Equally many of each class per block, in random order."""
    order = np.argsort(_raw(key, LABELS, BLOCK), kind="stable")
    return (order % len(OUTLINES)).astype(np.int64)


def _noise(key: tuple[int, ...], sigma: float) -> Field:
    """Nearly Gaussian: the centred sum of the four 16-bit words of one draw, scaled to sigma."""
    draws = _raw(key, NOISE, BLOCK * 3 * SIDE * SIDE)
    words = draws.astype("<u8").view("<u2").astype(np.int32)
    total = words[0::4] + words[1::4] + words[2::4] + words[3::4]
    # four uniforms on [0, 65536) have a standard deviation of 65536 / sqrt(3) together
    return ((total - 131070).astype(np.float64) * (sigma * 1.7320508 / 65536)).reshape(BLOCK, 3, SIDE, SIDE)


def _between(u: Field, low: float, high: float) -> Field:
    return low + (high - low) * u


# --- background -------------------------------------------------------------------------------------------


def _background(key: tuple[int, ...], hard: Difficulty) -> tuple[Field, Field]:
    """Two colours mixed by a smooth random field and strewn with small pieces; also their mean colour."""
    u = _uniforms(key, BACKGROUND, 6)
    mean = _between(u[:, :3], 0.1, 0.55)
    swing = _between(u[:, 3:], -hard.texture, hard.texture)
    field = 0.6 * _value_noise(key, COARSE, 4) + 0.4 * _value_noise(key, FINE, 9)
    canvas = mean[:, :, None, None] + swing[:, :, None, None] * field[:, None]
    for piece in range(hard.distractors):
        canvas = _strew(canvas, key, piece)
    return canvas, mean


def _value_noise(key: tuple[int, ...], purpose: int, cells: int) -> Field:
    """A field in [-1, 1]: random values on a coarse grid, interpolated bilinearly with smooth weights."""
    grid = 2 * _uniforms(key, purpose, cells + 1, cells + 1) - 1
    at = (np.arange(SIDE) + 0.5) * cells / SIDE
    low = at.astype(np.int64)
    part = at - low
    blend = part * part * (3 - 2 * part)
    rows = grid[:, low] + (grid[:, low + 1] - grid[:, low]) * blend[None, :, None]
    return rows[:, :, low] + (rows[:, :, low + 1] - rows[:, :, low]) * blend[None, None, :]


def _strew(canvas: Field, key: tuple[int, ...], piece: int) -> Field:
    """Paint one small bar or blob of a random colour on each canvas."""
    u = _uniforms((*key, piece), CLUTTER, 9)
    length, width = _between(u[:, 0], 1.0, 4.5), _between(u[:, 1], 0.5, 1.5)
    along, across = _local_axes(u[:, 2] * SIDE, u[:, 3] * SIDE, _between(u[:, 4], -1.0, 1.0))
    rounded = (u[:, 5] < 0.5)[:, None, None]
    box = np.maximum(np.abs(along) - length[:, None, None], np.abs(across) - width[:, None, None])
    blob = np.sqrt(along * along + across * across) - (0.5 * (length + width))[:, None, None]
    coverage = _soft_edge(np.where(rounded, blob, box))[:, None]
    return canvas + (_between(u[:, 6:, None, None], 0.05, 0.8) - canvas) * coverage


# --- object -----------------------------------------------------------------------------------------------


def _coverage(key: tuple[int, ...], labels: NDArray[np.int64], hard: Difficulty) -> Field:
    """How much of each pixel the object covers, 0 to 1."""
    u = _uniforms(key, PLACE, 4)
    radius = _between(u[:, 0], *hard.radius)
    # No outline reaches beyond 1.15 radii, so at any rotation the whole object stays in the picture.
    room = SIDE - 2.3 * radius
    row, column = (SIDE / 2 + hard.drift * room * (u[:, i] - 0.5) for i in (1, 2))
    along, across = _local_axes(row, column, _between(u[:, 3], -hard.turn, hard.turn))
    scale = radius[:, None, None]
    along, across = along / scale, across / scale
    distance = np.empty_like(along)
    for label, outline in enumerate(OUTLINES.values()):
        mine = labels == label
        distance[mine] = outline(along[mine], across[mine])
    return _soft_edge(distance * scale)


def _local_axes(row: Field, column: Field, t: Field) -> tuple[Field, Field]:
    """Pixel coordinates (along, across) seen from a centre and turned by 2 atan(t).

    (1 - t^2) / (1 + t^2) and 2 t / (1 + t^2) are a cosine and a sine without transcendental functions.
    """
    cosine, sine = ((1 - t * t) / (1 + t * t))[:, None, None], (2 * t / (1 + t * t))[:, None, None]
    pixel = np.arange(SIDE) + 0.5
    down, right = pixel[None, :, None] - row[:, None, None], pixel[None, None, :] - column[:, None, None]
    return cosine * right + sine * down, cosine * down - sine * right


def _soft_edge(distance: Field) -> Field:
    return np.clip(0.5 - distance, 0.0, 1.0)


def _object_paint(key: tuple[int, ...], mean: Field, hard: Difficulty) -> Field:
    """A colour brighter than the background by the wanted contrast, with a faint texture of its own."""
    u = _uniforms(key, PAINT, 5)
    away = _between(u[:, :3], -0.3, 1.0)
    length = _between(u[:, 3:4], *hard.contrast)
    away = away * (length / np.maximum(np.abs(away).max(axis=1, keepdims=True), 0.2))
    grain = _value_noise(key, GRAIN, 8) * (0.5 * hard.texture * u[:, 4])[:, None, None]
    # Clipped before blending, so that a half covered pixel is half way to the colour that is seen.
    colour: Field = np.clip(mean + away, 0.0, 1.0)
    return colour[:, :, None, None] + grain[:, None]


# --- outlines: about the signed distance to the edge of a shape of radius one; negative inside ------------


def _box(u: Field, v: Field, width: float, height: float) -> Field:
    return np.maximum(np.abs(u) - width, np.abs(v) - height)


def _star(u: Field, v: Field) -> Field:
    """Five lines bound a pentagram; each of its points lies beyond at most one of them."""
    lines = ((0.0, -1.0), (0.9510565, -0.3090170), (0.5877853, 0.8090170))
    first, second = np.full_like(u, -9.0), np.full_like(u, -9.0)
    for a, b in lines:
        for mirrored in (a, -a) if a else (a,):
            beyond = mirrored * u + b * v
            second = np.maximum(second, np.minimum(first, beyond))
            first = np.maximum(first, beyond)
    return second - 0.355


def _crescent(u: Field, v: Field) -> Field:
    return np.maximum(np.sqrt(u * u + v * v) - 1.05, 0.85 - np.sqrt((u - 0.55) * (u - 0.55) + v * v))


def _arrow(u: Field, v: Field) -> Field:
    head = np.maximum(0.6246950 * (u - 1.1) + 0.7808688 * np.abs(v), -u)
    return np.minimum(head, _box(u + 0.45, v, 0.6, 0.28))


def _heart(u: Field, v: Field) -> Field:
    """A square on its corner and a disc on each of its two upper edges."""
    square = (np.abs(u) + np.abs(v - 0.15) - 0.85) * 0.7071068
    across = np.abs(u) - 0.425
    return np.minimum(square, np.sqrt(across * across + (v + 0.275) * (v + 0.275)) - 0.601)


OUTLINES: dict[str, Shape] = {
    "disc": lambda u, v: np.sqrt(u * u + v * v) - 0.95,
    "ring": lambda u, v: np.abs(np.sqrt(u * u + v * v) - 0.78) - 0.24,
    "square": lambda u, v: _box(u, v, 0.8, 0.8),
    "triangle": lambda u, v: np.maximum(0.8660254 * np.abs(u) - 0.5 * v, v) - 0.56,
    "cross": lambda u, v: np.minimum(_box(u, v, 1.02, 0.33), _box(u, v, 0.33, 1.02)),
    "star": _star,
    "crescent": _crescent,
    "arrow": _arrow,
    "heart": _heart,
    "bars": lambda u, v: _box(u, np.abs(v) - 0.53, 0.85, 0.24),
}
