"""A tiny Swin transformer for small images, as tan2023 used it: windows of 4 and half-size first patches.

Attention is written out (softmax of a 16 x 16 table for each window) and not handed to a fused kernel: fused
kernels have no second derivative, and at this size they save nothing.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.registry import register
from gyrograd.types import Images, Logits

Grid = Float[Tensor, "b h w c"]
Windows = Float[Tensor, "b n t c"]
"""n windows of t tokens each."""


def to_windows(x: Grid, side: int) -> Windows:
    """The grid cut into windows, row by row; tokens row by row inside each."""
    b, h, w, c = x.shape
    tiles = x.reshape(b, h // side, side, w // side, side, c).transpose(2, 3)
    return tiles.reshape(b, (h // side) * (w // side), side * side, c)


def from_windows(x: Windows, side: int, h: int, w: int) -> Grid:
    """The inverse of `to_windows`."""
    b, _, _, c = x.shape
    tiles = x.reshape(b, h // side, w // side, side, side, c).transpose(2, 3)
    return tiles.reshape(b, h, w, c)


def relative_places(side: int) -> Int[Tensor, "t t"]:
    """For each pair of tokens the entry of the (2 side - 1)^2 bias table that belongs to their offset."""
    place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    offset = place[:, None, :] - place[:, :, None] + side - 1
    return offset[0] * (2 * side - 1) + offset[1]


def neighbours(h: int, w: int, side: int, shift: int, device: torch.device) -> Bool[Tensor, "n t t"]:
    """True for tokens of a window that are neighbours in the image, too, after rolling it by `shift`."""
    wrapped_row = (torch.arange(h, device=device) >= h - shift).float()
    wrapped_column = (torch.arange(w, device=device) >= w - shift).float()
    region = wrapped_row[:, None] * 2 + wrapped_column[None, :]
    windows = to_windows(region[None, :, :, None], side)[0, :, :, 0]
    return windows[:, :, None] == windows[:, None, :]


class WindowAttention(nn.Module):
    """Attention inside each window; every second layer looks through windows moved by half a side."""

    places: Tensor

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.heads, self.side, self.shift = heads, side, shift
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        # One bias for each offset, shared by the heads, as in the implementation tan2023 names.
        self.bias = nn.Parameter(torch.randn((2 * side - 1) ** 2))
        self.out = nn.Linear(width, width)
        self.register_buffer("places", relative_places(side), persistent=False)

    def forward(self, x: Grid) -> Grid:
        _, h, w, width = x.shape
        rolled = x.roll((-self.shift, -self.shift), dims=(1, 2)) if self.shift else x
        tokens = self.qkv(to_windows(rolled, self.side))
        q, k, v = tokens.unflatten(-1, (3, self.heads, width // self.heads)).permute(3, 0, 1, 4, 2, 5)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + self.bias[self.places]
        if self.shift:
            seen = neighbours(h, w, self.side, self.shift, x.device)[:, None]
            scores = scores.masked_fill(~seen, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(2, 3).flatten(3)
        back = from_windows(self.out(mixed), self.side, h, w)
        return back.roll((self.shift, self.shift), dims=(1, 2)) if self.shift else back


class SwinBlock(nn.Module):
    """Window attention and a two-layer net on each token, both with a residual connection."""

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, side, shift)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Grid) -> Grid:
        x = x + self.attention(self.norm1(x))
        out: Grid = x + self.mlp(self.norm2(x))
        return out


class PatchMerge(nn.Module):
    """Patches of factor x factor tokens become one token, by one linear map."""

    def __init__(self, channels: int, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(channels * factor**2, width)

    def forward(self, x: Grid) -> Float[Tensor, "b height breadth width"]:
        patches = F.pixel_unshuffle(x.permute(0, 3, 1, 2), self.factor)
        merged: Tensor = self.linear(patches.permute(0, 2, 3, 1))
        return merged


class Swin(nn.Module):
    """Four stages of shifted-window attention, a mean over tokens, LayerNorm and a linear layer."""

    def __init__(
        self,
        width: int,
        depths: Sequence[int],
        heads: Sequence[int],
        factors: Sequence[int],
        window: int,
        num_classes: int,
        in_channels: int,
    ) -> None:
        super().__init__()
        self.window, self.factors = window, tuple(factors)
        stages: list[nn.Module] = []
        channels = in_channels
        for number, (depth, head, factor) in enumerate(zip(depths, heads, factors, strict=True)):
            wide = width * 2**number
            shifts = [0 if layer % 2 == 0 else window // 2 for layer in range(depth)]
            blocks = [SwinBlock(wide, head, window, shift) for shift in shifts]
            stages.append(nn.Sequential(PatchMerge(channels, wide, factor), *blocks))
            channels = wide
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(channels)
        self.linear = nn.Linear(channels, num_classes)

    def forward(self, x: Images) -> Logits:
        """Logits; the grid of the images must divide into windows at every stage."""
        unit = math.prod(self.factors) * self.window
        if x.shape[-2] % unit or x.shape[-1] % unit:
            raise UserError(
                f"This Swin needs sides that are multiples of {unit}, not {x.shape[-2]} x {x.shape[-1]}; "
                "resize the images or build it with another window or factors."
            )
        tokens = self.stages(x.permute(0, 2, 3, 1))
        logits: Logits = self.linear(self.norm(tokens.mean(dim=(1, 2))))
        return logits


@register("model", "swin", paper="tan2023", equation="Appendix B", image_size=32)
def swin(
    num_classes: int = 10,
    in_channels: int = 3,
    width: int = 96,
    depths: Sequence[int] = (2, 2, 6, 2),
    heads: Sequence[int] = (3, 6, 12, 24),
    factors: Sequence[int] = (2, 2, 2, 1),
    window: int = 4,
) -> Swin:
    """Swin-T for 32-pixel images: windows of 4, downscaling 2, 2, 2, 1, width 96, layers 2, 2, 6, 2.

    Its activations are GELUs, so there is no ReLU to swap. Known deviations from the Swin paper, kept from
    the implementation tan2023 names: one position bias for all heads, no query bias, no stochastic depth.

    >>> import torch, gyrograd as gg
    >>> small = gg.model("swin", num_classes=7, width=24, depths=(1, 1, 1, 1), heads=(1, 2, 4, 8))
    >>> small(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 7])
    """
    if not len(depths) == len(heads) == len(factors):
        raise UserError(
            f"There are {len(depths)} depths, {len(heads)} heads and {len(factors)} factors; give equally many."
        )
    for number, head in enumerate(heads):
        if width * 2**number % head:
            raise UserError(
                f"A width of {width * 2**number} does not divide into {head} heads; give heads that divide it."
            )
    return Swin(width, depths, heads, factors, window, num_classes, in_channels)
