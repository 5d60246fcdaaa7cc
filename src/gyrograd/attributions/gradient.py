"""The gradient, and the gradient times the input: the two maps that others are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, explain_in_parts, graph_if
from gyrograd.attributions.layout import any_layout_pays, logits_of
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.checks import check_logits, check_target, try_model
from gyrograd.numerics.quantities import check_quantity, quantity_of
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, ScalarField, Targets


def score(
    model: Model, target: Tensor, quantity: str, *, check: bool, any_layout: bool = False
) -> ScalarField:
    """The explained value per example (a logit, for example) as a function of the input.

    `check` validates the target's values. `any_layout` allows channels-last inputs on a CPU.
    """

    def of(x: Tensor) -> Tensor:
        try_model(model, x)
        logits = check_logits(logits_of(model, x) if any_layout else model(x), x)
        if check:
            check_target(target, *logits.shape)
        return quantity_of(logits, target, quantity)

    return of


def score_gradient(model: Model, x: Tensor, target: Tensor, quantity: str, *, create_graph: bool) -> Tensor:
    """The gradient of `score` to x; without `create_graph` the target is checked."""
    free = any_layout_pays(model, create_graph)
    explained = score(model, target, quantity, check=not create_graph, any_layout=free)
    return input_gradient(explained, x, create_graph=create_graph)


@dataclass(frozen=True)
class CommonSettings:
    """The settings of every method, for those that have no others: the explained value and the images per pass."""

    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)


@register(
    "attribution",
    "gradient",
    aliases=("saliency", "grad", "sm"),
    paper="joo2023",
    equation="Attribution methods, Gradient",
    differentiable=True,
    order=10,
    about="How the score would change if a pixel changed a little.",
)
@dataclass(frozen=True)
class Gradient(CommonSettings):
    """The gradient of the explained value (`quantity`, by default the logit of the class) with respect to the input.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gradient = gg.attribution("gradient", quantity="probability")
    >>> gradient(model, x, target=3).shape
    torch.Size([2, 3, 32, 32])
    """

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def explain(x: Tensor, target: Tensor) -> Tensor:
            return score_gradient(model, x, target, self.quantity, create_graph=create_graph)

        return explain_in_parts(explain, model, x, target, self.max_batch, create_graph)


@register(
    "attribution",
    "input_x_gradient",
    aliases=("xgrad", "gi"),
    paper="joo2023",
    equation="Attribution methods, Input x Gradient",
    differentiable=True,
    order=20,
    label="Input x Gradient",
    about="The gradient, times the brightness of the pixel.",
)
@dataclass(frozen=True)
class InputXGradient(CommonSettings):
    """The gradient times the input.

    The input is in [0, 1]. Deviation: joo2023's code multiplies by the normalised input.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("input_x_gradient")(model, x, target=3)
    >>> torch.allclose(maps, x * gg.attribution("gradient")(model, x, target=3))
    True
    """

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        gradient = Gradient(self.quantity, self.max_batch)(model, x, target, create_graph=create_graph)
        with graph_if(create_graph):
            return (x if create_graph else x.detach()) * gradient
