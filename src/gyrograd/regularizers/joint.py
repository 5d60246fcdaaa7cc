"""Cross-entropy and alignment by two first-order passes: the fast path for training with l2 + cosine.

The penalty's weight gradient needs no double backward: let v be the penalty's derivative to the gradient near x. With v
held constant, the weight gradient of the logit's derivative along v is the penalty's. A first small pass finds v; the
second carries images, moved images and their tangents in one batch (`numerics.tangents`), together with cross-entropy.
Equal to `F.cross_entropy(model(x), y) + align(model, x, y).mean()` for a model without batch normalisation. With it,
both passes use the statistics of the whole clean batch, as constants for the gradient of an image and as functions of
the weights for training. So an image's gradient does not depend on other images, and a part of a batch sees the same
statistics as the whole. (Statistics of the pass's own images, and running statistics, both made ResNet-18 diverge.)
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakSet

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.copies import copy_of
from gyrograd.numerics.modes import eval_mode, without_autocast
from gyrograd.numerics.quantities import quantity_of
from gyrograd.numerics.tangents import joint_pass, layout
from gyrograd.regularizers.alignment import L2Cosine
from gyrograd.regularizers.passes import input_scale, statistics_of, statistics_of_first
from gyrograd.types import Images, Inputs, Labels, Logits, Model

Classifying = Callable[[Logits, Labels], Tensor]
"""Maps logits and labels to the mean loss that is trained beside the penalty."""


_TRUSTED: WeakSet[nn.Module] = WeakSet()
"""Models on which the joint pass has been compared with the plain path."""
ROWS_COMPARED = 2
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2}
"""Largest relative difference of the two weight gradients (0.1 in half precision). Wrong rules were off by at least
half."""


def knows(align: L2Cosine) -> bool:
    """True if these settings need no second derivative."""
    return align.draws == 1 and align.detach_clean and align.quantity == "logit"


def check_joint(align: L2Cosine) -> None:
    """Refuse settings that need a second derivative."""
    if not knows(align):
        raise UserError(
            "The joint pass is for one draw, a constant clean gradient and the logit; "
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
    """A scalar to call `backward` on, and the mean terms of the objective; the first len(moved) images are aligned.

    The scalar has the gradient of the objective, not its value; the terms hold the values. A new model is first
    compared with the plain path, and refused if the two differ.
    """
    if model not in _TRUSTED:
        _compare_with_plain(model, x, y, align, moved)
        _TRUSTED.add(model)
    return _first_order_loss(model, x, y, align, moved, classifying)


def _first_order_loss(
    model: Model, x: Tensor, y: Tensor, align: L2Cosine, moved: Tensor, classifying: Classifying
) -> tuple[Tensor, dict[str, Tensor]]:
    part = len(moved)
    v, terms = _slope(model, x, y[:part], align, moved)
    logits, derivatives = joint_pass(model, x, moved, v)
    loss = classifying(logits, y)
    # v is the derivative of the sum of the penalties, and the objective is their mean.
    along = derivatives.gather(1, y[:part, None]).mean()
    return loss + along, {"cross_entropy": loss.detach(), **terms}


def _slope(
    model: Model, x: Inputs, y: Int[Tensor, " m"], align: L2Cosine, moved: Float[Tensor, "m c h w"]
) -> tuple[Float[Tensor, "m c h w"], dict[str, Tensor]]:
    """The penalty's derivative to each moved image's gradient, and the terms; one pass over both kinds of image."""
    both = torch.cat([x[: len(moved)], moved]).contiguous(memory_format=layout(x)).requires_grad_()
    # If the whole batch is in this pass, it also gives the statistics.
    whole = len(moved) == len(x)
    with statistics_of_first(model, len(x)) if whole else statistics_of(model, x):
        logits = model(both)
    # Without a graph: v is a constant of the second pass, and that is why it needs no double backward.
    (gradients,) = torch.autograd.grad(logits.gather(1, torch.cat([y, y])[:, None]).sum(), both)
    scale = input_scale(model, x, align.space)
    here, there = gradients.chunk(2)
    # A leaf: v is the derivative to this gradient, not to the image it belongs to.
    there = there.detach().requires_grad_()
    values = align.between(scale * here, scale * there)
    total = torch.stack(list(values.values())).sum()
    (v,) = torch.autograd.grad(total, there)
    return v, {name: value.detach().mean() for name, value in values.items()}


def _compare_with_plain(model: Model, x: Images, y: Labels, align: L2Cosine, moved: Tensor) -> None:
    """Refuse a model whose weight gradient by the joint pass is not that of the differentiated gradient.

    Compared in evaluation mode, where both are equal even with batch normalisation, and if possible on a copy in double
    precision, so that no precision setting of the device matters. The values are read on the host, which a CUDA graph
    cannot hold: this happens in the warm-up steps before a capture.
    """
    rows = slice(min(ROWS_COMPARED, len(moved)))
    x, y, moved = x[rows].detach(), y[rows], moved[rows].detach()
    with torch.enable_grad(), without_autocast(x):
        try:
            plain, joint = _both_gradients(copy_of(model).double(), x.double(), y, align, moved.double())
        except (RuntimeError, TypeError):
            # The model cannot be copied, or creates tensors of a fixed precision.
            plain, joint = _both_gradients(model, x, y, align, moved)
    apart = float((joint - plain).norm() / plain.norm().clamp_min(torch.finfo(plain.dtype).tiny))
    if not apart <= TOLERANCES.get(plain.dtype, 0.1):
        raise UserError(
            f"The joint pass has another weight gradient on this model than the plain path ({apart:.1%} apart); "
            "train it with fast=False."
        )


def _both_gradients(
    model: Model, x: Tensor, y: Tensor, align: L2Cosine, moved: Tensor
) -> tuple[Tensor, Tensor]:
    """The weight gradient of cross-entropy and alignment, by a derivative of a gradient and by the joint pass."""
    with eval_mode(model):
        plain = _plain_gradient(model, x, y, align, moved)
        try:
            total, _ = _first_order_loss(model, x, y, align, moved, F.cross_entropy)
            return plain, _weight_gradient(total, model)
        except RuntimeError as wrong:
            raise UserError(
                f"The joint pass fails on this model ({str(wrong).partition(chr(10))[0]}); train it with fast=False."
            ) from wrong


def _plain_gradient(model: Model, x: Tensor, y: Tensor, align: L2Cosine, moved: Tensor) -> Tensor:
    """The weight gradient of cross-entropy and alignment by a derivative of a gradient."""

    def logit(x: Tensor) -> Tensor:
        return quantity_of(model(x), y, align.quantity)

    scale = input_scale(model, x, align.space)
    here, there = input_gradient(logit, x), input_gradient(logit, moved, create_graph=True)
    penalty = torch.stack(list(align.between(scale * here, scale * there).values())).sum(0).mean()
    return _weight_gradient(F.cross_entropy(model(x), y) + penalty, model)


def _weight_gradient(total: Tensor, model: Model) -> Tensor:
    """All weights' slopes in one row; zero for weights that are not used."""
    weights = [p for p in model.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(total, weights, allow_unused=True)
    pairs = zip(weights, slopes, strict=True)
    return torch.cat([torch.zeros_like(w).flatten() if g is None else g.flatten() for w, g in pairs])
