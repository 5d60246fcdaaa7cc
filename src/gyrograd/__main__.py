"""`gyrograd` and `python -m gyrograd`: the command line as a process of its own, which Ctrl-C ends in one sentence."""

import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


def run() -> int:
    """Run the words of this process and return its exit code. An interrupt never prints frames, whenever it comes."""
    sys.unraisablehook = _raise_again
    try:
        from gyrograd.cli import main  # part of what may be interrupted

        return main()
    except KeyboardInterrupt:
        print("gyrograd: interrupted.", file=sys.stderr)
        return 130
    finally:
        # The work is over: what Python does at its end has nothing to lose, and would print frames.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _raise_again(lost: "UnraisableHookArgs") -> None:
    """An interrupt that comes while an object is deleted cannot be raised there: raise it where the program is."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)
        return
    program = threading.main_thread().ident
    assert program is not None
    # A moment later: sent from here, it would be raised here.
    threading.Timer(0.01, signal.pthread_kill, (program, signal.SIGINT)).start()


if __name__ == "__main__":
    sys.exit(run())
