"""Layer-wise relevance propagation: the explained number handed back layer by layer, in shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, explain_in_parts, rows_per_example
from gyrograd.attributions.guided_backprop import output_gradient
from gyrograd.attributions.replay import (
    Call,
    Tape,
    Traced,
    Values,
    modified_gradient,
    no_rule,
    record,
    refuse_unknown,
)
from gyrograd.attributions.rules import (
    ACTIVATIONS,
    AFFINE,
    ALPHA2BETA1,
    AVERAGES,
    DROPOUTS,
    ELEMENTWISE,
    EPSILON,
    MAX_POOLS,
    NONNEGATIVE_ACTIVATIONS,
    STRUCTURAL,
    ZBOX,
    ZBOX_EVEN,
    ZPLUS,
    ZPLUS_EVEN,
    Layer,
    RelevanceRule,
    batchnorm_scale_and_shift,
    from_winners,
    gamma_rule,
    is_constant_multiple,
    is_constant_shift,
    layer_of,
    merged,
    natively,
    padded_with_zeros,
    positive,
    relative_change,
    size_and_trace,
    spread,
    stabilized,
    through_quiet_dropout,
    whole,
)
from gyrograd.errors import UserError, did_you_mean
from gyrograd.numerics.quantities import check_quantity
from gyrograd.numerics.second_order import single
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, PerExample, Targets

CHOICES: dict[str, tuple[str, ...]] = {
    "rule": ("zplus", "zplus_even", "epsilon", "gamma", "alpha2beta1"),
    "first": ("zbox", "same", "zbox_without_batchnorm"),
    "bias": ("drop", "keep"),
    "batchnorm": ("merge", "pass"),
    "residual": ("positive", "absolute", "signed"),
    "pool": ("positive", "absolute", "signed"),
    "start": ("one", "value"),
}
"""What each setting may be; `LRP` says what it means."""

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "reference": {"first": "zbox_without_batchnorm", "bias": "keep", "batchnorm": "pass"},
    "conserving": {
        "rule": "zplus_even",
        "residual": "absolute",
        "pool": "absolute",
        "stabilizer": 1e-12,
    },
    "epsilon": {"rule": "epsilon", "first": "same", "bias": "keep", "residual": "signed", "pool": "signed"},
    "gamma": {"rule": "gamma", "bias": "keep", "residual": "signed", "pool": "signed"},
}
"""Named settings, as changes to the paper's.

paper       joo2023's text: z+ without bias in every layer, z-box in the first. The text is silent on
            BatchNorm (merged here), residual sums (split by positive parts, as its code does) and average
            pools.
reference   joo2023's code: the positive part of the bias takes a share, so relevance leaks; BatchNorm is
            passed over; z-box only in the net without BatchNorm (its LeNet). Deviations: its stabiliser is
            1e-8 (1e-6 for z-box and pools), and its ImageNet blocks drop the relevance of plain skip
            connections by mistake.
conserving  the paper's, mended wherever it loses relevance, so that the map sums to what was put in: an output
            that no input excites shares evenly, sums and pools share by the size of their summands, and the
            stabiliser is too small to swallow anything.
