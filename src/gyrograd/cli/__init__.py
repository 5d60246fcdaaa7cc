"""The command line: one verb per file. Errors print one line and exit with code 2; there is no traceback."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import inspect
import os
import re
import stat
import sys
import traceback
import warnings
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from gyrograd.cli.options import Verb, Verbs, aliases, arguments, is_word, options, syntax_of, texts
from gyrograd.errors import UserError, did_you_mean, foreign_code, in_words, printable, wants_frames
from gyrograd.registry import Settings
from gyrograd.renames import OldNameWarning, with_new_names


def verbs() -> Verbs:
    """All verbs by name; their files import torch only when they run."""
    from gyrograd.cli import data, names
    from gyrograd.cli.attack import attack
    from gyrograd.cli.audit import audit
    from gyrograd.cli.bench import bench
    from gyrograd.cli.compare import compare
    from gyrograd.cli.completion import completion
    from gyrograd.cli.demo import demo
    from gyrograd.cli.doctor import doctor
    from gyrograd.cli.explain import explain
    from gyrograd.cli.explore import explore
    from gyrograd.cli.harden import harden
    from gyrograd.cli.leaderboard import leaderboard
    from gyrograd.cli.report import report
    from gyrograd.cli.reproduce import reproduce
    from gyrograd.cli.submit import submit
    from gyrograd.cli.sweep import sweep
    from gyrograd.cli.train import train
    from gyrograd.cli.verify import verify

    first = (demo, audit, explain, attack, explore, train, harden, sweep, reproduce)
    later = (report, compare, leaderboard, submit, verify, bench)
    return {
        **{verb.__name__: verb for verb in (*first, *later)},
        "list": names.show,
        "data": {"fetch": data.fetch, "check": data.check, "show": data.show},
        "doctor": doctor,
        "completion": completion,
    }


READING = {"report", "compare", "leaderboard", "list", "doctor", "completion"}
"""Verbs that compute nothing and start without torch."""


_NO_ROOM = re.compile(
    r"can't allocate|out of memory|Storage size calculation overflowed|Unable to allocate|can't start new thread"
)
DEBUG = "--debug"
"""Every verb takes it, wherever it stands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code.

    0 done, 1 negative result, 2 an error the user can fix, 70 a bug in gyrograd, 130 interrupted, 143 terminated.
    `--debug` (or GYROGRAD_DEBUG=1) also prints the traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    before = os.environ.get("GYROGRAD_DEBUG")
    if DEBUG in words:
        words = [word for word in words if word != DEBUG]
        os.environ["GYROGRAD_DEBUG"] = "1"  # so that processes started here have it too
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return _run(words)
    except KeyboardInterrupt as stop:
        # `training.Stopped` and a verb's own interruption say how to go on; that of Ctrl-C is empty.
        sentence = printable(stop) or "interrupted; finished results are kept."
        print(f"gyrograd: {sentence}", file=sys.stderr)
        return int(getattr(stop, "exit_code", 130))
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe. Python would complain about that once more at exit.
        sys.stdout = None
        return 0
    except Exception as error:
        if wants_frames():
            traceback.print_exc()
        code, sentence = _exit(error)
        # A word of thousands of letters, which no path can have, would bury the sentence around it.
        sentence = re.sub(r"(\S{60})\S{4096,}", r"\1...", printable(sentence))
        print(f"gyrograd: {sentence}", file=sys.stderr)
        return code
    finally:
        if before is None:
            os.environ.pop("GYROGRAD_DEBUG", None)


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print the warning about an old option as one line, without a code location; others as Python does."""
    if issubclass(category, OldNameWarning):
        print(f"gyrograd: {printable(message)}", file=sys.stderr)
    else:
        _show_other(message, category, *place, **more)


_show_other = warnings.showwarning


def _exit(error: Exception) -> tuple[int, str]:
    """The exit code and the message for the exception that ended a verb."""
    if isinstance(error, UserError):
        return 2, str(error)
    if place := foreign_code(error):
        return (
            2,
            f"Code that is not gyrograd's raised {in_words(error)} ({place}); fix it there, or see {DEBUG}.",
        )
    if isinstance(error, OSError):
        where = f" at {error.filename}" if error.filename else ""
        problem = f"{error.strerror or error}{where}"
        return 2, f"{problem}; check the path, its permissions and the free space (df -h)."
    if isinstance(error, MemoryError) or _NO_ROOM.search(str(error)):
        return (
            2,
            f"Memory ran out ({in_words(error)}); give fewer or smaller images, or fewer draws or steps.",
        )
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    return 70, (
        f"This is a bug in gyrograd, not in your code: {in_words(error)} ({where}); please report it with the "
        f"command and its output with {DEBUG}."
    )


def _run(words: list[str]) -> int:
    if words in (["-V"], ["--version"]):
        from gyrograd import __version__

        print(f"gyrograd {__version__}")
        return 0
    if any("\0" in word for word in words):
        raise UserError("An argument contains a NUL character, which file names cannot have; remove it.")
    for option, value in [*pairwise(words), *(word.partition("=")[::2] for word in words if "=" in word)]:
        if option.startswith("--") and not value:
            # An empty path would be the current folder, and `--out "$UNSET"` would write there.
            raise UserError(f"{option} has an empty value; write {option} VALUE, or leave it out.")
    for word in words:
        _check_ends(word.partition("=")[2] if word.startswith("--") else word)
    path, chosen, rest = _find_verb(words)
    if isinstance(chosen, dict):
        _print_overview(path, chosen)
        return 0
    settings = _arguments(chosen, path, rest)
    with _quick_numbers(path.split()[1]):
        return int(chosen(**settings) or 0)


ENDLESS = frozenset({"/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"})


def _check_ends(word: str) -> None:
    """Refuse files that never end: named pipes that nobody writes to, and endless devices; `<(command)` is fine."""
    place = Path(word)
    with suppress(OSError):
        if os.path.realpath(place) in ENDLESS:
            raise UserError(f"{place} never ends; give a file.")
        if stat.S_ISFIFO(place.stat().st_mode) and not str(place).startswith(("/dev/", "/proc/")):
            raise UserError(f"{place} is a pipe; give a file.")


def _quick_numbers(verb: str) -> AbstractContextManager[None]:
    """Keep freed memory, use large pages and flush denormal numbers, for verbs that compute, if torch is installed."""
    if verb in READING or importlib.util.find_spec("torch") is None:
        return nullcontext()
    collecting = gc.isenabled()
    gc.disable()  # to look for garbage among what an import of torch makes takes 0.2 s, and there is none
    # Activations are several MB each: in pages of 2 MB instead of 4 KB a search takes 3 % less time. torch reads this
    # when it makes its first tensor, so it must be set before the import.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    from gyrograd.numerics.modes import flush_denormals, keep_freed_memory

    if collecting:
        gc.enable()
    keep_freed_memory()
    return flush_denormals()


def _find_verb(words: list[str]) -> tuple[str, Verb | dict[str, Verb], list[str]]:
    """The verb that the words name, and the words that remain for it."""
    path, chosen, rest = "gyrograd", cast("Any", verbs()), list(words)
    while isinstance(chosen, dict) and rest and not rest[0].startswith("-"):
        if rest[0] not in chosen:
            raise UserError(f"There is no '{path} {rest[0]}': {did_you_mean(rest[0], chosen)}")
        chosen, path = chosen[rest[0]], f"{path} {rest[0]}"
        rest.pop(0)
    if isinstance(chosen, dict) and rest and rest[0] not in {"-h", "--help"}:
        raise UserError(f"'{path}' has no option {rest[0]}; '{path} --help' lists its options.")
    return path, chosen, rest


def _arguments(verb: Verb, path: str, words: list[str]) -> Settings:
    """Parse the words into the verb's settings; an error is one sentence."""
    from jsonargparse import ArgumentError

    own = syntax_of(verb)
    words, free = own.free_settings(words) if own.free_settings else (words, {})
    words = [_with_underscores(word, options(verb)) for word in words]
    try:
        settings: Settings = _parser(verb, path).parse_args(words).as_dict()
    except ArgumentError as wrong:
        from gyrograd.cli.error_messages import sentence

        raise UserError(sentence(verb, path, str(wrong))) from None
    except (UnicodeDecodeError, RecursionError) as wrong:
        raise UserError(
            f"The file of --config is not YAML ({in_words(wrong)}); give a text file of settings."
        ) from None
    settings = with_new_names(settings, own.renamed, warn=True)
    settings = with_new_names(settings, aliases(verb))
    return arguments(verb, {**settings, **free})


