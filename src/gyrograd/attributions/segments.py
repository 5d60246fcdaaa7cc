"""Segments of an image, coalitions of segments and their worth: the parts that LIME and SHAP have in common.

A coalition keeps some segments of an image and replaces the others by the baseline. Its worth is the quantity (a
logit, a probability, ...) that the model then gives to the target class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gyrograd.attributions.baselines import check_baseline
from gyrograd.attributions.batching import (
    MAX_BATCH,
    in_parts,
    rows_at_once,
    rows_per_example,
    rows_with_graph,
)
from gyrograd.attributions.layout import logits_of
from gyrograd.errors import UserError, check_name
from gyrograd.numerics.checks import (
    check_inputs,
    check_logits,
    check_rows,
    check_target,
    class_indices,
    try_model,
)
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import check_quantity, quantity_of
from gyrograd.numerics.random import keys, uniform
from gyrograd.numerics.recomputation import recomputed_in_backward
from gyrograd.progress import track
from gyrograd.types import Images, Inputs, Model, Targets

SEGMENTS = ("grid", "pixels", "quickshift")
ENUMERABLE = 12
"""Most segments for which all coalitions are tried: 2^12 = 4096 forward rows per image."""

CUT = ("grid", "kernel_size", "max_dist", "ratio")
"""Settings of a method that say how segments are cut."""
MOST_FEATURES = 128
"""Up to this many features each is a segment of its own by default: the columns of a table, not a volume."""

Segments: TypeAlias = Int[Tensor, "b h w"]
Coalitions: TypeAlias = Bool[Tensor, "n s"]


def as_images(x: Inputs) -> Images:
    """Images unchanged; other inputs as an image of one row and one channel, with a pixel per feature."""
    return x if x.ndim == 4 else x.reshape(len(x), 1, 1, -1)


def segment(
    x: Images,
    how: str | Tensor = "quickshift",
    *,
    grid: int = 8,
    kernel_size: float = 1.0,
    max_dist: float = 200.0,
    ratio: float = 0.1,
) -> Segments:
    """The segment of each pixel, numbered 0..s-1 without gaps per image.

    "quickshift" gives superpixels of each image (skimage, on the CPU; the last three settings as in tan2023
    B.3), "grid" grid x grid cells, "pixels" each pixel alone; a tensor `b h w` or `h w` is taken as given.
    """
    if isinstance(how, Tensor):
        return _check_labels(x, how)
    if how == "grid":
        return _cells(x, grid)
    if how == "pixels":
        b, _, h, w = x.shape
        return torch.arange(h * w, device=x.device).reshape(1, h, w).repeat(b, 1, 1)
    check_name("segmentation", how, SEGMENTS)
    if min(x.shape[2:]) < 2:
        raise UserError("Quickshift needs images b c h w of 2 x 2 pixels or more; use segments='pixels'.")
    return torch.stack([_superpixels(image, kernel_size, max_dist, ratio) for image in x]).to(x.device)


def _superpixels(image: Tensor, kernel_size: float, max_dist: float, ratio: float) -> Tensor:
    # Imported here: skimage takes a second, and most segmentations do without it.
    from skimage.segmentation import quickshift

    pixels = image.detach().permute(1, 2, 0).clamp(0, 1).to("cpu", torch.float64).numpy()
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    colour = pixels.shape[2] == 3
    found = quickshift(
        np.ascontiguousarray(pixels),
        kernel_size=kernel_size,
        max_dist=max_dist,
        ratio=ratio,
        convert2lab=colour,
        channel_axis=-1,
        rng=0,
    )
    return _without_gaps(torch.from_numpy(found))


def _cells(x: Tensor, grid: int) -> Tensor:
    b, _, h, w = x.shape
    if not 1 <= grid <= min(h, w):
        raise UserError(f"grid={grid} does not fit {h} x {w} pixels; give 1 to {min(h, w)} cells per side.")
    row = torch.arange(h, device=x.device) * grid // h
    column = torch.arange(w, device=x.device) * grid // w
    return (row[:, None] * grid + column).repeat(b, 1, 1)


def _check_labels(x: Tensor, labels: Tensor) -> Tensor:
    b, _, h, w = x.shape
    if labels.is_floating_point() or labels.is_complex() or tuple(labels.shape) not in {(h, w), (b, h, w)}:
        raise UserError(
            f"The given segments are {labels.dtype} {tuple(labels.shape)}; "
            f"give whole numbers shaped ({h}, {w}) or ({b}, {h}, {w})."
        )
    return torch.stack([_without_gaps(one) for one in labels.to(x.device).expand(b, h, w)])


def _without_gaps(labels: Tensor) -> Tensor:
    # From 0 without gaps, because labels index the columns of a coalition.
    numbered: Tensor = torch.unique(labels, return_inverse=True)[1]
    return numbered


def every_coalition(s: int, device: torch.device) -> Coalitions:
    """All 2^s coalitions; row i holds the bits of i, so the first is empty and the last is whole."""
    if s > ENUMERABLE:
        raise UserError(
            f"sampling='enumerate' takes at most {ENUMERABLE} segments and an image has {s}; "
            "sample instead, or use fewer segments such as segments='grid', grid=3."
        )
    number = torch.arange(2**s, device=device)
    return (number[:, None] >> torch.arange(s, device=device)) & 1 == 1


def uniform_table(seed: int, rows: int, columns: int, device: torch.device) -> Float[Tensor, "rows columns"]:
    """Numbers in [0, 1) that depend on seed and shape only, so that batches do not matter."""
    return uniform(keys(seed, 1, device), (rows, columns), dtype=torch.float64)[0]


def distinct(coalitions: Coalitions) -> tuple[Bool[Tensor, "m s"], Float[Tensor, " m"]]:
    """The distinct coalitions and how often each was drawn: a repetition needs no second forward pass."""
    rows, counts = torch.unique(coalitions, dim=0, return_counts=True)
    return rows, counts.double()


def segment_counts(segments: Segments, method: str, *, single: bool = False) -> list[int]:
    """The number of segments per image; an image of one segment is refused unless `single` is set."""
    counts: list[int] = [int(n) + 1 for n in segments.flatten(1).amax(1)]
    if 1 in counts and not single:
        raise UserError(
            f"{method} sees image {counts.index(1)} as a single segment, so its map would be constant; "
            "use finer segments, such as segments='grid' or a smaller max_dist."
        )
    return counts


def worths(
    model: Model,
    x: Inputs,
    baseline: Inputs,
    segments: Segments,
    coalitions: list[Tensor],
    target: Tensor,
    quantity: str = "logit",
    max_batch: int = MAX_BATCH,
    create_graph: bool = False,
) -> list[Tensor]:
    """The worths of each example's coalitions (`n s`, where n and s may differ by example), in float64."""
    checked = False

    def worth(logits: Tensor, examples: Tensor) -> Tensor:
        nonlocal checked
        if not checked:  # once: looking at the target makes the host wait for the device
            check_target(target, len(x), logits.shape[1])
            checked = True
        return quantity_of(logits.double(), target[examples], quantity)

    return over_coalitions(model, x, baseline, segments, coalitions, worth, max_batch, create_graph)


