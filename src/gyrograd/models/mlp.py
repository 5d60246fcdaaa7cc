"""The two-layer net of joo2023 Figure 1, for inputs without pixels."""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from gyrograd.errors import UserError
from gyrograd.registry import register


@register("model", "mlp", paper="joo2023", equation="Figure 1")
def mlp(num_classes: int = 2, in_features: int = 2, hidden: Sequence[int] = (32,)) -> nn.Sequential:
    """A fully connected net on b d inputs: one linear layer and one ReLU for each hidden width.

    joo2023 states two layers and a synthetic 2-D data set, but no width and one logit; here there are
    `num_classes` logits like in every other model.

    >>> import torch, gyrograd as gg
    >>> gg.model("mlp", in_features=2, hidden=(16, 16))(torch.rand(5, 2)).shape
    torch.Size([5, 2])
    """
    widths = (in_features, *hidden)
    if min(*widths, num_classes) < 1:
        raise UserError(f"The widths of the mlp are {[*widths, num_classes]}; give at least 1 for each.")
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))
