"""Attention rollout and gradient x attention: which patches a vision transformer's class token attends to.

Both read the attention weights, `b heads n n`, from the record of a run (`replay`), which contains fused attention as
the products it consists of; so transformers of torchvision, timm and hand-written ones are treated alike. Nets without
attention between all patches (convolutional nets, Swin with its windows) are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, explain_in_parts, rows_per_example
from gyrograd.attributions.feature_maps import enlarge, refuse_unless_images, token_grid
from gyrograd.attributions.gradient import CommonSettings
from gyrograd.attributions.replay import Tape, Traced, record_through
from gyrograd.attributions.rules import AFFINE, DROPOUTS
from gyrograd.errors import UserError, check_name
from gyrograd.numerics.checks import check_logits, check_target
from gyrograd.numerics.modes import without_autocast
from gyrograd.numerics.quantities import check_quantity, quantity_of
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets

HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda weights: weights.mean(1),
    "max": lambda weights: weights.amax(1),
    "min": lambda weights: weights.amin(1),
}


@register(
    "attribution",
    "attention_rollout",
    aliases=("rollout",),
    paper="Abnar et al. 2020",
    equation="Equation 1 (attention rollout)",
    differentiable=True,
    order=78,
    about="Which patches the transformer's class token looks at, through all layers; the same for every class.",
)
@dataclass(frozen=True)
class AttentionRollout:
    """The product of (A_l + I) / 2 over the layers l, A_l the attention averaged over heads (Abnar and Zuidema 2020).

    The map is the row of the class token, without entries of class tokens; without a class token it is the mean over
    patches. With `heads` "max" or "min" the rows are scaled to sum to one. It is the same for every class and
    `quantity`.

    >>> import gyrograd as gg
    >>> from torchvision.models import VisionTransformer
    >>> model = VisionTransformer(32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=16).eval()
    >>> x = gg.dataset("shapes", n=2).pixels()
    >>> rollout = gg.attribution("attention_rollout")
    >>> bool((rollout(model, x, target=0) == rollout(model, x, target=7)).all())
    True
    """

    heads: str = "mean"
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_name("head fusion", self.heads, HEADS)

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        def flow(weights: list[Tensor], _: Tensor) -> Tensor:
            rolled = _identity(weights[0][:, 0])
            for layer in weights:
                # The identity stands for the residual connection; rows add up to one again.
                mixed = HEADS[self.heads](layer) + _identity(layer[:, 0])
                rolled = mixed / mixed.sum(2, keepdim=True) @ rolled
            return rolled

        return _attention_map(self, flow, model, x, target, create_graph)


@register(
    "attribution",
    "gradient_x_attention",
    aliases=("chefer", "gradient_attention"),
    paper="Chefer et al. 2021",
    equation="Equations 5 and 6",
    differentiable=True,
    order=79,
    about="Which patches the class token looks at and that speak for the class, through all layers.",
)
@dataclass(frozen=True)
class GradientXAttention(CommonSettings):
    """R <- R + mean_heads(relu(g_l A_l)) R over the layers l, from R = I (Chefer et al. 2021, self-attention).

    A_l is the attention of a layer and g_l the gradient of the explained value to it. The map is the row of the class
    token, without entries of class tokens; without a class token it is the mean over patches.

    >>> import gyrograd as gg
    >>> from torchvision.models import VisionTransformer
    >>> model = VisionTransformer(32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=16).eval()
    >>> x = gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("gradient_x_attention")(model, x, target=7)
    >>> maps.shape, bool((maps >= 0).all())
    (torch.Size([2, 3, 32, 32]), True)
    """

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        draws = rows_per_example(model)

        def flow(weights: list[Tensor], explained: Tensor) -> Tensor:
            slopes = torch.autograd.grad(explained.sum(), weights, create_graph=create_graph)
            relevance = _identity(weights[0][:, 0])
            for layer, slope in zip(weights, slopes, strict=True):
                # In a smoothed model each draw gets 1 / draws of the gradient.
                relevance = relevance + (draws * slope * layer).relu().mean(1) @ relevance
            return relevance

        return _attention_map(self, flow, model, x, target, create_graph)


def _attention_map(
    method: AttentionRollout | GradientXAttention,
    flow: Callable[[list[Tensor], Tensor], Tensor],
    model: Model,
    x: Inputs,
    target: Targets,
    create_graph: bool,
) -> Inputs:
    """Maps from `flow`, which turns the layers' attention and the explained values into `b n n`."""

    def explain(x: Tensor, target: Tensor) -> Tensor:
        refuse_unless_images(x, "Attention maps")
        tape = record_through(model, x, create_graph=create_graph)
        logits = check_logits(tape.logits.value, x)
        if not create_graph:
            check_target(target, *logits.shape)
        layers = attention_layers(tape, len(x) * rows_per_example(model))
        with torch.enable_grad(), without_autocast(x):
            rows = flow([layer.value for layer in layers], quantity_of(logits, target, method.quantity))
        extra, (height, width) = token_grid(layers[-1], tape, rows.shape[1])
        # The class token comes first; without one the head averages all patches.
        seen = rows[:, 0, extra:] if extra else rows.mean(1)
        map = enlarge(seen.unflatten(1, (height, width)), x)
        # `flow` ran with gradients on, whatever the caller wants.
        return map if create_graph else map.detach()

    return explain_in_parts(explain, model, x, target, method.max_batch, create_graph)


def attention_layers(tape: Tape, rows: int) -> list[Traced]:
    """The attention weights per layer: softmaxes over the last axis that enter a product of two values."""
    # A softmax over class scores weights no other values, so it is not attention.
    mixed = {_before_dropout(item) for call in tape.path if call.name in AFFINE for item in call.inputs[:1]}
    found = [call.outputs[0] for call in tape.path if call.name == "softmax" and call.outputs[0] in mixed]
    if not found:
        raise UserError(
            "The model has no attention (a softmax whose weights average other values), so there is no attention map; "
            "use 'grad_cam' or 'lrp'."
        )
    tokens = found[0].value.shape[-1]
    for layer in found:
        shape = tuple(layer.value.shape)
        if len(shape) != 4 or shape[0] != rows or shape[2:] != (tokens, tokens):
            raise UserError(
                f"The model's attention of shape {shape} is not between all patches of an image (windows, pooled or "
                "cross attention), so layers cannot be multiplied; use 'grad_cam' or 'lrp'."
            )
    return found


def _before_dropout(item: Traced) -> Traced:
    while item.call is not None and item.call.name in DROPOUTS:
        item = item.call.inputs[0]
    return item


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand_as(like)
