"""Maps made comparable: channels reduced, scale taken out. And the named similarities between two of them."""

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
"""Reductions that keep every element: with its sign, or its size."""


def picture(map: Inputs, reduce: str = "abs_sum", normalize: str = "none") -> Images:
    """The map as `b c h w`, with one channel where `reduce` merged them.

    "none" keeps every element and its sign, "abs" every element's size; the others are those of
    `numerics.maps.reduce`. Inputs that are no images count as one row of pixels.
    """
    images = as_images(map)
    kept = ELEMENTS[reduce](images) if reduce in ELEMENTS else maps.reduce(images, reduce).unsqueeze(1)
    return maps.normalize(kept, normalize)


def check_picture(reduce: str, normalize: str = "none") -> None:
    """Refuse a reduction or normalization that does not exist."""
    check_name("reduction", reduce, (*ELEMENTS, *maps.REDUCTIONS))
    check_name("normalization", normalize, maps.NORMALIZATIONS)
