"""Logits and directional derivatives from one forward pass, whose ordinary backward pass is second order.

The weight gradient of <v, input gradient of g> equals the weight gradient of the derivative of g along v, as long
as v is a constant. That derivative rides along as further rows of the batch: every layer carries them by its own
linear part, so only first-order kernels run, forward and backward. Exact, and many times cheaper on a GPU than
differentiating a gradient.

Rows of a batch: `clean` images, `moved` images, then for each moved image its tangent. Batch normalisation in
training mode takes its statistics from the clean rows alone and applies them to all; they depend on the weights
like everything else, so a layer before it gains nothing by changing its scale.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from gyrograd.errors import UserError
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.numerics.softplus import bent
from gyrograd.types import Inputs, Logits


def joint_pass(
    model: nn.Module, clean: Inputs, moved: Float[Tensor, "m *shape"], along: Float[Tensor, "_ *shape"]
) -> tuple[Logits, Float[Tensor, "m k"]]:
    """Logits of the clean images, and the derivatives of the moved images' logits along `along`.

    Raises:
        UserError: for a layer without a rule here (attention, for example), with its name.
    """
    if moved.shape != along.shape:
        raise UserError(
            f"The directions have shape {tuple(along.shape)} for images of shape {tuple(moved.shape)}; "
            "give one direction for each moved image."
        )
    rows = Rows(len(clean), len(moved))
    # In the layout of the images: mixed layouts would be copied at every layer.
    batch = torch.cat([clean, moved, along]).contiguous(memory_format=layout(clean))
    with CpuLayers(), _Carrying(rows):
        out = model(_mark(batch))
    return out[: rows.clean], out[rows.primal :]


@dataclass(frozen=True)
class Rows:
    """Which rows of a batch are what."""

    clean: int
    moved: int

    @property
    def primal(self) -> int:
        """Rows that are images."""
        return self.clean + self.moved

    @property
    def total(self) -> int:
        """All rows."""
        return self.clean + 2 * self.moved

    def split(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Clean rows, moved rows, tangents."""
        return z[: self.clean], z[self.clean : self.primal], z[self.primal :]


