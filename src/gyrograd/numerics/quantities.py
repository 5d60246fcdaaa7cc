"""What is explained: one number for each example out of its logits and a class.

The papers differ: joo2023 explains the logit of the label, wang2020 the probability of the prediction (its
saliency map the logit), RAR and SSR the loss. So the choice is always a named setting.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from gyrograd.errors import check_name
from gyrograd.numerics.second_order import single
from gyrograd.types import Labels, Logits, PerExample

Quantity = Literal["logit", "probability", "log_probability", "loss"]


def check_quantity(quantity: str) -> None:
    """Refuse a quantity that is not one of the four, with the nearest name."""
    check_name("quantity", quantity, get_args(Quantity))


def quantity_of(logits: Logits, target: Labels, quantity: str = "logit") -> PerExample:
    """The logit, probability, log-probability or loss (minus the log-probability) of each example's class."""
    check_quantity(quantity)
    logits = with_full_precision(logits)
    if quantity == "logit":
        return _at(logits, target)
    if quantity == "probability":
        return _at(logits.softmax(1), target)
    log_probability = _at(logits.log_softmax(1), target)
    return log_probability if quantity == "log_probability" else -log_probability


def with_full_precision(logits: Logits) -> Logits:
    """What an autocast block made half precision, in single: on CUDA its softmax does so itself, on a CPU not."""
    return single(logits) if torch.is_autocast_enabled(logits.device.type) else logits


def _at(values: Tensor, target: Tensor) -> Tensor:
    return values.gather(1, target.long().unsqueeze(1)).squeeze(1)
