"""DeepLIFT: each operation is replayed as a linear map from the change of its input to the change of its output.

The change is from a reference run (the baseline) to the true run. An operation's map is its mean slope on the straight
line between the two: the operation itself if it is affine; the ratio of the changes for a function of one value
(DeepLIFT's rescale rule); for a product a b the change of a times the mean of b, and vice versa. Softmax and
normalisations are built from these. None of them loses a change, so the maps sum to the change of the explained value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyrograd.attributions import rules
from gyrograd.attributions.replay import Call, Tape, Traced, Values, no_rule, refuse_unknown
from gyrograd.errors import UserError
from gyrograd.numerics.second_order import missing_derivatives, single

PIECEWISE_LINEAR = frozenset({
    "relu", "relu6", "leaky_relu", "prelu", "rrelu", "hardtanh", "hardsigmoid", "threshold", "softshrink",
    "hardshrink", "clamp", "clamp_min", "abs",
})  # fmt: skip


class Change(NamedTuple):
    """A value of the true run, of the reference run, and the replayed change between them."""

    true: Tensor
    reference: Tensor
    moved: Tensor


def pointwise(function: Callable[[Tensor], Tensor], change: Change, *, kinked: bool = False) -> Change:
    """An elementwise function: the ratio of the changes or, if they are tiny, the slope at their middle."""
    # The derivative of the ratio has an error of precision / change^2, the slope one of change^2: they are equal at
    # the fourth root of the precision. A kinked function has no slope at the kink, but loses few digits.
    true, reference = function(change.true), function(change.reference)
    step = single(change.true) - single(change.reference)
    precision = torch.finfo(step.dtype).eps
    tiny = step.abs() < (precision**0.5 if kinked else precision**0.25)
    with torch.enable_grad(), missing_derivatives():
        # A masked position is -inf in both runs and does not change; it gets a finite number, which has a slope.
        middle = (change.true / 2 + change.reference / 2).clamp(min=torch.finfo(change.true.dtype).min)
        middle = middle if middle.requires_grad else middle.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(middle).sum(), middle, create_graph=True)
    tiny = tiny | ~step.isfinite()
    ratio = (single(true) - single(reference)) / torch.where(tiny, 1, step)
    ratio = torch.where(tiny, single(slope), ratio).to(change.moved.dtype)
    return Change(true, reference, change.moved * ratio)


def product(one: Change, other: Change) -> Change:
    """The change of a product: each factor's change times the mean of the other."""
    moved = one.moved * (other.true + other.reference) / 2 + other.moved * (one.true + one.reference) / 2
    return Change(one.true * other.true, one.reference * other.reference, moved)


def linear(function: Callable[[Tensor], Tensor], change: Change) -> Change:
    """A linear function, applied to all three."""
    return Change(*(function(part) for part in change))


def softmax(change: Change, dim: int) -> Change:
    # As exp of its logarithm: no large number is divided by a small one.
    return pointwise(torch.exp, log_softmax(change, dim))


def log_softmax(change: Change, dim: int) -> Change:
    """The value minus the logarithm of the sum of exp."""
    # Both runs are shifted by the same number, which does not change a softmax. In double precision, because the sum
    # of the run with the smaller values may be very small.
    true, reference = (part.log_softmax(dim) for part in change[:2])
    top = torch.maximum(change.true, change.reference).amax(dim, keepdim=True).detach()
    shifted = linear(Tensor.double, Change(change.true - top, change.reference - top, change.moved))
    total = linear(lambda t: t.sum(dim, keepdim=True), pointwise(torch.exp, shifted))
    step = total.true - total.reference
    # The larger sum is at least one, so a step above the limit is more than rounding. The smaller may underflow, so
    # the logarithms are computed by logsumexp.
    tiny = step.abs() < torch.finfo(step.dtype).eps ** 0.25
    logarithms = (part.double().logsumexp(dim, keepdim=True) for part in change[:2])
    rise = torch.sub(*logarithms) / torch.where(tiny, 1, step)
    slope = torch.where(tiny, 2 / (total.true + total.reference), rise)
    return Change(true, reference, change.moved - (slope * total.moved).to(change.moved.dtype))


