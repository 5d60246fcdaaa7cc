"""Parse settings that people write: `smoothgrad(sigma=0.2, draws=50)`, `8/255`, values of Python or YAML."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gyrograd.errors import UserError
from gyrograd.registry import Settings, make

_CALL = re.compile(r"\s*([\w.-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?(\s*/\s*(\d+\.?\d*|\.\d+))?")


def make_from_text(kind: str, text: str, **options: Any) -> Any:
    """Build the attribution, attack, ... that `text` describes; settings in its brackets override options."""
    name, own = parse_call(text)
    return make(kind, name, **(options | own))


def parse_call(text: str) -> tuple[str, Settings]:
    """A name and its settings: `smoothgrad(sigma=0.2, draws=50)` is ("smoothgrad", {"sigma": 0.2, "draws": 50})."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise UserError(f"'{text}' is not a name with settings; write NAME or NAME(setting=value, ...).")
    return found[1], settings(found[2] or "")


def settings(text: str, such_as: str = "steps=50") -> Settings:
    """Values by name: `epochs=12, milestones=[4, 8]` is {"epochs": 12, "milestones": [4, 8]}."""
    given: Settings = {}
    for part in split(text):
        key, equals, word = (piece.strip() for piece in part.partition("="))
        if not equals or not key.isidentifier() or not word:
            raise UserError(
                f"'{part}' is not a setting; write setting=value between commas, such as {such_as}."
            )
        if key in given:
            raise UserError(f"'{text}' gives {key} twice; leave one out.")
        given[key] = value(word)
    return given


def value(text: str) -> Any:
    """The value of a text in Python or YAML: True or true, None or null, a number (also 1e-3 and 8/255), a list, or
    settings in braces; anything else is a string.
    """
    import yaml  # type: ignore[import-untyped]

    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ast.literal_eval(text)
    if "/" in text and _NUMBER.fullmatch(text.strip()):
        return number(text)  # 1/0 is refused here, and stays a word inside a tree
    try:
        return with_numbers(yaml.safe_load(text))
    except UserError:
        raise
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise UserError(
            f"'{text}' is not a value; write a number, a word, [a, b] or {{key: value}}, or put it in quotes."
        ) from None


def split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    if depth != 0:
        raise UserError(f"'{text}' opens a bracket that is not closed, or closes one too many; correct it.")
    return [part.strip() for part in parts if part.strip()]


def with_numbers(tree: Any) -> Any:
    """The tree with 1e-3 and 8/255, which YAML reads as text, as numbers."""
    if isinstance(tree, Mapping):
        return {str(key): with_numbers(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [with_numbers(item) for item in tree]
    if not isinstance(tree, str) or not _NUMBER.fullmatch(tree.strip()):
        return tree
    # 1/0 and endless digits stay words, for whoever knows which setting it is
    with suppress(UserError, ValueError):
        return int(tree) if tree.strip().lstrip("+-").isdecimal() else number(tree)
    return tree


def number(text: str) -> float:
    """`8/255` or `0.03` as a number."""
    above, slash, below = text.partition("/")
    try:
        return float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        raise UserError(f"'{text}' is not a number; write it as 8/255 or 0.03.") from None
