"""Cross-entropy and alignment in two passes of first-order kernels: the fast way to train with l2 + cosine.

The penalty's weight gradient needs no derivative of a gradient: with v, the penalty's slope to the gradient near x,
held constant, it is the weight gradient of the derivative of the logit along v. A first small pass finds v; the
second carries images, moved images and their tangents in one batch (`numerics.tangents`) next to cross-entropy.
Equal to `F.cross_entropy(model(x), y) + align(model, x, y).mean()` for a model without batch normalisation.
With it, both passes use the statistics of the whole clean batch: constants to an image's gradient, functions of the
weights to the training. So no image's gradient runs through another image, and a part of a batch sees what the whole
would. (A pass by the statistics of its own images, and one by the running statistics, both broke ResNet-18.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics.tangents import joint_pass, layout
from gyrograd.regularizers.alignment import L2Cosine
from gyrograd.regularizers.passes import input_scale, statistics_of, statistics_of_first
from gyrograd.types import Images, Inputs, Labels, Logits, Model

Classifying = Callable[[Logits, Labels], Tensor]
"""Logits and labels to the mean loss that is trained next to the penalty."""


def knows(align: L2Cosine) -> bool:
    """Whether these settings need no second derivative."""
    return align.draws == 1 and align.detach_clean and align.quantity == "logit"


def check_joint(align: L2Cosine) -> None:
    """Refuse the settings that need a second derivative after all."""
    if not knows(align):
        raise UserError(
            "The joint pass knows one draw, a constant clean gradient and the logit; "
            f"train {align} with fast=False."
        )


def joint_loss(
    model: Model,
    x: Images,
    y: Labels,
    align: L2Cosine,
    moved: Float[Tensor, "m c h w"],
    classifying: Classifying = F.cross_entropy,
) -> tuple[Tensor, dict[str, Tensor]]:
    """What to call `backward` on, and the mean terms it stands for. The first len(moved) images are aligned.

    The returned scalar has the gradient of the objective, not its value; the terms are the values.
    """
    part = len(moved)
    v, terms = _slope(model, x, y[:part], align, moved)
    logits, derivatives = joint_pass(model, x, moved, v)
    loss = classifying(logits, y)
    along = derivatives.gather(1, y[:part, None]).mean()
    return loss + along, {"cross_entropy": loss.detach(), **terms}


def _slope(
    model: Model, x: Inputs, y: Int[Tensor, " m"], align: L2Cosine, moved: Float[Tensor, "m c h w"]
) -> tuple[Float[Tensor, "m c h w"], dict[str, Tensor]]:
    """The penalty's slope to each moved image's gradient, and the terms; one pass over both kinds of image."""
    both = torch.cat([x[: len(moved)], moved]).contiguous(memory_format=layout(x)).requires_grad_()
    # With all of the batch in this pass, its statistics come along.
    whole = len(moved) == len(x)
    with statistics_of_first(model, len(x)) if whole else statistics_of(model, x):
        logits = model(both)
    (gradients,) = torch.autograd.grad(logits.gather(1, torch.cat([y, y])[:, None]).sum(), both)
    scale = input_scale(model, x, align.space)
    here, there = gradients.chunk(2)
    there = there.detach().requires_grad_()
    values = align.between(scale * here, scale * there)
    total = torch.stack(list(values.values())).sum()
    (v,) = torch.autograd.grad(total, there)
    return v, {name: value.detach().mean() for name, value in values.items()}
