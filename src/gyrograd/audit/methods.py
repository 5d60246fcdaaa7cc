"""The explanation methods of an audit: built by name, tried on the model, with the map that attacks differentiate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from gyrograd.attacks.engine import STAND_IN
from gyrograd.attributions import as_attribution
from gyrograd.attributions.settings import passes_of
from gyrograd.audit.presets import Preset
from gyrograd.errors import UserError
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Inputs, Labels, Model

OneMethod = str | Callable[..., Any]
"""A registered name, or `f(model, x, target)`."""
Methods = OneMethod | Sequence[OneMethod] | Mapping[str, OneMethod]
"""What a user may give as the methods of an audit; a dictionary names them."""


@dataclass(frozen=True)
class Method:
    """One explanation method. `search`: the attribution that an attack differentiates, None for the method itself."""

    name: str
    label: str
    attribution: Attribution
    settings: dict[str, Any] = field(default_factory=dict)
    search: Attribution | None = None
    passes: int = 1
    notes: tuple[str, ...] = ()


def methods_of(
    named: Methods | None,
    preset: Preset,
    model: Model,
    x: Inputs,
    target: Labels,
    *,
    max_batch: int,
) -> tuple[list[Method], dict[str, str]]:
    """The methods, each tried on one example, and the reasons for those that are left out.

    If a method cannot explain this model, it is an error if the caller named it, and left out if the preset did.
    """
    asked = preset.methods if named is None else _by_name(named)
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


def _by_name(methods: Methods) -> Sequence[str] | Mapping[str, OneMethod | None]:
    """One method or several, names or functions; functions go by their own name, names by None."""
    if isinstance(methods, Mapping):
        return methods
    several = list(methods) if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    names = [one for one in several if isinstance(one, str)]
    if len(names) == len(several):
        return names  # as a list, in which a name that stands twice is noticed
    own = [None if isinstance(one, str) else one for one in several]
    called = [
        one if isinstance(one, str) else getattr(one, "__name__", type(one).__name__) for one in several
    ]
    return dict(zip(called, own, strict=True))


def _named(name: str, preset: Preset, max_batch: int) -> Method:
    entry = lookup("attribution", name)
    settings = dict(preset.method_settings.get(entry.name, {}))
    attribution = build_attribution(entry.name, settings, max_batch)
    passes = passes_of(attribution)
    if not entry.differentiable:
        note = f"attacked by transfer from {STAND_IN}: the map itself has no derivative"
        search = build_attribution(STAND_IN, {}, max_batch)
        return Method(entry.name, entry.label, attribution, settings, search, passes, (note,))
    count = entry.passes if isinstance(entry.passes, str) else None
    if count is None or passes <= preset.search_rows:
        return Method(entry.name, entry.label, attribution, settings, None, passes)
    search = build_attribution(entry.name, {**settings, count: preset.search_rows}, max_batch)
    note = f"attacked through {preset.search_rows} {count} in place of {passes}, judged with all"
    return Method(entry.name, entry.label, attribution, settings, search, passes, (note,))


def _given(name: str, given: OneMethod, x: Tensor, target: Tensor, model: Model) -> Method:
    """The method of a given function or object; whether it has a derivative is found out by trying."""
    settings, attribution = {"repr": repr(given)}, as_attribution(given)
    try:
        attribution(model, x[:1].clone().requires_grad_(), target[:1], create_graph=True)
    except UserError:
        note = f"attacked by transfer from {STAND_IN}: the map itself has no derivative"
        search = make("attribution", STAND_IN)
        return Method(name, name, attribution, settings, search, passes_of(attribution), (note,))
    return Method(name, name, attribution, settings, None, passes_of(attribution))


def build_attribution(name: str, settings: Mapping[str, Any], max_batch: int) -> Attribution:
    """Build the attribution, with `max_batch` if it has that setting."""
    parameters = inspect.signature(lookup("attribution", name).factory).parameters
    budget = {"max_batch": max_batch} if "max_batch" in parameters else {}
    made: Attribution = make("attribution", name, **(budget | dict(settings)))
    return made
