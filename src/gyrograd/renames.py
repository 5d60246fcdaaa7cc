"""Old public names keep working for one release; using one warns with a sentence that gives the new name.

The warnings are FutureWarnings because Python hides DeprecationWarnings outside of scripts. Needs no torch.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Class = TypeVar("Class", bound=type)


class OldNameWarning(FutureWarning):
    """An old name was used; the command line prints its sentence as one line."""


def keep_old_names(module: str, **moved: str) -> None:
    """Let a module answer to names that were changed.

    Installed from here instead of as a `__getattr__` in the module: type checkers believe one of those that the
    module has every name there is.

    Args:
        module: the module that had the old names, `__name__`.
        moved: for each old name the full new one, "package.module.name".
    """
    home = sys.modules[module]
    other = vars(home).get("__getattr__")

    def find(name: str) -> Any:
        if name in moved:
            _warn(f"{module}.{name}", moved[name])
            place, _, new = moved[name].rpartition(".")
            return getattr(importlib.import_module(place), new)
        if other is not None:
            return other(name)
        raise AttributeError(f"module '{module}' has no attribute '{name}'")

    vars(home)["__getattr__"] = find


def keep_old_module(old: str, new: str) -> None:
    """Let a module that was renamed answer under its old name; the old file holds nothing else."""

    def find(name: str) -> Any:
        found = getattr(importlib.import_module(new), name)  # none for __path__, which imports ask for
        _warn(old, new)
        return found

    vars(sys.modules[old])["__getattr__"] = find


def old_fields(**renamed: str) -> Callable[[Class], Class]:
    """Class decorator: a dataclass takes and shows its renamed fields under their old names, too."""

    def add(made: Class) -> Class:
        construct = made.__init__  # type: ignore[misc]

        @functools.wraps(construct)
        def initialize(self: Any, *args: Any, **settings: Any) -> None:
            construct(self, *args, **with_new_names(settings, renamed, warn=True))

        made.__init__ = initialize  # type: ignore[misc]
        for old, new in renamed.items():
            setattr(made, old, property(functools.partial(_read_renamed, old=old, new=new)))
        return made

    return add


def with_new_names(
    settings: Mapping[str, Any], renamed: Mapping[str, str], *, warn: bool = False
) -> dict[str, Any]:
    """The settings under their new names; `warn` if a user wrote them, not if an earlier version did.

    A value under an old name wins: `dataclasses.replace(x, old=1)` also hands over the unchanged new field.
    """
    for old in renamed.keys() & settings.keys() if warn else ():
        _warn(old, renamed[old], level=4)
    new = {name: value for name, value in settings.items() if name not in renamed}
    return new | {renamed[name]: settings[name] for name in renamed.keys() & settings.keys()}


def _read_renamed(owner: Any, *, old: str, new: str) -> Any:
    _warn(old, new)
    return getattr(owner, new)


def _warn(old: str, new: str, level: int = 3) -> None:
    # Level 3 is the line that uses the old name: past this function and the one that found the name.
    warnings.warn(
        f"{old} is now {new}; the next release drops the old name.", OldNameWarning, stacklevel=level
    )
