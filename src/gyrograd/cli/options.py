"""Options of a verb: its parameters, where a settings class is replaced by its fields.

`opening: Opening` gives a verb `--size`, `--split`, ...; verbs with common options share the class. jsonargparse can
add a class without a prefix, too, but then all verbs share one help text, and flags need a value (`--unlabelled true`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gyrograd.errors import UserError

Verb = Callable[..., Any]


def options(verb: Verb) -> dict[str, inspect.Parameter]:
    """The options of a verb by name, in the order of its signature."""
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in _parameters(verb).items():
        if name == "settings" and hasattr(verb, "free_settings"):
            continue
        shared = parameter.annotation
        found |= _parameters(shared) if is_dataclass(shared) else {name: parameter}
    return found


def is_word(verb: Verb, name: str) -> bool:
    """True if the option is positional."""
    parameter = options(verb)[name]
    return parameter.default is parameter.empty or name == getattr(verb, "optional_positional", None)


def texts(verb: Verb) -> dict[str, str]:
    """Help text per option; the verb's docstring overrides that of a settings class."""
    shared = [one.annotation for one in _parameters(verb).values() if is_dataclass(one.annotation)]
    # A settings class also explains what verbs have in common besides its fields; not every verb has all of it.
    known = options(verb)
    common = {name: text for one in shared for name, text in _described(one).items() if name in known}
    return common | _described(verb)


def arguments(verb: Verb, values: Mapping[str, Any]) -> dict[str, Any]:
    """The verb's arguments from the values of its options."""
    _check_flags(verb, values)
    _check_bounds(verb, values)
    given: dict[str, Any] = {}
    for name, parameter in _parameters(verb).items():
        shared = parameter.annotation
        if is_dataclass(shared) and isinstance(shared, type):
            given[name] = shared(**{field.name: values[field.name] for field in fields(shared)})
        elif name in values:
            given[name] = values[name]
    return given


def _check_flags(verb: Verb, values: Mapping[str, Any]) -> None:
    """Refuse flags with values other than true and false in a settings file; any text would count as true."""
    for name, parameter in options(verb).items():
        value = values.get(name, parameter.default)
        if isinstance(parameter.default, bool) and not isinstance(value, bool):
            raise UserError(f"{name} is '{value}'; give true or false.")


BOUNDS = {
    "images": (None, 10_000_000),
    "size": (None, 8192),
    "side": (None, 8192),
    "classes": (2, 1_000_000),
    "batch": (None, 100_000),
    "batch_size": (None, 10_000_000),
    "n": (None, 1000),
    "train": (None, 1_000_000),
    "epochs": (None, 1_000_000),
    "steps": (None, 1_000_000),
    "repeats": (None, 10_000),
    "seeds": (None, 1000),
    "seed": (0, 2**63 - 1),
    "max_retries": (0, 1000),
    "certify": (0, 10_000_000),
    "workers": (1, 1000),
}
"""Smallest and largest accepted integers by option; larger ones would exhaust memory or never finish."""


def _check_bounds(verb: Verb, values: Mapping[str, Any]) -> None:
    """Refuse impossible numbers and paths before any work."""
    for name in options(verb):
        value = values.get(name)
        least, most = BOUNDS.get(name, (None, None))
        if type(value) is int and most is not None and value > most:
            raise UserError(f"{name} is {value}; give at most {most}.")
        if type(value) is int and least is not None and value < least:
            raise UserError(f"{name} is {value}; give at least {least}.")
        if "\0" in str(value):
            raise UserError(f"{name} contains a NUL character, which file names cannot have; remove it.")


def _parameters(source: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(source, eval_str=True).parameters


def _described(source: Any) -> dict[str, str]:
    from docstring_parser import parse

    return {one.arg_name: one.description or "" for one in parse(source.__doc__ or "").params}
