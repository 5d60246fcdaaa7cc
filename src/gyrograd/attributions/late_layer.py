"""The values of a late layer and the gradient of a score to them, from one plain pass of the model.

A record (`replay`) finds the layer but costs Python time per operation: on a GPU several times the pass itself. So the
model is recorded once per image size, on two images, to find the module call that returns the layer. Later passes run
without gradients up to that call and with gradients after it.

The shortcut is used only if it is sure to be equivalent: on the two images its gradient must equal the record's, and in
every pass the model must call its modules in the same order. Otherwise the record is used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from gyrograd.attributions.feature_maps import FeatureMaps
from gyrograd.attributions.replay import Tape, watch_modules
from gyrograd.errors import UserError
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.smoothing import in_one_pass
from gyrograd.types import Logits, Model

Fold = Callable[[Tensor], Tensor]
Score = Callable[[Logits], Tensor]


class LayerGradient(NamedTuple):
    """A layer's values as maps `b c h w`, and the gradient of the score to them, summed over the examples."""

    maps: Tensor
    gradient: Tensor


@dataclass(frozen=True, eq=False)
class LayerSite:
    """The module call that returns a layer: call `number` of the `modules` that return in a pass, in order.

    The model itself is not among them: a reference to it would keep it in memory.
    """

    number: int
    modules: tuple[nn.Module, ...]
    fold: Fold


_SITES: WeakKeyDictionary[Model, dict[Any, LayerSite | None]] = WeakKeyDictionary()
"""Known sites per model; None if the shortcut does not match the record."""


def is_exact_type(x: Tensor) -> bool:
    """True if the shortcut can be compared with the record; in half precision rounding would hide a difference."""
    return x.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled(x.device.type)


def gradient_at_known_site(
    model: Model, x: Tensor, key: Any, find: Callable[[], LayerSite | None], score: Score
) -> LayerGradient | None:
    """As `plain_gradient`, at the cached site of this key, or None if it has none; `find` looks for a new one."""
    known = _SITES.setdefault(model, {})
    if key not in known:
        known[key] = find()
    site = known[key]
    if site is None:
        return None
    plain = plain_gradient(model, x, site, score)
    if plain is None:
        del known[key]  # the next map looks for the layer again
    return plain


def plain_gradient(model: Model, x: Tensor, site: LayerSite, score: Score) -> LayerGradient | None:
    """The layer at this site and the gradient to it; None if the pass called its modules in another order."""
    at: list[Tensor] = []

    def cut_graph(number: int, returned: Any) -> Tensor | None:
        if number != site.number or not isinstance(returned, Tensor):
            return None
        at.append(returned.detach().requires_grad_())
        # For the rest of the pass: `no_grad` around it restores the mode afterwards.
        torch.set_grad_enabled(True)
        return at[0].clone()  # a later layer may write into it

    with torch.no_grad(), ExitStack() as modes, watch_modules(model, cut_graph) as heard:
        modes.enter_context(in_one_pass(model))
        if x.device.type == "cpu":
            modes.enter_context(CpuLayers())
        logits = model(x)
    same_order = len(heard) == len(site.modules) and all(map(operator.is_, heard, site.modules))
    if not (same_order and at and isinstance(logits, Tensor) and logits.requires_grad):
        return None
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(score(logits).sum(), at[0], allow_unused=True)
    if gradient is None:
        return None
    return LayerGradient(site.fold(at[0].detach()), site.fold(gradient))


def site_of(found: FeatureMaps, tape: Tape) -> LayerSite | None:
    """The first module call that returns the recorded layer, or None."""
    modules = tuple(module for module, _ in tape.returned)
    numbers = (number for number, (_, value) in enumerate(tape.returned) if value is found.at)
    return next((LayerSite(number, modules, found.fold) for number in numbers), None)


def matches_record(site: LayerSite, expected: LayerGradient, model: Model, x: Tensor, score: Score) -> bool:
    """True if the shortcut through this site gives the values and the gradient of the record."""
    try:
        plain = plain_gradient(model, x, site, score)
    except (RuntimeError, UserError):
        return False
    return plain is not None and all(map(_close, plain, expected))


def _close(one: Tensor, other: Tensor) -> bool:
    """Equal up to rounding, relative to the largest value."""
    if one.shape != other.shape:
        return False
    tolerance = 1000 * torch.finfo(other.dtype).eps
    return bool((one - other).abs().amax() <= tolerance * other.abs().amax())