class _Carrying(TorchFunctionMode):
    """Applies to every operation on a marked batch the rule that carries its tangent rows."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _any_marked((*args, *kwargs.values())):
            return func(*args, **kwargs)
        rule = _RULES.get(func)
        if rule is None and _asks_only(func):
            return func(*args, **kwargs)
        # Never a guess: an operation without a rule would treat tangent rows as images and give a wrong gradient.
        if rule is None or not args:  # a rule finds its batch by position
            raise _unknown(func)
        args, kwargs = (
            _up_to_date(func, args),
            {key: _up_to_date(func, value) for key, value in kwargs.items()},
        )
        in_place = kwargs.pop("inplace", False) if func in _ACTIVATIONS else False
        out = rule(self.rows, func, *args, **kwargs)
        # A result with another number of rows has mixed examples, and nobody knows which row is whose.
        if out.dim() == 0 or len(out) != self.rows.total:
            raise _unknown(func)
        return _overwrite(args[0], out) if in_place else _mark(out, args)


class _Memory:
    """State shared by a tensor and its views. `overwritten`: an in-place operation has put its result elsewhere."""

    def __init__(self) -> None:
        self.overwritten = False


def _mark(z: Tensor, sources: tuple[Any, ...] = ()) -> Tensor:
    """z, marked as a batch that carries tangents; a view of one of the sources shares its memory."""
    start = z.untyped_storage().data_ptr()  # views share the storage, whatever their shape and offset
    z._carries_tangents = next(  # type: ignore[attr-defined]
        (s._carries_tangents for s in sources if _is_marked(s) and s.untyped_storage().data_ptr() == start),
        _Memory(),
    )
    return z


def _overwrite(z: Tensor, result: Tensor) -> Tensor:
    """Make z stand for the result of an in-place operation; reading an older view of its memory is refused."""
    # z's own memory is left alone: copying the result into it would cost as much as the layer.
    z._carries_tangents.overwritten = True  # type: ignore[attr-defined]
    z._stands_for = _mark(result)  # type: ignore[attr-defined]
    return z


def _up_to_date(func: Any, value: Any) -> Any:
    """The argument as it is after the in-place operations on it so far."""
    if type(value) in (list, tuple):
        return type(value)(_up_to_date(func, item) for item in value)
    if not _is_marked(value):
        return value
    while (latest := getattr(value, "_stands_for", None)) is not None:
        value = latest
    if value._carries_tangents.overwritten:
        name = getattr(func, "__name__", str(func))
        raise UserError(
            f"'{name}' reads a view of a tensor that was overwritten in place, which the joint pass does not follow; "
            "train this model with fast=False."
        )
    return value


def _is_marked(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(value, "_carries_tangents")


def _any_marked(values: tuple[Any, ...]) -> bool:
    return any(
        _is_marked(value) or (isinstance(value, list | tuple) and any(_is_marked(item) for item in value))
        for value in values
    )


def _asks_only(func: Any) -> bool:
    """True if a call reads shape, type or device of a tensor, not its values."""
    # A property such as z.shape arrives as the __get__ of a descriptor, which knows its own name.
    owner = getattr(func, "__self__", None)
    name = getattr(owner, "__name__", "") if func.__name__ == "__get__" else func.__name__
    return name in _QUESTIONS


_QUESTIONS = {
    "shape",
    "ndim",
    "dtype",
    "device",
    "layout",
    "is_cuda",
    "requires_grad",
    "dim",
    "size",
    "numel",
    "__len__",
    "is_floating_point",
    "is_contiguous",
}


def _unknown(func: Any) -> UserError:
    name = getattr(func, "__name__", str(func))
    return UserError(
        f"The joint pass does not know how '{name}' carries a derivative; train this model with fast=False."
    )


def _linear(rows: Rows, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    """An operation without a constant part treats all rows alike."""
    out: Tensor = func(*args, **kwargs)
    return out


def _averaged(rows: Rows, func: Any, z: Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Tensor:
    """A mean within each image."""
    axes = [dim] if isinstance(dim, int) else list(dim or (0,))
    # A mean over the batch would mix images and tangents.
    if any(axis % z.dim() == 0 for axis in axes):
        raise _unknown(func)
    return _linear(rows, func, z, dim, *args, **kwargs)


def _picked(rows: Rows, func: Any, z: Tensor, index: Any) -> Tensor:
    """Channels or pixels of every image: slices and numbers that leave the batch alone."""
    parts = index if isinstance(index, tuple) else (index,)
    # Masks and index tensors may reorder the batch, so they are refused even where they would not.
    kinds_known = all(part is None or part is ... or isinstance(part, int | slice) for part in parts)
    if not kinds_known or not (parts[0] is ... or (isinstance(parts[0], slice) and parts[0] == slice(None))):
        raise _unknown(func)
    return _linear(rows, func, z, index)


def _reshaped(rows: Rows, func: Any, z: Tensor, *shape: Any, **kwargs: Any) -> Tensor:
    """Another shape for the same numbers; with the same number of rows every row stays whole."""
    # view(dtype) reads the same bytes as other numbers, which is not linear.
    if any(isinstance(part, torch.dtype) for part in (*shape, *kwargs.values())):
        raise _unknown(func)
    return _linear(rows, func, z, *shape, **kwargs)


def _sum(rows: Rows, func: Any, a: Any, b: Any, **kwargs: Any) -> Tensor:
    """A constant that is added moves images, not tangents."""
    if _is_marked(a) and _is_marked(b) and a.dim() == b.dim():
        return _linear(rows, func, a, b, **kwargs)
    if not _is_marked(a) or _is_marked(b) or _has_rows(b, a):
        raise _unknown(func)  # for example, constant minus batch
    if func in _SUMS_IN_PLACE:
        batch: Tensor = a  # only the rows of images: the derivative of a constant is zero
        func(batch[: rows.primal], b, **kwargs)
        return batch
    return torch.cat([func(a[: rows.primal], b, **kwargs), a[rows.primal :]])


def _has_rows(constant: Any, z: Tensor) -> bool:
    """True if a constant has rows of its own: which of them belongs to a tangent is not known."""
    if not isinstance(constant, Tensor) or constant.dim() < z.dim():
        return False
    return constant.dim() > z.dim() or len(constant) != 1


def _product(rows: Rows, func: Any, a: Any, b: Any, **kwargs: Any) -> Tensor:
    """A constant factor is linear; a product of two batches is not, and a batch is no divisor."""
    if _is_marked(a) == _is_marked(b) or (_is_marked(b) and func in _QUOTIENTS):
        raise _unknown(func)
    if _has_rows(b, a) if _is_marked(a) else _has_rows(a, b):
        raise _unknown(func)
    return _linear(rows, func, a, b, **kwargs)


def _joined(rows: Rows, func: Any, parts: Any, dim: int = 0) -> Tensor:
    if not all(_is_marked(part) for part in parts) or dim in (0, -parts[0].dim()):
        raise _unknown(func)  # joined along the batch, or to a constant whose tangent would have to be zero
    return _linear(rows, func, parts, dim)


def _padded(rows: Rows, func: Any, z: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Tensor:
    if mode == "constant" and value:
        raise _unknown(func)  # a frame of any constant but zero is not linear
    return _linear(rows, func, z, pad, mode, value)


def _dropped(
    rows: Rows, func: Any, z: Tensor, p: float | int = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    if training and p > 0:
        raise _unknown(func)  # a tangent would need its image's mask
    return z


def _weighted(
    rows: Rows, func: Any, z: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Tensor:
    """A convolution or a linear layer: its weight applies to all rows, its bias to images only."""
    axes = {F.linear: weight.dim(), torch.conv1d: 3, torch.conv2d: 4, torch.conv3d: 5}[func]
    if not _is_marked(z) or _is_marked(weight) or z.dim() < axes:
        raise _unknown(func)  # weights that depend on the image, or an image without a batch axis
    out: Tensor = func(z, weight, None, *args, **kwargs)
    # a linear layer's features are its last axis, whatever lies between them and the batch
    channels = out.dim() - 1 if func is F.linear else 1
    return out if bias is None else _Bias.apply(out, bias, rows.primal, channels)


class _Bias(torch.autograd.Function):
    """Adds a bias along the channel axis to the rows that are images, in place: a copy would cost as much again."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor, images: int, channels: int) -> Tensor:
        ctx.images, ctx.channels = images, channels
        ctx.mark_dirty(z)
        z[:images] += bias.view(-1, *(1 for _ in z.shape[channels + 1 :]))
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        others = [axis for axis in range(slope.dim()) if axis != ctx.channels]
        return slope, slope[: ctx.images].sum(others), None, None


