"""Similarity of two maps: one value per example, over all its features.

Two zero maps are equal (cosine 1); a zero map and another are unrelated (cosine 0). In the same way `pearson`,
`spearman` and `kendall` give 1 for two constant maps and 0 for one. A NaN in a map gives NaN.
`cosine`, `cosine_distance`, `pearson`, `ssim` and `l2_distance` can be differentiated twice.
"""

import math
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from gyrograd.errors import UserError
from gyrograd.numerics.maps import holds_nan, normalize, top_k_mask
from gyrograd.numerics.modes import without_autocast
from gyrograd.types import PerExample

Maps: TypeAlias = Float[Tensor, "b ..."]


def cosine(a: Maps, b: Maps) -> PerExample:
    """Cosine of the angle between a and b, in [-1, 1] without clipping."""
    together, apart = _sum_and_difference(a, b)
    return torch.where(together + apart == 0, 1, (together - apart) / _safe(together + apart))


def cosine_distance(a: Maps, b: Maps) -> PerExample:
    """(1 - cosine) / 2, in [0, 1] (joo2023 Definition 4); precise for almost equal maps, too."""
    together, apart = _sum_and_difference(a, b)
    return apart / _safe(together + apart)


def l2_distance(a: Maps, b: Maps) -> PerExample:
    """Euclidean length of a - b (joo2023, before Eq. 1), with gradient zero where they are equal."""
    _check_pair(a, b)
    gap = (a - b).flatten(1)
    # Divided by the largest entry, so that squares of tiny gaps do not underflow; as a constant it changes no slope.
    largest = _safe(gap.detach().abs().amax(1))
    square = (gap / largest[:, None]).square().sum(1)
    return torch.where(square > 0, _safe(square).sqrt(), square) * largest


def pearson(a: Maps, b: Maps) -> PerExample:
    """Linear correlation: the cosine of the centred maps."""
    return cosine(_subtract_mean(a), _subtract_mean(b))


def spearman(a: Maps, b: Maps) -> PerExample:
    """Rank correlation, ties at their average rank."""
    _check_pair(a, b)
    value = pearson(_average_ranks(a), _average_ranks(b))
    return _nan_where_nan(value.to(a.dtype), a, b)


def kendall(a: Maps, b: Maps) -> PerExample:
    """Kendall's tau-b: (concordant - discordant pairs) over the pairs that are not tied. O(d log^2 d)."""
    _check_pair(a, b)
    low_a, pairs_a = _ranks_and_tied_pairs(a.flatten(1))
    low_b, pairs_b = _ranks_and_tied_pairs(b.flatten(1))
    d = low_a.shape[1]
    _, pairs_both = _ranks_and_tied_pairs(low_a * d + low_b)
    # With examples sorted by a (ties by b), a pair is discordant exactly if b falls.
    discordant = _falling_pairs((low_a * d + low_b).sort(dim=1).values % d)
    pairs = d * (d - 1) // 2
    score = (pairs - pairs_a - pairs_b + pairs_both - 2 * discordant).double()
    free_a, free_b = (pairs - pairs_a).double(), (pairs - pairs_b).double()
    value = torch.where(free_a + free_b == 0, 1, score / _safe((free_a * free_b).sqrt()))
    return _nan_where_nan(value.to(a.dtype), a, b)


def ssim(a: Maps, b: Maps, data_range: float | PerExample | None = None) -> PerExample:
    """Structural similarity (Wang et al. 2004), averaged over the map: Gaussian window of 7, sigma 1.5.

    As in joo2023: zero padding, C1 = (0.01 L)^2, C2 = (0.03 L)^2 and L = max - min of the second map unless
    `data_range` is given. L is per example here, and one for the whole batch in the reference code. A constant second
    map has L = 1. Channels, if any, are averaged.
    """
    _check_pair(a, b)
    if a.dim() < 3:
        raise UserError(f"ssim got maps of shape {tuple(a.shape)}; give them as b h w or b c h w.")
    if data_range is None:
        # Scaling both maps alike does not change the result, and the squares of tiny maps do not underflow.
        largest = _safe(torch.maximum(a.abs(), b.abs()).detach().flatten(1).amax(1)).view(
            -1, *[1] * (a.dim() - 1)
        )
        a, b = a / largest, b / largest
        data_range = _safe(b.flatten(1).amax(1) - b.flatten(1).amin(1))
    scale = torch.as_tensor(data_range, dtype=a.dtype, device=a.device).view(-1, 1, 1, 1)
    a, b = (map.reshape(len(map), -1, *map.shape[-2:]) for map in (a, b))
    mean_a, mean_b, square_a, square_b, product = _blur(torch.stack([a, b, a * a, b * b, a * b])).unbind()
    c1, c2 = (0.01 * scale).square(), (0.03 * scale).square()
    light = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    spread = (square_a - mean_a**2) + (square_b - mean_b**2) + c2  # sum of the two variances
    return (light * (2 * (product - mean_a * mean_b) + c2) / spread).mean((1, 2, 3))


