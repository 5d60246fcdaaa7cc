"""Which linear map replaces which operation: the families of operations, and the LRP rules as data.

*Gradient space* (guided backprop): the replayed tensor is a tangent, and each operation its derivative.
*Relevance space* (LRP): the replayed tensor u is a relative change of each value, a layer's output changes by
u_out = W(a u) / (W a), and so the gradient of the replayed logits to u is the relevance itself; nothing is
ever divided by an activation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.attributions.replay import Call, Rule, Traced, Values, no_rule
from gyrograd.numerics.second_order import missing_derivatives, single

ACTIVATIONS = frozenset({
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish",
    "softplus", "softsign", "tanh", "sigmoid", "logsigmoid", "log_sigmoid", "hardtanh", "hardswish",
    "hardsigmoid", "threshold", "softshrink", "hardshrink", "tanhshrink", "clamp", "clamp_min",
})  # fmt: skip
NONNEGATIVE_ACTIVATIONS = frozenset({
    "relu", "relu6", "softplus", "sigmoid", "hardsigmoid",
})  # fmt: skip
STRUCTURAL = frozenset({
    "flatten", "unflatten", "view", "view_as", "reshape", "permute", "transpose", "swapaxes",
    "swapdims", "movedim", "moveaxis", "squeeze", "unsqueeze", "contiguous", "clone", "expand",
    "expand_as", "repeat", "getitem", "select", "narrow", "cat", "stack", "chunk", "split",
    "tensor_split", "unbind", "flip", "roll", "t", "T", "mT", "to", "float", "double", "half",
    "type_as", "alias", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "unfold",
})  # fmt: skip
AVERAGES = frozenset({
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "mean", "sum", "interpolate",
})  # fmt: skip
MAX_POOLS = frozenset(f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
DROPOUTS = frozenset({
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
    "feature_alpha_dropout",
})  # fmt: skip
ELEMENTWISE = frozenset({
    "add", "sub", "rsub", "mul", "div", "neg",
})  # fmt: skip

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "linear": ("input", "weight", "bias"),
    "matmul": ("input", "weight"),
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
}
AFFINE = frozenset(name for name in _PARAMETERS if name.startswith(("linear", "matmul", "conv")))


def arguments(call: Call) -> dict[str, Any]:
    """The call's arguments by name, given by position or not."""
    return dict(zip(_PARAMETERS[call.name], call.args, strict=False)) | call.kwargs


# Layers


class Layer(NamedTuple):
    """An affine operation: what goes in, its weights, and how to apply it with others."""

    input: Traced
    weight: Tensor
    bias: Tensor | None
    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]


def layer_of(call: Call, method: str) -> Layer:
    """The layer of an affine call; if its weights depend on x too it is a product, which has no rule."""
    given = arguments(call)
    inside, weight, bias = given.pop("input"), given.pop("weight", None), given.pop("bias", None)
    if not isinstance(inside, Traced) or not isinstance(weight, Tensor) or isinstance(bias, Traced):
        raise no_rule(method, call, "its weights depend on x")
    if call.name == "matmul":
        return Layer(inside, weight, None, lambda a, w, b: a @ w if b is None else a @ w + b)
    return Layer(inside, weight, bias, lambda a, w, b: call.func(a, w, b, **given))


def batchnorm_scale_and_shift(call: Call, method: str) -> tuple[Tensor, Tensor]:
    """BatchNorm with stored statistics as y = scale * x + shift, one number a channel."""
    given = arguments(call)
    mean, var = given["running_mean"], given["running_var"]
    if given.get("training") or mean is None or var is None:
        raise no_rule(
            method, call, "it normalises by the statistics of the batch, so examples see one another"
        )
    spread = (single(var) + given.get("eps", 1e-5)).sqrt()
    weight, bias = given.get("weight"), given.get("bias")
    scale = 1 / spread if weight is None else weight / spread
    return scale, -mean * scale if bias is None else bias - mean * scale


def merged(layer: Layer, scale: Tensor, shift: Tensor) -> Layer:
    """A convolution or linear layer and the BatchNorm behind it as one layer."""
    weight = layer.weight * _per_channel(scale, layer.weight.dim(), axis=0)
    bias = shift if layer.bias is None else layer.bias * scale + shift
    kind = layer.weight.dtype  # a half precision net may keep its normalisation in single
    return Layer(layer.input, weight.to(kind), bias.to(kind), layer.apply)


def _per_channel(values: Tensor, dim: int, axis: int = 1) -> Tensor:
    return values.view([-1 if i == axis else 1 for i in range(dim)])


# Operations that both spaces treat alike


def natively(call: Call, values: Values) -> Any:
    """The operation itself: it is linear already."""
    return call.run(values)


