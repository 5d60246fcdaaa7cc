"""Copies of models, also of those whose weights a hook computes."""

import copy
from collections.abc import Iterable

from torch import Tensor

from gyrograd.types import Model


def copy_of(model: Model, shared: Iterable[Tensor] = ()) -> Model:
    """A deep copy of the model that holds the `shared` tensors themselves.

    `copy.deepcopy` refuses a tensor with a history, as pruning, `torch.nn.utils.weight_norm` and `spectral_norm` leave
    one in a layer at each forward pass. The next pass of the copy computes it anew, from the copy's own weights.
    """
    computed = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(model, {**computed, **{id(tensor): tensor for tensor in shared}})
