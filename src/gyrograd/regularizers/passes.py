"""Extra passes of regularisers: their BatchNorm statistics, and the input space of their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from gyrograd.attributions.gradient import score
from gyrograd.errors import check_name
from gyrograd.models import Normalized
from gyrograd.numerics import random
from gyrograd.numerics.checks import check_inputs, check_rows, check_tensor, try_model
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.second_order import single
from gyrograd.types import Inputs, Logits, Model, ScalarField, Seed

BatchNorm = Literal["batch", "train", "frozen"]
"""batch: statistics of the batch, without updating the running ones. train: the same with the update, as in joo2023's
code. frozen: the running statistics."""

Space = Literal["normalized", "pixel"]
"""normalized: gradients to the input after the model's own normalisation, as in joo2023's code, whose weights then
work unchanged. pixel: gradients to pixels in [0, 1]."""


def check_choices(regularizer: Any) -> None:
    """Refuse an unknown `batchnorm` or `space` of a regulariser; not all have a space."""
    check_name("space", getattr(regularizer, "space", "pixel"), get_args(Space))
    check_name("batchnorm", regularizer.batchnorm, get_args(BatchNorm))


@contextmanager
def auxiliary_pass(model: Model, batchnorm: str) -> Iterator[None]:
    """Use the chosen BatchNorm statistics for the block; no effect in evaluation mode."""
    layers = _training_layers(model)
    before = [layer.track_running_stats for layer in layers]
    try:
        for layer in layers:
            if batchnorm == "frozen":
                layer.eval()
            elif batchnorm == "batch":
                # A layer in training mode without tracking normalises by the batch and updates nothing.
                layer.track_running_stats = False
        with CpuLayers():
            yield
    finally:
        for layer, tracks in zip(layers, before, strict=True):
            layer.track_running_stats = tracks
            # Only layers in training mode were changed.
            layer.train()


def uses_batch_statistics(model: Model, batchnorm: str) -> bool:
    """True if such a pass mixes examples through BatchNorm."""
    return batchnorm != "frozen" and bool(_training_layers(model))


def _training_layers(model: Model) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]


@dataclass(frozen=True, eq=False)
class _Norm:
    """The arguments of `torch.nn.functional.batch_norm`."""

    x: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None = None
    bias: Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5

    @property
    def axes(self) -> tuple[int, ...]:
        """All but the channels."""
        return (0, *range(2, self.x.dim()))


class _Replaced(TorchFunctionMode):
    """Replaces batch normalisation by the batch with `instead`, for the block."""

    def __init__(self, instead: Callable[[_Norm], Tensor]) -> None:
        super().__init__()
        self.instead = instead

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and (norm := _Norm(*args, **kwargs)).training:
            return self.instead(norm)
        return func(*args, **kwargs)


_aten = torch.ops.aten
# The last of each is what models saved with torch.export call.
_LAYER_NORMS = {F.layer_norm, torch.layer_norm, _aten.layer_norm.default}
_NATIVE_LAYER_NORMS = {torch.native_layer_norm, _aten.native_layer_norm.default}
"""These return mean and deviation beside the result."""


class WrittenOut(_Replaced):
    """Computes normalisation by the input itself (batch, layer, instance) with elementary operations, for the block."""

    # The derivative of a Hessian to the weights is the third. torch's kernel of batch and instance normalisation has
    # none, and that of layer normalisation is silently wrong: it takes mean and deviation for constants.

    def __init__(self) -> None:
        super().__init__(_written_out)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in _LAYER_NORMS:
            return _layer_norm(*args, **named)
        if func in _NATIVE_LAYER_NORMS:
            return _layer_norm(*args, **named), *func(*args, **named)[1:]
        if func is F.instance_norm:
            return _instance_norm(*args, **named)
        return super().__torch_function__(func, types, args, kwargs)


def _written_out(norm: _Norm) -> Tensor:
    if norm.running_mean is not None:
        with torch.no_grad():  # updates the running statistics; the result is not needed
            _normalize(replace(norm, weight=None, bias=None))
    return _standardized(norm.x, norm.axes, norm.eps, *_per_channel(norm.x, norm.weight, norm.bias))


def _layer_norm(
    input: Tensor,  # torch's names, because callers may name them
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,  # noqa: ARG001 - what torch.layer_norm takes
) -> Tensor:
    return _standardized(input, tuple(range(-len(normalized_shape), 0)), eps, weight, bias)


def _instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return F.instance_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    return _standardized(input, tuple(range(2, input.dim())), eps, *_per_channel(input, weight, bias))


def _per_channel(x: Tensor, *values: Tensor | None) -> Iterator[Tensor | None]:
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return (None if value is None else value.view(shape) for value in values)


def _standardized(
    x: Tensor, axes: tuple[int, ...], eps: float, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """x with mean 0 and variance 1 over these axes, times the weight, plus the bias."""
    # Statistics in single precision, as in torch's kernels.
    wide = single(x)
    centred = wide - wide.mean(axes, keepdim=True)
    out = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).to(x.dtype)


def _normalize(norm: _Norm) -> Tensor:
    """torch's own batch normalisation."""
    statistics = norm.running_mean, norm.running_var
    return F.batch_norm(norm.x, *statistics, norm.weight, norm.bias, norm.training, norm.momentum, norm.eps)


