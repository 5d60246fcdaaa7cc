"""Errors that a user can fix. The command line prints them in one line, without a traceback, and exits with code 2."""

from __future__ import annotations

import difflib
import os
import sysconfig
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path


class UserError(ValueError):
    """One sentence that says what is wrong and names the fix.

    >>> import gyrograd as gg
    >>> try:
    ...     gg.attribution("gradeint")
    ... except gg.UserError as error:
    ...     print(error)
    There is no attribution 'gradeint': did you mean 'gradient'?
    """


def wants_frames() -> bool:
    """True if errors should show a traceback: `--debug`, or GYROGRAD_DEBUG=1 in the environment."""
    return os.environ.get("GYROGRAD_DEBUG", "") not in {"", "0"}


def foreign_code(error: BaseException) -> str | None:
    """The innermost line of the user's own code that raised the error, such as `net.py, line 12, in forward`.

    None if only gyrograd and libraries are involved: this distinguishes an error of a user's model from a bug here.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_foreign(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name}" if frames else None


def in_words(error: BaseException) -> str:
    """An error's type and the last line of its message, shortened."""
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A scripted model puts its traceback into the message; the last line says what happened.
    return f"{type(error).__name__}: {said[-1][:200]}" if said else type(error).__name__


@contextmanager
def in_one_sentence(sentence: Callable[[str], str]) -> Iterator[None]:
    """Turn any error in the block into a UserError; `sentence` is given the error in words. A UserError passes."""
    try:
        yield
    except UserError:
        raise
    except Exception as wrong:
        raise UserError(sentence(in_words(wrong))) from wrong


@contextmanager
def plain_values(what: str) -> Iterator[None]:
    """Turn the exceptions of a setting of the wrong type (n: many) into one sentence."""
    try:
        yield
    except TypeError as wrong:
        reason = " ".join(str(wrong).split())[:200]
        raise UserError(
            f"A setting of {what} has a value of the wrong type ({reason}); give another value."
        ) from wrong


@lru_cache(maxsize=256)
def _is_foreign(filename: str) -> bool:
    path = Path(filename)
    if not path.is_absolute() or not path.is_file():
        return False  # <frozen importlib>, <string>, the files of a TorchScript archive
    homes = {Path(__file__).parent, *(Path(place) for place in sysconfig.get_paths().values())}
    packaged = {"site-packages", "dist-packages"} & set(path.parts)
    return not packaged and not any(path.is_relative_to(home) for home in homes)


MAX_LISTED = 20
"""Most names listed in a sentence; if there are more, half as many are listed."""


def printable(text: object) -> str:
    """The text with control characters escaped (`\\x1b`): file names are untrusted, and a terminal would obey them.

    >>> printable("cat\\x1b[2J.png")
    'cat\\\\x1b[2J.png'
    """
    return "".join(
        letter
        if letter.isprintable() or unicodedata.category(letter) == "Zs"
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in str(text)
    )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an "unknown name" sentence: the nearest choice, or a list of the choices."""
    known = sorted(choices)
    near = difflib.get_close_matches(str(name).lower(), known, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    if len(known) > MAX_LISTED:
        return f"known: {', '.join(known[: MAX_LISTED // 2])} and {len(known) - MAX_LISTED // 2} more."
    return f"known: {', '.join(known)}." if known else "there are none."


def check_name(what: str, name: str, choices: Iterable[str]) -> None:
    """Refuse a name that is not one of the choices, and suggest the nearest one."""
    known = tuple(choices)
    if name not in known:
        raise UserError(f"There is no {what} '{name}': {did_you_mean(name, known)}")


def check_counts(**counts: float | int) -> None:
    """Refuse counts below 1: `check_counts(steps=0)`."""
    for name, count in counts.items():
        if not count >= 1:
            raise UserError(f"{name} is {count}; give at least 1.")


def check_schema(path: object, schema: int, newest: int) -> None:
    """Refuse a file that a later gyrograd wrote."""
    if schema > newest:
        raise UserError(
            f"{path} has schema {schema} and this gyrograd reads up to {newest}; "
            "upgrade it: pip install -U gyrograd."
        )