epsilon     a W over its sum, bias included, in every layer; sums by signed parts (Bach et al. 2015).
gamma       W + 0.25 W+ with bias, z-box first; sums by signed parts (Montavon et al. 2019).
"""


@dataclass(frozen=True)
class LRP:
    """Layer-wise relevance propagation; the defaults are joo2023's z+ and z-box rules.

    rule        of affine layers: zplus, zplus_even (z+ with a trace of an even split, so that an output
                without positive input parts loses nothing), epsilon, gamma, alpha2beta1
    first       layers that see the image: zbox (bounds: the all-zero and all-one image, through the model's
                own normalisation), same (the rule above), zbox_without_batchnorm (zbox in nets without
                BatchNorm)
    bias        drop: only inputs get a share; keep: the bias takes the share the rule gives it, and it is
                lost
    batchnorm   merge: part of the layer before it (where there is none it is passed over); pass: identity
    residual    a sum is split by the positive parts of its summands (lost where there are none), by their
                absolute or by their signed values
    pool        the same for average pools, means and sums over axes
    start       one: the explained number's gradient to the logits (for a logit: 1); value: that times the
                logits
    gamma       of the gamma rule
    stabilizer  moves each denominator away from zero, to its own side; swallows relevance where it is not
                small

    Activations and dropout pass relevance on, max-pools give it to the winner. Over draws (a sum over the
    first axis, as in a smoothed model) the map is linear: the mean of the draws' maps.
    """

    rule: str = "zplus"
    first: str = "zbox"
    bias: str = "drop"
    batchnorm: str = "merge"
    residual: str = "positive"
    pool: str = "positive"
    start: str = "one"
    gamma: float = 0.25
    stabilizer: float = 1e-6
    quantity: str = "logit"
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                wrong = getattr(self, name)
                raise UserError(f"LRP has no {name} '{wrong}': {did_you_mean(wrong, choices)}")
        for name in ("gamma", "stabilizer"):
            if not getattr(self, name) > 0:
                raise UserError(f"LRP's {name} is a positive number, not {getattr(self, name)}.")

    @classmethod
    def variant(cls, name: str, **changes: Any) -> LRP:
        """Named settings (`VARIANTS`), some of them changed."""
        if name not in VARIANTS:
            raise UserError(f"LRP has no variant '{name}': {did_you_mean(name, VARIANTS)}")
        return cls(**(VARIANTS[name] | changes))

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        return self._explained(model, x, target, create_graph)[0]

    def conserved(self, model: Model, x: Inputs, target: Targets) -> PerExample:
        """The share of the relevance put in at the logits that arrives at the input; 1 where none is lost or made.

        What is put in is 1 for a logit, and its value for start="value". A probability or a loss starts from
        relevance that sums to zero, of which there is no share: NaN or a number without meaning.
        """
        map, start = self._explained(model, x, target, create_graph=False)
        return conservation(map, start)

    def _explained(
        self, model: Model, x: Inputs, target: Targets, create_graph: bool
    ) -> tuple[Inputs, PerExample]:
        """The map, and the sum of the relevance each example starts with."""
        sums: list[Tensor] = []

        def explain(x: Tensor, target: Tensor) -> Tensor:
            tape = record(model, x, create_graph=create_graph)
            start = output_gradient(tape, target, self.quantity, create_graph=create_graph)
            if self.start == "value":
                start = start * tape.logits.value
            map = modified_gradient(tape, _Relevance.along(tape, self), start, create_graph=create_graph)
            sums.append(start.detach().sum(1))
            return map

        map = explain_in_parts(
            explain,
            model,
            x,
            target,
            rows=rows_per_example(model),
            max_batch=self.max_batch,
            create_graph=create_graph,
        )
        return map, torch.cat(sums)


@register(
    "attribution",
    "lrp",
    paper="joo2023",
    equation="Attribution methods, LRP (z+ and z^B rules)",
    differentiable=True,
)
def lrp(
    variant: str = "paper",
    rule: str | None = None,
    first: str | None = None,
    bias: str | None = None,
    batchnorm: str | None = None,
    residual: str | None = None,
    pool: str | None = None,
    start: str | None = None,
    gamma: float | None = None,
    stabilizer: float | None = None,
    quantity: str = "logit",
    max_batch: int = MAX_BATCH,
) -> LRP:
    """Layer-wise relevance propagation in a named variant; a setting that is given replaces the variant's."""
    given = {
        "rule": rule, "first": first, "bias": bias, "batchnorm": batchnorm, "residual": residual,
        "pool": pool, "start": start, "gamma": gamma, "stabilizer": stabilizer,
    }  # fmt: skip
    changes = {name: value for name, value in given.items() if value is not None}
    return LRP.variant(variant, **changes, quantity=quantity, max_batch=max_batch)


def conservation(map: Inputs, start: PerExample) -> PerExample:
    """Relevance that arrived at the input over relevance put in; 1 where none was lost or made."""
    return map.flatten(1).sum(1) / start


