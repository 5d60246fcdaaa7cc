"""Guided backprop: the gradient, of which each activation passes only the positive part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.attributions import rules
from gyrograd.attributions.batching import explain_in_parts
from gyrograd.attributions.gradient import CommonSettings
from gyrograd.attributions.layout import in_fast_layout
from gyrograd.attributions.replay import Tape, hooked_gradient, record_through, refuse_unknown
from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_target
from gyrograd.numerics.quantities import quantity_of
from gyrograd.registry import register
from gyrograd.types import Inputs, Logits, Model, Targets


@register(
    "attribution",
    "guided_backprop",
    aliases=("gbp",),
    paper="joo2023",
    equation="Attribution methods, Guided Backprop",
    differentiable=True,
    order=60,
    label="Guided Backprop",
    about="The gradient, of which every layer passes on only what speaks for the class.",
)
@dataclass(frozen=True)
class GuidedBackprop(CommonSettings):
    """Backpropagation that keeps only the positive part at each activation: R act'(z) 1[R > 0].

    joo2023 prints the rule for ReLU; for Softplus and all others act'(z) takes the place of 1[z > 0], as in
    its code. For GELU, SiLU and Hardswish too: negative values that arrive are dropped, the others are multiplied by
    the true slope, which is below zero in the activation's dip. All other operations (products and gates, softmax,
    attention, normalisations) have their plain derivative. Known deviation: joo2023's code passes BatchNorm as the
    identity, here BatchNorm keeps its scale, as in the original method. A quantity other than the logit starts from
    its gradient to the logits.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gg.attribution("guided_backprop")(model, x, target=3).shape
    torch.Size([2, 3, 32, 32])
    """

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def run(x: Tensor) -> Tape:
            return record_through(model, x, create_graph=create_graph)

        def explain(x: Tensor, target: Tensor) -> Tensor:
            tape = in_fast_layout(model, x, run, create_graph=create_graph)
            _check_guidable(tape)
            start = output_gradient(tape, target, self.quantity, create_graph=create_graph)
            return hooked_gradient(tape, Tensor.relu, rules.ACTIVATIONS, start, create_graph=create_graph)

        return explain_in_parts(explain, model, x, target, self.max_batch, create_graph)


def output_gradient(tape: Tape, target: Tensor, quantity: str, *, create_graph: bool) -> Logits:
    """Gradient of the explained value to the recorded logits: one-hot if it is the logit."""
    logits = tape.logits.value
    if logits.dim() != 2:
        raise UserError(f"The model returned shape {tuple(logits.shape)}; let it return logits, b x k.")
    if not create_graph:
        check_target(target, *logits.shape)
    if quantity == "logit":
        return torch.zeros_like(logits).scatter(1, target.unsqueeze(1), 1.0)
    with torch.enable_grad():
        # A record without a graph: the gradient of this step is the same from a leaf.
        inside = logits if logits.requires_grad else logits.detach().requires_grad_()
        value = quantity_of(inside, target, quantity).sum()
        (gradient,) = torch.autograd.grad(value, inside, create_graph=create_graph)
    return gradient


def _check_guidable(tape: Tape) -> None:
    refuse_unknown("Guided backprop", tape, rules.OPERATIONS - (rules.FUNCTIONS - rules.POWERS))
    for call in tape.path:
        rules.refuse_unsteady(call, "Guided backprop")
        rules.refuse_written_out(call, "Guided backprop")
    if not any(call.name in rules.ACTIVATIONS for call in tape.path):
        raise UserError(
            "Guided backprop found no activation in the model, so its map would be the plain gradient; "
            "use the attribution 'gradient'."
        )
