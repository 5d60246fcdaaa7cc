"""A map leaves nothing behind: no tensor that only Python's collector of cycles would find."""

from __future__ import annotations

import gc

import pytest
import torch
from nets import batch, net
from small_attributions import ONE_OF_EACH, small

GRAPHS = [(name, False) for name in sorted(ONE_OF_EACH)]
GRAPHS += [(name, True) for name, entry in sorted(ONE_OF_EACH.items()) if entry.differentiable]


def tensors() -> int:
    """Tensors that came after gc.freeze. By their class: isinstance makes some objects answer with a warning."""
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


@pytest.mark.parametrize(("name", "create_graph"), GRAPHS)
def test_no_tensor_outlives_its_map(name, create_graph):
    model, (x, target) = net("residual"), batch(2)
    explain = small(name)
    explain(model, x, target, create_graph=create_graph)  # imports and makes what is kept for good
    gc.disable()
    gc.freeze()  # a million older objects need not be looked at
    try:
        explain(model, x, target, create_graph=create_graph)
        kept = tensors()  # between calls, such as draws
        for _ in range(2):
            explain(model, x, target, create_graph=create_graph)
        assert tensors() == kept
    finally:
        gc.unfreeze()
        gc.enable()
