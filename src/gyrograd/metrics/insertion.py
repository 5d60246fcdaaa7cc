"""Insertion and deletion: how the model's output changes as pixels are added or removed in the order of a map."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, baseline_of, check_baseline
from gyrograd.attributions.batching import MAX_BATCH, rows_at_once
from gyrograd.attributions.segments import as_images
from gyrograd.errors import UserError, check_name
from gyrograd.metrics.passes import checked_target, in_parts, score_variants
from gyrograd.metrics.reductions import check_reduction, reduce_map
from gyrograd.metrics.response import attacked_map
from gyrograd.models import Normalized
from gyrograd.numerics import random
from gyrograd.numerics.checks import class_indices
from gyrograd.numerics.maps import holds_nan
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.types import Attribution, Images, Inputs, Labels, Model, PerExample, Seed, Targets

PROTOCOLS: dict[str, tuple[float, ...]] = {
    "paper": tuple(i / 20 for i in range(21)),
    "reference": tuple(i / 20 for i in range(20)),
}
"""Shares of pixels in joo2023: 0, 0.05 ... 1 in the text; its code leaves out the 1."""

RANGES = {"probability": (0.0, 1.0), "log_probability": (-math.inf, 0.0), "loss": (0.0, math.inf)}

Ratios = str | tuple[float, ...]
Curve = Float[Tensor, "b points"]
Positions = Int[Tensor, "b c h w"]


MAX_SHARED = 64
"""Most curves in the cache."""
MAX_SHARED_ENDS = 1024
"""Most images whose two ends are in the cache: those of many shards."""


@dataclass(frozen=True)
class _Shared:
    """Known curves of maps, and known values of a whole and an empty image, with their models."""

    curves: dict[Any, tuple[Model, Curve]] = field(default_factory=dict)
    ends: dict[Any, tuple[Model, Tensor]] = field(default_factory=dict)

    def ends_of(
        self, model: Model, x: Inputs, empty: Inputs, target: Labels, quantity: str
    ) -> tuple[PerExample, PerExample]:
        """The values of the whole and of the empty images."""
        found = []
        for image, nothing, label in zip(x, empty, target, strict=True):
            both = torch.stack([image, nothing])[None]
            key = id(model), quantity, int(label), _digest(both)
            if key not in self.ends:
                if len(self.ends) >= MAX_SHARED_ENDS:
                    del self.ends[next(iter(self.ends))]
                # Each example by itself: its last digit must not depend on which others are asked for with it.
                self.ends[key] = model, score_variants(model, both, label[None], quantity)[0]
            found.append(self.ends[key][1])
        values = torch.stack(found)
        return values[:, 0], values[:, 1]


_SHARED: ContextVar[_Shared | None] = ContextVar("shared curves", default=None)


@contextmanager
def shared_curves() -> Iterator[None]:
    """Evaluate equal curves once on a CPU, and the two ends of all curves of an image, which do not depend on the map.

    The weights of models may not be changed in the block.
    """
    token = _SHARED.set(_Shared())
    try:
        yield
    finally:
        _SHARED.reset(token)


def _digest(*tensors: Tensor) -> bytes:
    """Equal for equal tensors only."""
    content = sha256()
    for tensor in tensors:
        content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.digest()


@dataclass(frozen=True)
class InsertionCurve:
    """Mean output of the model over images that contain a growing share of the pixels, in the order of a map.

    game: "insertion" puts the first pixels on the substrate, "deletion" replaces them by it.
    attacked: the order comes from the map at `perturbed`; the pixels always come from x.
    ratios: "paper" (0, 0.05 ... 1), "reference" (without the 1), or shares of your own.
    substrate: the background. "model_zero" is the colour that the model's normalisation maps to 0 (joo2023's
    zero-valued image; black for a model without normalisation); else a baseline: "zero", "mean" (the image's mean
    colour), "blur", a grey value, a colour.
    ties: "exact" takes equal pixels in image order, so that exactly m pixels are inserted. "strict" inserts a group of
    equal pixels only if all of it fits, as the `>` in joo2023's code does.
    reduce: "abs_sum" ranks pixels by their size over channels (joo2023); "none" and "abs" rank single elements.
    A constant map has no meaningful order; `sanity_checks.constant_maps` detects it.
    """

    game: str
    attacked: bool = False
    ratios: Ratios = "paper"
    substrate: Baseline = "model_zero"
    ties: str = "exact"
    reduce: str = "abs_sum"
    quantity: str = "probability"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_name("game", self.game, ("insertion", "deletion"))
        shares(self.ratios)
        if self.substrate != "model_zero":
            check_baseline(self.substrate)
        check_name("ties", self.ties, ("exact", "strict"))
        check_reduction(self.reduce)
        check_quantity(self.quantity)

    @property
    def range(self) -> tuple[float, float]:
        """Where the values lie."""
        return RANGES.get(self.quantity, (-math.inf, math.inf))

    def __call__(
        self,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Targets,
        *,
        seed: Seed = 0,
        perturbed: Inputs | None = None,
    ) -> PerExample:
        return self.curve(model, attribution, x, target, seed=seed, perturbed=perturbed).mean(1)

    def curve(
        self,
        model: Model,
        attribution: Attribution,
        x: Inputs,
        target: Targets,
        *,
        seed: Seed = 0,
        perturbed: Inputs | None = None,
    ) -> Curve:
        """The value at each share of pixels."""
        target = class_indices(target, x)
        if self.attacked:
            return self.curve_of_map(model, attacked_map(model, attribution, x, target, perturbed), x, target)
        if perturbed is not None:
            raise UserError(
                f"{self.game} ranks pixels by the clean map and got perturbed inputs; use adversarial_insertion."
            )
        return self.curve_of_map(model, attribution(model, x, target).detach(), x, target)

    def curve_of_map(self, model: Model, map: Inputs, x: Inputs, target: Labels) -> Curve:
        """As `curve`, for a given map; NaN if the map holds NaN."""
        target, x = checked_target(model, x, target), x.detach()
        shared = _SHARED.get()
        if shared is None or x.device.type != "cpu" or isinstance(self.substrate, Tensor):
            return self._curve_of_map(model, map, x, target, None)
        # The size of passes may change the last digit, which must not depend on whose curve came first.
        rows = rows_at_once(self.max_batch, x)
        settings = (self.game, shares(self.ratios), self.substrate, self.ties, self.reduce, self.quantity)
        key = id(model), repr(settings), rows, _digest(map, x, target)
        if key not in shared.curves:
            if len(shared.curves) >= MAX_SHARED:
                del shared.curves[next(iter(shared.curves))]
            # With the model, so that its id is not reused.
            shared.curves[key] = model, self._curve_of_map(model, map, x, target, shared)
        return shared.curves[key][1]

    def _curve_of_map(
        self, model: Model, map: Inputs, x: Inputs, target: Labels, shared: _Shared | None
    ) -> Curve:
        place = positions(reduce_map(map, self.reduce), self.ties)
        empty = self.empty_image(model, x)
        pair = as_images(x), as_images(empty)
        # Deletion inserts pixels of the empty image into the whole one.
        first, rest = pair if self.game == "insertion" else pair[::-1]
        pixels = place[0].numel()
        # The small term corrects products such as 0.29 * 100 = 28.999999999999996.
        steps = [math.floor(ratio * pixels + 1e-9) for ratio in shares(self.ratios)]
        ends = None if shared is None else shared.ends_of(model, x, empty, target, self.quantity)
        between = steps if ends is None else [step for step in steps if 0 < step < pixels]
        counts = torch.tensor(between, device=x.device)

        def values(examples: slice, these: slice) -> Tensor:
            inside = place[examples, None] < counts[these].view(1, -1, 1, 1, 1)
            mixed = torch.where(inside, first[examples, None], rest[examples, None])
            return score_variants(
                model, mixed.reshape(*mixed.shape[:2], *x.shape[1:]), target[examples], self.quantity
            )

        curve = in_parts(values, x, len(counts), self.max_batch) if between else x.new_empty(len(x), 0)
        if ends is not None:
            whole, nothing = ends if self.game == "insertion" else ends[::-1]
            known = iter(curve.unbind(1))
            points = [nothing if step == 0 else whole if step == pixels else next(known) for step in steps]
            curve = torch.stack(points, 1)
        return torch.where(holds_nan(map)[:, None], math.nan, curve)

    def chance(self, model: Model, x: Inputs, target: Labels, *, seed: Seed = 0) -> PerExample:
        """The value for a random order of pixels, the score of an uninformative map."""
        noise = random.uniform(random.keys(seed, len(x), x.device), tuple(x.shape[1:]), dtype=x.dtype)
        return self.curve_of_map(model, noise, x, target).mean(1)

    def without_model(self, model: Model, x: Inputs, target: Labels) -> PerExample:
        """The value if pixels are ranked by their distance from the substrate, an order that knows the image alone.

        Such pixels change the image most, so that the value is far above chance. A map has to beat it, too.
        """
        return self.curve_of_map(model, x - self.empty_image(model, x), x, target).mean(1)

    def empty_image(self, model: Model, x: Inputs) -> Inputs:
        """The substrate, shaped like x."""
        if self.substrate != "model_zero":
            return baseline_of(x, self.substrate)
        # The image that the normalisation maps to zero.
        colours = [module.mean for module in model.modules() if isinstance(module, Normalized)]
        return (
            colours[0].to(x).view(-1, *[1] * (x.dim() - 2)).expand_as(x) if colours else torch.zeros_like(x)
        )


@register(
    "metric",
    "insertion",
    aliases=("ins",),
    paper="joo2023",
    equation="Metrics, Insertion",
    direction="higher is better",
    group="faithfulness",
)
def insertion(
    ratios: Ratios = "paper",
    substrate: Baseline = "model_zero",
    ties: str = "exact",
    reduce: str = "abs_sum",
    quantity: str = "probability",
    max_batch: int = MAX_BATCH,
) -> InsertionCurve:
    """Mean probability of the class as pixels are inserted, the highest in the map first.

    joo2023 reports it times 100, for the true label: pass the label as target.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> insertion, target = gg.metric("insertion"), gg.predict(model, x)
    >>> insertion(model, gg.attribution("gradient"), x, target).shape
    torch.Size([2])
    >>> insertion.curve(model, gg.attribution("gradient"), x, target).shape
    torch.Size([2, 21])
    """
    return InsertionCurve("insertion", False, ratios, substrate, ties, reduce, quantity, max_batch)


@register(
    "metric",
    "deletion",
    paper="joo2023",
    equation="Metrics, Insertion, reversed (Petsiuk et al. 2018)",
    direction="lower is better",
    group="faithfulness",
)
def deletion(
    ratios: Ratios = "paper",
    substrate: Baseline = "model_zero",
    ties: str = "exact",
    reduce: str = "abs_sum",
    quantity: str = "probability",
    max_batch: int = MAX_BATCH,
) -> InsertionCurve:
    """Mean probability of the class as pixels are removed, the highest in the map first.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> deletion = gg.metric("deletion")
    >>> deletion(model, gg.attribution("gradient"), x, gg.predict(model, x)).shape
    torch.Size([2])
    """
    return InsertionCurve("deletion", False, ratios, substrate, ties, reduce, quantity, max_batch)


@register(
    "metric",
    "adversarial_insertion",
    aliases=("adv_insertion", "a_ins"),
    paper="joo2023",
    equation="Metrics, Adv-Insertion",
    direction="higher is better",
    group="faithfulness",
)
def adversarial_insertion(
    ratios: Ratios = "paper",
    substrate: Baseline = "model_zero",
    ties: str = "exact",
    reduce: str = "abs_sum",
    quantity: str = "probability",
    max_batch: int = MAX_BATCH,
) -> InsertionCurve:
    """Insertion of the clean image's pixels in the order of the attacked map: pass `perturbed=result.x`.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    >>> hit = gg.attack("random", eps=16 / 255)(model, lrp, x, target)      # or "auto"
    >>> gg.metric("adversarial_insertion")(model, lrp, x, target, perturbed=hit.x).shape
    torch.Size([2])
    """
    return InsertionCurve("insertion", True, ratios, substrate, ties, reduce, quantity, max_batch)


def shares(ratios: Ratios) -> tuple[float, ...]:
    """The shares of pixels of a named protocol, or the given ones, checked."""
    if isinstance(ratios, str):
        check_name("protocol", ratios, PROTOCOLS)
        return PROTOCOLS[ratios]
    if not ratios or not all(0 <= ratio <= 1 for ratio in ratios):
        raise UserError(f"The ratios are {ratios}; give fractions from 0 to 1, such as (0, 0.5, 1).")
    return ratios


def positions(map: Images, ties: str = "exact") -> Positions:
    """Rank of each pixel in falling order, from 0: the first m pixels have ranks below m."""
    flat = map.flatten(1).contiguous()
    if ties == "exact":
        order = flat.sort(dim=1, descending=True, stable=True).indices
        steps = torch.arange(flat.shape[1], device=flat.device).expand_as(order)
        return torch.empty_like(order).scatter_(1, order, steps).view_as(map)
    # searchsorted takes rising values. Each pixel gets the last place of its group of equals, so that the group is in
    # once all of it fits.
    falling = (-flat).sort(dim=1).values
    return (torch.searchsorted(falling, -flat, right=True) - 1).view_as(map)
