"""The explained value: one number per example from its logits and a class.

The papers differ: joo2023 explains the logit of the label, wang2020 the probability of the prediction (its
saliency map the logit), RAR and SSR the loss. So the choice is always a named setting.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from gyrograd.errors import check_name
from gyrograd.numerics.second_order import single
from gyrograd.types import Labels, Logits, PerExample

Quantity = Literal["logit", "probability", "log_probability", "loss"]


def check_quantity(quantity: str) -> None:
    check_name("quantity", quantity, get_args(Quantity))


def quantity_of(logits: Logits, target: Labels, quantity: str = "logit") -> PerExample:
    """Logit, probability, log-probability or loss (minus the log-probability) of the target, per example."""
    check_quantity(quantity)
    values = with_full_precision(logits)
    if quantity == "probability":
        values = values.softmax(1)
    elif quantity != "logit":
        values = values.log_softmax(1)
    value = values.gather(1, target.long().unsqueeze(1)).squeeze(1)
    return -value if quantity == "loss" else value


def loss_to_climb(loss: PerExample) -> PerExample:
    """The loss as a search should differentiate it: in an autocast block of float16 with larger slopes, else as it is.

    The slope of the loss to the logits is the probability of being wrong. For a confident example it is so small that
    float16, whose smallest number is 6e-8, rounds the slope to the image to zero, and the search would not move.
    Divided by that probability the slope has the same direction, which is all that a search follows.
    """
    kind = loss.device.type
    if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) != torch.float16:
        return loss
    wrong = -torch.expm1(-loss.detach())
    return loss / wrong.clamp_min(1e-7)


def with_full_precision(logits: Logits) -> Logits:
    """Logits that an autocast block left in half precision, in single precision."""
    # On CUDA the softmax of an autocast block computes in single precision itself, on a CPU it does not.
    return single(logits) if torch.is_autocast_enabled(logits.device.type) else logits
