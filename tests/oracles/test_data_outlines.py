"""The ten outlines against slow twins: polygons by ray casting, round shapes by distance, point after point."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gyrograd.data.shapes import OUTLINES, _local_axes

Point = tuple[float, float]


def in_polygon(corners: list[Point]) -> Callable[[float, float], bool]:
    def inside(x: float, y: float) -> bool:
        crossings = 0
        for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True):
            if (ay > y) != (by > y) and x < ax + (y - ay) * (bx - ax) / (by - ay):
                crossings += 1
        return crossings % 2 == 1

    return inside


def in_circle(x: float, y: float, radius: float) -> Callable[[float, float], bool]:
    return lambda u, v: math.hypot(u - x, v - y) <= radius


def rectangle(left: float, top: float, right: float, bottom: float) -> Callable[[float, float], bool]:
    return in_polygon([(left, top), (right, top), (right, bottom), (left, bottom)])


def regular(corners: int, radii: list[float], start: float) -> list[Point]:
    """Corners at equal angles, their distances from the centre taken in turn."""
    angles = [start + 2 * math.pi * i / corners for i in range(corners)]
    return [
        (radii[i % len(radii)] * math.cos(a), radii[i % len(radii)] * math.sin(a))
        for i, a in enumerate(angles)
    ]


def either(*parts: Callable[[float, float], bool]) -> Callable[[float, float], bool]:
    return lambda u, v: any(part(u, v) for part in parts)


# A pentagram whose lines lie 0.355 from the centre: its tips at 0.355 / cos 72, its notches at 0.355 / cos 36.
TIP, NOTCH = 0.355 / math.cos(math.radians(72)), 0.355 / math.cos(math.radians(36))
SLOPE = 1.1 * 0.6246950 / 0.7808688
TWINS: dict[str, Callable[[float, float], bool]] = {
    "disc": in_circle(0, 0, 0.95),
    "ring": lambda u, v: 0.54 <= math.hypot(u, v) <= 1.02,
    "square": rectangle(-0.8, -0.8, 0.8, 0.8),
    "triangle": in_polygon(regular(3, [1.12], -math.pi / 2)),
    "cross": either(rectangle(-1.02, -0.33, 1.02, 0.33), rectangle(-0.33, -1.02, 0.33, 1.02)),
    "star": in_polygon(regular(10, [TIP, NOTCH], -math.pi / 2)),
    "crescent": lambda u, v: math.hypot(u, v) <= 1.05 and math.hypot(u - 0.55, v) >= 0.85,
    "arrow": either(
        in_polygon([(1.1, 0.0), (0.0, SLOPE), (0.0, -SLOPE)]), rectangle(-1.05, -0.28, 0.15, 0.28)
    ),
    "heart": either(
        in_polygon([(0.0, 1.0), (0.85, 0.15), (0.0, -0.7), (-0.85, 0.15)]),
        in_circle(0.425, -0.275, 0.601),
        in_circle(-0.425, -0.275, 0.601),
    ),
    "bars": either(rectangle(-0.85, 0.29, 0.85, 0.77), rectangle(-0.85, -0.77, 0.85, -0.29)),
}


@pytest.mark.parametrize("name", list(OUTLINES))
def test_an_outline_holds_the_points_of_its_slow_twin(name: str) -> None:
    u, v = np.random.default_rng(0).uniform(-1.3, 1.3, (2, 1500))
    distance = OUTLINES[name](u, v)
    clear = np.abs(distance) > 1e-4  # corners given to four places, not points on the very edge
    slow = np.array([TWINS[name](a, b) for a, b in zip(u, v, strict=True)])
    assert np.array_equal((distance < 0)[clear], slow[clear])
    assert 40 < slow.sum() < 1100


@pytest.mark.parametrize("name", list(OUTLINES))
def test_no_outline_reaches_beyond_the_room_left_for_it(name: str) -> None:
    angle = np.linspace(0, 2 * np.pi, 2000)
    assert (OUTLINES[name](1.15 * np.cos(angle), 1.15 * np.sin(angle)) >= -1e-9).all()


def test_turned_axes_equal_a_rotation_by_cosine_and_sine() -> None:
    row, column, t = np.random.default_rng(1).uniform(-1, 1, (3, 5)) * np.array([[20.0], [20.0], [1.0]])
    along, across = _local_axes(row, column, t)
    for i in range(5):
        angle = 2 * math.atan(t[i])
        for r in (0, 13, 31):
            for c in (0, 7, 31):
                right, down = c + 0.5 - column[i], r + 0.5 - row[i]
                assert along[i, r, c] == pytest.approx(math.cos(angle) * right + math.sin(angle) * down)
                assert across[i, r, c] == pytest.approx(math.cos(angle) * down - math.sin(angle) * right)
