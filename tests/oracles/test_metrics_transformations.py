"""Everyday changes and LENS against plain loops in float64, on nets and maps whose answers are known."""

from __future__ import annotations

import doctest
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import gyrograd as gg
from gyrograd.audit import PRESETS
from gyrograd.metrics import TopKIntersection, TopKNearby, transformations
from gyrograd.numerics.similarity import top_k_nearby
from gyrograd.reporting import find_audits
from gyrograd.reporting.table import counts, grouped_columns

GEOMETRIC = ("shift_similarity", "rotation_similarity")
EVERY = ("jpeg_similarity", "brightness_similarity", *GEOMETRIC)


class MiddleGrey(nn.Module):
    """Class 1 for images of a mean within 0.05 of one half, class 0 for others."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        away = (x.mean((1, 2, 3)) - 0.5).abs() * self.scale
        return torch.stack([away, torch.full_like(away, 0.05)], 1)


class Class0(nn.Module):
    def forward(self, x):
        return torch.stack([x.mean((1, 2, 3)) + 2, x.mean((1, 2, 3))], 1)


def itself(model, x, target, *, create_graph=False):
    """A map that moves with its image."""
    return x


def fixed(model, x, target, *, create_graph=False):
    """A map that stays where it is, whatever the image."""
    return (37 * torch.arange(x[0].numel(), dtype=x.dtype)).sin().view(1, *x.shape[1:]).expand_as(x)


def squared(model, x, target, *, create_graph=False):
    """A map that brightness changes, and whose pixels depend on their neighbours."""
    return x.square() + x.roll(1, 3) * x.roll(1, 2)


def images(n=2, h=8, w=11, seed=0):
    torch.manual_seed(seed)
    return torch.rand(n, 3, h, w, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)


@pytest.mark.parametrize("name", GEOMETRIC)
@pytest.mark.parametrize("similarity", ["cosine", "spearman"])
def test_a_map_that_moves_with_its_image_scores_one_and_one_that_stays_does_not(name, similarity):
    x, target = images()
    metric = gg.metric(name, similarity=similarity)
    torch.testing.assert_close(metric(Class0(), itself, x, target), torch.ones(2, dtype=torch.float64))
    assert (metric(Class0(), fixed, x, target) < 0.999).all()


@pytest.mark.parametrize("name", ["jpeg_similarity", "brightness_similarity"])
def test_a_map_that_stays_is_steady_where_no_pixel_moves(name):
    x, target = images()
    metric = gg.metric(name)
    torch.testing.assert_close(metric(Class0(), fixed, x, target), torch.ones(2, dtype=torch.float64))
    assert (metric(Class0(), squared, x, target) < 1).all()


def cosine(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True)) / math.sqrt(
        sum(p * p for p in a) * sum(q * q for q in b)
    )


def merged(map):
    """Sizes summed over channels, as lists of rows."""
    return map.abs().sum(0).tolist()


def flat(map):
    return map.abs().sum(0).flatten().tolist()


def shifted(rows, down, right):
    h, w = len(rows), len(rows[0])
    return [
        [rows[min(max(r - down, 0), h - 1)][min(max(c - right, 0), w - 1)] for c in range(w)]
        for r in range(h)
    ]


def test_the_slow_twin_of_a_shift():
    x, target = images(n=1)
    found = gg.metric("shift_similarity", share=0.25).per_variant(Class0(), squared, x, target)[0]
    h, w = x.shape[2:]
    for value, (down, right) in zip(found.tolist(), [(-2, 0), (2, 0), (0, -2), (0, 2)], strict=True):
        image = torch.tensor(
            [shifted(channel.tolist(), down, right) for channel in x[0]], dtype=torch.float64
        )
        new, old = (
            merged(squared(None, image[None], None)[0]),
            shifted(merged(squared(None, x, None)[0]), down, right),
        )
        seen = [(r, c) for r in range(h) for c in range(w) if 0 <= r - down < h and 0 <= c - right < w]
        assert value == pytest.approx(cosine([old[r][c] for r, c in seen], [new[r][c] for r, c in seen]))


def turned(rows, degrees):
    """Bilinear, one pixel at a time; and which pixels come from inside."""
    h, w, angle = len(rows), len(rows[0]), math.radians(degrees)
    out, inside = [], []
    for r in range(h):
        out.append([])
        inside.append([])
        for c in range(w):
            down, right = r - (h - 1) / 2, c - (w - 1) / 2
            y = math.cos(angle) * down - math.sin(angle) * right + (h - 1) / 2
            z = math.sin(angle) * down + math.cos(angle) * right + (w - 1) / 2
            inside[-1].append(-1e-6 <= y <= h - 1 + 1e-6 and -1e-6 <= z <= w - 1 + 1e-6)
            y, z = min(max(y, 0), h - 1), min(max(z, 0), w - 1)
            top, left = min(int(y), h - 2), min(int(z), w - 2)
            a, b = y - top, z - left
            near = [(1 - a) * (1 - b), (1 - a) * b, a * (1 - b), a * b]
            four = [rows[top][left], rows[top][left + 1], rows[top + 1][left], rows[top + 1][left + 1]]
            out[-1].append(sum(p * q for p, q in zip(near, four, strict=True)))
    return out, inside


@pytest.mark.parametrize("degrees", [7.0, 30.0])
def test_the_slow_twin_of_a_rotation(degrees):
    x, target = images(n=1, h=10, w=13)
    found = gg.metric("rotation_similarity", degrees=degrees).per_variant(Class0(), squared, x, target)[0]
    h, w = x.shape[2:]
    for value, angle in zip(found.tolist(), [degrees, -degrees], strict=True):
        image = torch.tensor([turned(channel.tolist(), angle)[0] for channel in x[0]], dtype=torch.float64)
        new = merged(squared(None, image[None], None)[0])
        old, inside = turned(merged(squared(None, x, None)[0]), angle)
        margin = next(
            m for m in range(h) if all(inside[r][c] for r in range(m, h - m) for c in range(m, w - m))
        )
        assert 0 < margin < h // 2
        seen = [(r, c) for r in range(margin, h - margin) for c in range(margin, w - margin)]
        assert value == pytest.approx(cosine([old[r][c] for r, c in seen], [new[r][c] for r, c in seen]))


def test_the_slow_twin_of_brightness():
    x, target = images(n=1)
    found = gg.metric("brightness_similarity", amount=0.2).per_variant(Class0(), squared, x, target)[0]
    for value, step in zip(found.tolist(), [0.2, -0.2], strict=True):
        image = [[[min(max(v + step, 0), 1) for v in row] for row in channel] for channel in x[0].tolist()]
        new = flat(squared(None, torch.tensor([image], dtype=torch.float64), None)[0])
        assert value == pytest.approx(cosine(flat(squared(None, x, None)[0]), new))


@pytest.mark.parametrize("channels", [1, 3])
def test_the_slow_twin_of_a_jpeg(channels, tmp_path):
    x, target = images(n=1, h=16, w=16)
    x = x[:, :channels]
    found = gg.metric("jpeg_similarity", quality=30)(Class0(), squared, x, target).item()
    levels = (255 * x[0]).round().byte().permute(1, 2, 0).numpy()
    Image.fromarray(levels[:, :, 0] if channels == 1 else levels).save(tmp_path / "a.jpg", quality=30)
    read = np.asarray(Image.open(tmp_path / "a.jpg")).reshape(16, 16, channels) / 255
    new = flat(squared(None, torch.from_numpy(read).permute(2, 0, 1)[None], None)[0])
    assert found < 0.999
    assert found == pytest.approx(cosine(flat(squared(None, x, None)[0]), new))


def test_variants_that_change_the_prediction_do_not_count():
    x, target = images(n=3, h=4, w=4)
    for image, mean in zip(x, (0.5, 0.44, 0.8), strict=True):
        image.copy_((image - image.mean()) / 20 + mean)  # nothing is cut at 0 or 1
    metric = gg.metric("brightness_similarity", amount=0.1)
    every = metric.per_variant(MiddleGrey(), squared, x, target)
    # Of 0.5 both are another class. 0.44 is class 0 as 0.34 and 0.54; as 0.54 it is class 1.
    assert every.isnan().tolist() == [[True, True], [True, False], [False, False]]
    values = metric(MiddleGrey(), squared, x, target)
    assert values.isnan().tolist() == [True, False, False]
    assert values[1] == every[1, 1]
    assert values[2] == pytest.approx(every[2].mean().item())


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    h=st.integers(2, 7),
    w=st.integers(2, 7),
    k=st.integers(1, 4),
    window=st.integers(0, 3),
)
def test_the_slow_twin_of_lens(seed, h, w, k, window):
    torch.manual_seed(seed)
    a, b = torch.rand(2, 1, 1, h, w, dtype=torch.float64)
    places = [(r, c) for r in range(h) for c in range(w)]
    first, second = (sorted(places, key=lambda p, m=m: -m[0, 0, p[0], p[1]].item())[:k] for m in (a, b))
    near = [any(max(abs(r - s), abs(c - t)) <= window for s, t in second) for r, c in first]
    found = top_k_nearby(a, b, k, window).item()
    assert found == pytest.approx(sum(near) / k)
    assert found <= top_k_nearby(a, b, k, window + 1).item()
    assert top_k_nearby(a, b, k, max(h, w)).item() == 1.0
    if window == 0:
        assert TopKNearby(k=k, window=0)(a, b).item() == TopKIntersection(k=k)(a, b).item()


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("jpeg_similarity", {"quality": 0}, "quality is 0"),
        ("brightness_similarity", {"amount": 0.0}, "amount is 0.0"),
        ("shift_similarity", {"share": 0.6}, "share is 0.6"),
        ("rotation_similarity", {"degrees": 50.0}, "degrees is 50.0"),
        ("top_k_nearby", {"window": -1}, "window is -1"),
        ("rotation_similarity", {"similarity": "likeness"}, "likeness"),
    ],
)
def test_settings_that_change_nothing_are_told_in_a_sentence(name, changes, why):
    with pytest.raises(gg.UserError, match=why):
        gg.metric(name, **changes)


def test_what_is_no_picture_is_told_in_a_sentence():
    x, target = images()
    with pytest.raises(gg.UserError, match="1 or 3 channels and the images have 2"):
        gg.metric("jpeg_similarity")(Class0(), itself, x[:, :2], target)
    with pytest.raises(gg.UserError, match="changes images b c h w"):
        gg.metric("shift_similarity")(nn.Linear(5, 2).double(), itself, x.flatten(1)[:, :5], target)


def test_an_audit_shows_them_in_a_group_of_their_own_and_counts_who_is_left_out(tmp_path):
    assert {*EVERY, "top_k_nearby"} <= set(PRESETS["thorough"].metrics)
    assert not PRESETS["quick"].metrics
    torch.manual_seed(0)
    x = 0.1 * torch.rand(2, 3, 8, 8)
    x += torch.tensor([0.5, 0.8]).view(2, 1, 1, 1) - x.mean((1, 2, 3), keepdim=True)
    tiny = {
        "steps": 1,
        "draws": 1,
        "points": 2,
        "sweep": {},
        "curve": (),
        "bound_images": 0,
        "flag_images": 1,
    }
    explain = {"input x gradient": gg.attribution("input_x_gradient")}
    card = gg.audit(
        MiddleGrey(), x, methods=explain, metrics=[*EVERY, "lens"], out=tmp_path, pictures=1, **tiny
    )
    groups = dict(grouped_columns(card.document))
    assert {column["key"] for column in groups["Under everyday changes"]} == set(EVERY)
    assert "top_k_nearby" in [column["key"] for column in groups["Under attack"]]
    (method,) = card.document["methods"]
    assert method["columns"]["brightness_similarity"]["n"] == 1  # the first image's class changes
    assert method["columns"]["shift_similarity"]["n"] == 2
    (audit,) = find_audits(tmp_path)[0]
    assert counts(audit.card)["brightness_similarity"] == "1 image"
    assert "Under everyday changes" in (tmp_path / "report.html").read_text()


def test_examples_in_the_documentation_run():
    assert doctest.testmod(transformations).failed == 0
