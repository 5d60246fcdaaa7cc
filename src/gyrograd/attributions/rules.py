"""The linear map that replaces each operation: families of operations, and the LRP rules as data.

In *relevance space* the replayed tensor u is the relative change of each value: a layer's output changes by
u_out = W(a u) / (W a), so the gradient of the replayed logits to u is the relevance itself, and nothing is divided by
an activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.attributions.replay import Call, Traced, Values, no_rule
from gyrograd.numerics.memory_layout import is_channels_last
from gyrograd.numerics.pooling import PickedInMemory, places_in_memory, windows_are_apart
from gyrograd.numerics.second_order import single

ACTIVATIONS = frozenset({
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish",
    "softplus", "softsign", "tanh", "sigmoid", "logsigmoid", "log_sigmoid", "hardtanh", "hardswish",
    "hardsigmoid", "threshold", "softshrink", "hardshrink", "tanhshrink", "clamp", "clamp_min",
})  # fmt: skip
NONNEGATIVE = frozenset({"relu", "relu6", "softplus", "sigmoid", "hardsigmoid", "softmax"})
"""Operations that return no negative value."""
STRUCTURAL = frozenset({
    "flatten", "unflatten", "view", "view_as", "reshape", "reshape_as", "ravel", "permute", "transpose", "swapaxes",
    "swapdims", "movedim", "moveaxis", "squeeze", "unsqueeze", "contiguous", "clone", "expand", "expand_as",
    "broadcast_to", "repeat", "repeat_interleave", "tile", "getitem", "select", "narrow", "index_select", "gather",
    "take_along_dim", "diagonal", "cat", "stack", "hstack", "vstack", "chunk", "split", "split_with_sizes",
    "tensor_split", "unbind", "flip", "roll", "rot90", "t", "T", "mT", "to", "float", "double", "half", "bfloat16",
    "type_as", "alias", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unfold", "where", "masked_fill",
    "tril", "triu", "setitem",
})  # fmt: skip
"""Operations that only move values: each result is one of the inputs, or a constant."""
AVERAGES = frozenset({
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "mean", "sum", "interpolate", "fold",
})  # fmt: skip
MAX_POOLS = frozenset(f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
HOMOGENEOUS = frozenset({"norm", "vector_norm", "linalg_vector_norm", "amax", "amin"})
"""Twice the input gives twice the output, so slope times input equals the output (Euler)."""
DROPOUTS = frozenset({
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
    "feature_alpha_dropout",
})  # fmt: skip
ELEMENTWISE = frozenset({
    "add", "sub", "rsub", "mul", "div", "neg",
})  # fmt: skip
POWERS = frozenset({"sqrt", "square", "pow"})
FUNCTIONS = POWERS | {"exp", "expm1", "log", "log1p", "abs", "erf", "sin", "cos"}
"""Elementwise functions. Guided backprop accepts only powers: the others can be parts of a hand-written activation."""
RECIPROCALS = frozenset({"rdiv", "reciprocal", "rsqrt"})
NORMS = frozenset({
    "layer_norm", "group_norm", "instance_norm", "rms_norm", "normalize", "local_response_norm",
})  # fmt: skip
CENTRED = frozenset({"layer_norm", "group_norm", "instance_norm", "rms_norm"})
"""Norms that are a linear layer if their denominator is constant."""

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "linear": ("input", "weight", "bias"),
    **{f"conv{n}d": _CONV for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    **{
        f"max_pool{n}d": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode")
        for n in (1, 2, 3)
    },
    **{f"adaptive_max_pool{n}d": ("input", "output_size") for n in (1, 2, 3)},
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    **dict.fromkeys(DROPOUTS, ("input", "p", "training", "inplace")),
    "pad": ("input", "pad", "mode", "value"),
    **dict.fromkeys(("add", "sub", "rsub"), ("input", "other")),
    "softmax": ("input", "dim"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "normalize": ("input", "p", "dim", "eps", "out"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "instance_norm": (
        "input",
        "running_mean",
        "running_var",
        "weight",
        "bias",
        "use_input_stats",
        "momentum",
        "eps",
    ),
}
AFFINE = frozenset(name for name in _PARAMETERS if name.startswith(("linear", "conv"))) | {"matmul", "einsum"}
OPERATIONS = (
    AFFINE | ACTIVATIONS | STRUCTURAL | AVERAGES | MAX_POOLS | HOMOGENEOUS | DROPOUTS | ELEMENTWISE | FUNCTIONS
    | RECIPROCALS | NORMS | {"batch_norm", "pad", "softmax"}
)  # fmt: skip
"""All known operations. Any other may cut the gradient or mix examples, and is refused by name."""


def arguments(call: Call) -> dict[str, Any]:
    """The call's arguments by name, whether given by position or by name."""
    # Not strict: a call by position may leave out the last parameters.
    return dict(zip(_PARAMETERS[call.name], call.args, strict=False)) | call.kwargs


