"""An attribution: the gradient on the left half of the image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gyrograd.registry import register


@register(
    "attribution",
    "left_half",
    paper="own",
    label="Left Half",
    about="The gradient, on the left half of the image only.",
    differentiable=True,
)
@dataclass(frozen=True)
class LeftHalf:
    """The gradient of the class's logit, zero right of the middle."""

    share: float = 0.5

    def __call__(self, model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
        """Maps shaped like x."""
        with torch.enable_grad():
            x = x if create_graph and x.requires_grad else x.detach().requires_grad_()
            score = model(x).gather(1, target[:, None]).sum()
            (gradient,) = torch.autograd.grad(score, x, create_graph=create_graph)
        columns = torch.arange(x.shape[3], device=x.device)
        return gradient * (columns < self.share * x.shape[3])
