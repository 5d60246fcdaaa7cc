"""Reasons to distrust a good number, after AutoAttack's example: raised if, explanation, what to do.

Each check returns a `Flag` or None. A flag does not prove a number wrong; it names another cause that would produce it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from gyrograd.errors import UserError
from gyrograd.metrics.passes import logits_in_parts, scores
from gyrograd.metrics.reductions import reduce_map
from gyrograd.numerics import random
from gyrograd.numerics.checks import change_of, rounding_of_calls
from gyrograd.numerics.copies import copy_of
from gyrograd.numerics.similarity import cosine
from gyrograd.registry import Direction
from gyrograd.types import Attribution, Flags, Inputs, Labels, Logits, Model, PerExample


@dataclass(frozen=True)
class Flag:
    """One reason for doubt: the rule, why it matters, what to do, and the measured number that raised it."""

    name: str
    raised_if: str
    explanation: str
    what_to_do: str
    measured: float

    @property
    def note(self) -> str:
        """Explanation and advice, for readers of results."""
        return f"{self.explanation} {self.what_to_do}"

    def __str__(self) -> str:
        return (
            f"{self.name} ({self.measured:.3g})\n  raised if: {self.raised_if}\n"
            f"  explanation: {self.explanation}\n  what to do: {self.what_to_do}"
        )


def zero_derivative(
    model: Model, attribution: Attribution, x: Inputs, target: Labels, *, share: float = 0.0
) -> Flag | None:
    """Flag maps whose derivative to the input is exactly zero; only for differentiable maps."""
    leaf = x.detach().clone().requires_grad_()
    maps = attribution(model, leaf, target, create_graph=True)
    dead = ~_moves(maps, leaf)
    return _flag_if(
        _share(dead) > share,
        "zero_derivative",
        f"the derivative of the map to the input is exactly zero on more than {share:.0%} of the examples",
        "The map is constant between kinks (the plain gradient of a ReLU net is), so an attack that follows its "
        "gradient stands still and every map looks robust.",
        "Attack a softplus twin (activation='softplus') and carry the result over, or attack a smoothed model.",
        _share(dead),
    )


def constant_maps(maps: Inputs, *, tolerance: float = 1e-3, share: float = 0.0) -> Flag | None:
    """Flag maps that are constant over the image, or nearly so."""
    return constant_flag(is_constant(maps, tolerance), tolerance=tolerance, share=share)


def constant_flag(flat: PerExample | Flags, *, tolerance: float = 1e-3, share: float = 0.0) -> Flag | None:
    """`constant_maps` by `is_constant` of each map."""
    return _flag_if(
        _share(flat) > share,
        "constant_map",
        f"the pixels of a map differ by at most {tolerance:g} of its size on more than {share:.0%} of the examples",
        "A map that singles out no pixel stays the same under noise and attack; its order of pixels is the order "
        "of the image, not of importance.",
        "Look at the maps; report insertion beside stability, and leave such examples out of rank measures.",
        _share(flat),
    )


def is_constant(maps: Inputs, tolerance: float = 1e-3) -> Flags:
    """True per example if max - min of the reduced map is at most `tolerance` times its maximum."""
    pixels = reduce_map(maps, "abs_sum").flatten(1)
    return pixels.amax(1) - pixels.amin(1) <= tolerance * pixels.amax(1)


def sparse_maps(maps: Inputs, *, top_fraction: float = 0.1, share: float = 0.1) -> Flag | None:
    """Flag maps with fewer pixels above zero than are counted as the top."""
    k = max(1, round(top_fraction * maps[0, 0].numel()))
    return sparse_flag(empty_top(maps, k), share=share)


def sparse_flag(empty: PerExample, *, share: float = 0.1) -> Flag | None:
    """`sparse_maps` by `empty_top` of each map."""
    part = float(empty.mean())
    return _flag_if(
        part > share,
        "sparse_map",
        f"on average more than {share:.0%} of a map's top pixels are zero",
        "The map names fewer pixels than are counted, and the order of the image chooses the rest, which therefore "
        "stay under noise and attack.",
        "Report the cosine, or count fewer pixels.",
        part,
    )


def empty_top(maps: Inputs, k: int) -> PerExample:
    """Share of the k largest pixels of each reduced map that are zero."""
    named = reduce_map(maps, "abs_sum").flatten(1).ne(0).sum(1)
    return (1 - named.to(maps.dtype) / k).clamp(min=0)


def same_map_everywhere(maps: Inputs, *, limit: float = 0.95) -> Flag | None:
    """Flag maps that are the same for different images (joo2023's degenerate attributions: always the edges)."""
    if len(maps) < 2:
        raise UserError("One map cannot be compared with others; give the maps of at least two examples.")
    pixels = reduce_map(maps, "abs_sum").flatten(1)
    pairs = torch.triu_indices(len(maps), len(maps), 1, device=maps.device)
    return same_map_flag(float(cosine(pixels[pairs[0]], pixels[pairs[1]]).mean()), limit=limit)


def same_map_flag(alike: float, *, limit: float = 0.95) -> Flag | None:
    """`same_map_everywhere` by the mean cosine of the maps of two different examples."""
    return _flag_if(
        alike > limit,
        "same_map_everywhere",
        f"the maps of different examples have a mean cosine above {limit:g}",
        "The map hardly depends on the image, so it is stable for a reason that makes it useless.",
        "Look at the maps of several classes; lower the weight of the cosine regularizer; report insertion.",
        alike,
    )


def calm_but_empty(
    stability: PerExample, insertion: PerExample, chance: PerExample, *, calm: float = 0.9
) -> Flag | None:
    """Flag maps that are stable but rank pixels no better than chance (`InsertionCurve.chance`)."""
    gain = float((insertion - chance).mean())
    return _flag_if(
        float(stability.mean()) >= calm and gain <= 0,
        "calm_but_empty",
        f"mean stability is {calm:g} or more and insertion is no higher than that of a random order of pixels",
        "This is how joo2023's attributions ruined by a large cosine weight look: high RPS, low Insertion.",
        "Lower the regularizer's weight until insertion rises above chance; never report stability alone.",
        gain,
    )


def ignores_model(
    model: Model,
    attribution: Attribution,
    x: Inputs,
    target: Labels,
    *,
    seed: int = 0,
    limit: float = 0.9,
    maps: Inputs | None = None,
    twin: Model | None = None,
) -> Flag | None:
    """Flag maps that stay the same if the model's weights are shuffled (Adebayo et al. 2018).

    maps, twin: the maps of the model and its copy with shuffled weights, if they are known. None for a model without
    weights, which has no such copy.
    """
    if twin is None and not has_weights(model):
        return None
    maps = attribution(model, x, target).detach() if maps is None else maps
    other = attribution(shuffle_weights(model, seed) if twin is None else twin, x, target).detach()
    return ignores_model_flag(cosine(reduce_map(maps, "abs_sum"), reduce_map(other, "abs_sum")), limit=limit)


def ignores_model_flag(cosines: PerExample, *, limit: float = 0.9) -> Flag | None:
    """`ignores_model` by the cosine of each map with that of the copy."""
    alike = float(cosines.mean())
    return _flag_if(
        alike > limit,
        "ignores_model",
        f"the maps of the model and of a copy with shuffled weights have a mean cosine above {limit:g}",
        "The map shows the image (its edges, say), not what the model made of it; such a map is stable for free.",
        "Use another attribution, or quote this similarity beside every number of this one.",
        alike,
    )


def has_weights(model: Model) -> bool:
    """True if the model has parameters; a frozen script or a wrapped black box has none."""
    return next(model.parameters(), None) is not None


def shuffle_weights(model: Model, seed: int = 0) -> Model:
    """A copy of the model with the numbers of each weight tensor permuted."""
    twin = copy_of(model)
    shuffle(twin.parameters(), seed)
    return twin


def shuffle(weights: Iterable[Tensor], seed: int = 0, first_stream: int = 0) -> None:
    """Permute the numbers of each tensor in place; every tensor has its own random stream."""
    with torch.no_grad():
        for stream, weight in enumerate(weights, first_stream):
            order = random.permutation(random.keys(seed, 1, weight.device), weight.numel(), stream=stream)[0]
            weight.copy_(weight.flatten()[order].view_as(weight))


def noise_beats_attack(
    attacked: PerExample, noisy: PerExample, direction: Direction, *, share: float = 0.1
) -> Flag | None:
    """Flag an attack if noise of the same budget does as much harm, by a metric's direction."""
    if direction == "none":
        raise UserError("This metric has no direction, so harm is not defined; give values of one that has.")
    better = noisy <= attacked if direction == "higher is better" else noisy >= attacked
    return _flag_if(
        _share(better) > share,
        "noise_beats_attack",
        f"equal-budget noise does at least as much harm as the attack on more than {share:.0%} of the examples",
        "The attack is weaker than noise, so its result is no bound: its gradient is zero, masked or noisy.",
        "Check zero_derivative; give more steps, a random start or a softplus twin; report the worse of the two.",
        _share(better),
    )


def prediction_changed(model: Model, x: Inputs, perturbed: Inputs, *, share: float = 0.1) -> Flag | None:
    """Flag perturbed inputs that are often classified differently."""
    changed = logits_in_parts(model, x).argmax(1) != logits_in_parts(model, perturbed).argmax(1)
    return _flag_if(
        _share(changed) > share,
        "prediction_changed",
        f"the predicted class changed on more than {share:.0%} of the examples",
        "A new class may well deserve a new map: the attack moved the prediction, not the explanation alone.",
        "Keep the prediction in the attack, or report the examples whose prediction was kept separately.",
        _share(changed),
    )


def training_mode(model: Model) -> Flag | None:
    """Flag BatchNorm or dropout layers in training mode."""
    live = [m for m in model.modules() if isinstance(m, _BatchNorm | _DropoutNd) and m.training]
    return _flag_if(
        bool(live),
        "training_mode",
        "a BatchNorm or dropout layer is in training mode",
        "An example's output then depends on the batch it came in or on chance. The package's own attributions "
        "and metrics switch to eval mode and back; code around them may not.",
        "Call model.eval() before measuring.",
        float(len(live)),
    )


def model_flags(model: Model, x: Inputs) -> tuple[Flag, ...]:
    """Flags of the model itself: logits that are not finite, are probabilities of a sigmoid, differ from call to call,
    or depend on the batch.

    The batch is evaluated twice, and then once more reordered, together with another image.
    """
    first, again = logits_in_parts(model, x), logits_in_parts(model, x)
    beside = torch.cat([1 - x[:1], x.flip(0)])
    other = logits_in_parts(model, beside, len(beside))[1:].flip(0)
    # If the logits change from call to call, dependence on the batch cannot be tested.
    found = (_not_finite(first), _squashed(first), _changing(first, again) or _dependent(first, other))
    return tuple(flag for flag in found if flag is not None)


def _not_finite(logits: Logits) -> Flag | None:
    lost = ~logits.isfinite().all(1)
    return _flag_if(
        bool(lost.any()),
        "not_finite",
        "the model returns NaN or infinite logits for an image",
        f"The model returns NaN or infinite logits for {int(lost.sum())} of {len(lost)} images, whose maps mean "
        "nothing.",
        "Look for a division, a logarithm or a square root that can meet a zero in the model.",
        _share(lost),
    )


def _squashed(logits: Logits) -> Flag | None:
    low, high = logits.amin(), logits.amax()
    return _flag_if(
        # The logits of a net with random weights may all lie between 0 and 1, too, and are smaller.
        bool((low >= 0) & (high >= 0.5) & (high <= 1)),
        "squashed",
        "every output of the model lies between 0 and 1, and one reaches 0.5",
        "The outputs lie between 0 and 1, as those of a sigmoid do, and are taken for logits: softmax makes them "
        "almost equal, so that probabilities, insertion and deletion are not those of the model.",
        "Return the values before the sigmoid.",
        float(len(logits)),
    )


def _changing(first: Logits, again: Logits) -> Flag | None:
    change = change_of(first, again)
    limit = rounding_of_calls(first)
    return _flag_if(
        change > limit,
        "answers_change",
        f"the logits of one batch differ from call to call by more than {limit:.1g} of the largest",
        f"The model's logits for the same images change from call to call (by {change:.2g} of the largest): dropout or "
        "noise is active in eval mode, or the model keeps state, so that no number here can be repeated.",
        "Let dropout and noise follow model.eval(), and keep no state between calls.",
        change,
    )


def _dependent(first: Logits, other: Logits) -> Flag | None:
    change = change_of(first, other)
    # A different batch size can run different kernels, which round differently.
    limit = 10 * torch.finfo(first.dtype).eps ** 0.5
    return _flag_if(
        change > limit,
        "rows_depend",
        f"an image's logits differ by more than {limit:.1g} of the largest in another order beside another image",
        f"The model's output for an image depends on the other images of the batch (by {change:.2g} of the largest "
        "logit), and so does its map.",
        "Normalise by stored statistics in eval mode, and let nothing in the model mix the rows of a batch.",
        change,
    )


def not_finite_maps(maps: Inputs) -> Flag | None:
    """Flag maps with NaN or infinite values."""
    return not_finite_flag(~maps.isfinite().flatten(1).all(1))


def not_finite_flag(lost: PerExample | Flags) -> Flag | None:
    """`not_finite_maps` by whether each map has such values."""
    return _flag_if(
        bool(lost.any()),
        "not_finite_map",
        "a map holds NaN or infinite values",
        f"{int(lost.sum())} of {len(lost)} maps hold NaN or infinite values: the derivative does not exist there.",
        "Look for a square root, a logarithm or a division at zero in the model, or use another attribution.",
        _share(lost),
    )


def relevance_lost(
    model: Model, attribution: Attribution, x: Inputs, target: Labels, *, limit: float = 0.95
) -> Flag | None:
    """Flag relevance that is lost or created on the way to the input; for attributions with `conserved` (LRP)."""
    relevance = conserved_relevance(model, attribution, x, target)
    return None if relevance is None else relevance_flag(relevance, limit=limit)


def conserved_relevance(
    model: Model, attribution: Attribution, x: Inputs, target: Labels
) -> PerExample | None:
    """Share of the relevance put in that arrives at each input; None for maps that are not of relevance."""
    conserved = getattr(attribution, "conserved", None)
    if conserved is None or getattr(attribution, "quantity", "logit") != "logit":
        return None
    found: PerExample = conserved(model, x, target)
    return found


def relevance_flag(relevance: PerExample, *, limit: float = 0.95) -> Flag | None:
    """`relevance_lost` by the share that arrives at each input."""
    arrived = float(relevance.mean())
    return _flag_if(
        not limit <= arrived <= 2 - limit,
        "relevance_lost",
        f"the map sums to less than {limit:.0%} of the relevance put in, or as much more",
        f"Of the relevance that LRP starts with, {arrived:.0%} arrives at the image: biases absorb some of it, or "
        "operations without a rule do, so the map explains only a part of the output.",
        "Use lrp(variant='conserving') or bias='drop', and compare the two maps.",
        arrived,
    )


def saturation_flag(
    model: Model, x: Inputs, target: Labels, *, near: float = 1e-4, share: float = 0.1
) -> Flag | None:
    """Flag probabilities so close to 0 or 1 that their gradient vanishes."""
    p = scores(model, x, target, "probability")
    stuck = (p > 1 - near) | (p < near)
    return _flag_if(
        _share(stuck) > share,
        "saturated",
        f"the probability of the class is within {near:g} of 0 or 1 on more than {share:.0%} of the examples",
        "Maps of the probability are then mostly rounding, and insertion curves jump instead of rising.",
        "Explain the logit (quantity='logit'), or calibrate the model's temperature first.",
        _share(stuck),
    )


def too_few_draws(values: Float[Tensor, "b n"], *, share: float = 0.25) -> Flag | None:
    """Flag means over draws whose sampling noise is a large part of the spread between examples."""
    b, n = values.shape
    if b < 2:
        raise UserError("The spread between examples needs at least two of them; give more examples.")
    between = float(values.mean(1).var())
    # The mean of n draws has an n-th of their variance; one draw does not show its own.
    within = float(values.var(1).mean() / n) if n > 1 else float("inf")
    part = within / between if between > 0 else float(within > 0)
    return _flag_if(
        part > share,
        "too_few_draws",
        f"there is one draw, or the draws' noise makes up more than {share:.0%} of the variance between examples",
        "The interval over examples then measures the sampling as much as the examples.",
        "Raise draws: four times as many halve the noise.",
        min(part, 1.0),
    )


def still_growing(values: Float[Tensor, "b n"], *, rise: float = 0.1) -> Flag | None:
    """Flag maxima over draws that still rise with more draws (local Lipschitz, max sensitivity)."""
    n = values.shape[1]
    if n < 2:
        raise UserError("One draw shows no rise; give at least two.")
    half, whole = float(values[:, : n // 2].amax(1).mean()), float(values.amax(1).mean())
    growth = (whole - half) / whole if whole > 0 else 0.0
    return _flag_if(
        growth > rise,
        "still_growing",
        f"the mean of the maxima rose by more than {rise:.0%} from half of the draws to all",
        "A maximum over draws is a lower bound; one that still rises is far below what more draws would find.",
        "Raise draws, or look for the maximum with an attack.",
        growth,
    )


def raised_flags(
    model: Model,
    attribution: Attribution,
    x: Inputs,
    target: Labels,
    *,
    differentiable: bool = True,
    seed: int = 0,
) -> tuple[Flag, ...]:
    """All flags that need only a model, an attribution and examples; `differentiable=False` for LIME and SHAP."""
    maps = attribution(model, x, target).detach()
    found = [
        *model_flags(model, x),
        training_mode(model),
        not_finite_maps(maps),
        saturation_flag(model, x, target),
        constant_maps(maps),
        sparse_maps(maps),
        same_map_everywhere(maps) if len(x) > 1 else None,
        ignores_model(model, attribution, x, target, seed=seed, maps=maps),
        zero_derivative(model, attribution, x, target) if differentiable else None,
    ]
    return tuple(flag for flag in found if flag is not None)


def _moves(maps: Tensor, x: Tensor) -> Tensor:
    """True per example if a random linear combination of the map's elements has a nonzero derivative to x."""
    if not maps.requires_grad:
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    # Normal weights: with a plain sum, or with random signs, the derivatives of equal elements could cancel.
    weights = random.normal(random.keys(0, len(x), x.device), tuple(x.shape[1:]), dtype=x.dtype)
    (slope,) = torch.autograd.grad((maps * weights).sum(), x, allow_unused=True)
    return (torch.zeros_like(x) if slope is None else slope).flatten(1).ne(0).any(1)


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())


def _flag_if(
    raised: bool, name: str, raised_if: str, explanation: str, what_to_do: str, measured: float
) -> Flag | None:
    return Flag(name, raised_if, explanation, what_to_do, measured) if raised else None