# Layers


class Layer(NamedTuple):
    """An affine operation: its input, its weights, and a function that applies it with others."""

    input: Traced
    weight: Tensor
    bias: Tensor | None
    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]


def layers_of(call: Call, method: str) -> list[Layer]:
    """The call as one layer per factor that depends on x; the true value of the other factor is its weight."""
    given = arguments(call) if call.name in _PARAMETERS else {}
    if given:
        first, second = given.pop("input"), given.pop("weight")
    # `run` below tells the two factors apart by identity.
    elif len(call.tensors) == 2 and call.tensors[0] is not call.tensors[1]:
        first, second = call.tensors
    else:
        raise no_rule(method, call, "it is not the product of two different tensors")
    bias = given.pop("bias", None)
    if isinstance(bias, Traced):
        raise no_rule(method, call, "its bias depends on x")

    def run(a: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        if call.name in _PARAMETERS:
            out: Tensor = call.func(a, w, b, **given)
            return out
        out = call.run_with(lambda item: a if item is first else w if item is second else item)
        return out if b is None else out + b

    layers = []
    if isinstance(first, Traced):
        layers.append(Layer(first, _true(second), bias, run))
    if isinstance(second, Traced):
        # The roles of the factors swap: the first one is the weight here.
        layers.append(Layer(second, _true(first), bias, lambda a, w, b: run(w, a, b)))
    return layers


def _true(item: Traced | Tensor) -> Tensor:
    return item.value if isinstance(item, Traced) else item


def per_channel(values: Tensor, dim: int, axis: int = 1) -> Tensor:
    """One value per channel, for a tensor of `dim` axes."""
    return values.view([-1 if i == axis else 1 for i in range(dim)])


def batchnorm_scale_and_shift(call: Call) -> tuple[Tensor, Tensor]:
    """BatchNorm with stored statistics as y = scale * x + shift, one number per channel."""
    given = arguments(call)
    mean, var = given["running_mean"], given["running_var"]
    spread = (single(var) + given.get("eps", 1e-5)).sqrt()  # half precision rounds eps away
    weight, bias = given.get("weight"), given.get("bias")
    scale = 1 / spread if weight is None else weight / spread
    return scale, -mean * scale if bias is None else bias - mean * scale


def merge_batch_norm(layer: Layer, scale: Tensor, shift: Tensor) -> Layer:
    """A convolution or linear layer and the BatchNorm after it, as one layer."""
    weight = layer.weight * per_channel(scale, layer.weight.dim(), axis=0)
    bias = shift if layer.bias is None else layer.bias * scale + shift
    kind = layer.weight.dtype  # a half precision net may keep its normalisation in single
    return Layer(layer.input, weight.to(kind), bias.to(kind), layer.apply)


# Operations that are linear, or nearly so


def averages_single_values(call: Call) -> bool:
    """True for a mean, sum or adaptive pool over axes of length one: it moves values, and there is nothing to share."""
    inside, outside = call.inputs[0].value.shape, call.outputs[0].value.shape
    if call.name in {"mean", "sum"}:
        return inside.numel() == outside.numel()
    return call.name.startswith("adaptive") and inside == outside


def winners(call: Call, value: Tensor) -> Tensor:
    """Positions of the maxima if this max-pool gets this value."""
    given = arguments(call) | {"input": value.detach(), "return_indices": True}
    # F.max_pool2d is recorded without indices, so the pool runs once more to get them.
    places: Tensor = getattr(F, call.name)(**given)[1]
    return places


def at_places(call: Call, value: Tensor, places: Tensor) -> Tensor:
    """The value at these positions, as `winners` returns them, in the shape of the max-pool's output."""
    given = arguments(call)
    in_memory = value.device.type == "cpu" and is_channels_last(value) and "kernel_size" in given
    if in_memory and windows_are_apart(**given):
        picked: Tensor = PickedInMemory.apply(value, places_in_memory(places, value.shape), places.shape)
        return picked
    axes = int(call.name[-2])  # 2 for max_pool2d
    return value.flatten(-axes).gather(-1, places.flatten(-axes)).view_as(places)


def padded_with_zeros(call: Call, values: Values) -> Tensor:
    """Padding with zeros instead of its constant: any other constant would make it affine, not linear."""
    given = arguments(call)
    inside = given.pop("input")
    if given.get("mode", "constant") == "constant":
        given["value"] = 0.0
    padded: Tensor = F.pad(values[inside], **given)
    return padded


def refuse_unsteady(call: Call, method: str) -> None:
    """Refuse active dropout, batch statistics, and max-pools that return indices."""
    if call.name in DROPOUTS and arguments(call).get("training", True) and arguments(call).get("p", 0.5):
        raise no_rule(method, call, "it drops at random in evaluation too, so set training=self.training")
    if call.name in MAX_POOLS and arguments(call).get("return_indices", False):
        raise no_rule(method, call, "it hands out indices")
    if call.name == "batch_norm":
        given = arguments(call)
        if given.get("training") or given["running_mean"] is None or given["running_var"] is None:
            raise no_rule(
                method, call, "it normalises by the statistics of the batch, so examples see one another"
            )


def refuse_written_out(call: Call, method: str) -> None:
    """Refuse a product of two elementwise functions of one tensor: a hand-written activation, as z * sigmoid(z)."""
    if call.name in {"mul", "div"} and len(call.inputs) == 2:
        first, second = (_roots(item) for item in call.inputs)
        if first == second and len(first) == 1:
            why = "it is part of an activation that is written out, so use torch's own (F.silu, F.gelu, F.hardswish)"
            raise no_rule(method, call, why)


def _roots(item: Traced) -> set[Traced]:
    """The tensors from which this one is computed elementwise."""
    call = item.call
    if call is None or call.name not in ACTIVATIONS | ELEMENTWISE | FUNCTIONS | RECIPROCALS:
        return {item}
    return set[Traced]().union(*map(_roots, call.inputs))


def is_constant_multiple(call: Call) -> bool:
    """True for c x and x / c."""
    first = call.args[0] if call.args else call.kwargs.get("input")
    divides = call.name == "div" and isinstance(first, Traced)  # c / x is not linear
    return len(call.inputs) == 1 and (call.name in {"mul", "neg"} or divides)


def is_constant_shift(call: Call) -> bool:
    """True for x + c, x - c and c - x."""
    return len(call.inputs) == 1 and call.name in {"add", "sub", "rsub"}


def expand_to_output(call: Call, u: Tensor) -> Tensor:
    """u in the shape of the call's output, to which a constant may have broadcast it."""
    return u.expand(call.outputs[0].value.shape)


def summands(call: Call) -> list[tuple[float, Any]]:
    """The terms of a sum or difference with their factors."""
    given = arguments(call)
    first, second, alpha = given["input"], given["other"], float(given.get("alpha", 1))
    return {
        "add": [(1.0, first), (alpha, second)],
        "sub": [(1.0, first), (-alpha, second)],
        "rsub": [(-alpha, first), (1.0, second)],
    }[call.name]


def derivative(call: Call, tangents: Values) -> Tensor:
    """The operation's derivative at its recorded inputs along the tangents, in the graph of the true run."""
    # Backward twice: the first pass is linear in the slope v it starts from, so its derivative to v is the forward
    # derivative. Unlike torch's forward mode this exists for every operation.
    inputs = {
        item: item.value if item.value.requires_grad else item.value.detach().requires_grad_()
        for item in call.inputs
    }
    with torch.enable_grad():
        out = call.run(inputs)
        v = torch.zeros_like(out, requires_grad=True)  # any value: the pass is linear in it
        slopes = torch.autograd.grad(out, list(inputs.values()), v, create_graph=True)
        (moved,) = torch.autograd.grad(slopes, v, [tangents[item] for item in inputs], create_graph=True)
    return moved


def gate_of(call: Call) -> Tensor | None:
    """f(z) / z for activations of the form f(z) = z gate(z), without a division; None for others."""
    # Written out, because f(z) / z is 0 / 0 at zero, and its derivative NaN.
    z = call.inputs[0].value
    if call.name == "gelu":
        if call.kwargs.get("approximate", "none") == "tanh":
            return (1 + torch.tanh((2 / math.pi) ** 0.5 * (z + 0.044715 * z**3))) / 2
        return (1 + torch.erf(z * 0.5**0.5)) / 2
    gates: dict[str, Callable[[], Tensor]] = {
        "relu": lambda: (z > 0).to(z.dtype),
        "silu": lambda: z.sigmoid(),
        "hardswish": lambda: F.relu6(z + 3) / 6,
    }
    return gates[call.name]() if call.name in gates else None


def norm_settings(call: Call, dtype: torch.dtype) -> tuple[list[int], list[int], Tensor | None, float]:
    """Of a norm in `CENTRED`: the shape and axes to average over, the weight as a factor of x, and eps."""
    given, x = arguments(call), call.inputs[0].value
    weight, eps = given.get("weight"), given.get("eps", 1e-5)
    eps = torch.finfo(dtype).eps if eps is None else eps  # rms_norm's own default
    if call.name not in {"group_norm", "instance_norm"}:
        return list(x.shape), list(range(-len(given["normalized_shape"]), 0)), weight, eps
    weight = weight if weight is None else per_channel(weight, x.dim())
    return [x.shape[0], given.get("num_groups", x.shape[1]), -1], [-1], weight, eps


def less_mean(call: Call, moved: Tensor) -> Tensor:
    """Relative change of a softmax: the change of its input minus the mean of that under its weights."""
    s = single(call.outputs[0].value)
    # Exact to first order: ds_i / s_i = dx_i - sum_j s_j dx_j.
    mean = (s * single(moved)).sum(arguments(call)["dim"], keepdim=True)
    return (single(moved) - mean).to(moved.dtype)


def through_fixed_spread(call: Call, t: Tensor) -> Tensor:
    """A normalisation with constant denominator and no bias, applied to t: centred and scaled."""
    x = single(call.inputs[0].value)
    shape, axes, weight, eps = norm_settings(call, x.dtype)

    def subtract_mean(t: Tensor) -> Tensor:
        t = t.reshape(shape)
        return t if call.name == "rms_norm" else t - t.mean(axes, keepdim=True)

    # The denominator comes from the true run, so the whole step is linear in t.
    spread = (subtract_mean(x).square().mean(axes, keepdim=True) + eps).sqrt()
    moved = (subtract_mean(single(t)) / spread).reshape(x.shape)
    return (moved if weight is None else moved * weight).to(t.dtype)


# Layers: rules as data

Part: TypeAlias = Callable[[Tensor], Tensor]


def whole(t: Tensor) -> Tensor:
    return t


def positive(t: Tensor) -> Tensor:
    return t.relu()


def negative(t: Tensor) -> Tensor:
    return -(-t).relu()


def size_and_trace(t: Tensor) -> Tensor:
    """|t| plus a trace, so that summands that are all zero share evenly."""
    return t.abs() + TRACE


@dataclass(frozen=True)
class Term:
    """One product: a part of the input times a part of the weights (and bias), with a sign."""

    source: str
    weight: Part
    bias: Part | None = None
    sign: float = 1.0


@dataclass(frozen=True)
class Share:
    """An output's relevance times `factor`, distributed in proportion to the sum of the terms.

    `where` selects outputs by their value; None selects all.
    """

    terms: tuple[Term, ...]
    factor: float = 1.0
    where: Part | None = None


RelevanceRule: TypeAlias = tuple[Share, ...]

EPSILON: RelevanceRule = (Share((Term("whole", whole, whole),)),)
"""a W divided by its sum (Bach et al. 2015)."""

_EXCITING = (Term("positive", positive, positive), Term("negative", negative))
_INHIBITING = (Term("positive", negative, negative), Term("negative", positive))

ZPLUS: RelevanceRule = (Share(_EXCITING),)
"""joo2023's z+ rule; with negative inputs a+ W+ + a- W-, as in its code."""

TRACE = 1e-7
"""Weight of an even split: negligible beside any contribution, and decisive if there is none."""


def _trace(weight: Tensor) -> Tensor:
    return torch.full_like(weight, TRACE)


ZPLUS_EVEN: RelevanceRule = (Share((*_EXCITING, Term("ones", _trace))),)
"""z+ that conserves: an output that no input excites (only its bias) gives its relevance to all inputs alike."""

ALPHA2BETA1: RelevanceRule = (Share(_EXCITING, 2.0), Share(_INHIBITING, -1.0))
"""Twice the exciting minus once the inhibiting contributions (Bach et al. 2015)."""

ZBOX: RelevanceRule = (
    Share((Term("whole", whole), Term("low", positive, sign=-1.0), Term("high", negative, sign=-1.0))),
)
"""joo2023's z^B rule, for inputs between `low` and `high`."""

ZBOX_EVEN: RelevanceRule = (Share((*ZBOX[0].terms, Term("ones", _trace))),)
"""z^B plus a trace of an even split: all terms are zero for pixels on the edge of the box."""


@cache
def gamma_rule(gamma: float) -> RelevanceRule:
    """W + gamma W+ (Montavon et al. 2019), mirrored for negative outputs and inputs."""

    def up(t: Tensor) -> Tensor:
        return t + gamma * positive(t)

    def down(t: Tensor) -> Tensor:
        return t + gamma * negative(t)

    return (
        Share((Term("positive", up, up), Term("negative", down)), where=lambda z: z > 0),
        Share((Term("positive", down, down), Term("negative", up)), where=lambda z: z < 0),
    )


def stabilize(z: Tensor, eps: float) -> Tensor:
    """z moved away from zero by eps, keeping its sign; zero becomes +eps."""
    # The step is constant on either side of zero, so it adds nothing to any derivative.
    step = z.new_full((), eps)
    return z + torch.where(z < 0, -step, step)


def relative_change(
    layer: Layer,
    rule: RelevanceRule,
    sources: dict[str, tuple[Tensor, Tensor]],
    *,
    keep_bias: bool,
    eps: float,
) -> Tensor:
    """A layer in relevance space: per share, the terms of the input's change divided by the terms of the input.

    Args:
        layer: the layer.
        rule: its shares.
        sources: parts of the input by name, each with its change; terms of parts that are not here are left out.
        keep_bias: count the bias as a contribution.
        eps: stabilizer of the denominator.
    """
    # Several terms use the same part of the weights, which is as large as the layer: compute it once.
    weight = cache(lambda part: part(layer.weight))

    def products(share: Share, column: int, bias_kept: bool) -> Tensor:
        parts = []
        for term in share.terms:
            if term.source not in sources:
                continue
            bias = None
            if bias_kept and term.bias is not None and layer.bias is not None:
                bias = term.bias(layer.bias)
            # In single precision: half precision would round the stabiliser away.
            product = single(layer.apply(sources[term.source][column], weight(term.weight), bias))
            parts.append(product if term.sign == 1 else term.sign * product)
        return sum_of(parts)

    pieces = []
    for share in rule:
        piece = share.factor * products(share, 1, False) / stabilize(products(share, 0, keep_bias), eps)
        if share.where is not None:
            piece = piece * share.where(layer.apply(layer.input.value, layer.weight, layer.bias))
        pieces.append(piece)
    return sum_of(pieces).to(layer.input.value.dtype)


def sum_of(parts: list[Tensor]) -> Tensor:
    """The sum of at least one tensor; `sum` alone would start with an addition to 0."""
    return sum(parts[1:], parts[0])
