"""Channels-last inputs for faster convolutions on a CPU, and a faster Softplus.

The values are the same up to rounding; forward and backward of small nets take 50 to 90 % of the time
(results/metrics_cost.md). Only x changes its layout: torch's layers keep that of their input, and weights stay as they
are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gyrograd.attributions.batching import is_out_of_memory
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.types import Inputs, Logits, Model

T = TypeVar("T")

_PLAIN_ONLY: WeakSet[nn.Module] = WeakSet()
"""Models that failed with channels last; they are not tried again."""

_READS_MEMORY = {Tensor.as_strided, torch.as_strided}
_RESHAPES = {Tensor.view, Tensor.reshape, Tensor.flatten, torch.reshape, torch.flatten}
_MAYBE_COPIES = _RESHAPES | {Tensor.contiguous, Tensor.ravel, torch.ravel, Tensor.reshape_as, Tensor.to}
"""Operations whose result is a copy in one layout and the same memory in the other."""


def logits_of(model: Model, x: Inputs) -> Logits:
    """model(x), in the layout that is fastest here."""

    def watched_model(x: Tensor) -> Tensor:
        with _Reshapes() as reshapes:
            logits: Tensor = model(x)
        if not reshapes.untouched():
            raise _PlainOnlyError
        return logits

    logits: Tensor = in_fast_layout(model, x, watched_model, model)
    return logits


def in_fast_layout(
    model: Model,
    x: Inputs,
    run: Callable[[Tensor], T],
    plainly: Callable[[Tensor], T] | None = None,
    *,
    create_graph: bool = False,
) -> T:
    """`run(x)` with the channels of x last if that is faster and the model allows it, else `plainly(x)`.

    Both pass x through the model; without `plainly` it is `run`, too. A model that fails with channels last is run in
    the plain layout from then on, and errors of that run are its own.
    """
    plainly = run if plainly is None else plainly
    if not any_layout_pays(model, create_graph):
        return plainly(x)
    with CpuLayers():
        if not _pays(model, x) or model in _PLAIN_ONLY:
            return plainly(x)
        try:
            return run(x.contiguous(memory_format=torch.channels_last))
        except RuntimeError as wrong:
            if is_out_of_memory(wrong):
                raise
        # After the handler: an error of the plain run is then not shown as a consequence of this one. If that run fails
        # too, the cause is another one, and the model is not remembered.
        result = plainly(x)
        _PLAIN_ONLY.add(model)
        return result


def any_layout_pays(model: Model, create_graph: bool) -> bool:
    """True unless second derivatives to weights are wanted, for which the plain layout is not known to be slower."""
    return not (create_graph and any(weight.requires_grad for weight in model.parameters()))


class _PlainOnlyError(RuntimeError):
    """The model depends on strides, or writes into a tensor that is a view in the plain layout and a copy here."""


def _pays(model: Model, x: Tensor) -> bool:
    """True for single-precision images of several channels on a CPU, if the model has a convolution."""
    colour = x.dim() == 4 and x.shape[1] > 1 and x.dtype == torch.float32 and x.device.type == "cpu"
    return (
        colour
        and torch.backends.mkldnn.is_available()
        and not torch.is_inference_mode_enabled()
        and any(isinstance(module, nn.Conv2d) for module in model.modules())
    )


class _Reshapes(TorchFunctionMode):
    """Lets `x.view(b, -1)` of channels-last activations copy, as reshape does; in torch it is an error."""

    # In the plain layout it would be a view, and writing into one of the two would change both; with `contiguous`
    # behind `permute` it is the other way round. So sources and results are remembered: `untouched` tells whether one
    # of them was written to.

    keeps_values = True

    def __init__(self) -> None:
        super().__init__()
        self._watched: list[tuple[Tensor, int]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _READS_MEMORY:
            raise _PlainOnlyError
        # Plain tensors of up to three axes, such as tokens, are plain in either layout.
        if func not in _MAYBE_COPIES or not args or (args[0].dim() < 4 and args[0].is_contiguous()):
            return func(*args, **given)
        source = args[0]
        result = func(source.contiguous() if func in _RESHAPES else source, *args[1:], **given)
        self._watched += [(source, source._version), (result, result._version)]
        return result

    def untouched(self) -> bool:
        """True if no source and no result was written to."""
        return all(tensor._version == version for tensor, version in self._watched)
