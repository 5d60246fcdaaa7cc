"""The values of a late layer and the gradient of a score to them, out of one plain pass of the model.

A record (`replay`) finds the layer but costs Python time for every operation: on a GPU several times the pass itself.
So the record is made once per model and image size, of two images, to find the module that returns the layer. Later
passes run without gradients up to that module and with gradients after it.

The shortcut counts only if it is sure to be the same thing. On the two images its gradient has to be the record's, and
in every pass the model's modules have to be called in the same order; otherwise the record is used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gyrograd.attributions.feature_maps import FeatureMaps
from gyrograd.attributions.replay import Tape, heard_modules
from gyrograd.errors import UserError
from gyrograd.numerics.normalization import ExactNormalization
from gyrograd.smoothing import in_one_pass
from gyrograd.types import Logits, Model

Fold = Callable[[Tensor], Tensor]
Score = Callable[[Logits], Tensor]


class LayerGradient(NamedTuple):
    """A layer's values as maps `b c h w`, and the gradient of the score to them, summed over the examples."""

    maps: Tensor
    gradient: Tensor


@dataclass(frozen=True, eq=False)
class Place:
    """Where a layer is returned: by which of the modules' calls. `modules`: those called in a pass, in order, but for
    the model itself, which would never be freed."""

    number: int
    modules: tuple[nn.Module, ...]
    fold: Fold


_PLACES: WeakKeyDictionary[Model, dict[Any, Place | None]] = WeakKeyDictionary()
"""Places that were found; None where the shortcut is not the same as the record."""


def is_exact_type(x: Tensor) -> bool:
    """Whether a shortcut can be compared with the record: rounding in half precision would hide a difference."""
    return x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)


def place_for(model: Model, key: Any, find: Callable[[], Place | None]) -> Place | None:
    """The place that is known for the model and the key; `find` is called if none is."""
    known = _PLACES.setdefault(model, {})
    if key not in known:
        known[key] = find()
    return known[key]


def forget_place(model: Model, key: Any) -> None:
    """Let the next map look for the layer again."""
    _PLACES.get(model, {}).pop(key, None)


def plain_gradient(model: Model, x: Tensor, place: Place, score: Score) -> LayerGradient | None:
    """The layer at this place and the gradient to it; None if the pass took another way."""
    at: list[Tensor] = []

    def cut(number: int, returned: Any) -> Tensor | None:
        if number != place.number or not isinstance(returned, Tensor):
            return None
        at.append(returned.detach().requires_grad_())
        torch.set_grad_enabled(True)
        return at[0].clone()  # a later layer may write into it

    with torch.no_grad(), ExitStack() as modes, heard_modules(model, cut) as heard:
        modes.enter_context(in_one_pass(model))
        if x.device.type == "cpu":
            modes.enter_context(ExactNormalization())
        logits = model(x)
    same_way = len(heard) == len(place.modules) and all(map(_is, heard, place.modules))
    if not (same_way and at and isinstance(logits, Tensor) and logits.requires_grad):
        return None
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(score(logits).sum(), at[0], allow_unused=True)
    if gradient is None:
        return None
    return LayerGradient(place.fold(at[0].detach()), place.fold(gradient))


def place_of(found: FeatureMaps, tape: Tape) -> Place | None:
    """Where the layer found in a record is returned first, if a module returns it."""
    modules = tuple(module for module, _ in tape.returned)
    numbers = (number for number, (_, value) in enumerate(tape.returned) if value is found.at)
    return next((Place(number, modules, found.fold) for number in numbers), None)


def gives(place: Place, expected: LayerGradient, model: Model, x: Tensor, score: Score) -> bool:
    """Whether the shortcut through this place gives the values and the gradient of the record."""
    try:
        plain = plain_gradient(model, x, place, score)
    except (RuntimeError, UserError):
        return False
    return plain is not None and all(map(_close, plain, expected))


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding, relative to the largest value."""
    if one.shape != other.shape:
        return False
    tolerance = 1000 * torch.finfo(other.dtype).eps
    return bool((one - other).abs().amax() <= tolerance * other.abs().amax())


def _is(one: nn.Module, other: nn.Module) -> bool:
    return one is other