def from_winners(call: Call, values: Values) -> Tensor:
    """Max-pool: take the replayed value from where the true maximum was."""
    refuse_indices(call)
    given = arguments(call)
    inside = given.pop("input")
    given.pop("return_indices", None)
    _, winners = getattr(F, call.name)(inside.value.detach(), **given, return_indices=True)
    axes = int(call.name[-2])
    return values[inside].flatten(-axes).gather(-1, winners.flatten(-axes)).view_as(winners)


def refuse_indices(call: Call) -> None:
    """A max-pool that hands out its winners lets the model compute with them."""
    if arguments(call).get("return_indices", False):
        raise no_rule("The replay", call, "it hands out indices")


def padded_with_zeros(call: Call, values: Values) -> Tensor:
    """Padding is linear once the constant is zero."""
    given = arguments(call)
    inside = given.pop("input")
    if given.get("mode", "constant") == "constant":
        given["value"] = 0.0
    padded: Tensor = F.pad(values[inside], **given)
    return padded


def through_quiet_dropout(call: Call, values: Values) -> Tensor:
    """Dropout in evaluation: nothing happens."""
    refuse_drawing(call)
    return values[call.inputs[0]]


def refuse_drawing(call: Call) -> None:
    """Dropout that draws has no rule."""
    if arguments(call).get("training", True) and arguments(call).get("p", 0.5):
        raise no_rule(
            "The replay", call, "it drops at random in evaluation too, so set training=self.training"
        )


def is_constant_multiple(call: Call) -> bool:
    """c x or x / c."""
    return len(call.inputs) == 1 and (call.name in {"mul", "neg"} or (call.name == "div" and _is_first(call)))


def is_constant_shift(call: Call) -> bool:
    """x + c, x - c or c - x."""
    return len(call.inputs) == 1 and call.name in {"add", "sub", "rsub"}


def _is_first(call: Call) -> bool:
    return isinstance(call.args[0], Traced) if call.args else isinstance(call.kwargs.get("input"), Traced)


def spread(call: Call, u: Tensor) -> Tensor:
    """u in the shape of the call's output, which a constant may have enlarged."""
    return u.expand(call.outputs[0].value.shape)


# Gradient space


def gradient_rules(method: str, activation: Rule) -> dict[str, Rule]:
    """Every operation's derivative, activations by the rule given."""

    def affine(call: Call, values: Values) -> Tensor:
        layer = layer_of(call, method)
        return layer.apply(values[layer.input], layer.weight, None)

    def batchnorm(call: Call, values: Values) -> Tensor:
        scale, _ = batchnorm_scale_and_shift(call, method)
        u = values[call.inputs[0]]
        return (u * _per_channel(scale, u.dim())).to(u.dtype)

    def elementwise(call: Call, values: Values) -> Tensor:
        refuse_products(call, method)
        if is_constant_shift(call):
            return _shifted(call, values[call.inputs[0]])
        out: Tensor = call.run(values)
        return out

    return {
        **dict.fromkeys(AFFINE, affine),
        **dict.fromkeys(ACTIVATIONS, activation),
        **dict.fromkeys(STRUCTURAL | AVERAGES, natively),
        **dict.fromkeys(MAX_POOLS, from_winners),
        **dict.fromkeys(DROPOUTS, through_quiet_dropout),
        **dict.fromkeys(ELEMENTWISE, elementwise),
        "batch_norm": batchnorm,
        "pad": padded_with_zeros,
    }


def refuse_products(call: Call, method: str) -> None:
    """Sums, and multiples by a constant, have a derivative that is theirs alone; products of two values do not."""
    if is_constant_shift(call):
        if call.kwargs.get("alpha", 1) != 1:
            raise no_rule(method, call, "alpha is not 1")
    elif not (is_constant_multiple(call) or (call.name in {"add", "sub"} and len(call.inputs) == 2)):
        raise no_rule(method, call, "it multiplies or divides two values that both depend on x")


def refuse_underivable(call: Call, method: str) -> None:
    """Every refusal of `gradient_rules`, without the replay."""
    if call.name in AFFINE:
        layer_of(call, method)
    elif call.name == "batch_norm":
        batchnorm_scale_and_shift(call, method)
    elif call.name in ELEMENTWISE:
        refuse_products(call, method)
    elif call.name in MAX_POOLS:
        refuse_indices(call)
    elif call.name in DROPOUTS:
        refuse_drawing(call)


def _shifted(call: Call, u: Tensor) -> Tensor:
    """Derivative of x + c, x - c and c - x."""
    negated = call.name == "rsub" or (call.name == "sub" and not _is_first(call))
    return spread(call, -u if negated else u)


def activation_slope(call: Call) -> Tensor:
    """The activation's derivative at its recorded input, in the graph of the true run."""
    inside, keep = call.inputs[0].value, call.outputs[0].value.requires_grad
    z = inside if inside.requires_grad else inside.detach().requires_grad_()
    with torch.enable_grad(), missing_derivatives():
        activated = call.run({call.inputs[0]: z})
        (slope,) = torch.autograd.grad(activated, z, torch.ones_like(activated), create_graph=keep)
    return slope


