"""Options of a verb: its parameters, where a settings class is replaced by its fields.

`opening: Opening` gives a verb `--size`, `--split`, ...; verbs with common options share the class. jsonargparse can
add a class without a prefix, too, but then all verbs share one help text, and flags need a value (`--unlabelled true`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias, TypeVar

from gyrograd.errors import UserError
from gyrograd.registry import Settings

Verb = Callable[..., Any]
Verbs: TypeAlias = Mapping[str, Verb | dict[str, Verb]]
"""Verbs by name; a folder of verbs is a dictionary."""
VerbType = TypeVar("VerbType", bound=Verb)
FreeSettings = Callable[[list[str]], tuple[list[str], Settings]]

ALIASES = {"method": "methods"}
"""Further names of options; they are accepted wherever the option is, and not shown."""


@dataclass(frozen=True)
class Syntax:
    """Decorator of a verb: what its signature does not say about its words.

    words: positional options that may be repeated ("+", "*") or left out ("*", "?"), as argparse's `nargs`.
    bare: the value of an option that is named without one. renamed: new names of options by their old ones.
    free_settings: splits the words into options of the verb and an argument `settings`, for settings that no signature
    can list, such as --terms.l2.weight 0.1.
    """

    words: Mapping[str, str] = field(default_factory=dict)
    bare: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    free_settings: FreeSettings | None = None

    def __call__(self, verb: VerbType) -> VerbType:
        verb.syntax = self  # type: ignore[attr-defined]
        return verb


def syntax_of(verb: Verb) -> Syntax:
    """The syntax of a verb; that of its signature alone if it has none of its own."""
    found: Syntax = getattr(verb, "syntax", Syntax())
    return found


def options(verb: Verb) -> dict[str, inspect.Parameter]:
    """The options of a verb by name, in the order of its signature."""
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in _parameters(verb).items():
        if name == "settings" and syntax_of(verb).free_settings:
            continue
        shared = parameter.annotation
        found |= _parameters(shared) if is_dataclass(shared) else {name: parameter}
    return found


def aliases(verb: Verb) -> dict[str, str]:
    """The further names of this verb's options."""
    known = options(verb)
    return {other: name for other, name in ALIASES.items() if name in known and other not in known}


def is_word(verb: Verb, name: str) -> bool:
    """True if the option is positional."""
    parameter = options(verb)[name]
    return parameter.default is parameter.empty or name in syntax_of(verb).words


def texts(verb: Verb) -> dict[str, str]:
    """Help text per option; the verb's docstring overrides that of a settings class."""
    shared = [one.annotation for one in _parameters(verb).values() if is_dataclass(one.annotation)]
    # A settings class also explains what verbs have in common besides its fields; not every verb has all of it.
    known = options(verb)
    common = {name: text for one in shared for name, text in _help_texts(one).items() if name in known}
    return common | _help_texts(verb)


def arguments(verb: Verb, values: Mapping[str, Any]) -> Settings:
    """The verb's arguments from the values of its options."""
    _check_flags(verb, values)
    _check_bounds(verb, values)
    given: Settings = {}
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


def _help_texts(source: Any) -> dict[str, str]:
    from docstring_parser import parse

    return {one.arg_name: one.description or "" for one in parse(source.__doc__ or "").params}
