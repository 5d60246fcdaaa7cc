"""SmoothGrad and UniGrad: the gradient of the smoothed model, as two of the papers prove."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from gyrograd.attributions.batching import MAX_BATCH, rows_at_once
from gyrograd.attributions.gradient import Gradient
from gyrograd.attributions.layout import any_layout_pays, logits_of
from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_rows, class_indices, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import check_quantity, with_full_precision
from gyrograd.registry import register
from gyrograd.smoothing import Gaussian, Smoothed, Uniform
from gyrograd.types import Attribution, Inputs, Kernel, Model, Targets


class QuantityHead(nn.Module):
    """A model that returns the explained quantity of every class, so that a smoothed model averages that.

    `any_layout` allows channels-last inputs on a CPU (see `score`).
    """

    def __init__(self, core: nn.Module, quantity: str, any_layout: bool = False) -> None:
        super().__init__()
        self.core = core
        self.quantity = quantity
        self.any_layout = any_layout
        # A core that is smoothed itself multiplies the rows, which `Smoothed` and the size of parts need to know.
        self.rows_per_example = int(getattr(core, "rows_per_example", 1))

    def forward(self, x: Inputs) -> Tensor:
        logits: Tensor = logits_of(self.core, x) if self.any_layout else self.core(x)
        if self.quantity == "logit":
            return logits
        logits = with_full_precision(logits)
        if self.quantity == "probability":
            return logits.softmax(1)
        # Every class, as a model does: the target is chosen after the mean over draws.
        return logits.log_softmax(1) * (-1 if self.quantity == "loss" else 1)


@dataclass(frozen=True)
class OnSmoothed:
    """Any attribution on the model smoothed with any kernel (tan2023, below Theorem 4.3).

    `quantity` is averaged over the draws, so for the probability this is the mean gradient of the
    probability, not the gradient of the probability of the mean logits.
    """

    explain: Attribution
    kernel: Kernel
    draws: int = 50
    seed: int = 0
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        if self.draws < 1:
            raise UserError(f"Smoothing needs at least one draw, not {self.draws}.")

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        check_rows(x)
        target = class_indices(target, x)
        try_model(model, x)
        # Not while a run is recorded: guided backprop and LRP choose their layout themselves.
        free = isinstance(self.explain, Gradient) and any_layout_pays(model, create_graph)
        core = QuantityHead(model, self.quantity, free)
        with eval_mode(model):
            # Draws are split, and recomputed in backward, only if they do not fit the device.
            rows = max(self.max_batch, rows_at_once(self.max_batch, x))
            calm = Smoothed(core, self.kernel, self.draws, self.seed, rows)
            return self.explain(calm, x, target, create_graph=create_graph)


@register(
    "attribution",
    "smoothgrad",
    aliases=("sg",),
    paper="wang2020",
    equation="Theorem 2; tan2023 Section 4.2",
    differentiable=True,
    order=40,
    label="SmoothGrad",
    passes="draws",
    width="sigma",
    about="The gradient averaged over copies of the image with normal noise on them.",
)
def smoothgrad(
    sigma: float = 0.1, draws: int = 50, seed: int = 0, quantity: str = "logit", max_batch: int = MAX_BATCH
) -> OnSmoothed:
    """The gradient of the Gaussian-smoothed model: the mean gradient under normal noise of deviation sigma.

    sigma is in pixel units; wang2020 writes 0.1 times the range of the data.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("smoothgrad", sigma=0.1, draws=4)(model, x, target=3)
    >>> calm = gg.smoothed(model, gg.kernel("gaussian", sigma=0.1), draws=4)
    >>> torch.allclose(maps, gg.attribution("gradient")(calm, x, target=3), atol=1e-4)
    True
    """
    return OnSmoothed(Gradient(max_batch=max_batch), Gaussian(sigma), draws, seed, quantity, max_batch)


@register(
    "attribution",
    "unigrad",
    aliases=("ug",),
    paper="wang2020",
    equation="Definition of UniGrad; tan2023 Section 4.2",
    differentiable=True,
    order=50,
    label="UniGrad",
    passes="draws",
    width="eps",
    about="The gradient averaged over copies with noise of at most a given size.",
)
def unigrad(
    eps: float = 4 / 255, draws: int = 50, seed: int = 0, quantity: str = "logit", max_batch: int = MAX_BATCH
) -> OnSmoothed:
    """The gradient of the uniformly smoothed model: the mean gradient over the l-inf ball of radius eps.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("unigrad", eps=8 / 255, draws=4)(model, x, target=3)
    >>> calm = gg.smoothed(model, gg.kernel("uniform", eps=8 / 255), draws=4)
    >>> torch.allclose(maps, gg.attribution("gradient")(calm, x, target=3), atol=1e-4)
    True
    """
    return OnSmoothed(Gradient(max_batch=max_batch), Uniform(eps), draws, seed, quantity, max_batch)
