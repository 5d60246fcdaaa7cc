"""Turn jsonargparse's errors into one sentence that names the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from gyrograd.cli.options import Verb, is_word, options, syntax_of
from gyrograd.errors import did_you_mean

KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    list: "a list of whole numbers, such as [0, 1]",
}


def sentence(verb: Verb, path: str, said: str) -> str:
    """The sentence for jsonargparse's message `said`; an unknown message is passed on with a hint."""
    said = " ".join(said.split()).rstrip(".")
    for pattern, rule in RULES.items():
        if found := re.match(pattern, said):
            return (
                rule.format(*found.groups()) if isinstance(rule, str) else rule(verb, path, *found.groups())
            )
    return f"{said[0].upper()}{said[1:]}; '{path} --help' lists what it takes."


def usage(verb: Verb, path: str) -> str:
    """The verb with its words in order: `gyrograd explain MODEL DATA ...`."""
    shapes, repeated = {"+": "{} ...", "*": "[{} ...]", "?": "[{}]"}, syntax_of(verb).words
    names = [name for name in options(verb) if is_word(verb, name)]
    return " ".join(
        [path, *(shapes.get(repeated.get(name, ""), "{}").format(name.upper()) for name in names)]
    )


def _unknown(verb: Verb, path: str, word: str) -> str:
    name = word.lstrip("-").partition("=")[0]
    if not word.startswith("-"):
        return (
            f"'{path}' has no place for '{word}'; write `{usage(verb, path)}`, and options as --name value."
        )
    if name in options(verb) and is_word(verb, name):
        return f"Write {name} without --{name}: `{usage(verb, path)}`."
    known = [one if is_word(verb, one) else f"--{one}" for one in options(verb)]
    return f"'{path}' has no option {word}: {did_you_mean(f'--{name}', known)}"


def _missing(verb: Verb, path: str, names: str) -> str:
    return f"'{path}' needs {names}: write `{usage(verb, path)}`; '{path} --help' says more."


def _wrong_value(verb: Verb, path: str, name: str, value: str) -> str:
    return f"{name} is '{value}'; give {_expected_value(verb, name)}, or see '{path} --help'."


def _expected_value(verb: Verb, name: str) -> str:
    kind = options(verb)[name].annotation if name in options(verb) else str
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return " or ".join(KINDS.get(get_origin(one) or one, "a word") for one in choices if one is not NoneType)


def _unknown_in_file(verb: Verb, path: str, name: str) -> str:
    return f"The file of --config has '{name}', which '{path}' does not take: {did_you_mean(name, options(verb))}"


RULES: dict[str, str | Callable[..., str]] = {
    r"[Uu]nrecognized arguments: (\S+)": _unknown,
    r"[Tt]he following arguments are required: (.+)": _missing,
    r'Parser key "config": [^:]+: (.+)': "{0} is not a file of settings; give a YAML file with --config.",
    r'Parser key "(\w+)": .*(?:Got|Given) value: (.*)': _wrong_value,
    r"[Aa]rgument --(\w+): expected one argument": (
        "--{0} has no value; write --{0} VALUE, or leave it out."
    ),
    r"[Aa]rgument --(\w+): ignored explicit argument '(.*)'": (
        "--{0} is switched on by its name alone; leave out ={1}."
    ),
    r"[Oo]ption '(\w+)' is not accepted": _unknown_in_file,
    r"Problems parsing config: (.+)": "The file of --config is not YAML: {0}; correct it.",
    r"Unexpected config:": "The file of --config holds no settings by name; write lines such as `seed: 1`.",
}
"""Patterns of jsonargparse's messages, each with a sentence or a function that makes one from the pattern's groups."""
