"""Operations on attribution maps: one value per pixel, a common scale, the largest pixels, the centre.

All but `top_k_mask` are differentiable, and a zero map stays zero without NaN in value or gradient.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.types import Flags, Images, Inputs


def reduce(map: Images, how: str = "abs_sum") -> Float[Tensor, "b h w"]:
    """One value per pixel from its channels.

    Args:
        map: the maps.
        how: abs_sum (sum of absolute values, joo2023), sum, sum_abs (absolute value of the sum, wang2020), max_abs,
            mean (signed) or l2.
    """
    check_name("reduction", how, REDUCTIONS)
    return REDUCTIONS[how](map)


def normalize(map: Inputs, how: str = "max") -> Inputs:
    """Each map divided by its scale.

    Args:
        map: the maps.
        how: max (the largest absolute value becomes 1, joo2023), sum (absolute values add up to 1), area (they add up
            to the number of pixels, so that 1 is the average, wang2020), l2 (length 1) or none.
    """
    check_name("normalization", how, NORMALIZATIONS)
    return NORMALIZATIONS[how](map)


def top_k_mask(map: Inputs, k: int) -> Bool[Tensor, "b ..."]:
    """True at the k largest values of each map; of equal values the one with the lowest index comes first."""
    d = map[0].numel()
    if not 1 <= k <= d:
        raise UserError(f"k is {k} for maps of {d} values; give k from 1 to {d}.")
    values = map.detach().flatten(1)
    if map.device.type == "cpu" and not values.isnan().any():
        # Less than half the time of sorting.
        smallest = values.topk(k, dim=1).values[:, -1:]
        above, equal = values > smallest, values == smallest
        return (above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))).view_as(map)
    order = values.sort(dim=1, descending=True, stable=True).indices[:, :k]
    mask = torch.zeros(len(map), d, dtype=torch.bool, device=map.device)
    return mask.scatter(1, order, True).view_as(map)


def holds_nan(map: Inputs) -> Flags:
    """True for each map that holds NaN: sorting takes NaN for the largest value, so its order means nothing."""
    return map.isnan().flatten(1).any(1)


def mass_center(map: Float[Tensor, "b *c h w"]) -> Float[Tensor, "b 2"]:
    """(row, column) of the centre of mass of |map| over all channels; the middle of the image for a zero map, NaN for
    one that holds NaN."""
    h, w = map.shape[-2:]
    mass = _over_largest(map).abs().reshape(len(map), -1, h, w).sum(1)
    # No matrix products: an autocast block would compute them in half precision, with 8 bits for a position.
    rows, columns = mass.sum(2) * _places(h, map), mass.sum(1) * _places(w, map)
    places = torch.stack([rows.sum(1), columns.sum(1)], 1)
    total = mass.sum((1, 2))[:, None]
    middle = torch.tensor([(h - 1) / 2, (w - 1) / 2], dtype=map.dtype, device=map.device)
    return torch.where(total == 0, middle, places / torch.where(total == 0, 1, total))


def frame_target(h: int, w: int, width: int | None = None) -> Float[Tensor, "h w"]:
    """1 on a frame and 0 inside, the target map of joo2023's attack: 5 pixels wide on 32 (35 on 224)."""
    side = min(h, w)
    width = max(1, round(side * 5 / 32)) if width is None else width
    if side < 2:
        raise UserError(f"No frame fits {h} x {w} pixels; give images of 2 x 2 or more, or another goal.")
    if not 1 <= width <= side // 2:
        raise UserError(f"A frame {width} wide does not fit {h} x {w}; give a width from 1 to {side // 2}.")
    target = torch.ones(h, w)
    target[width : h - width, width : w - width] = 0
    return target


def _length(map: Tensor) -> Tensor:
    """Euclidean length over channels, with gradient zero where all are zero."""
    # Divided by the largest first: squares of tiny maps would underflow. Constant, so the derivative is unchanged.
    largest = map.detach().abs().amax(1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1)
    square = (map / largest).square().sum(1)
    root = torch.where(square > 0, square, 1).sqrt()
    return torch.where(square > 0, root, square) * largest.squeeze(1)


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "abs_sum": lambda map: map.abs().sum(1),
    "sum": lambda map: map.sum(1),
    "sum_abs": lambda map: map.sum(1).abs(),
    "max_abs": lambda map: map.abs().amax(1),
    "mean": lambda map: map.mean(1),
    "l2": _length,
}


def _over_sum(map: Tensor) -> Tensor:
    return _over(map, map.abs().flatten(1).sum(1))


def _over_average(map: Tensor) -> Tensor:
    if map.dim() < 3:
        raise UserError(
            f"'area' needs maps with height and width and got shape {tuple(map.shape)}; use 'sum'."
        )
    return _over_sum(map) * (map.shape[-2] * map.shape[-1])


def _over_length(map: Tensor) -> Tensor:
    even = _over_largest(map)
    square = even.flatten(1).square().sum(1)
    return _over(even, torch.where(square > 0, square, 1).sqrt())


NORMALIZATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda map: _over(map, map.abs().flatten(1).amax(1)),
    "sum": _over_sum,
    "area": _over_average,
    "l2": _over_length,
    "none": lambda map: map,
}


def _over(map: Tensor, scale: Tensor) -> Tensor:
    """Each map divided by its scale, or by 1 if the scale is zero."""
    safe = torch.where(scale > 0, scale, 1)
    return map / safe.view(-1, *[1] * (map.dim() - 1))


def _over_largest(map: Tensor) -> Tensor:
    """Each map divided by its largest absolute value, a constant: for results that do not depend on scale.

    Such a result has the same derivative with the factor constant, and the squares and sums of tiny maps (a saturated
    softmax gives 1e-25) stay within the floating range.
    """
    return _over(map, map.detach().abs().flatten(1).amax(1))


def _places(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, dtype=like.dtype, device=like.device)
