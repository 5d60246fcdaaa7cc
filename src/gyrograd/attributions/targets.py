"""The class to explain if it is not the label: the model's prediction."""

from __future__ import annotations

import torch

from gyrograd.numerics.checks import check_fits, check_inputs, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.types import Inputs, Labels, Model


@torch.no_grad()
def predict(model: Model, x: Inputs) -> Labels:
    """The predicted class per example, computed in eval mode; the usual `target` of an attribution.

    wang2020 and Dombrowski et al. explain the prediction, joo2023 the label.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> gg.predict(model, x).shape
    torch.Size([2])
    """
    check_inputs(x)
    if x.dim() == 3:  # an image without a batch axis, or several time series
        check_fits(model, x)
    try_model(model, x)
    with eval_mode(model):
        classes: Labels = model(x).argmax(1)
    return classes
