"""DeepLIFT and DeepSHAP: the change from a baseline, distributed to the pixels layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, check_baseline, examples_of
from gyrograd.attributions.batching import MAX_BATCH, copies_at_once, explain_in_parts
from gyrograd.attributions.differences import Change, Differences, quantity_change
from gyrograd.attributions.replay import modified_gradient, record
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.checks import check_logits, check_target
from gyrograd.numerics.quantities import check_quantity, quantity_of
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets

MAX_LOST_SHARE = 0.05
"""Largest share of the change that a map may lose to rounding."""


@register(
    "attribution",
    "deep_lift",
    aliases=("deeplift",),
    paper="Shrikumar et al. 2017",
    equation="Section 3.5.1 (rescale rule)",
    differentiable=True,
    order=72,
    label="DeepLIFT",
    passes=2,
    about="How much of the change from a black image each pixel carries, handed back layer by layer.",
)
@dataclass(frozen=True, eq=False)
class DeepLift(ComparedBySettings):
    """(x - baseline) times the multipliers of the rescale rule (Shrikumar et al. 2017).

    A multiplier is a change over a change: those of layers are their weights, that of an activation is (a - a0) / (z -
    z0), with z0 and a0 from the run of the baseline. They chain as derivatives do. Max-pools hand their change to the
    winner of the run with the larger maximum (Captum's rule, whose own code loses some of it next to activations).
    Products (gates, attention), softmax and normalisations, which the paper has no rule for, are made of changes of
    products and of functions of one value. The map sums to the change of the explained value, for every
    `quantity`. It is recorded and replayed, so that its derivative to x and to every weight is exact.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("deep_lift", baseline="zero")(model, x, target=3)
    >>> change = (model(x) - model(torch.zeros_like(x)))[:, 3]
    >>> torch.allclose(maps.flatten(1).sum(1), change, atol=1e-3)
    True
    """

    baseline: Baseline = "zero"
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_baseline(self.baseline)

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def explain(x: Tensor, target: Tensor, start: Tensor) -> Tensor:
            return _change_map(model, x, target, start, self.quantity, create_graph)

        return explain_in_parts(
            explain, model, x, target, self.max_batch, create_graph, passes=2, baseline=self.baseline
        )


@register(
    "attribution",
    "deep_shap",
    aliases=("deepshap",),
    paper="Lundberg et al. 2017",
    equation="Section 4.2 (Deep SHAP)",
    differentiable=True,
    order=73,
    label="DeepSHAP",
    passes="draws",
    about="How much of the change from other images each pixel carries, handed back layer by layer.",
)
@dataclass(frozen=True, eq=False)
class DeepShap(ComparedBySettings):
    """The mean of DeepLIFT's maps over several baselines (Lundberg and Lee 2017).

    `baseline` is a tensor of examples, of which at most `draws` are taken, without repetition; or "noise": each pixel
    of each of `draws` baselines is uniform on [0, 1]. All examples share them. The map sums to f(x) less the mean
    f(baseline), exactly.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> others = gg.dataset("shapes", split="test", n=3).pixels()
    >>> maps = gg.attribution("deep_shap", baseline=others)(model, x, target=3)
    >>> change = model(x)[:, 3] - model(others)[:, 3].mean()
    >>> torch.allclose(maps.flatten(1).sum(1), change, atol=1e-3)
    True
    """

    draws: int = 10
    baseline: str | Tensor = "noise"
    seed: int = 0
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        if self.draws < 1:
            raise UserError(f"DeepSHAP needs at least one baseline, not draws={self.draws}; 10 is usual.")
        if isinstance(self.baseline, str) and self.baseline != "noise":
            raise UserError(
                f"DeepSHAP's baselines are 'noise' or a tensor of several examples, not '{self.baseline}'; for a "
                "single baseline use 'deep_lift'."
            )

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def explain(x: Tensor, target: Tensor) -> Tensor:
            starts = self.baselines(x)
            at_once = copies_at_once(self.max_batch, x, model, rows=2)
            total = torch.zeros_like(x)
            for some in starts.split(at_once):
                rows = x.repeat(len(some), *[1] * (x.dim() - 1))
                against = some.repeat_interleave(len(x), 0)
                map = _change_map(model, rows, target.repeat(len(some)), against, self.quantity, create_graph)
                total = total + map.unflatten(0, (len(some), len(x))).sum(0)
            return total / len(starts)

        return explain_in_parts(
            explain, model, x, target, self.max_batch, create_graph, passes=2 * self.draws
        )

    def baselines(self, x: Inputs) -> Float[Tensor, "n ..."]:
        """The baselines for examples of this shape."""
        key = random.keys(self.seed, 1, x.device)
        if isinstance(self.baseline, str):
            return random.uniform(key, (self.draws, *x.shape[1:]), dtype=x.dtype)[0]
        examples = examples_of(x, self.baseline)
        return examples[random.permutation(key, len(examples))[0][: self.draws]]


def _change_map(
    model: Model, x: Tensor, target: Tensor, start: Tensor, quantity: str, create_graph: bool
) -> Tensor:
    tape = record(model, x, create_graph=create_graph)
    reference = record(model, start, create_graph=create_graph)
    step = Differences.between(tape, reference)
    logits = tape.logits.value
    check_logits(logits, x)
    if not create_graph:
        check_target(target, *logits.shape)
    with torch.enable_grad():
        # The change is linear in `moved`, so its derivative, the start of the replay, is the same at zero.
        moved = torch.zeros_like(logits, requires_grad=True)
        changed = quantity_change(Change(logits, reference.logits.value, moved), target, quantity)
        (cotangent,) = torch.autograd.grad(changed.sum(), moved, create_graph=create_graph)
    map = (x - start) * modified_gradient(tape, step, cotangent, create_graph=create_graph)
    if not create_graph:
        ends = [quantity_of(t, target, quantity) for t in (logits, reference.logits.value)]
        _check_complete(map, *ends)
    return map


def _check_complete(map: Tensor, true: Tensor, reference: Tensor) -> None:
    """Refuse a map that does not sum to the change: rounding errors were amplified."""
    if map.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(map.device.type):
        return  # in half precision rounding alone can exceed the limit
    gap = (map.flatten(1).sum(1) - (true - reference)).abs()
    # A change that is small compared with both values has lost digits to their difference.
    size = (true - reference).abs() + MAX_LOST_SHARE * (true.abs() + reference.abs())
    worst = int((gap - MAX_LOST_SHARE * size).nan_to_num(torch.inf).argmax())
    if not bool(gap[worst] <= MAX_LOST_SHARE * size[worst] + torch.finfo(map.dtype).eps):
        raise UserError(
            f"DeepLIFT's map sums to {float(map[worst].sum()):.3g} where the explained number changes by "
            f"{float(true[worst] - reference[worst]):.3g}: this model amplifies rounding; give model and images in "
            "double precision or another baseline, or use 'integrated_gradients'."
        )
