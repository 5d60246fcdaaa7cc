"""The explanation methods of an audit: built by name, tried on the model, with the map that attacks differentiate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from gyrograd.attacks.engine import STAND_IN
from gyrograd.attributions import as_attribution
from gyrograd.attributions.settings import passes_of
from gyrograd.audit.presets import Preset
from gyrograd.errors import UserError
from gyrograd.measurement.plan import having
from gyrograd.registry import lookup, make
from gyrograd.types import Attribution, Inputs, Labels, Model

OneMethod = str | Callable[..., Any]
"""A registered name, or `f(model, x, target)`."""
Methods = OneMethod | Sequence[OneMethod] | Mapping[str, OneMethod]
"""What a user may give as the methods of an audit; a dictionary names them."""
BY_TRANSFER = f"attacked by transfer from {STAND_IN}: the map itself has no derivative"
"""Note of a method that is attacked through another map."""


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

    @property
    def by_transfer(self) -> bool:
        """True if the map has no derivative: what then stays under attack is an upper bound."""
        return BY_TRANSFER in self.notes


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
    found: list[Method] = []
    left_out: dict[str, str] = {}
    for name, own in _by_name(preset.methods if named is None else named):
        method = (
            _method_by_name(name, preset, max_batch)
            if own is None
            else _method_from_callable(name, own, x, target, model)
        )
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
        why = "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in left_out.items())
        raise UserError(
            f"No method of the preset explains this model ({why}); name one that does with methods=."
        )
    return found, left_out


def _by_name(methods: Methods) -> list[tuple[str, OneMethod | None]]:
    """One method or several, by name; None for a registered name, and functions go by their own name."""
    if isinstance(methods, Mapping):
        return list(methods.items())
    several = list(methods) if isinstance(methods, Sequence) and not isinstance(methods, str) else [methods]
    return [
        (one, None) if isinstance(one, str) else (getattr(one, "__name__", type(one).__name__), one)
        for one in several
    ]


def _method_by_name(name: str, preset: Preset, max_batch: int) -> Method:
    entry = lookup("attribution", name)
    settings = dict(preset.method_settings.get(entry.name, {}))
    attribution = build_attribution(entry.name, settings, max_batch)
    passes = passes_of(attribution)
    method = Method(entry.name, entry.label, attribution, settings, passes=passes)
    if not entry.differentiable:
        return replace(method, search=build_attribution(STAND_IN, {}, max_batch), notes=(BY_TRANSFER,))
    if not isinstance(entry.passes, str) or passes <= preset.search_rows:
        return method
    if entry.forward_only:  # a few of its passes make another map: LIME of 8 draws is no LIME of 100
        return replace(method, notes=(f"attacked through all of its {passes} passes",))
    search = build_attribution(entry.name, {**settings, entry.passes: preset.search_rows}, max_batch)
    note = f"attacked through {preset.search_rows} {entry.passes} in place of {passes}, judged with all"
    return replace(method, search=search, notes=(note,))


def _method_from_callable(name: str, given: OneMethod, x: Tensor, target: Tensor, model: Model) -> Method:
    """The method of a given function or object; whether it has a derivative is found out by trying."""
    attribution = as_attribution(given)
    method = Method(name, name, attribution, {"repr": repr(given)}, passes=passes_of(attribution))
    try:
        attribution(model, x[:1].clone().requires_grad_(), target[:1], create_graph=True)
    except UserError:
        return replace(method, search=make("attribution", STAND_IN), notes=(BY_TRANSFER,))
    return method


def build_attribution(name: str, settings: Mapping[str, Any], max_batch: int) -> Attribution:
    """Build the attribution, with `max_batch` if it has that setting."""
    budget = having("attribution", name, {"max_batch": max_batch})
    made: Attribution = make("attribution", name, **(budget | dict(settings)))
    return made
