"""The comparison with central differences sees one wrong derivative among many right ones."""

from __future__ import annotations

import pytest
import torch
from differences import derivative_errors
from torch import Tensor


class Scaled(torch.autograd.Function):
    """The identity, with a derivative that is off by a factor."""

    @staticmethod
    def forward(ctx, w: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return w.clone()

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * slope, None


@pytest.mark.parametrize("wrong", [None, "x", *range(30)])
@pytest.mark.parametrize("factor", [0.0, -1.0, 1.02])
def test_one_wrong_derivative_is_seen_however_little_its_weight_matters(wrong, factor):
    generator = torch.Generator().manual_seed(0)
    size = {key: 10 ** (-(key % 3) if key != "x" else 0) for key in ("x", *range(30))}
    tensors = {
        str(key): torch.randn(4, generator=generator, dtype=torch.float64).requires_grad_() for key in size
    }

    def value() -> Tensor:
        parts = {key: Scaled.apply(tensors[str(key)], factor if key == wrong else 1.0) for key in size}
        return sum(size[key] * part.exp().sum() for key, part in parts.items())

    errors = derivative_errors(value, value(), tensors, bar=1e-5, floor=1e-2)
    seen = {group for group, error in errors.items() if error > 1e-5}
    assert seen == (set() if wrong is None else {"x" if wrong == "x" else "weights"})
