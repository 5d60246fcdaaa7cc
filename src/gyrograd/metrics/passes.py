"""Batched evaluation of many variants (draws, ratios, groups) per example by a model or an attribution.

A part holds at most `max_batch` rows, examples times variants. The model treats every row as a separate example, so
the values do not depend on how the work is split.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, rows_at_once, rows_per_example
from gyrograd.attributions.layout import logits_of
from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_images, check_inputs, check_target, class_indices, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import quantity_of
from gyrograd.types import Attribution, Inputs, Labels, Model, PerExample, Targets

Measure = Callable[[slice, slice], Tensor]
"""Maps slices of examples and of variants to values `e n ...`, one per pair."""


def check_count(what: str, value: int, usual: int) -> None:
    """Refuse a number of draws, groups or rows below one."""
    if value < 1:
        raise UserError(f"{what} is {value} and must be at least 1; {usual} is usual.")


def parts(b: int, variants: int, max_batch: int) -> Iterator[tuple[slice, slice]]:
    """Slices of examples and of variants that cover all pairs, each of at most `max_batch` pairs.

    Examples first: noise is drawn one variant at a time, for all examples of a part together.
    """
    height = min(b, max_batch)
    width = max(1, max_batch // height)
    for first in range(0, b, height):
        for start in range(0, variants, width):
            yield slice(first, min(first + height, b)), slice(start, min(start + width, variants))


def in_parts(measure: Measure, x: Inputs, variants: int, max_batch: int) -> Float[Tensor, "b n ..."]:
    """The values of all pairs of an example and a variant, computed in parts.

    Inputs may have any scale, except images from 0 to 255: noise in units of [0, 1] would do nothing to them.
    """
    if x.dim() == 4 and float(x.detach().amin()) >= 0 and float(x.detach().amax()) > 2:
        check_images(x)
    # All variants of a block of examples come before the next block: concatenate along variants, then along examples.
    rows: dict[int, list[Tensor]] = {}
    for examples, these in parts(len(x), variants, rows_at_once(max_batch, x)):
        rows.setdefault(examples.start, []).append(measure(examples, these))
    return torch.cat([torch.cat(row, 1) for row in rows.values()])


def explain_variants(
    attribution: Attribution, model: Model, variants: Float[Tensor, "e n *shape"], target: Labels
) -> Float[Tensor, "e n *shape"]:
    """The map of every variant, for the class of its example."""
    n = variants.shape[1]
    maps = attribution(model, variants.flatten(0, 1), target.repeat_interleave(n))
    return maps.detach().view_as(variants)


def score_variants(
    model: Model, variants: Float[Tensor, "e n *shape"], target: Labels, quantity: str
) -> Float[Tensor, "e n"]:
    """The quantity (logit, probability, ...) the model gives each variant for the class of its example."""
    n = variants.shape[1]
    with torch.no_grad(), eval_mode(model):
        logits = logits_of(model, variants.flatten(0, 1))
    return quantity_of(logits, target.repeat_interleave(n), quantity).view(-1, n)


def logits_in_parts(model: Model, x: Inputs, max_batch: int = MAX_BATCH) -> Float[Tensor, "b k"]:
    """The model's logits in eval mode, without a graph, `max_batch` images at a time."""
    check_inputs(x)
    try_model(model, x)
    check_count("max_batch", max_batch, MAX_BATCH)
    size = max(1, max_batch // rows_per_example(model))
    with torch.no_grad(), eval_mode(model):
        return torch.cat([logits_of(model, part) for part in x.detach().split(size)])


def scores(model: Model, x: Inputs, target: Labels, quantity: str, max_batch: int = MAX_BATCH) -> PerExample:
    """The quantity of each example; refuses targets outside of the model's classes."""
    logits = logits_in_parts(model, x, max_batch)
    check_target(target, *logits.shape)
    return quantity_of(logits, target, quantity)


def checked_target(model: Model, x: Inputs, target: Targets) -> Labels:
    """The target as class indices of the model, one per example; refused before any long computation otherwise."""
    indices = class_indices(target, x)
    check_inputs(x)
    # A pass of one image takes as long as four of a batch. A model may have got more classes since the last call.
    if model not in _CLASSES or not 0 <= int(indices.min()) <= int(indices.max()) < _CLASSES[model]:
        _CLASSES[model] = logits_in_parts(model, x[:1]).shape[1]
    check_target(indices, len(x), _CLASSES[model])
    return indices


_CLASSES: WeakKeyDictionary[Model, int] = WeakKeyDictionary()
"""The number of classes of each model that was asked for it."""
