"""Names to things: attributions, attacks, metrics, regularizers, kernels, models, data sets, experiments.

An entry is registered where it is defined; the folder of its kind is imported on the first look-up, so that
this file knows no folder's contents. Needs no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from gyrograd.errors import UserError, check_name, did_you_mean

Kind = Literal["attribution", "attack", "metric", "regularizer", "kernel", "model", "dataset", "experiment"]
Direction = Literal["higher is better", "lower is better", "none"]

HOMES: dict[str, str] = {
    "attribution": "gyrograd.attributions",
    "attack": "gyrograd.attacks",
    "metric": "gyrograd.metrics",
    "regularizer": "gyrograd.regularizers",
    "kernel": "gyrograd.smoothing",
    "model": "gyrograd.models",
    "dataset": "gyrograd.data",
    "experiment": "gyrograd.experiments",
}

Factory = TypeVar("Factory", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """What is known of a name. `paper` is a short name of docs/papers or "own"; `equation` where in it."""

    name: str
    kind: Kind
    factory: Callable[..., Any]
    paper: str
    equation: str
    aliases: tuple[str, ...] = ()
    direction: Direction = "none"
    differentiable: bool = False

    @property
    def summary(self) -> str:
        """The first line of the factory's docstring."""
        return (inspect.getdoc(self.factory) or "").partition("\n")[0]


_entries: dict[tuple[str, str], Entry] = {}


def register(
    kind: Kind,
    name: str,
    *,
    paper: str,
    equation: str = "",
    aliases: tuple[str, ...] = (),
    direction: Direction = "none",
    differentiable: bool = False,
) -> Callable[[Factory], Factory]:
    """Decorator that puts a function or dataclass into the registry. A name taken twice is an error."""

    def add(factory: Factory) -> Factory:
        entry = Entry(name, kind, factory, paper, equation, aliases, direction, differentiable)
        for key in (name, *aliases):
            if (kind, key) in _entries:
                raise RuntimeError(
                    f"{kind} '{key}' is registered twice: {_entries[kind, key].name} and {name}"
                )
        for key in (name, *aliases):
            _entries[kind, key] = entry
        return factory

    return add


def kinds() -> tuple[str, ...]:
    """The kinds that exist so far: those whose folder is part of this installation."""
    return tuple(kind for kind in get_args(Kind) if importlib.util.find_spec(HOMES[kind]) is not None)


def available(kind: str) -> dict[str, Entry]:
    """All entries of a kind by name, sorted, aliases left out."""
    check_name("kind", kind, kinds())
    importlib.import_module(HOMES[kind])
    mine = {entry.name: entry for (k, _), entry in _entries.items() if k == kind}
    return dict(sorted(mine.items()))


def lookup(kind: str, name: str) -> Entry:
    """The entry of a name or alias; a near miss is suggested."""
    names = available(kind)
    if (kind, name) not in _entries:
        known = {key for k, key in _entries if k == kind} if names else set()
        raise UserError(f"There is no {kind} '{name}': {did_you_mean(name, known)}")
    return _entries[kind, name]


def make(kind: str, name: str, /, *args: Any, **settings: Any) -> Any:
    """Build an entry with these settings. An unknown setting names the nearest one."""
    entry = lookup(kind, name)
    parameters = inspect.signature(entry.factory).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in settings:
        if key not in parameters and not open_ended:
            raise UserError(f"{kind} '{entry.name}' has no setting '{key}': {did_you_mean(key, parameters)}")
    try:
        inspect.signature(entry.factory).bind(*args, **settings)
    except TypeError as wrong:
        raise UserError(
            f"{kind} '{entry.name}': {wrong}; its settings are {', '.join(parameters)}."
        ) from None
    return entry.factory(*args, **settings)
