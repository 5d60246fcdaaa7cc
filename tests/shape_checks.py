"""Types and shapes of signatures are checked at run time in the tests, and only there.

jaxtyping binds the arguments of every call to compare shapes across them. Most functions name no shape: beartype alone
checks the same types of theirs in a tenth of the time, and half of the suite's would go into calls of such functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, get_args, get_type_hints

import jaxtyping
from beartype import beartype

_with_shapes = jaxtyping.jaxtyped


def install() -> None:
    """Check the functions of gyrograd, which must not have been imported yet."""
    jaxtyping.jaxtyped = checked  # the decorator that the import hook writes over every function
    jaxtyping.install_import_hook("gyrograd", "beartype.beartype")


def checked(thing: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """Types checked at every call; shapes too if the signature names one."""
    if thing is None:
        return partial(checked, typechecker=typechecker)
    # beartype remembers what it checks, and a function inside a function would keep what it encloses alive.
    lasting = inspect.isfunction(thing) and "<locals>" not in thing.__qualname__
    if lasting and not names_shapes(thing):
        return beartype(thing)
    return _with_shapes(thing, typechecker=typechecker)


def names_shapes(function: Callable[..., Any]) -> bool:
    """True if the signature names a shape, or cannot be read before the end of the import."""
    try:
        return any(_is_or_holds_shape(hint) for hint in get_type_hints(function).values())
    except NameError:
        return True


def _is_or_holds_shape(hint: Any) -> bool:
    if isinstance(hint, list):  # the arguments of a Callable
        return any(map(_is_or_holds_shape, hint))
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_is_or_holds_shape, get_args(hint)))