# Relevance space: rules as data

Part: TypeAlias = Callable[[Tensor], Tensor]


def whole(t: Tensor) -> Tensor:
    """All of it."""
    return t


def positive(t: Tensor) -> Tensor:
    """t where it is above zero, else 0."""
    return t.relu()


def negative(t: Tensor) -> Tensor:
    """t where it is below zero, else 0."""
    return -(-t).relu()


def size_and_trace(t: Tensor) -> Tensor:
    """The size of t, and a trace that shares evenly what all summands have no part in."""
    return t.abs() + TRACE


@dataclass(frozen=True)
class Term:
    """One product: this part of the input through this part of the weights (and bias), with this sign."""

    source: str
    weight: Part
    bias: Part | None = None
    sign: float = 1.0


@dataclass(frozen=True)
class Share:
    """An output's relevance times `factor`, handed out in proportion to the sum of the terms.

    `where` names the outputs it is for, by their value; None is all of them.
    """

    terms: tuple[Term, ...]
    factor: float = 1.0
    where: Part | None = None


RelevanceRule: TypeAlias = tuple[Share, ...]

EPSILON: RelevanceRule = (Share((Term("whole", whole, whole),)),)
"""a W over its sum (Bach et al. 2015)."""

_EXCITING = (Term("positive", positive, positive), Term("negative", negative))
_INHIBITING = (Term("positive", negative, negative), Term("negative", positive))

ZPLUS: RelevanceRule = (Share(_EXCITING),)
"""joo2023, z+ rule; for negative inputs a+ W+ + a- W-, which its code does too."""

TRACE = 1e-7
"""Weight of an even split: nothing beside any real contribution, and all there is where there is none."""


def _trace(weight: Tensor) -> Tensor:
    return torch.full_like(weight, TRACE)


ZPLUS_EVEN: RelevanceRule = (Share((*_EXCITING, Term("ones", _trace))),)
"""z+ that conserves: an output no input excites (its bias alone made it) hands its relevance to all inputs alike."""

ALPHA2BETA1: RelevanceRule = (Share(_EXCITING, 2.0), Share(_INHIBITING, -1.0))
"""Twice what excites less once what inhibits (Bach et al. 2015)."""

ZBOX: RelevanceRule = (
    Share((Term("whole", whole), Term("low", positive, sign=-1.0), Term("high", negative, sign=-1.0))),
)
"""joo2023, z^B rule, for inputs between `low` and `high`."""

ZBOX_EVEN: RelevanceRule = (Share((*ZBOX[0].terms, Term("ones", _trace))),)
"""The same with a trace of an even split, for images that lie on the box's edge."""


@cache
def gamma_rule(gamma: float) -> RelevanceRule:
    """W + gamma W+ (Montavon et al. 2019), mirrored where the output or the input is negative."""

    def up(t: Tensor) -> Tensor:
        return t + gamma * positive(t)

    def down(t: Tensor) -> Tensor:
        return t + gamma * negative(t)

    return (
        Share((Term("positive", up, up), Term("negative", down)), where=lambda z: z > 0),
        Share((Term("positive", down, down), Term("negative", up)), where=lambda z: z < 0),
    )


def stabilized(z: Tensor, eps: float) -> Tensor:
    """z moved away from zero by eps, to its own side; zero itself becomes +eps.

    Constant on either side of zero, so it adds nothing to any derivative; a denominator made of positive
    parts never changes sides.
    """
    step = z.new_full((), eps)
    return z + torch.where(z < 0, -step, step)


def relative_change(
    layer: Layer, rule: RelevanceRule, u: Tensor, sources: dict[str, Tensor], *, keep_bias: bool, eps: float
) -> Tensor:
    """A layer in relevance space: for each share, the terms of a u over the terms of a.

    `sources` holds the parts of the input by name; a term whose part is known to be empty is left out.
    """
    pieces = []
    for share in rule:
        terms = [term for term in share.terms if term.source in sources]
        moved = [_product(layer, term, sources[term.source] * u, keep_bias=False) for term in terms]
        total = [_product(layer, term, sources[term.source], keep_bias=keep_bias) for term in terms]
        piece = share.factor * _sum(moved) / stabilized(_sum(total), eps)
        if share.where is not None:
            piece = piece * share.where(layer.apply(sources["whole"], layer.weight, layer.bias))
        pieces.append(piece)
    return _sum(pieces).to(u.dtype)


def _sum(parts: list[Tensor]) -> Tensor:
    return reduce(operator.add, parts)


def _product(layer: Layer, term: Term, source: Tensor, *, keep_bias: bool) -> Tensor:
    bias = term.bias(layer.bias) if keep_bias and term.bias is not None and layer.bias is not None else None
    # Half precision has no room for a stabiliser: it is added and divided in single.
    product = single(layer.apply(source, term.weight(layer.weight), bias))
    return product if term.sign == 1 else term.sign * product