def normalised(change: Change, axes: list[int], eps: float) -> Tensor:
    """The change of d / sqrt(mean(d^2) + eps), for d on the straight line from the reference to the true value."""
    # The slope along v is v q^-1/2 - d mean(d v) q^-3/2 with q = mean(d^2) + eps. d is linear and q quadratic in the
    # position t, so the mean slope consists of integrals of t^k q^-1/2 and t^k q^-3/2. Averages of the two ends would
    # add up, too, but for a reference without spread (a black image) they are a thousand times as large and cancel.

    def mean(t: Tensor) -> Tensor:
        return t.mean(axes, keepdim=True)

    start, v = change.reference.double(), change.moved.double()
    step = change.true.double() - start
    first, second, third, fourth = _integrals(mean(step**2), 2 * mean(start * step), mean(start**2) + eps)
    along, across = mean(start * v), mean(step * v)
    moved = v * first - start * (along * second + across * third) - step * (along * third + across * fourth)
    return moved.to(change.moved.dtype)


def _integrals(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of q^-1/2, q^-3/2, t q^-3/2 and t^2 q^-3/2 over t from 0 to 1, with q = a t^2 + b t + c above zero."""
    # If q is almost constant the closed forms divide zero by zero; twelve Gauss points are exact there.
    flat = a < 1e-2 * c
    points, weights = np.polynomial.legendre.leggauss(12)
    powers = [torch.zeros_like(c) for _ in range(4)]
    for t, weight in zip((points + 1) / 2, weights / 2, strict=True):
        q = torch.where(flat, a * t**2 + b * t + c, 1)
        powers[0] = powers[0] + weight * q**-0.5
        powers[1:] = [part + weight * t**k * q**-1.5 for k, part in enumerate(powers[1:])]
    a, b, c = (torch.where(flat, other, part) for part, other in ((a, 1.0), (b, 0.0), (c, 1.0)))
    gap = 4 * a * c - b**2
    end, root, last = (a + b + c).sqrt(), c.sqrt(), 2 * a + b
    first = (torch.asinh(last / gap.sqrt()) - torch.asinh(b / gap.sqrt())) / a.sqrt()
    second = 2 * (last / end - b / root) / gap
    third = 2 * (2 * c / root - (b + 2 * c) / end) / gap
    fourth = (((2 * b**2 - 4 * a * c) + 2 * b * c) / end - 2 * b * c / root) / (a * gap) + first / a
    closed = (first, second, third, fourth)
    return tuple(torch.where(flat, part, other) for part, other in zip(powers, closed, strict=True))  # type: ignore[return-value]


def quantity_change(logits: Change, target: Tensor, quantity: str) -> Tensor:
    if quantity == "probability":
        logits = softmax(logits, 1)
    elif quantity != "logit":
        logits = log_softmax(logits, 1)
    chosen = logits.moved.gather(1, target[:, None])[:, 0]
    return -chosen if quantity == "loss" else chosen


@dataclass(eq=False)
class Differences:
    """The replay step, with the values of the reference run."""

    references: dict[Traced, Tensor]

    @classmethod
    def between(cls, tape: Tape, reference: Tape) -> Differences:
        """The step for two runs of one model, which must have taken the same operations."""
        refuse_unknown("DeepLIFT", tape, _STEPS)
        for call in tape.path:
            rules.refuse_unsteady(call, "DeepLIFT")
        pairs = list(zip(tape.path, reference.path, strict=False))
        if len(tape.path) != len(reference.path) or any(a.name != b.name for a, b in pairs):
            raise UserError(
                "The model takes other operations for the baseline than for the image, so their runs cannot be "
                "compared; use 'integrated_gradients'."
            )
        values = {tape.x: reference.x.value}
        for call, other in pairs:
            values |= {a: b.value for a, b in zip(call.outputs, other.outputs, strict=True)}
        return cls(values)

    def __call__(self, call: Call, values: Values) -> Any:
        return _STEPS[call.name](self, call, values)

    def change(self, item: Traced, values: Values) -> Change:
        return Change(item.value, self.references[item], values[item])

    def itself(self, call: Call, values: Values) -> Any:
        """Affine operations. Their constants do not matter: only slopes of the replay are used."""
        return call.run(values)

    def function(self, call: Call, values: Values) -> Tensor:
        """A function of one value."""
        inside = call.inputs[0]
        if len(call.inputs) != 1:
            raise no_rule("DeepLIFT", call, "more than its input depends on x")
        kinked = call.name in PIECEWISE_LINEAR
        change = pointwise(lambda t: call.run({inside: t}), self.change(inside, values), kinked=kinked)
        return change.moved

    def elementwise(self, call: Call, values: Values) -> Tensor:
        """Sums, and products and ratios with a constant, are linear; a product of two values is shared."""
        if call.name not in {"mul", "div"} or rules.is_constant_multiple(call):
            same: Tensor = self.itself(call, values)
            return same
        if len(call.inputs) == 1:  # a constant over a value
            return self.function(call, values)
        first, second = (self.change(item, values) for item in call.inputs)
        if call.name == "div":
            if call.kwargs.get("rounding_mode"):
                raise no_rule("DeepLIFT", call, "it rounds")
            # a / b as a product with 1 / b, for which there are rules.
            second = pointwise(torch.reciprocal, second)
        return product(first, second).moved

    def affine(self, call: Call, values: Values) -> Tensor:
        """A layer, or a product if its weights depend on x, too (attention)."""
        if len(call.inputs) > 2 or len(set(call.inputs)) < len(call.inputs):
            raise no_rule("DeepLIFT", call, "it is not the product of two different tensors")
        # With a constant weight this is the layer itself; with two factors it is `product`, for any einsum.
        means = {item: (item.value + self.references[item]) / 2 for item in call.inputs}
        return rules.sum_of([call.run(means | {item: values[item]}) for item in call.inputs])

    def batch_norm(self, call: Call, values: Values) -> Tensor:
        """Its scale, one number per channel."""
        inside = call.inputs[0]
        scale, _ = rules.batchnorm_scale_and_shift(call)
        return (values[inside] * rules.per_channel(scale, inside.value.dim())).to(inside.value.dtype)

    def max_pool(self, call: Call, values: Values) -> Tensor:
        """The position of the larger maximum of the two runs carries the change of the maximum."""
        change = self.change(call.inputs[0], values)
        top, low = call.outputs[0].value, self.references[call.outputs[0]]
        first, second = rules.winners(call, change.true), rules.winners(call, change.reference)
        # At the winner of the larger maximum the other run is not larger, so the change there is at least as large as
        # that of the maximum and the ratio at most 1.
        places = torch.where(top >= low, first, second)
        true, reference, moved = (rules.at_places(call, part, places) for part in change)
        step = true - reference
        # Where the values are equal, or so near (far below the kink of a sharp Softplus) that 1 / step, the derivative
        # of the ratio, overflows, the maximum does not change.
        still = step.abs() < torch.finfo(single(step).dtype).tiny ** 0.5
        return torch.where(still, 1, (top - low) / torch.where(still, 1, step)) * moved

    def softmax(self, call: Call, values: Values) -> Tensor:
        return softmax(self.change(call.inputs[0], values), rules.arguments(call)["dim"]).moved

    def norm(self, call: Call, values: Values) -> Tensor:
        """LayerNorm and similar: the centred value divided by the root of its mean square."""
        given, change = rules.arguments(call), self.change(call.inputs[0], values)
        if given.get("running_mean") is not None and not given.get("use_input_stats", True):
            raise no_rule("DeepLIFT", call, "it normalises by stored statistics")
        shape, axes, weight, eps = rules.norm_settings(call, change.true.dtype)
        centred = linear(lambda t: t.reshape(shape), change)
        if call.name != "rms_norm":
            centred = linear(lambda t: t - t.mean(axes, keepdim=True), centred)
        moved = normalised(centred, axes, eps).reshape(change.true.shape)
        return moved if weight is None else moved * weight

    def unit_length(self, call: Call, values: Values) -> Tensor:
        """F.normalize: like the norms, but with the sum of squares in place of their mean."""
        given, change = rules.arguments(call), self.change(call.inputs[0], values)
        axis = given.get("dim", 1)
        if given.get("p", 2.0) != 2 or not isinstance(axis, int):
            raise no_rule("DeepLIFT", call, "it is not a division by the Euclidean length along one axis")
        n = change.true.shape[axis]
        root: float = n**0.5
        return normalised(change, [axis], given.get("eps", 1e-12) ** 2 / n) / root


_STEPS: dict[str, Any] = {
    **dict.fromkeys(rules.AFFINE, Differences.affine),
    **dict.fromkeys(rules.ACTIVATIONS | rules.FUNCTIONS | rules.RECIPROCALS, Differences.function),
    **dict.fromkeys(rules.STRUCTURAL | rules.DROPOUTS | rules.AVERAGES | {"pad"}, Differences.itself),
    "batch_norm": Differences.batch_norm,
    **dict.fromkeys(rules.MAX_POOLS, Differences.max_pool),
    **dict.fromkeys(rules.CENTRED, Differences.norm),
    "normalize": Differences.unit_length,
    **dict.fromkeys(rules.ELEMENTWISE, Differences.elementwise),
    "softmax": Differences.softmax,
}
