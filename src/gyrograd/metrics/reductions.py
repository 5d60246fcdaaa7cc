"""Reduce maps to comparable form (channels merged, scale removed), and the named similarities of two maps."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gyrograd.attributions.segments import as_images
from gyrograd.errors import check_name
from gyrograd.numerics import maps, similarity
from gyrograd.types import Images, Inputs

SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": similarity.cosine,
    "pearson": similarity.pearson,
    "spearman": similarity.spearman,
    "ssim": similarity.ssim,
}

ELEMENTS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda map: map, "abs": Tensor.abs}
"""Reductions that keep every element, with its sign or as its magnitude."""


def reduce_map(map: Inputs, reduce: str = "abs_sum", normalize: str = "none") -> Images:
    """The map as `b c h w`, with one channel if `reduce` merges them.

    "none" keeps every element, "abs" its magnitude; `numerics.maps.reduce` defines the others. Inputs that are not
    images count as one row of pixels.
    """
    images = as_images(map)
    kept = ELEMENTS[reduce](images) if reduce in ELEMENTS else maps.reduce(images, reduce).unsqueeze(1)
    return maps.normalize(kept, normalize)


def check_reduction(reduce: str, normalize: str = "none") -> None:
    """Refuse a reduction or normalization that does not exist."""
    check_name("reduction", reduce, (*ELEMENTS, *maps.REDUCTIONS))
    check_name("normalization", normalize, maps.NORMALIZATIONS)