def _elementwise(rows: Rows, func: Any, z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """An activation: its slope at the image times the tangent."""
    clean, moved, tangents = rows.split(z)
    if not moved.requires_grad:
        moved = moved.detach().requires_grad_()  # the first layer's images: nothing before them learns
    value = func(moved, *args, **kwargs)
    (slope,) = torch.autograd.grad(value.sum(), moved, create_graph=True)
    return torch.cat([func(clean, *args, **kwargs), value, slope * tangents])


def _softplus(rows: Rows, func: Any, z: Tensor, beta: float | int = 1, threshold: float | int = 20) -> Tensor:
    out: Tensor = _Softplus.apply(z, rows, float(beta), float(threshold))
    return out


class _Softplus(torch.autograd.Function):
    """Softplus of the images, its slope times the tangents; written into one buffer, since copies cost as much."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, rows: Rows, beta: float, threshold: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.rows, ctx.beta, ctx.threshold = rows, beta, threshold
        _, moved, tangents = rows.split(z)
        out = torch.empty_like(z)
        torch.ops.aten.softplus.out(z[: rows.primal], beta, threshold, out=out[: rows.primal])
        # torch's backward is its slope times what is handed in.
        torch.ops.aten.softplus_backward.grad_input(
            tangents, moved, beta, threshold, grad_input=out[rows.primal :]
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        (z,) = ctx.saved_tensors
        rows, beta, threshold = ctx.rows, ctx.beta, ctx.threshold
        _, moved, tangents = rows.split(z)
        at_tangents = slope[rows.primal :]
        out = torch.empty_like(z)
        # The tangent's output is f'(moved) * tangent, so its slope also reaches `moved`, through f''.
        backward = torch.ops.aten.softplus_backward.grad_input
        images = slice(rows.primal)
        backward(slope[images], z[images], beta, threshold, grad_input=out[images])
        backward(at_tangents, moved, beta, threshold, grad_input=out[rows.primal :])
        out[rows.clean : rows.primal] += bent(moved, at_tangents, tangents, beta, threshold)
        return out, None, None, None


def _max_pooled(rows: Rows, func: Any, z: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if given.pop("return_indices", False) or z.dim() != 4:
        raise _unknown(func)
    size = _pair(given["kernel_size"])
    stride = _pair(given.get("stride") or size)
    window = (size, stride, _pair(given.get("padding", 0)), _pair(given.get("dilation", 1)))
    out: Tensor = _MaxPool.apply(z, rows, (*window, bool(given.get("ceil_mode", False))))
    return out


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _MaxPool(torch.autograd.Function):
    """The largest value of each window; a tangent is read where its image has the largest value."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, rows: Rows, window: tuple[Any, ...]) -> Tensor:
        value, places = torch.ops.aten.max_pool2d_with_indices(z[: rows.primal], *window)
        there = places[rows.clean :]  # positions of the moved images, whose tangents follow them
        tangents = z[rows.primal :].flatten(2).gather(2, there.flatten(2)).view_as(there)
        ctx.save_for_backward(z, torch.cat([places, there]))
        ctx.window = window
        return torch.cat([value, tangents])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        z, places = ctx.saved_tensors
        slope = slope.contiguous(memory_format=layout(z))
        return torch.ops.aten.max_pool2d_with_indices_backward(slope, z, *ctx.window, places), None, None


def _batch_normed(
    rows: Rows,
    func: Any,
    z: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    channels = z.shape[1]
    weight = z.new_ones(channels) if weight is None else weight
    bias = z.new_zeros(channels) if bias is None else bias
    if training:
        out: Tensor = _BatchNorm.apply(z, weight, bias, running_mean, running_var, rows, momentum, eps)
        return out
    assert running_var is not None
    scale = weight * torch.rsqrt(running_var + eps)
    images = func(z[: rows.primal], running_mean, running_var, weight, bias, False, momentum, eps)
    return torch.cat([images, z[rows.primal :] * _by_channel(scale, z)])


class _BatchNorm(torch.autograd.Function):
    """Batch normalisation by the clean rows' statistics, for all rows; the slope reaches those statistics too."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        rows: Rows,
        momentum: float,
        eps: float,
    ) -> Tensor:
        clean, moved, tangents = rows.split(z)
        normed, mean, inverse, reserve, kind = torch._batch_norm_impl_index(
            clean, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled
        )
        ctx.save_for_backward(z, weight, mean, inverse, reserve)
        ctx.running, ctx.rows, ctx.eps, ctx.kind = (running_mean, running_var), rows, eps, kind
        scale = inverse * weight
        out = torch.empty_like(z)
        out[: rows.clean] = normed
        # Moved rows are scaled and shifted, tangents only scaled: to them the statistics are constants.
        torch.addcmul(
            _by_channel(bias - mean * scale, z),
            moved,
            _by_channel(scale, z),
            out=out[rows.clean : rows.primal],
        )
        torch.mul(tangents, _by_channel(scale, z), out=out[rows.primal :])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> Any:
        z, weight, mean, inverse, reserve = ctx.saved_tensors
        rows = ctx.rows
        clean, moved, tangents = rows.split(z)
        at_clean, at_moved, at_tangents = rows.split(slope)
        scale = inverse * weight
        to_clean, to_weight, to_bias = torch.ops.aten._batch_norm_impl_index_backward(
            ctx.kind,
            clean,
            at_clean.contiguous(memory_format=layout(z)),
            weight,
            *ctx.running,
            mean,
            inverse,
            True,
            ctx.eps,
            [True] * 3,
            reserve,
        )
        out = torch.empty_like(z)
        torch.mul(slope[rows.clean :], _by_channel(scale, z), out=out[rows.clean :])
        axes = (0, *range(2, z.dim()))
        total = at_moved.sum(axes)
        to_scale = (at_moved * moved).sum(axes) - mean * total + (at_tangents * tangents).sum(axes)
        # The moved rows and tangents used the clean rows' mean and 1 / deviation, which are functions of each clean
        # value: d(1/dev)/dz = -(z - mean) / dev^3 / count and d(mean)/dz = 1 / count.
        count = clean[:, 0].numel()
        bend = -to_scale * weight * inverse**3 / count
        shift = -scale * total / count - bend * mean
        torch.addcmul(to_clean + _by_channel(shift, z), clean, _by_channel(bend, z), out=out[: rows.clean])
        return out, to_weight + to_scale * inverse, to_bias + total, None, None, None, None, None


def _by_channel(values: Tensor, z: Tensor) -> Tensor:
    return values.view(1, -1, *(1 for _ in z.shape[2:]))


def layout(z: Tensor) -> torch.memory_format:
    """The memory format of z, for tensors that are used with it."""
    last = z.dim() == 4 and z.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


_QUOTIENTS = {torch.div, torch.Tensor.div, torch.Tensor.__truediv__, operator.truediv}

_SUMS_IN_PLACE = {torch.Tensor.__iadd__, torch.Tensor.add_}
_ACTIVATIONS = {
    F.relu,
    torch.relu,
    F.silu,
    F.gelu,
    F.elu,
    F.leaky_relu,
    torch.tanh,
    torch.sigmoid,
    torch.Tensor.relu,
}

Rule = Callable[..., Tensor]
_RULES: dict[Any, Rule] = {
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d, F.linear), _weighted),
    **dict.fromkeys((F.max_pool2d, torch.max_pool2d), _max_pooled),
    F.batch_norm: _batch_normed,
    F.softplus: _softplus,
    **dict.fromkeys(_ACTIVATIONS, _elementwise),
    **dict.fromkeys((F.avg_pool2d, F.adaptive_avg_pool2d, torch.Tensor.contiguous), _linear),
    **dict.fromkeys(
        (torch.flatten, torch.Tensor.flatten, torch.Tensor.view, torch.Tensor.reshape), _reshaped
    ),
    **dict.fromkeys((torch.Tensor.mean, torch.mean), _averaged),
    torch.Tensor.__getitem__: _picked,
    **dict.fromkeys((torch.add, torch.Tensor.add, torch.Tensor.__add__, *_SUMS_IN_PLACE), _sum),
    **dict.fromkeys((torch.sub, torch.Tensor.sub, torch.Tensor.__sub__), _sum),
    **dict.fromkeys((torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, *_QUOTIENTS), _product),
    torch.cat: _joined,
    F.pad: _padded,
    F.dropout: _dropped,
}
