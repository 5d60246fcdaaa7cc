"""Settings by name: the papers' and some short ones of our own, out of the YAML files of `recipes/`.

A file is a tree. Each node may have `about`, `settings` and `variants`; a recipe is a leaf, its name the file's name
and the variants' joined by dashes, its settings those on the way, the deeper ones first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from gyrograd.errors import UserError, check_name
from gyrograd.training.settings import TrainSettings, settings_from

DEEPEST = 50
MOST_VALUES = 10_000
"""Of a user's own file of settings."""


@dataclass(frozen=True)
class Recipe:
    """A named tree of settings, and a line about it."""

    name: str
    about: str
    tree: Mapping[str, Any]


def recipe(name: str, **changes: Any) -> TrainSettings:
    """The settings of a recipe with these changes: `recipe("joo2023-lenet-l2-cosine", epochs=20)`."""
    return settings_from(merged(recipe_tree(name), changes))


def recipe_tree(name: str) -> Mapping[str, Any]:
    """The settings of a recipe as they stand in its file; a near miss is suggested."""
    known = recipes()
    check_name("recipe", name, known)
    return known[name].tree


@cache
def recipes() -> dict[str, Recipe]:
    """Every recipe by name."""
    found: dict[str, Recipe] = {}
    folder = files("gyrograd.training") / "recipes"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        stem, dot, ending = file.name.rpartition(".")
        if dot and ending == "yaml":
            found |= {r.name: r for r in _leaves(stem, "", {}, yaml.safe_load(file.read_text("utf-8")))}
    return found


def read_tree(path: Path) -> dict[str, Any]:
    """The settings of a user's own YAML file; its `recipe`, if it names one, is what they change."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise UserError(f"{path} cannot be read ({wrong.strerror}); give a YAML file of settings.") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as wrong:
        reason = " ".join(str(wrong).split())[:200]
        raise UserError(f"{path} is not valid YAML ({reason}); mend it there.") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no settings; write `key: value` lines, such as `epochs: 5`.")
    _check_extent(path, tree)
    name = tree.pop("recipe", None)
    return tree if name is None else merged(recipe_tree(str(name)), tree)


def _check_extent(path: Path, tree: Any) -> None:
    """Refuse a tree that is too deep or, by repeating parts of itself, too large for settings."""
    level, count = [tree], 0
    for _ in range(DEEPEST):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list | tuple | set)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        count += len(level)
        if not level:
            return
        if count > MOST_VALUES:
            break
    raise UserError(f"{path} is nested too deep or repeats itself too often for settings; mend it there.")


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees in one; where they meet, settings by name are merged and anything else is replaced."""
    both = dict(under)
    for key, value in over.items():
        old = both.get(key)
        both[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def _leaves(name: str, about: str, tree: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Recipe]:
    about = f"{about} {node.get('about', '')}".strip()
    tree = merged(tree, node.get("settings", {}))
    if not node.get("variants"):
        yield Recipe(name, about, tree)
        return
    for variant, below in node["variants"].items():
        yield from _leaves(f"{name}-{variant}", about, tree, below or {})
