"""Types and shapes of signatures are checked at run time in the tests, and only there.

beartype checks the types; inside a context of jaxtyping a name in a shape means one size in all arguments and in the
result. jaxtyping's own decorator does both too, at several times the cost: it checks arguments twice, and builds its
checks anew each time a function inside a function is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial, wraps
from itertools import chain, repeat
from types import CodeType
from typing import Any, get_args

import jaxtyping
from beartype import beartype
from beartype.door import die_if_unbearable

_one_size_per_name = partial(jaxtyping.jaxtyped, "context")
_late_hints: dict[CodeType, dict[str, Any]] = {}


def install() -> None:
    """Check the functions of gyrograd, which must not have been imported yet."""
    jaxtyping.jaxtyped = checked  # the decorator that the import hook writes over every function and class
    jaxtyping.install_import_hook("gyrograd", "beartype.beartype")


def checked(thing: Any = None, **_: Any) -> Any:
    """Types checked at every call; shapes too if the signature names one. Of a data class: when it is made."""
    if thing is None:
        return checked
    if inspect.isclass(thing):
        if is_dataclass(thing) and not hasattr(thing.__init__, "__wrapped__"):
            thing.__init__ = checked(thing.__init__)
        return thing
    hints = _readable_hints(thing)
    shapes = any(map(_is_or_holds_shape, hints.values()))
    inner, early = "<locals>" in thing.__qualname__, len(hints) < len(thing.__annotations__)
    # beartype checks a generator's arguments when it is first asked, in the context of whoever asks.
    if inner or early or (shapes and inspect.isgeneratorfunction(thing)):
        return _checked_late(thing)
    return _with_shapes(beartype(thing)) if shapes else beartype(thing)


def _readable_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Hints by name, without those that name what the module does not know (yet)."""
    hints = {}
    for name, hint in function.__annotations__.items():
        with suppress(NameError):
            hints[name] = eval(hint, function.__globals__) if isinstance(hint, str) else hint
    return hints


def _is_or_holds_shape(hint: Any) -> bool:
    if isinstance(hint, list):  # the arguments of a Callable
        return any(map(_is_or_holds_shape, hint))
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(map(_is_or_holds_shape, get_args(hint)))


def _with_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    plain = inspect.unwrap(function)

    @wraps(plain)
    def called(*args: Any, **kwargs: Any) -> Any:
        if jaxtyping.config.jaxtyping_disable:  # by a test of what is said to a user, who has no such checks
            return plain(*args, **kwargs)
        with _one_size_per_name():
            return function(*args, **kwargs)

    return called


def _checked_late(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hints are read at the first call, once for all functions made by the same lines.

    For a function inside a function: beartype would build its checks anew each time, and keep alive what it encloses.
    """
    code, where = function.__code__, f"{function.__module__}.{function.__qualname__} "
    names = code.co_varnames[: code.co_argcount]
    rest = (*code.co_varnames, "")[code.co_argcount + code.co_kwonlyargcount]  # of *args

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if code not in _late_hints:
            _late_hints[code] = _readable_hints(function)
        hints = _late_hints[code]
        for name, value in chain(zip(chain(names, repeat(rest)), args, strict=False), kwargs.items()):
            if name in hints:
                die_if_unbearable(value, hints[name], exception_prefix=where)
        result = function(*args, **kwargs)
        if "return" in hints:
            die_if_unbearable(result, hints["return"], exception_prefix=where)
        return result

    return _with_shapes(called)
