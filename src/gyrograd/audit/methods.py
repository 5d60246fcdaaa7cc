"""The explanations under audit: built by name, tried on the model, and what an attack searches through."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from gyrograd.attacks.runs import STAND_IN
from gyrograd.attributions import FunctionAttribution
from gyrograd.attributions.settings import passes_of
from gyrograd.audit.presets import Preset
from gyrograd.errors import UserError
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Inputs, Labels, Model


@dataclass(frozen=True)
class Method:
    """One explanation. `search` is what an attack differentiates (None: the map itself); `notes` say so."""

    name: str
    label: str
    attribution: Attribution
    settings: dict[str, Any] = field(default_factory=dict)
    search: Attribution | None = None
    passes: int = 1
    notes: tuple[str, ...] = ()


def methods_of(
    named: Sequence[str] | Mapping[str, Attribution] | None,
    preset: Preset,
    model: Model,
    x: Inputs,
    target: Labels,
    *,
    max_batch: int,
) -> tuple[list[Method], dict[str, str]]:
    """The methods, each tried on one example; and why others of the preset are left out.

    A method that was asked for and cannot explain this model is an error; one that merely belongs to the preset
    is left out.
    """
    asked = preset.methods if named is None else named
    found: list[Method] = []
    left_out: dict[str, str] = {}
    for name in asked:
        own = asked[name] if isinstance(asked, Mapping) else None
        method = _named(name, preset, max_batch) if own is None else _given(name, own, x, target, model)
        try:
            method.attribution(model, x[:1], target[:1])
        except UserError as wrong:
            if named is not None:
                raise
            left_out[method.name] = str(wrong)
            continue
        if method.name in {other.name for other in found}:
            raise UserError(f"Method '{method.name}' is named twice; name each method once.")
        if hasattr(method.attribution, "chosen"):
            note = f"variant {method.attribution.chosen(model, x)}, which suits this model"
            method = replace(method, notes=(*method.notes, note))
        found.append(method)
    if not found:
        raise UserError("No method of the preset explains this model; name one that does with methods=.")
    return found, left_out


def _named(name: str, preset: Preset, max_batch: int) -> Method:
    entry = lookup("attribution", name)
    settings = dict(preset.method_settings.get(entry.name, {}))
    attribution = built(entry.name, settings, max_batch)
    passes = passes_of(attribution)
    if not entry.differentiable:
        note = f"attacked by transfer from {STAND_IN}: the map itself has no derivative"
        search = built(STAND_IN, {}, max_batch)
        return Method(entry.name, entry.label, attribution, settings, search, passes, (note,))
    count = entry.passes if isinstance(entry.passes, str) else None
    if count is None or passes <= preset.search_rows:
        return Method(entry.name, entry.label, attribution, settings, None, passes)
    search = built(entry.name, {**settings, count: preset.search_rows}, max_batch)
    note = f"attacked through {preset.search_rows} {count} in place of {passes}, judged with all"
    return Method(entry.name, entry.label, attribution, settings, search, passes, (note,))


def _given(name: str, attribution: Attribution, x: Tensor, target: Tensor, model: Model) -> Method:
    """A method that is no name: whether it has a derivative shows when it is asked for one."""
    settings = {"repr": repr(attribution)}
    if inspect.isroutine(attribution):
        attribution = FunctionAttribution(attribution)
    try:
        attribution(model, x[:1].clone().requires_grad_(), target[:1], create_graph=True)
    except UserError:
        note = f"attacked by transfer from {STAND_IN}: the map itself has no derivative"
        search = make("attribution", STAND_IN)
        return Method(name, name, attribution, settings, search, passes_of(attribution), (note,))
    return Method(name, name, attribution, settings, None, passes_of(attribution))


def built(name: str, settings: Mapping[str, Any], max_batch: int) -> Attribution:
    """The attribution, at most `max_batch` rows at once where it has that setting."""
    parameters = inspect.signature(lookup("attribution", name).factory).parameters
    budget = {"max_batch": max_batch} if "max_batch" in parameters else {}
    made: Attribution = make("attribution", name, **(budget | dict(settings)))
    return made
