"""LRP: the linear map in relevance space by which each recorded operation is replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gyrograd.attributions import rules
from gyrograd.attributions.replay import Call, Tape, Traced, Values, no_rule, refuse_unknown, upstream
from gyrograd.attributions.variants import Shares
from gyrograd.errors import UserError
from gyrograd.numerics.second_order import single


def with_constants_held(tape: Tape, settings: Shares) -> Tape:
    """The tape with denominators, and what the settings name, as constants, through which no relevance flows.

    A held argument is its true value from then on, with its graph, so a product with it is an ordinary layer or
    multiple. Operations that lead only to held arguments are left out and need no rule.
    """
    held: set[Traced] = set()
    for call in tape.path:
        call.hold(held)
        call.hold(_constants_of(call, settings))
        if not call.inputs:
            # An operation on constants alone gives a constant.
            held.update(call.outputs)
    if tape.logits in held:
        raise UserError(
            "The model's output depends on x only through values that LRP holds constant (softmax weights or "
            "denominators); set softmax='taylor', or explain this model with a gradient method."
        )
    return replace(tape, path=upstream(tape.logits))


def _constants_of(call: Call, settings: Shares) -> Container[Traced]:
    if call.name in rules.RECIPROCALS:
        return call.inputs
    if call.name == "div":
        # All relevance goes to the numerator.
        return call.inputs[1:] if isinstance(call.tensors[0], Traced) else call.inputs
    if call.name == "softmax" and settings.softmax == "constant":
        return call.inputs
    if call.name == "mul" and settings.product == "gate":
        return [item for item in call.inputs if _is_gate(item, call)]
    return ()


def _is_gate(item: Traced, call: Call) -> bool:
    """True if this factor is the smaller one or, if both are equally large, the only one that saturates."""
    if len(call.inputs) != 2:
        return False
    other = call.inputs[0] if item is call.inputs[1] else call.inputs[1]
    # Squeeze-and-excitation multiplies a map by one number per channel: the smaller factor only scales.
    if item.value.numel() != other.value.numel():
        return item.value.numel() < other.value.numel()
    return _saturates(item) and not _saturates(other)


def _saturates(item: Traced) -> bool:
    while item.call is not None and item.call.name in _MOVES and item.call.inputs:
        item = item.call.inputs[0]
    return item.call is not None and item.call.name in _SATURATING


_SATURATING = {"sigmoid", "hardsigmoid", "tanh", "hardtanh", "softsign", "softmax"}


@dataclass(eq=False)
class Relevance:
    """The replay step in relevance space, and what it learns about tensors on the way."""

    settings: Shares
    zbox: bool
    behind: dict[Call, Call]
    """The BatchNorm merged into an affine call."""
    logits: Traced
    image: set[Traced]
    """Tensors that are still the image, up to shape, scale and shift."""
    boxed: dict[Traced, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Bounds of those, if the z-box rule is asked for."""
    nonnegative: set[Traced] = field(default_factory=set)
    over_draws: set[Traced] = field(default_factory=set)
    changes: set[Traced] = field(default_factory=set)
    """Tensors replayed as their change a u, not as the relative change u. Signed shares would divide by values that
    can be zero, and the next step would multiply by them again."""
    reach: dict[Traced, Tensor] = field(default_factory=dict)
    """1 where a value depends on x and 0 where it does not, for tensors that hold both kinds."""

    @classmethod
    def along(cls, tape: Tape, settings: Shares) -> Relevance:
        """The step for a tape whose constants are held."""
        refuse_unknown("LRP", tape, _STEPS)
        for call in tape.path:
            rules.refuse_unsteady(call, "LRP")
        has_batchnorm = any(call.name == "batch_norm" for call in tape.path)
        zbox = settings.first == "zbox" or (settings.first == "zbox_without_batchnorm" and not has_batchnorm)
        mergers = _mergers(tape) if settings.batchnorm == "merge" else {}
        step = cls(settings, zbox, mergers, tape.logits, {tape.x})
        if zbox:
            image = tape.x.value.detach()
            step.boxed[tape.x] = (torch.zeros_like(image), torch.ones_like(image))
            _check_boxable(tape)
        return step

    def __call__(self, call: Call, values: Values) -> Any:
        replayed = _STEPS[call.name](self, call, values)
        if self.logits in self.changes:  # the caller expects the logits as relative change
            self.changes.discard(self.logits)
            replayed = [
                self._share(t, out.value) if out is self.logits else t
                for out, t in zip(call.outputs, _as_list(replayed), strict=True)
            ]
        if self.settings.constants == "skip":
            replayed = self._past_constants(call, replayed)
        self._note_image(call)
        self._note_sign(call)
        return replayed

    def affine(self, call: Call, values: Values) -> Tensor:
        """A layer by the rule of the settings; if both factors depend on x, half as a layer of each."""
        layers = rules.layers_of(call, "LRP")
        if call in self.behind:
            layers = [rules.merge_batch_norm(layers[0], *rules.batchnorm_scale_and_shift(self.behind[call]))]
        keep_bias = self.settings.bias == "keep"
        chosen = [self._rule(layer, len(layers)) for layer in layers]
        if len(layers) == 2 and chosen[0] is rules.EPSILON and (keep_bias or layers[0].bias is None):
            # Both denominators are the product itself, so the division can wait.
            halves = [layer.apply(self._change(layer.input, values), layer.weight, None) for layer in layers]
            return self._kept_as_change(call, (halves[0] + halves[1]) / 2)
        moved = [
            rules.relative_change(
                layer, rule, self._sources(layer.input, values, rule),
                keep_bias=keep_bias, eps=self.settings.stabilizer,
            )
            for layer, rule in zip(layers, chosen, strict=True)
        ]  # fmt: skip
        return moved[0] if len(moved) == 1 else (moved[0] + moved[1]) / 2

    def _rule(self, layer: rules.Layer, factors: int) -> rules.RelevanceRule:
        if layer.input in self.boxed:
            return rules.ZBOX_EVEN if self.settings.rule == "zplus_even" else rules.ZBOX
        of_positive_parts = {"zplus": rules.ZPLUS, "zplus_even": rules.ZPLUS_EVEN}
        if factors == 2:
            # Gamma and alpha-beta are defined for weights, not for a product of two activations.
            return of_positive_parts.get(self.settings.rule, rules.EPSILON)
        return {
            **of_positive_parts,
            "epsilon": rules.EPSILON,
            "alpha2beta1": rules.ALPHA2BETA1,
            "gamma": rules.gamma_rule(self.settings.gamma),
        }[self.settings.rule]

    def _sources(
        self, inside: Traced, values: Values, rule: rules.RelevanceRule
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """The parts of a layer's input that the rule uses, each with its change."""
        a = inside.value
        if inside in self.nonnegative:
            # Without a negative part `relative_change` leaves its terms out, which are zero.
            parts = {"whole": a, "positive": a}
        else:
            parts = {"whole": a, "positive": rules.positive(a), "negative": rules.negative(a)}
        if inside in self.boxed:
            parts = dict(zip(("whole", "low", "high"), (a, *self.boxed[inside]), strict=True))
        if self.settings.rule == "zplus_even":
            # An even split is independent of the values.
            parts["ones"] = torch.ones_like(a)
        # Each part is multiplied by the change, so those that the rule does not use are left out.
        wanted = {term.source for share in rule for term in share.terms}
        parts = {name: part for name, part in parts.items() if name in wanted}
        if inside not in self.changes:
            return {name: (part, part * values[inside]) for name, part in parts.items()}
        # A change belongs to the part of the input in which its value is; other parts need the relative change.
        sides = {"whole": torch.ones_like(a), "positive": a > 0, "negative": a < 0}
        return {
            name: (part, values[inside] * sides[name] if name in sides else self._relative(inside, values))
            for name, part in parts.items()
        }

    def moving(self, call: Call, values: Values) -> Any:
        """Operations that only move values: relevance goes back to where the value came from."""
        if any(item in self.changes for item in call.inputs):
            # Inputs of one call must be of one kind: `cat` would mix changes with relative changes.
            values = {item: self._change(item, values) for item in call.inputs}
            self.changes.update(call.outputs)
        if call.name in rules.MAX_POOLS:
            inside = call.inputs[0]
            # The maxima of the true run: a replayed value can be larger elsewhere.
            return rules.at_places(call, values[inside], rules.winners(call, inside.value))
        return rules.padded_with_zeros(call, values) if call.name == "pad" else call.run(values)

    def same(self, call: Call, values: Values) -> Tensor:
        """Activations and other functions of one value: the identity."""
        inside = call.inputs[0]
        if len(call.inputs) != 1 or call.tensors[0] is not inside:
            raise no_rule("LRP", call, "more than its input depends on x")
        gate = rules.gate_of(call) if inside in self.changes else None
        if gate is not None:
            # The output is z times its gate, so its change at the same relative change is that of z times the gate.
            return self._kept_as_change(call, values[inside] * gate)
        return self._relative(inside, values)

    def batchnorm(self, call: Call, values: Values) -> Tensor:
        """Identity if it is merged into the layer before or passed over; else a linear layer like other norms."""
        inside = call.inputs[0]
        linear = self.settings.norm == "linear" and self.settings.bias == "keep"
        if not linear or self.settings.batchnorm == "pass" or call in self.behind.values():
            return self._relative(inside, values)
        scale, _ = rules.batchnorm_scale_and_shift(call)
        moved = self._change(inside, values) * rules.per_channel(scale, inside.value.dim())
        return self._kept_as_change(call, moved.to(inside.value.dtype))

    def norm(self, call: Call, values: Values) -> Tensor:
        """LayerNorm and similar: the identity, or a linear layer with constant denominator."""
        inside = call.inputs[0]
        if self.settings.norm == "identity" or call.name not in rules.CENTRED:
            return self._relative(inside, values)
        moved = rules.through_fixed_spread(call, self._change(inside, values))
        if self.settings.bias == "drop":
            return self._share(moved, rules.through_fixed_spread(call, inside.value))
        return self._kept_as_change(call, moved)

    def softmax(self, call: Call, values: Values) -> Tensor:
        """AttnLRP's first-order Taylor rule, R_i = x_i (R_i - s_i sum_j R_j)."""
        inside = call.inputs[0]
        # Masked positions are -inf with weight 0, and 0 times -inf is NaN.
        masked = inside.value == -torch.inf
        if inside in self.changes:
            moved = values[inside].masked_fill(masked, 0.0)
        else:
            moved = inside.value.masked_fill(masked, 0.0) * values[inside]
        return rules.less_mean(call, moved)

    def homogeneous(self, call: Call, values: Values) -> Tensor:
        """Homogeneous functions: slope times input, divided by the output."""
        return self._kept_as_change(
            call, rules.derivative(call, {item: self._change(item, values) for item in call.inputs})
        )

    def average(self, call: Call, values: Values) -> Any:
        """In proportion to the averaged values; over draws the plain mean."""
        if call.name in {"sum", "mean"} and _is_over_first_axis(call):
            # The first axis holds the draws of a smoothed model, whose map is the mean of theirs: larger values do not
            # give a draw a larger share.
            self.over_draws.update(call.outputs)
            return call.run({item: self._relative(item, values) for item in call.inputs})
        if rules.averages_single_values(call):
            return self.moving(call, values)
        if self.settings.pool == "signed":
            return self._kept_as_change(
                call, call.run({item: self._change(item, values) for item in call.inputs})
            )
        part = _PARTS[self.settings.pool]
        parts = {item: part(item.value) for item in call.inputs}
        moved = call.run({item: parts[item] * self._relative(item, values) for item in parts})
        return self._share(moved, call.run(parts))

    def elementwise(self, call: Call, values: Values) -> Any:
        """Sums in proportion, products half to each factor; constant multiples and shifts are the identity."""
        if all(item in self.over_draws for item in call.inputs):
            return self._after_draws(call, values)
        if call.name in {"add", "sub", "rsub"}:
            return self._sum(call, values)
        if not any(item in self.changes for item in call.inputs):
            # The relative change of a product is the sum of those of its factors; LRP gives each an equal part.
            return rules.expand_to_output(
                call, rules.sum_of([values[item] for item in call.inputs]) / len(call.inputs)
            )
        if rules.is_constant_multiple(call):
            return self._kept_as_change(call, call.run(values))
        first, second = call.inputs
        moved = self._change(first, values) * second.value + first.value * self._change(second, values)
        return self._kept_as_change(call, moved / 2)

    def _sum(self, call: Call, values: Values) -> Tensor:
        # Constants added to the image itself belong to its normalisation and get nothing.
        shares = self.settings.constants == "share" and call.inputs[0] not in self.image
        if rules.is_constant_shift(call) and not shares:
            return rules.expand_to_output(call, self._relative(call.inputs[0], values))
        terms = [(factor, item) for factor, item in rules.summands(call) if isinstance(item, Traced)]
        if self.settings.residual == "signed":
            moved = rules.sum_of([factor * self._change(item, values) for factor, item in terms])
            return self._kept_as_change(call, rules.expand_to_output(call, moved))
        part = _PARTS[self.settings.residual]
        sizes = [part(factor * item.value) for factor, item in terms]
        moved = rules.sum_of(
            [size * self._relative(item, values) for size, (_, item) in zip(sizes, terms, strict=True)]
        )
        # Only in the denominator: the share of a constant arrives at no pixel.
        if shares:
            sizes += [
                part(factor * torch.as_tensor(item).to(moved))
                for factor, item in rules.summands(call)
                if not isinstance(item, Traced)
            ]
        return self._share(moved, rules.sum_of(sizes))

    def _relative(self, item: Traced, values: Values) -> Tensor:
        """The relative change u."""
        return self._share(values[item], item.value) if item in self.changes else values[item]

    def _change(self, item: Traced, values: Values) -> Tensor:
        """The change a u."""
        return values[item] if item in self.changes else item.value * values[item]

    def _kept_as_change(self, call: Call, moved: Tensor) -> Tensor:
        """The output's change; dividing by the output can wait, because the next step multiplies by it."""
        # `skip` divides by the share that reaches x, which needs relative changes; so do the logits.
        if self.settings.constants == "skip" or call.outputs[0] is self.logits:
            return self._share(moved, call.outputs[0].value)
        self.changes.update(call.outputs)
        return moved

    def _share(self, moved: Tensor, total: Tensor) -> Tensor:
        # In single precision: half precision would round the stabiliser away.
        return (single(moved) / rules.stabilize(single(total), self.settings.stabilizer)).to(moved.dtype)

    def _after_draws(self, call: Call, values: Values) -> Any:
        """Sums and multiples of sums over draws: linear, so the map is the mean of the maps of the draws."""
        self.over_draws.update(call.outputs)
        values = {item: self._relative(item, values) for item in call.inputs}
        if rules.is_constant_shift(call):
            return rules.expand_to_output(call, values[call.inputs[0]])
        if rules.is_constant_multiple(call) or call.name == "add":
            return call.run(values)
        raise no_rule("LRP", call, "it combines outputs of several runs other than by a mean")

    def _past_constants(self, call: Call, replayed: Any) -> Any:
        """Give the share of constants among the inputs (class tokens, padding) to the values that depend on x."""
        # The step applied to `reach` is the share of each output's relevance that goes to values that depend on x.
        # Dividing by it makes that share 1; an output that depends on none of them gets 0.
        inserts = call.name == "pad" or (call.name in rules.STRUCTURAL and bool(call.constants))
        if not inserts and not any(item in self.reach for item in call.inputs):
            return replayed
        step = _STEPS[call.name]
        reach = {item: self.reach.get(item, torch.ones_like(item.value)) for item in call.inputs}
        arrives = _as_list(step(self, call, reach))
        if inserts:  # the step also returns the inserted constants, which are to be subtracted
            none = {item: torch.zeros_like(item.value) for item in call.inputs}
            arrives = [a - b for a, b in zip(arrives, _as_list(step(self, call, none)), strict=True)]
        changed = []
        for output, u, share in zip(call.outputs, _as_list(replayed), arrives, strict=True):
            depends = share != 0
            if not bool(depends.all()):
                self.reach[output] = depends.to(share.dtype)
            changed.append(torch.where(depends, u / torch.where(depends, share, 1.0), 0.0))
        return changed

    def _note_image(self, call: Call) -> None:
        """Track the image and its bounds while only its shape, scale and shift change."""
        if not _keeps_image(call) or not all(item in self.image for item in call.inputs):
            return
        self.image.update(call.outputs)
        if not all(item in self.boxed for item in call.inputs):
            return
        ends = [_as_list(call.run({item: self.boxed[item][side] for item in call.inputs})) for side in (0, 1)]
        for output, a, b in zip(call.outputs, *ends, strict=True):
            # A negative scale swaps the ends.
            self.boxed[output] = (torch.minimum(a, b), torch.maximum(a, b))

    def _note_sign(self, call: Call) -> None:
        """Track tensors that cannot be negative: their layers need half the work."""
        keeps = call.name in _KEEPS_SIGN and not call.constants
        keeps = keeps and all(item in self.nonnegative for item in call.inputs)
        # x + c and c x have one input, and a number c can be negative: two inputs are needed.
        if call.name in rules.NONNEGATIVE or (
            keeps and (call.name not in {"add", "mul"} or len(call.inputs) == 2)
        ):
            self.nonnegative.update(call.outputs)


_PARTS = {"positive": rules.positive, "absolute": rules.size_and_trace}
_MOVES = rules.STRUCTURAL | rules.DROPOUTS
_RESHAPES = _MOVES | {"pad", "batch_norm"}
# Bicubic interpolation has negative weights.
_KEEPS_SIGN = (_MOVES | rules.MAX_POOLS | rules.AVERAGES | {"add", "mul"}) - {"interpolate"}
_STEPS: dict[str, Any] = {
    **dict.fromkeys(rules.AFFINE, Relevance.affine),
    **dict.fromkeys(rules.ACTIVATIONS | rules.FUNCTIONS, Relevance.same),
    "batch_norm": Relevance.batchnorm,
    **dict.fromkeys(_MOVES | rules.MAX_POOLS | {"pad"}, Relevance.moving),
    **dict.fromkeys(rules.NORMS, Relevance.norm),
    **dict.fromkeys(rules.HOMOGENEOUS, Relevance.homogeneous),
    **dict.fromkeys(rules.AVERAGES, Relevance.average),
    **dict.fromkeys(rules.ELEMENTWISE, Relevance.elementwise),
    "softmax": Relevance.softmax,
}


def _mergers(tape: Tape) -> dict[Call, Call]:
    """The BatchNorm of each convolution or linear layer whose output goes to it and nowhere else."""
    uses = Counter(item for call in tape.path for item in call.inputs)
    found = {}
    for call in tape.path:
        before = call.inputs[0].call
        if call.name == "batch_norm" and before is not None and uses[call.inputs[0]] == 1 and _merges(before):
            found[before] = call
    return found


def _merges(before: Call) -> bool:
    # BatchNorm scales axis 1. For a linear layer on tokens (b, n, d) that is not the axis of its outputs.
    channels_second = before.name != "linear" or before.outputs[0].value.dim() == 2
    # Only the input depends on x: a product of two activations, or a filter made from x, has no fixed weights.
    by_constants = len(before.inputs) == 1 and before.tensors[0] is before.inputs[0]
    return before.name in {"linear", "conv1d", "conv2d", "conv3d"} and channels_second and by_constants


def _keeps_image(call: Call) -> bool:
    """True if a call changes no more than shape, scale and shift."""
    return call.name in _RESHAPES or rules.is_constant_multiple(call) or rules.is_constant_shift(call)


def _is_over_first_axis(call: Call) -> bool:
    axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    return axis in (0, (0,), [0])


def _as_list(item: Any) -> list[Tensor]:
    return list(item) if isinstance(item, tuple | list) else [item]


def _check_boxable(tape: Tape) -> None:
    """The z-box rule is for layers that see the image; a model may have none."""
    image = {tape.x}
    for call in tape.path:
        if call.name in rules.AFFINE and call.inputs[0] in image:
            return
        if _keeps_image(call) and all(item in image for item in call.inputs):
            image.update(call.outputs)
    raise UserError(
        "LRP's z-box rule is for a layer that sees the image, and the model changes the image before its "
        "first layer; set first='same'."
    )
