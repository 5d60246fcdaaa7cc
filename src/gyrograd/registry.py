"""Names to things: attributions, attacks, metrics, regularizers, kernels, models, data sets, experiments.

An entry is registered where it is defined; the folder of its kind is imported on the first look-up, so that
this file knows no folder's contents. Needs no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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

MOST = 1_000_000
"""The largest count a setting takes: more steps, draws or classes would never be done."""
UNBOUNDED = {"seed", "max_batch"}
"""Whole numbers that are no amount of work."""
_WORDS = {
    int: "a whole number",
    float: "a finite number",
    bool: "True or False",
    str: "a word",
    NoneType: "None",
    Sequence: "a list",
}


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
    """Build an entry with these settings. An unknown setting names the nearest one, one of another kind its own."""
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
    return entry.factory(*args, **_of_their_kinds(entry, parameters, settings))


def _of_their_kinds(
    entry: Entry, parameters: Mapping[str, inspect.Parameter], settings: dict[str, Any]
) -> dict[str, Any]:
    """The settings, each of a kind it is declared with: 100.0 counts as 100, True is no number, and NaN is none."""
    maker = entry.factory
    hints = get_type_hints(maker) | (get_type_hints(maker.__init__) if inspect.isclass(maker) else {})
    kept = {}
    for name, value in settings.items():
        kinds = _members(hints.get(name, Any))
        value = _as_declared(value, kinds)
        if not any(_fits(value, kind) for kind in kinds):
            wanted = " or ".join(dict.fromkeys(_in_words(kind) for kind in kinds))
            usual = parameters[name].default
            shown = f"{usual:.4g}" if isinstance(usual, float) else repr(usual)
            such_as = f", such as {shown}" if isinstance(usual, int | float | str) else ""
            raise UserError(f"{entry.kind} '{entry.name}' has {name}={value!r:.60}; give {wanted}{such_as}.")
        if isinstance(value, int) and abs(value) > MOST and name not in UNBOUNDED:
            raise UserError(
                f"{entry.kind} '{entry.name}' has {name}={value}, which would never be done; give at most {MOST:,}."
            )
        kept[name] = value
    return kept


def _as_declared(value: Any, kinds: tuple[Any, ...]) -> Any:
    """numpy's numbers as Python's, and a whole number that was written as 1e2 as one."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return value
    number = float(value)
    return int(number) if int in kinds and float not in kinds and number.is_integer() else number


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a declared kind; kinds that cannot be asked about take anything."""
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if get_origin(kind) in (tuple, list):
        parts = {part for part in get_args(kind) if part is not Ellipsis}
        return isinstance(value, tuple | list) and all(
            any(_fits(item, member) for part in parts for member in _members(part)) for item in value
        )
    try:
        return isinstance(value, get_origin(kind) or kind)
    except TypeError:
        return True


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (tuple, list):
        return "several of them"
    named = str(getattr(get_origin(kind) or kind, "__name__", kind))
    return _WORDS.get(get_origin(kind) or kind, f"a {named}")
