"""`gyrograd` and `python -m gyrograd`: the command line as a process of its own, which Ctrl-C ends in one sentence."""

import _thread
import signal
import sys
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
    if lost.exc_type is KeyboardInterrupt:
        _thread.interrupt_main()
    else:
        sys.__unraisablehook__(lost)


if __name__ == "__main__":
    sys.exit(run())