def over_coalitions(
    model: Model,
    x: Inputs,
    baseline: Inputs,
    segments: Segments,
    coalitions: list[Tensor],
    value: Callable[[Tensor, Tensor], Tensor],
    max_batch: int = MAX_BATCH,
    create_graph: bool = False,
) -> list[Tensor]:
    """`value(logits, examples)` of every coalition, `examples` being the number of each row's example.

    Forward passes run over examples x coalitions, at most `max_batch` images at once, halved when memory runs out. With
    `create_graph` the values can be differentiated to x; activations of several passes are computed again in backward.
    """
    # The rows of all examples form one list, so that passes are full whatever the number of coalitions per example.
    counts = [len(rows) for rows in coalitions]
    owner = torch.repeat_interleave(torch.tensor(counts)).to(x.device)
    images, fills = as_images(x), as_images(baseline)

    def values_of(images: Tensor, fills: Tensor, rows: slice) -> Tensor:
        masked = _masked_images(images, fills, segments, coalitions, rows.start, rows.stop)
        rebuilt = masked.reshape(-1, *x.shape[1:])
        return value(check_logits(logits_of(model, rebuilt), rebuilt), owner[rows])

    def part_of(rows: slice) -> Tensor:
        run = partial(values_of, rows=rows)
        alone = rows.stop - rows.start == len(owner)
        return run(images, fills) if alone else recomputed_in_backward(run, model, images, fills)

    with torch.set_grad_enabled(create_graph), eval_mode(model):
        budget = rows_with_graph(max_batch, x) if create_graph else rows_at_once(max_batch, x)
        size = max(1, budget // rows_per_example(model))
        parts = in_parts(part_of, len(owner), size)
        whole = torch.cat(list(track(parts, -(-len(owner) // size), "coalitions")))
    return list(whole.split(counts))


def _masked_images(
    images: Tensor, fills: Tensor, segments: Tensor, coalitions: list[Tensor], start: int, stop: int
) -> Tensor:
    """Rows start..stop of the concatenated coalitions of all examples, as images."""
    pieces: list[Tensor] = []
    first = 0
    for image, fill, labels, rows in zip(images, fills, segments, coalitions, strict=True):
        # `first` is the row of the list at which the coalitions of this example begin.
        chosen = rows[max(start - first, 0) : max(stop - first, 0)]
        if len(chosen):
            keep = chosen[:, labels.flatten()].reshape(-1, 1, *labels.shape)
            pieces.append(torch.where(keep, image, fill))
        first += len(rows)
    return torch.cat(pieces)


def paint_segments(coefficients: Float[Tensor, "b s"], segments: Segments, x: Inputs) -> Inputs:
    """Maps shaped like x in which each pixel, in every channel, carries the coefficient of its segment."""
    pixels = coefficients.gather(1, segments.flatten(1)).reshape(len(x), 1, *segments.shape[1:])
    return pixels.expand_as(as_images(x)).reshape(x.shape).to(x.dtype)


def over_groups(map: Inputs, groups: Segments) -> Float[Tensor, "b s"]:
    """The map summed over the channels and pixels of each group."""
    pixels = as_images(map).sum(1).flatten(1)
    sums = pixels.new_zeros(len(pixels), int(groups.max()) + 1)
    return sums.scatter_add(1, groups.flatten(1), pixels)


def segment_map(method: Any, model: Model, x: Inputs, target: Targets, create_graph: bool) -> Inputs:
    """The map of a method with one coefficient per segment, spread over the pixels.

    Its derivative is that of the coefficients. It does not see where segments jump as x moves.
    """
    if create_graph:
        check_rows(x)
    else:
        check_inputs(x)
        x = x.detach()
    target = class_indices(target, x)
    try_model(model, x)
    segments = segments_of(method, x)
    with torch.set_grad_enabled(create_graph):
        return paint_segments(method.coefficients(model, x, target, segments, create_graph), segments, x)


def segments_of(method: Any, x: Inputs) -> Segments:
    """The segments in which a method with LIME's and SHAP's settings sees these inputs."""
    how, row = method.segments, as_images(x).shape[1:]
    if isinstance(how, str) and how == "quickshift" and row[:2] == (1, 1) and row[2] <= MOST_FEATURES:
        how = "pixels"  # each feature of a table is a segment
    return segment(as_images(x), how, **{name: getattr(method, name) for name in CUT})


def has_segments(method: Any) -> bool:
    """True if a method has the settings from which LIME and SHAP make their segments."""
    return all(hasattr(method, name) for name in ("segments", *CUT))


def check_common(method: Any) -> None:
    """Check the settings that LIME and SHAP have in common."""
    if isinstance(method.segments, str):
        check_name("segmentation", method.segments, SEGMENTS)
    check_baseline(method.baseline)
    check_quantity(method.quantity)
    if min(method.draws, method.max_batch) < 1:
        raise UserError(f"draws={method.draws} and max_batch={method.max_batch}; give 1 or more of each.")
    if not (method.kernel_size >= 1 and method.max_dist > 0 and method.ratio >= 0):
        raise UserError(
            f"kernel_size={method.kernel_size}, max_dist={method.max_dist} and ratio={method.ratio}; quickshift takes "
            "a kernel_size of 1 or more, a max_dist above 0 and a ratio of 0 or more."
        )