def top_k_overlap(a: Maps, b: Maps, k: int) -> PerExample:
    """Share of the k largest |a| that are among the k largest |b| (wang2020's k-in, as in its code)."""
    _check_pair(a, b)
    both = top_k_mask(a.abs(), k) & top_k_mask(b.abs(), k)
    return _nan_where_nan(both.flatten(1).sum(1).to(a.dtype) / k, a, b)


def top_k_nearby(a: Maps, b: Maps, k: int, window: int) -> PerExample:
    """Share of the k largest |a| with one of the k largest |b| within `window` pixels along both axes (LENS).

    A window of 0 is `top_k_overlap`. Not symmetric: exchanged maps test whether b's largest are near those of a.
    """
    _check_pair(a, b)
    before, after = top_k_mask(a.abs(), k), top_k_mask(b.abs(), k)
    near = F.max_pool2d(after.to(a.dtype), 2 * window + 1, stride=1, padding=window) > 0
    return _nan_where_nan((before & near).flatten(1).sum(1).to(a.dtype) / k, a, b)


def top_k_mass(a: Maps, b: Maps, k: int) -> PerExample:
    """Share of the mass of |b| on the k largest |a| (wang2020's k-in, as in its supplement); 0 for a zero b.

    a is the map before the attack, b the map after it.
    """
    _check_pair(a, b)
    return _nan_where_nan((normalize(b, "sum").abs() * top_k_mask(a.abs(), k)).flatten(1).sum(1), a, b)


def _check_pair(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape:
        raise UserError(
            f"The maps have shapes {tuple(a.shape)} and {tuple(b.shape)}; compare maps of one shape."
        )


def _sum_and_difference(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """|u + v|^2 and |u - v|^2 of the unit vectors u, v along a, b."""
    # The cosine is (p - q) / (p + q) of these: it cannot leave [-1, 1], and q keeps its digits if a is close to b.
    _check_pair(a, b)
    u, v = normalize(a.flatten(1), "l2"), normalize(b.flatten(1), "l2")
    return (u + v).square().sum(1), (u - v).square().sum(1)


def _safe(size: Tensor) -> Tensor:
    """The divisor, with 1 in place of zero."""
    return torch.where(size == 0, 1, size)


def _subtract_mean(map: Tensor) -> Tensor:
    """The map minus its mean; exactly zero for a constant map, where rounding would leave noise."""
    flat = map.flatten(1)
    constant = flat.amax(1, keepdim=True) == flat.amin(1, keepdim=True)
    return torch.where(constant, 0, flat - flat.mean(1, keepdim=True))


def _average_ranks(map: Tensor) -> Float[Tensor, "b d"]:
    low, high = _tie_bounds(map.flatten(1))
    return (low + high - 1).double() / 2


def _ranks_and_tied_pairs(flat: Tensor) -> tuple[Int[Tensor, "b d"], Int[Tensor, " b"]]:
    """The number of values below each value, and the number of pairs of equal values."""
    low, high = _tie_bounds(flat)
    return low, (high - low - 1).sum(1) // 2


def _tie_bounds(flat: Tensor) -> tuple[Tensor, Tensor]:
    """For each value, how many are below it, and how many are below or equal."""
    flat = flat.detach().contiguous()
    ordered = flat.sort(dim=1).values
    return torch.searchsorted(ordered, flat), torch.searchsorted(ordered, flat, right=True)


def _falling_pairs(order: Int[Tensor, "b d"]) -> Int[Tensor, " b"]:
    """Pairs i < j with order_i > order_j, counted by a merge sort of all rows at once."""
    d = order.shape[1]
    # Padded to a power of two by a rank above all others, which adds no falling pair.
    blocks = F.pad(order, (0, (1 << (d - 1).bit_length()) - d), value=d).unsqueeze(2)
    count = torch.zeros(len(order), dtype=torch.int64, device=order.device)
    while blocks.shape[1] > 1:
        left, right = blocks[:, 0::2].contiguous(), blocks[:, 1::2].contiguous()
        # For each value on the right, the larger values on the left.
        count += (left.shape[2] - torch.searchsorted(left, right, right=True)).sum((1, 2))
        blocks = torch.cat([left, right], 2).sort(dim=2).values
    return count


def _nan_where_nan(value: Tensor, a: Tensor, b: Tensor) -> Tensor:
    # Sorting gives NaN a rank like any other value, so it has to be carried over by hand.
    return torch.where(holds_nan(a) | holds_nan(b), math.nan, value)


def _blur(stack: Float[Tensor, "m b c h w"]) -> Float[Tensor, "m b c h w"]:
    """Gaussian window of 7 pixels, sigma 1.5, zeros outside the image."""
    offsets = torch.arange(-3, 4, dtype=stack.dtype, device=stack.device)
    window = torch.exp(-offsets.square() / (2 * 1.5**2))
    window = window / window.sum()
    flat = stack.reshape(-1, 1, *stack.shape[-2:])
    with without_autocast(flat):
        flat = F.conv2d(flat, window.view(1, 1, 7, 1), padding=(3, 0))
        return F.conv2d(flat, window.view(1, 1, 1, 7), padding=(0, 3)).view_as(stack)