@dataclass(eq=False)
class _Relevance:
    """The step of the replay in relevance space, with what it learns about tensors on the way."""

    settings: LRP
    zbox: bool
    behind: dict[Call, Call]
    """The BatchNorm merged into an affine call."""
    boxed: dict[Traced, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Bounds of tensors that are still the image, up to shape, scale and shift."""
    nonnegative: set[Traced] = field(default_factory=set)
    over_draws: set[Traced] = field(default_factory=set)

    @classmethod
    def along(cls, tape: Tape, settings: LRP) -> _Relevance:
        refuse_unknown("LRP", tape, _STEPS)
        has_batchnorm = any(call.name == "batch_norm" for call in tape.path)
        zbox = settings.first == "zbox" or (settings.first == "zbox_without_batchnorm" and not has_batchnorm)
        step = cls(settings, zbox, _mergers(tape) if settings.batchnorm == "merge" else {})
        if zbox:
            image = tape.x.value.detach()
            step.boxed[tape.x] = (torch.zeros_like(image), torch.ones_like(image))
            _check_boxable(tape)
        return step

    def __call__(self, call: Call, values: Values) -> Any:
        replayed = _STEPS[call.name](self, call, values)
        self._note_bounds(call)
        self._note_sign(call)
        return replayed

    def affine(self, call: Call, values: Values) -> Tensor:
        layer = layer_of(call, "LRP")
        if call in self.behind:
            layer = merged(layer, *batchnorm_scale_and_shift(self.behind[call], "LRP"))
        rule, sources = self._rule_and_sources(layer)
        keep_bias = self.settings.bias == "keep"
        eps = self.settings.stabilizer
        return relative_change(layer, rule, values[layer.input], sources, keep_bias=keep_bias, eps=eps)

    def _rule_and_sources(self, layer: Layer) -> tuple[RelevanceRule, dict[str, Tensor]]:
        a = layer.input.value
        if layer.input in self.boxed:
            low, high = self.boxed[layer.input]
            zbox = ZBOX_EVEN if self.settings.rule == "zplus_even" else ZBOX
            return zbox, {"whole": a, "low": low, "high": high, **self._even(a)}
        rules = {
            "zplus": ZPLUS,
            "zplus_even": ZPLUS_EVEN,
            "epsilon": EPSILON,
            "alpha2beta1": ALPHA2BETA1,
            "gamma": gamma_rule(self.settings.gamma),
        }
        sources = {"whole": a, "positive": a, **self._even(a)}
        if layer.input not in self.nonnegative:
            sources |= {"positive": a.relu(), "negative": -(-a).relu()}
        return rules[self.settings.rule], sources

    def _even(self, a: Tensor) -> dict[str, Tensor]:
        return {"ones": torch.ones_like(a)} if self.settings.rule == "zplus_even" else {}

    def batchnorm(self, call: Call, values: Values) -> Tensor:
        """Merged into the layer before, or passed over: the identity either way."""
        batchnorm_scale_and_shift(call, "LRP")  # refuses the statistics of a batch
        return values[call.inputs[0]]

    def activation(self, call: Call, values: Values) -> Tensor:
        return values[call.inputs[0]]

    def average(self, call: Call, values: Values) -> Any:
        if call.name in {"sum", "mean"} and _is_over_first_axis(call):
            self.over_draws.update(call.outputs)
            return call.run(values)
        return self._in_proportion(call, values, self.settings.pool)

    def elementwise(self, call: Call, values: Values) -> Any:
        if all(item in self.over_draws for item in call.inputs):
            return self._after_draws(call, values)
        if is_constant_multiple(call) or is_constant_shift(call):
            return spread(call, values[call.inputs[0]])
        if call.name == "add" and call.kwargs.get("alpha", 1) == 1:
            return self._in_proportion(call, values, self.settings.residual)
        raise no_rule("LRP", call, "it multiplies, divides or subtracts two values that both depend on x")

    def _after_draws(self, call: Call, values: Values) -> Any:
        """Sums and multiples of sums over draws: linear, so that the map is the mean of the draws' maps."""
        self.over_draws.update(call.outputs)
        if is_constant_shift(call):
            return spread(call, values[call.inputs[0]])
        if is_constant_multiple(call) or call.name == "add":
            return call.run(values)
        raise no_rule("LRP", call, "it combines outputs of several runs other than by a mean")

    def _in_proportion(self, call: Call, values: Values, how: str) -> Any:
        """A sum without weights: each summand's part over the sum of the parts."""
        part = {"positive": positive, "absolute": size_and_trace, "signed": whole}[how]
        parts = {item: part(item.value) for item in call.inputs}
        moved = call.run({item: parts[item] * values[item] for item in parts})
        share = single(moved) / stabilized(single(call.run(parts)), self.settings.stabilizer)
        return share.to(moved.dtype)

    def _note_bounds(self, call: Call) -> None:
        """Carry the bounds of the image along while only its shape, scale and shift change."""
        if not _keeps_image(call) or not all(item in self.boxed for item in call.inputs):
            return
        ends = [call.run({item: self.boxed[item][side] for item in call.inputs}) for side in (0, 1)]
        ends = [end if isinstance(end, tuple | list) else [end] for end in ends]
        for output, a, b in zip(call.outputs, *ends, strict=True):
            self.boxed[output] = (torch.minimum(a, b), torch.maximum(a, b))

    def _note_sign(self, call: Call) -> None:
        """Know which tensors cannot be negative: their layers need half the work."""
        keeps = call.name in _KEEPS_SIGN and not call.constants
        keeps = keeps and all(item in self.nonnegative for item in call.inputs)
        if call.name in NONNEGATIVE_ACTIVATIONS or (keeps and (call.name != "add" or len(call.inputs) == 2)):
            self.nonnegative.update(call.outputs)


_RESHAPES = STRUCTURAL | DROPOUTS | {"pad", "batch_norm"}
_KEEPS_SIGN = (STRUCTURAL | DROPOUTS | MAX_POOLS | AVERAGES | {"add"}) - {"interpolate"}
_STEPS: dict[str, Any] = {
    **dict.fromkeys(AFFINE, _Relevance.affine),
    **dict.fromkeys(ACTIVATIONS, _Relevance.activation),
    **dict.fromkeys(AVERAGES, _Relevance.average),
    **dict.fromkeys(ELEMENTWISE, _Relevance.elementwise),
    **dict.fromkeys(STRUCTURAL, lambda _, call, values: natively(call, values)),
    **dict.fromkeys(MAX_POOLS, lambda _, call, values: from_winners(call, values)),
    **dict.fromkeys(DROPOUTS, lambda _, call, values: through_quiet_dropout(call, values)),
    "batch_norm": _Relevance.batchnorm,
    "pad": lambda _, call, values: padded_with_zeros(call, values),
}


def _mergers(tape: Tape) -> dict[Call, Call]:
    """Convolutions and linear layers whose output goes to a BatchNorm and nowhere else, with it."""
    uses = Counter(item for call in tape.path for item in call.inputs)
    found = {}
    for call in tape.path:
        before = call.inputs[0].call
        if call.name == "batch_norm" and before is not None and uses[call.inputs[0]] == 1 and _merges(before):
            found[before] = call
    return found


def _merges(before: Call) -> bool:
    channels_second = before.name != "linear" or before.outputs[0].value.dim() == 2
    return before.name in {"linear", "conv1d", "conv2d", "conv3d"} and channels_second


def _keeps_image(call: Call) -> bool:
    """Whether a call changes no more than shape, scale and shift."""
    return call.name in _RESHAPES or is_constant_multiple(call) or is_constant_shift(call)


def _is_over_first_axis(call: Call) -> bool:
    axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    return axis in (0, (0,), [0])


def _check_boxable(tape: Tape) -> None:
    """The z-box rule is for layers that see the image; a model may have none."""
    image = {tape.x}
    for call in tape.path:
        if call.name in AFFINE and call.inputs[0] in image:
            return
        if _keeps_image(call) and all(item in image for item in call.inputs):
            image.update(call.outputs)
    raise UserError(
        "LRP's z-box rule is for a layer that sees the image, and the model changes the image before its "
        "first layer; set first='same'."
    )