@contextmanager
def statistics_of(model: Model, x: Tensor) -> Iterator[None]:
    """Let batch normalisation in training mode use the statistics of x, as constants, for the block.

    Costs a forward pass of x without a graph if there is such a layer.
    """
    if not _training_layers(model):
        yield
        return
    seen: list[tuple[Tensor, Tensor]] = []  # mean and variance, in the order of the calls

    def note_statistics(norm: _Norm) -> Tensor:
        seen.append(_mean_and_variance(norm, norm.x))
        return _normalize(norm)

    with torch.no_grad(), auxiliary_pass(model, "batch"), _Replaced(note_statistics):
        model(x)
    # The block runs the model once, so its layers ask in the order in which they were seen.
    left = iter(seen)
    with auxiliary_pass(model, "batch"), _Replaced(lambda norm: _normalize_by(norm, *next(left))):
        yield


def _mean_and_variance(norm: _Norm, x: Tensor) -> tuple[Tensor, Tensor]:
    """The statistics of x, in the precision of the layer's weights, as torch's kernel requires."""
    # torch normalises by the biased variance; only the running one is unbiased.
    variance, mean = torch.var_mean(single(x), norm.axes, correction=0)
    kind = mean.dtype if norm.weight is None else norm.weight.dtype
    return mean.to(kind), variance.to(kind)


def _normalize_by(norm: _Norm, mean: Tensor, variance: Tensor) -> Tensor:
    return _normalize(replace(norm, running_mean=mean, running_var=variance, training=False))


@contextmanager
def statistics_of_first(model: Model, n: int) -> Iterator[None]:
    """As `statistics_of`, with the statistics of the first n rows of each batch in the block; needs no extra pass."""

    def of_first(norm: _Norm) -> Tensor:
        return _normalize_by(norm, *_mean_and_variance(norm, norm.x[:n].detach()))

    with auxiliary_pass(model, "batch"), _Replaced(of_first):
        yield


def input_scale(model: Model, x: Tensor, space: str) -> Tensor | float:
    """Factor from a pixel gradient to one in this space: the std of the model's normalisation, or 1."""
    if space == "pixel":
        return 1.0
    for module in model.modules():
        # The outermost one, which sees pixels: modules() starts from the outside.
        if isinstance(module, Normalized):
            return module.std.to(x.dtype).reshape(1, -1, *(1 for _ in x.shape[2:]))
    return 1.0


class Rescaled(nn.Module):
    """A model as a function of pixels divided by `scale`, so that derivatives are in that space."""

    def __init__(self, core: Model, scale: Tensor) -> None:
        super().__init__()
        self.core, self.scale = core, scale

    def forward(self, u: Inputs) -> Logits:
        logits: Logits = self.core(u * self.scale)
        return logits


def seen_in(model: Model, x: Inputs, space: str) -> tuple[Model, Inputs]:
    """Model and input, rescaled so that derivatives to this input are derivatives in the space."""
    scale = input_scale(model, x, space)
    return (model, x) if isinstance(scale, float) else (Rescaled(model, scale), x / scale)


def may_look_at(x: Tensor) -> bool:
    """True on the CPU, where values can be read without waiting for a device."""
    return x.device.type == "cpu"


def score_of(model: Model, x: Tensor, y: Tensor, quantity: str) -> ScalarField:
    """The value of class y per example as a function of the input; on the CPU labels are checked."""
    return score(model, y, quantity, check=may_look_at(x))


def check_batch(model: Model, x: Tensor) -> None:
    """Check the batch as attributions do (values only on the CPU), and a new model once."""
    check_tensor(x)
    if may_look_at(x):
        check_inputs(x)
    else:
        check_rows(x)
    try_model(model, x)


def fresh_keys(seed: Seed | None, x: Tensor) -> Tensor:
    """One key per example: from the seed, or from torch's generator, which `manual_seed` controls."""
    check_tensor(x)
    if seed is None:
        # From the CPU's generator: the same draws on every device.
        return torch.randint(2**62, (len(x),)).to(x.device)
    return random.keys(seed, len(x), x.device)
