"""Serves the page on this machine until interrupted. Contacts no other machine."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

from gyrograd.errors import UserError, printable, wants_frames
from gyrograd.explorer.guard import Guard
from gyrograd.explorer.sessions import Sessions
from gyrograd.explorer.stage import Stage
from gyrograd.explorer.style import SCRIPT, STYLE
from gyrograd.occupancy import exclusive_folder

LARGEST_FILE = "32mb"
PREFIX = "gyrograd-explore-"
JUST_MADE_S = 60
"""A folder younger than this may not be locked yet."""
MOST_WAITING = 100
"""Largest number of requests in the queue; further ones are refused."""


def serve(
    stage: Stage,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    open: bool = False,
    trusted: Sequence[str] = (),
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the page until Ctrl-C (KeyboardInterrupt) or SIGTERM (SystemExit); `ready` is called with the address.

    `trusted`: host names under which the page may be opened, besides `host` and those of the loopback address.
    """
    check_free(host, port)
    with ended_in_order(), _kept_at_home() as folder:
        blocks = _launch(stage, folder, host, port, open, trusted)
        try:
            shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
            ready(f"http://{shown}:{port}")
            threading.Event().wait()
        finally:
            blocks.close(verbose=False)


def check_free(host: str, port: int) -> None:
    """Raise if the address is in use or does not exist."""
    if not 1 <= port <= 65535:
        raise UserError(f"The port is {port}; give one from 1024 to 65535, such as 7860.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise UserError(f"Port {port} is not yours to open; give one above 1023: --port 7860.") from None
        except (OSError, OverflowError) as wrong:
            if getattr(wrong, "errno", None) == errno.EADDRINUSE:
                other = port + 1 if port < 65535 else port - 1
                raise UserError(f"Port {port} is in use; give another: --port {other}.") from None
            raise UserError(
                f"There is no address '{host}' on this machine; give --host 127.0.0.1, or 0.0.0.0 for all addresses."
            ) from None


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let SIGTERM end the block with SystemExit, so that it cleans up as after Ctrl-C; exit code 143.

    Does nothing outside of the main thread, which alone can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _kept_at_home() -> Iterator[Path]:
    """Turn off Gradio's telemetry, and keep its copies of users' images in a folder that is removed at the end."""
    _remove_left_behind()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder, exclusive_folder(folder):
        wanted = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1", "GRADIO_TEMP_DIR": folder}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})


def _remove_left_behind() -> None:
    """Remove the folders of killed servers; running ones hold a lock on theirs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, UserError):
            if time.time() - folder.stat().st_mtime > JUST_MADE_S:
                with exclusive_folder(folder):
                    shutil.rmtree(folder)


def _launch(stage: Stage, folder: Path, host: str, port: int, open: bool, trusted: Sequence[str]) -> Any:
    from starlette.middleware import Middleware

    from gyrograd.explorer.page import gradio, page

    gr = gradio()
    _say_errors_in_a_line()
    sessions = Sessions(folder)
    blocks = page(stage, sessions).queue(max_size=MOST_WAITING)
    sessions.share_present_files()  # the samples
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=open,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        show_error=True,
        ssr_mode=False,
        enable_monitoring=False,
        run_history=False,
        mcp_server=False,
        footer_links=[],
        max_file_size=LARGEST_FILE,
        theme=gr.themes.Base(primary_hue="blue", neutral_hue="slate", **fonts),
        # With css=, Gradio would put its own class before every rule.
        head=f"<style>{STYLE}</style><script>{SCRIPT}</script>",
        app_kwargs={"middleware": [Middleware(Guard, sessions=sessions, trusted=(host, *trusted))]},
    )
    return blocks


def _say_errors_in_a_line() -> None:
    """Print one line per failed request instead of Gradio's traceback, which forged requests cause too."""
    from gradio import queueing, routes

    if not wants_frames():
        for module in (queueing, routes):
            cast("Any", module).traceback = SimpleNamespace(print_exc=_say_error)


def _say_error() -> None:
    print(f"gyrograd: a request failed: {printable(sys.exception())}", file=sys.stderr, flush=True)