def _with_underscores(word: str, known: Collection[str]) -> str:
    """`--class-names` as `--class_names`: options have Python names, and users may write either."""
    name, equals, value = word.partition("=")
    spelled = name.removeprefix("--").replace("-", "_")
    return f"--{spelled}{equals}{value}" if name.startswith("--") and spelled in known else word


def _parser(verb: Verb, path: str) -> Any:
    from jsonargparse import ArgumentParser

    from gyrograd.cli.error_messages import usage
    from gyrograd.cli.help import HelpFormatter

    known, helps, own = options(verb), texts(verb), syntax_of(verb)
    parser = ArgumentParser(
        prog=path,
        usage=f"{usage(verb, path)} [--OPTION ...]",
        description=(verb.__doc__ or "").partition("\n    Args:")[0],
        epilog=f"{DEBUG} shows where an error came from. Exit codes: 0 done, 1 negative result, 2 an error, 70 a bug.",
        exit_on_error=False,
        formatter_class=HelpFormatter,
    )
    # jsonargparse knows neither repeated words nor flags without a value. If one word is added by hand, all of them
    # are, so that they keep their order.
    words = [name for name in known if own.words and is_word(verb, name)]
    for name in words:
        nargs = own.words.get(name)
        optional: Settings = {"default": [] if nargs == "*" else None} if nargs in ("*", "?") else {}
        parser.add_argument(name, nargs=nargs, type=str, help=helps.get(name), **optional)
    flags = [name for name, parameter in known.items() if parameter.default is False]
    by_hand: set[str | int] = {*words, *own.bare, *flags}
    parser.add_function_arguments(_stand_in(verb), skip=by_hand, as_positional=True, as_group=False)
    for name, given in own.bare.items():
        parser.add_argument(f"--{name}", nargs="?", const=given, type=str, help=helps.get(name))
    for name in flags:
        parser.add_argument(f"--{name}", action="store_true", help=helps.get(name))
    for old, new in {**own.renamed, **aliases(verb)}.items():
        parser.add_argument(
            f"--{old}", type=known[new].annotation, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    if "config" not in known:
        # brings --print_config with it
        parser.add_argument("--config", action="config", help="a YAML file of these settings.")
    return parser


def _stand_in(verb: Verb) -> Verb:
    """A function with the verb's options, for jsonargparse to inspect."""
    # Given the verb itself, jsonargparse would run its imports for type checkers and resolve `gyrograd.audit`. Both
    # import torch, which would delay the help by seconds.

    def stand_in() -> None:
        """Never called."""

    lines = "".join(f"\n    {name}: {' '.join(text.split())}" for name, text in texts(verb).items())
    stand_in.__doc__ = f"{_first_line(verb)}\n\nArgs:{lines}\n"
    stand_in.__signature__ = inspect.Signature(list(options(verb).values()))  # type: ignore[attr-defined]
    return stand_in


def _first_line(verb: Verb) -> str:
    return (verb.__doc__ or "").partition("\n")[0]


def _print_overview(path: str, folder: Verbs) -> None:
    from rich.table import Table

    from gyrograd.cli.terminal import Console, say

    table = Table.grid(padding=(0, 3, 0, 2))
    for name, verb in folder.items():
        table.add_row(name, ", ".join(verb) if isinstance(verb, dict) else _first_line(verb))
    if path == "gyrograd":
        say("gyrograd: explanations that hold still. Attack, measure and train feature attributions.\n")
    say(f"Usage: {path} VERB ...\n")
    Console().print(table)
    say(f"\n{path} VERB --help says more; {DEBUG} shows where an error came from.")
    if path == "gyrograd":
        say("New here? gyrograd demo takes a minute and needs no data.")
