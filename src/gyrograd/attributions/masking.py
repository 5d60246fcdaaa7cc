"""Occlusion and RISE: hide parts of the image and measure the explained value. Forward passes only, any model.

Both maps are weighted sums of the model's values at masked images. So their derivative to x is a first derivative of
the model, which also nets of ReLUs have, and attacks follow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, baseline_of, check_baseline
from gyrograd.attributions.batching import MAX_BATCH, copies_at_once, explain_in_parts
from gyrograd.attributions.gradient import score
from gyrograd.attributions.layout import any_layout_pays
from gyrograd.attributions.segments import as_images
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.checks import check_rows
from gyrograd.numerics.modes import without_autocast
from gyrograd.numerics.quantities import check_quantity
from gyrograd.numerics.recomputation import recomputed_in_backward
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets


@register(
    "attribution",
    "occlusion",
    paper="Zeiler et al. 2014",
    equation="Section 4.2 (occlusion sensitivity)",
    differentiable=True,
    forward_only=True,
    order=92,
    passes=226,
    about="How much the score falls when a patch of the image is hidden, patch by patch.",
)
@dataclass(frozen=True, eq=False)
class Occlusion(ComparedBySettings):
    """Fall of the explained value when a patch is hidden, averaged over the patches that cover a pixel.

    A square of `patch` pixels moves by `stride` over the image (Zeiler and Fergus 2014), all channels at once; the last
    of a row is cut off at the edge. By default the patch is an eighth of the shorter side and moves by half of that:
    about 225 passes at any image size. All channels of a pixel have the same value.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("occlusion", patch=8, stride=8)(model, x, target=3)
    >>> maps[0, 0].unique().numel()      # 16 patches that do not overlap
    16
    """

    patch: int | None = None
    stride: int | None = None
    baseline: Baseline = "zero"
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_baseline(self.baseline)
        if min(self.patch or 1, self.stride or 1) < 1 or 0 in (self.patch, self.stride):
            raise UserError(f"patch={self.patch} and stride={self.stride} are in pixels; give 1 or more.")
        if self.patch and self.stride and self.stride > self.patch:
            raise UserError(
                f"A stride of {self.stride} leaves pixels between patches of {self.patch} that are never hidden; give "
                f"a stride of at most {self.patch}."
            )

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        check_rows(x)
        hidden = self._patches(x)
        # The first mask hides nothing: the fall is measured from there.
        masks = 1 - torch.cat([torch.zeros_like(hidden[:1]), hidden])

        def pixels(values: Tensor) -> Tensor:
            falls = values[:, :1] - values[:, 1:]
            times = hidden.flatten(1).double()
            # The mean over the patches that cover a pixel: at the edges there are fewer.
            return falls @ times / times.sum(0)

        return _masked_map(self, masks, pixels, model, x, target, create_graph)

    def _patches(self, x: Tensor) -> Float[Tensor, "n h w"]:
        """One mask per patch, 1 where it hides."""
        h, w = as_images(x).shape[2:]
        patch = self.patch or max(1, min(h, w) // 8)
        stride = self.stride or max(1, patch // 2)
        if stride > patch:
            raise UserError(
                f"A stride of {stride} leaves pixels between patches of {patch} that are never hidden; give a smaller "
                "stride or a larger patch."
            )
        rows, columns = (_windows(side, patch, stride).to(x) for side in (h, w))
        return (rows[:, None, :, None] * columns[None, :, None, :]).flatten(0, 1)


def _windows(side: int, patch: int, stride: int) -> Tensor:
    """The pixels that each window position covers, up to the first that reaches the end."""
    starts = torch.arange(math.ceil(max(side - patch, 0) / stride) + 1) * stride
    places = torch.arange(side)
    return (places >= starts[:, None]) & (places < starts[:, None] + patch)


@register(
    "attribution",
    "rise",
    paper="Petsiuk et al. 2018",
    equation="Equation 6",
    differentiable=True,
    forward_only=True,
    order=94,
    label="RISE",
    passes="draws",
    about="The mean score over images of which random parts are hidden, for each pixel those that show it.",
)
@dataclass(frozen=True, eq=False)
class Rise(ComparedBySettings):
    """RISE: 1 / (draws keep) sum_i f(x M_i + (1 - M_i) baseline) M_i over random soft masks M_i (Petsiuk et al. 2018).

    A mask is a grid x grid table of zeros and ones, 1 with chance `keep`, enlarged (bilinear) and moved by a random
    part of a cell. All images use the same masks for a seed, so a map depends on its image alone. All channels of a
    pixel have the same value. The paper explains the probability, and so does this by default; a logit, which has no
    natural zero, adds a constant to the map.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gg.attribution("rise", draws=20)(model, x, target=3).shape
    torch.Size([2, 3, 32, 32])
    """

    draws: int = 500
    grid: int = 7
    keep: float = 0.5
    baseline: Baseline = "zero"
    seed: int = 0
    quantity: str = "probability"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_baseline(self.baseline)
        if self.draws < 1 or self.grid < 1 or not 0 < self.keep < 1:
            raise UserError(
                f"draws={self.draws}, grid={self.grid} and keep={self.keep}; give at least 1 for draws and "
                "grid, and a share between 0 and 1 for keep, such as 0.5."
            )

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        check_rows(x)
        masks = self.masks(x)

        def pixels(values: Tensor) -> Tensor:
            return values @ masks.flatten(1).double() / (self.draws * self.keep)

        return _masked_map(self, masks, pixels, model, x, target, create_graph)

    def masks(self, x: Inputs) -> Float[Tensor, "n h w"]:
        """The masks for images of this size, one per draw."""
        h, w = as_images(x).shape[2:]
        key = random.keys(self.seed, 1, x.device)
        # In single precision for every type of x, so that the masks are the same.
        chance = random.uniform(key, (self.draws, self.grid, self.grid), stream=0)[0]
        cell_h, cell_w = math.ceil(h / self.grid), math.ceil(w / self.grid)
        # One cell larger than the image, so that it can be moved.
        size = ((self.grid + 1) * cell_h, (self.grid + 1) * cell_w)
        cells = (chance < self.keep).to(torch.float32).unsqueeze(1)
        large = F.interpolate(cells, size, mode="bilinear", align_corners=False)[:, 0]
        top, left = (
            random.integers(key, (self.draws,), cell, stream=1 + i)[0]
            for i, cell in enumerate((cell_h, cell_w))
        )
        rows = top[:, None] + torch.arange(h, device=x.device)
        columns = left[:, None] + torch.arange(w, device=x.device)
        draw = torch.arange(self.draws, device=x.device)
        return large[draw[:, None, None], rows[:, :, None], columns[:, None, :]].to(x.dtype)


def _masked_map(
    method: Occlusion | Rise,
    masks: Float[Tensor, "n h w"],
    pixels: Callable[[Tensor], Tensor],
    model: Model,
    x: Inputs,
    target: Targets,
    create_graph: bool,
) -> Inputs:
    """Maps whose pixels `b h*w` are a function of the values `b n` of the masked images, in float64.

    A mask is 1 where the image is kept and 0 where the baseline shows.
    """
    free = any_layout_pays(model, create_graph)

    def explain(x: Tensor, target: Tensor) -> Tensor:
        images, fill = as_images(x), as_images(baseline_of(x, method.baseline))

        def values(images: Tensor, fill: Tensor, some: Tensor) -> Tensor:
            rows = (some * images + (1 - some) * fill).flatten(0, 1).reshape(-1, *x.shape[1:])
            repeated = target.repeat(len(some))
            explained = score(model, repeated, method.quantity, check=not create_graph, any_layout=free)
            found: Tensor = explained(rows).double().unflatten(0, (len(some), len(x)))
            return found

        parts = masks[:, None, None].split(copies_at_once(method.max_batch, x, model, graph=create_graph))
        run = values if len(parts) == 1 else partial(recomputed_in_backward, values, model)
        found = torch.cat([run(images, fill, some) for some in parts])
        with without_autocast(x):
            map = pixels(found.T).to(x.dtype)
        return map.reshape(len(x), 1, *images.shape[2:]).expand_as(images).reshape(x.shape)

    with torch.set_grad_enabled(create_graph):
        return explain_in_parts(
            explain, model, x, target, method.max_batch, create_graph=create_graph, passes=len(masks)
        )
