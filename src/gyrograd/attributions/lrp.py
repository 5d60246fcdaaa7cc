"""Layer-wise relevance propagation: the explained value, distributed back to the input layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, explain_in_parts
from gyrograd.attributions.guided_backprop import output_gradient
from gyrograd.attributions.layout import in_fast_layout
from gyrograd.attributions.relevance import Relevance, with_constants_held
from gyrograd.attributions.replay import Tape, modified_gradient, record
from gyrograd.attributions.rules import AFFINE
from gyrograd.attributions.smooth import OnSmoothed
from gyrograd.attributions.variants import VARIANTS, Shares
from gyrograd.errors import UserError, did_you_mean
from gyrograd.numerics.checks import check_is_module, check_tensor
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import check_quantity
from gyrograd.registry import register
from gyrograd.smoothing import Gaussian
from gyrograd.types import Inputs, Model, PerExample, Targets


@dataclass(frozen=True)
class LRP(Shares):
    """Layer-wise relevance propagation with the settings of `Shares`; the defaults are joo2023's."""

    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        super().__post_init__()
        check_quantity(self.quantity)

    @classmethod
    def variant(cls, name: str, **changes: Any) -> LRP:
        """Named settings (`VARIANTS`), some of them changed."""
        if name not in VARIANTS:
            raise UserError(f"LRP has no variant '{name}': {did_you_mean(name, [*VARIANTS, 'auto'])}")
        return cls(**(VARIANTS[name] | changes))

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        return _propagate(lambda _: self, model, x, target, self.max_batch, create_graph)[0]

    def conserved(self, model: Model, x: Inputs, target: Targets) -> PerExample:
        """Relevance that arrives at the input, as a share of the relevance at the logits; 1 if it is conserved.

        The relevance at the logits is 1, or the logit for start="value". For a probability or a loss it sums to zero,
        so the share is NaN or meaningless.
        """
        return conservation(*_propagate(lambda _: self, model, x, target, self.max_batch, False))


@dataclass(frozen=True)
class AutoLRP:
    """LRP in the variant that suits the model: `attnlrp` if it has attention, else `paper`.

    Attention means a matrix product of two values that both depend on x. For inputs that are not images the first layer
    uses the same rule as the others, because the z-box rule is for pixels between 0 and 1. `changes` replace settings
    of the variant; `chosen` returns its name.
    """

    changes: tuple[tuple[str, Any], ...] = ()
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        self._variant("paper")  # checks the settings

    def chosen(self, model: Model, x: Inputs) -> str:
        """The name of the variant for this model."""
        with eval_mode(model):
            return _variant_for(record(model, x[:1], create_graph=False))

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        return _propagate(self._choice(model, x), model, x, target, self.max_batch, create_graph)[0]

    def conserved(self, model: Model, x: Inputs, target: Targets) -> PerExample:
        """As `LRP.conserved`, for the chosen variant."""
        return conservation(*_propagate(self._choice(model, x), model, x, target, self.max_batch, False))

    def _choice(self, model: Model, x: Inputs) -> Callable[[Tape], LRP]:
        check_is_module(model)
        check_tensor(x)
        images = x.dim() == 4 and all(getattr(module, "takes_images", True) for module in model.modules())
        usual = {} if images else {"first": "same"}
        return lambda tape: self._variant(_variant_for(tape), **usual)

    def _variant(self, name: str, **usual: str) -> LRP:
        return LRP.variant(
            name, **(usual | dict(self.changes)), quantity=self.quantity, max_batch=self.max_batch
        )


def _variant_for(tape: Tape) -> str:
    attends = any(call.name in AFFINE and len(call.inputs) == 2 for call in tape.path)
    return "attnlrp" if attends else "paper"


def _propagate(
    choose: Callable[[Tape], LRP],
    model: Model,
    x: Inputs,
    target: Targets,
    max_batch: int,
    create_graph: bool,
) -> tuple[Inputs, PerExample]:
    """The map, and the total relevance at the logits per example."""
    sums: list[Tensor] = []

    def run(x: Tensor) -> Tape:
        return record(model, x, create_graph=create_graph)

    def explain(x: Tensor, target: Tensor) -> Tensor:
        tape = in_fast_layout(model, x, run, create_graph=create_graph)
        # Chosen from the record, which is needed anyway: whether a model attends shows only in a run.
        settings = choose(tape)
        start = output_gradient(tape, target, settings.quantity, create_graph=create_graph)
        if settings.start == "value":
            # Not detached: a derivative of the map includes that of the logit.
            start = start * tape.logits.value
        tape = with_constants_held(tape, settings)
        map = modified_gradient(tape, Relevance.along(tape, settings), start, create_graph=create_graph)
        sums.append(start.detach().sum(1))
        return map

    map = explain_in_parts(explain, model, x, target, max_batch, create_graph)
    return map, torch.cat(sums)


@register(
    "attribution",
    "lrp",
    paper="joo2023",
    equation="Attribution methods, LRP (z+ and z^B rules)",
    differentiable=True,
    order=70,
    label="LRP",
    about="The score handed back layer by layer until it lies on the pixels.",
)
def lrp(
    variant: str = "auto",
    rule: str | None = None,
    first: str | None = None,
    bias: str | None = None,
    batchnorm: str | None = None,
    residual: str | None = None,
    pool: str | None = None,
    product: str | None = None,
    softmax: str | None = None,
    norm: str | None = None,
    constants: str | None = None,
    start: str | None = None,
    gamma: float | None = None,
    stabilizer: float | None = None,
    quantity: str = "logit",
    max_batch: int = MAX_BATCH,
) -> LRP | AutoLRP:
    """Layer-wise relevance propagation in a named variant; a setting that is given replaces the variant's.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lrp = gg.attribution("lrp", variant="paper")
    >>> lrp(model, x, target=3).shape
    torch.Size([2, 3, 32, 32])
    >>> lrp.conserved(model, x, target=3).shape      # share of the relevance that arrives at the image
    torch.Size([2])
    """
    # First of all, while there are no other locals than the arguments.
    given = locals()
    changes = {field.name: given[field.name] for field in fields(Shares) if given[field.name] is not None}
    if variant == "auto":
        return AutoLRP(tuple(changes.items()), quantity, max_batch)
    return LRP.variant(variant, **changes, quantity=quantity, max_batch=max_batch)


@register(
    "attribution",
    "smooth_lrp",
    paper="tan2023",
    equation="below Theorem 4.3 (any explanation of the smoothed model), with LRP",
    differentiable=True,
    order=71,
    label="SmoothLRP",
    passes="draws",
    width="sigma",
    about="LRP of the model averaged over copies of the image with normal noise on them.",
)
def smooth_lrp(
    sigma: float = 0.05, draws: int = 8, seed: int = 0, quantity: str = "logit", max_batch: int = MAX_BATCH
) -> OnSmoothed:
    """LRP of the Gaussian-smoothed model, in the variant that suits it: steadier than LRP on nets trained plainly.

    A larger sigma holds further and is less faithful (docs/concepts/smoothing.md). `quantity` is that of the mean
    logits.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gg.attribution("smooth_lrp", draws=3)(model, x, target=3).shape
    torch.Size([2, 3, 32, 32])
    """
    explain = AutoLRP(quantity=quantity, max_batch=max_batch)
    return OnSmoothed(explain, Gaussian(sigma), draws, seed, max_batch=max_batch)


def conservation(map: Inputs, start: PerExample) -> PerExample:
    """Relevance that arrived at the input divided by relevance put in; 1 if none was lost or created."""
    return map.flatten(1).sum(1) / start
