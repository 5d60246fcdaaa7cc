"""Entry point of `gyrograd` and `python -m gyrograd`; Ctrl-C prints one line."""

import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


def run() -> int:
    """Run the command line and return its exit code. An interrupt never prints a traceback."""
    sys.unraisablehook = _raise_again
    try:
        from gyrograd.cli import main  # part of what may be interrupted

        return main()
    except KeyboardInterrupt:
        print("gyrograd: interrupted.", file=sys.stderr)
        return 130
    finally:
        # The work is done: an interrupt during Python's shutdown would only print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _raise_again(lost: "UnraisableHookArgs") -> None:
    """Raise an interrupt again that Python swallowed while it deleted an object."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    program = threading.main_thread().ident
    assert program is not None
    # A moment later, because sent from here it would be raised here.
    threading.Timer(0.01, signal.pthread_kill, (program, signal.SIGINT)).start()


if __name__ == "__main__":
    sys.exit(run())
