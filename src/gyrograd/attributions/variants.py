"""LRP's settings, their values, and the named variants."""

from __future__ import annotations

from dataclasses import dataclass

from gyrograd.errors import UserError, did_you_mean
from gyrograd.registry import Settings

CHOICES: dict[str, tuple[str, ...]] = {
    "rule": ("zplus", "zplus_even", "epsilon", "gamma", "alpha2beta1"),
    "first": ("zbox", "same", "zbox_without_batchnorm"),
    "bias": ("drop", "keep"),
    "batchnorm": ("merge", "pass"),
    "residual": ("positive", "absolute", "signed"),
    "pool": ("positive", "absolute", "signed"),
    "product": ("half", "gate"),
    "softmax": ("taylor", "constant"),
    "norm": ("identity", "linear"),
    "constants": ("pass", "share", "skip"),
    "start": ("one", "value"),
}
"""Values of each setting; `Shares` documents them."""

_SIGNED = {"bias": "keep", "residual": "signed", "pool": "signed"}
VARIANTS: dict[str, Settings] = {
    "paper": {},
    "reference": {"first": "zbox_without_batchnorm", "bias": "keep", "batchnorm": "pass"},
    "conserving": {
        "rule": "zplus_even",
        "residual": "absolute",
        "pool": "absolute",
        "softmax": "constant",
        "constants": "skip",
        "stabilizer": 1e-12,
    },
    "epsilon": {"rule": "epsilon", "first": "same", **_SIGNED},
    "gamma": {"rule": "gamma", **_SIGNED},
    "attnlrp": {
        "rule": "gamma",
        "first": "same",
        "norm": "linear",
        "constants": "share",
        "start": "value",
        **_SIGNED,
    },
    "cplrp": {
        "rule": "epsilon",
        "first": "same",
        "product": "gate",
        "softmax": "constant",
        "norm": "linear",
        "constants": "share",
        "start": "value",
        **_SIGNED,
    },
}
"""Named settings, as changes to the paper's.

paper       joo2023's text: z+ without bias in every layer, z-box in the first. The text is silent on
            BatchNorm (merged here), residual sums (split by positive parts, as its code does) and average
            pools.
reference   joo2023's code: the positive part of the bias takes a share, so relevance leaks; BatchNorm is
            passed over; z-box only in the net without BatchNorm (its LeNet). Deviations: its stabiliser is
            1e-8 (1e-6 for z-box and pools), and its ImageNet blocks drop the relevance of plain skip
            connections by mistake.
conserving  the paper's, changed wherever it loses relevance, so that the map sums to the relevance at the logits:
            an output that no input excites shares evenly, sums and pools share by the magnitude of their summands,
            softmax weights are constants, class tokens and padding get nothing, and the stabiliser is too small to
            absorb anything.
epsilon     a W over its sum, bias included, in every layer; sums by signed parts (Bach et al. 2015).
gamma       W + 0.25 W+ with bias, z-box first; sums by signed parts (Montavon et al. 2019).
attnlrp     AttnLRP (Achtibat et al. 2024) as they use it for vision transformers: gamma in layers, softmax by
            its Taylor rule, half of the relevance to each factor of a product, the division of a LayerNorm by
            its spread passes relevance on (its mean and affine part are linear layers), and the relevance at the
            logits is the logit itself, so that a positive share speaks for the class.
cplrp       CP-LRP (Ali et al. 2022): epsilon in layers, softmax weights and gates are constants, LayerNorm is a
            linear layer whose denominator is a constant.
"""


@dataclass(frozen=True)
class Shares:
    """How each kind of operation shares relevance among its inputs; the defaults are joo2023's z+ and z-box rules.

    rule        of affine layers: zplus, zplus_even (z+ with a trace of an even split, so that an output
                without positive input parts loses nothing), epsilon, gamma, alpha2beta1. A matrix product of two
                values that depend on x is a layer of each, for half of the relevance: zplus and zplus_even as
                named, epsilon for all others
    first       layers that see the image: zbox (bounds: the all-zero and all-one image, through the model's
                own normalisation), same (the rule above), zbox_without_batchnorm (zbox in nets without
                BatchNorm)
    bias        drop: only inputs get a share; keep: the bias takes the share the rule gives it, and it is
                lost
    batchnorm   merge: part of the layer before it (without one, identity or a linear layer as `norm` says);
                pass: identity
    residual    a sum or difference is split by the positive parts of its terms (lost if there are none), by
                their absolute or by their signed values
    pool        the same for average pools, means and sums over axes
    product     half: each factor of an element-wise product gets one half; gate: the smaller tensor or, if both
                are equally large, the only one that saturates (sigmoid, tanh, softmax) is a constant, and the
                other gets all; if neither is a gate, half
    softmax     taylor: R_i = x_i (R_i - s_i sum_j R_j); constant: its weights are constants
    norm        LayerNorm, GroupNorm, RMSNorm and similar. identity: passes relevance on; linear: a linear
                layer (mean subtracted, scaled) whose denominator is a constant, by signed shares
    constants   pass: an added constant gets no share, and the relevance of class tokens and padding is lost;
                share: an added constant (position embedding, attention bias; not the image's normalisation)
                takes the share of a summand, which is lost; skip: no constant gets any, the others share it
    start       one: the explained number's gradient to the logits (for a logit: 1); value: that times the
                logits
    gamma       of the gamma rule
    stabilizer  moves each denominator away from zero, keeping its sign; absorbs relevance unless it is small

    Activations, other functions of one value, and dropout pass relevance on; max-pools give it to the maximum; norms of
    vectors share by squares; the denominator of a quotient is a constant; operations that only move values (reshapes,
    slices, concatenations, padding, windows) send relevance back to where each value came from. Over draws (a sum over
    the first axis, as in a smoothed model) the map is linear: the mean of the draws' maps.
    """

    rule: str = "zplus"
    first: str = "zbox"
    bias: str = "drop"
    batchnorm: str = "merge"
    residual: str = "positive"
    pool: str = "positive"
    product: str = "half"
    softmax: str = "taylor"
    norm: str = "identity"
    constants: str = "pass"
    start: str = "one"
    gamma: float = 0.25
    stabilizer: float = 1e-6

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                wrong = getattr(self, name)
                raise UserError(f"LRP has no {name} '{wrong}': {did_you_mean(wrong, choices)}")
        for name in ("gamma", "stabilizer"):
            if not getattr(self, name) > 0:
                raise UserError(f"LRP's {name} is {getattr(self, name)}; give a number above 0.")
