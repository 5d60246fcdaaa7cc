"""Mistakes a user can mend. The command line prints the sentence and exits with 2; no traceback."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class UserError(ValueError):
    """One sentence that says what is wrong and names the fix."""


def wants_frames() -> bool:
    """True if errors are to be shown with their frames: `--debug`, or GYROGRAD_DEBUG=1 in the environment."""
    return os.environ.get("GYROGRAD_DEBUG", "") not in {"", "0"}


MANY = 20
"""So many names are listed in a sentence; of more, half as many."""


def printable(text: object) -> str:
    """The text with control characters written out (`\\x1b`): names of files come from anyone, and a terminal obeys.

    >>> printable("cat\\x1b[2J.png")
    'cat\\\\x1b[2J.png'
    """
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in str(text)
    )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """The end of an "unknown name" sentence: the nearest choice, or all of them, or some of very many."""
    known = sorted(choices)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"did you mean '{near[0]}'?"
    if len(known) > MANY:
        return f"known: {', '.join(known[: MANY // 2])} and {len(known) - MANY // 2} more."
    return f"known: {', '.join(known)}." if known else "there are none."


def check_name(what: str, name: str, choices: Iterable[str]) -> None:
    """Refuse a name that is not one of the choices, with the nearest one."""
    known = tuple(choices)
    if name not in known:
        raise UserError(f"There is no {what} '{name}': {did_you_mean(name, known)}")
