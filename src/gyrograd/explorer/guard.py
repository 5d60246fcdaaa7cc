"""Checks every request before Gradio sees it, and adds security headers to the answers.

Every web site that the user visits can send requests to this machine through the user's browser. Host names are checked
because a foreign name can be made to resolve to this machine (DNS rebinding), origins because a foreign page can post
forms here, and addresses in requests because Gradio would fetch them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gyrograd.errors import printable
from gyrograd.explorer.sessions import KEPT_S, Sessions

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
LARGEST_BODY = 1 << 20
"""Largest request in bytes; images are uploaded, which has its own limit."""
HEADERS = {
    # The browser must not contact any other machine, whatever a library puts into the page.
    "content-security-policy": (
        "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; connect-src 'self' data: blob:; "
        "form-action 'self'; base-uri 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
}
_HEADERS = [(name.encode(), value.encode("ascii")) for name, value in HEADERS.items()]
_ADDRESS = re.compile(r"\s*([a-z][a-z0-9+.-]*:)?(//|\\\\)", re.IGNORECASE)
_FILE = re.compile(r"/file[=/](.*)", re.DOTALL)
_SESSION_STREAM = re.compile(r"/gradio_api/heartbeat/([^/]+)/?$")


class Guard:
    """An ASGI application that wraps another one. `trusted`: host names under which the page may be opened."""

    def __init__(self, app: Any, sessions: Sessions, trusted: Iterable[str] = ()) -> None:
        self.app, self.sessions = app, sessions
        self.trusted = LOOPBACK | {name.lower().strip("[]") for name in trusted}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the page opens no web sockets

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [pair for pair in message.get("headers", []) if pair[0].lower() not in dict(_HEADERS)]
                message = {**message, "headers": [*own, *_HEADERS]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None and scope["method"] == "POST" and not scope["path"].endswith("/upload"):
            receive, refusal = await _read(receive)
        if refusal is not None:
            await _refuse(with_headers, *refusal)
            return
        await self._listened(scope, receive, with_headers)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        """Status and reason if the request's headers forbid an answer."""
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        here = {*self.trusted, str((scope.get("server") or ("",))[0])}
        host = _name("//" + headers.get(b"host", ""))
        if host not in here:
            return 403, (
                f"The page is not to be opened as '{printable(host)}'; open http://127.0.0.1, or start it with "
                "--trusted_host and this name."
            )
        if b"origin" in headers and _name(headers[b"origin"]) not in here:
            return 403, "Another site asked for this; open the page itself."
        path = scope["path"]
        file = _FILE.search(path)
        if "/proxy=" in path or (file and _ADDRESS.match(file[1])):
            return 403, "This server fetches nothing from other machines; give a file."
        return None

    async def _listened(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, and record that the session's page is open while one of its streams is."""
        session = _session(scope)
        if session is None:
            await self.app(scope, receive, send)
            return
        self.sessions.record_opened(session)
        try:
            await self.app(scope, receive, send)
        finally:
            self.sessions.record_closed(session)
            # Old files are removed in the background, once they may be old enough, so that no request waits.
            loop = asyncio.get_running_loop()
            loop.call_later(KEPT_S + 1, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        # A server that is being stopped has no executor any more, and removes every file itself.
        with suppress(RuntimeError):
            loop.run_in_executor(None, self.sessions.sweep)


def _name(address: str) -> str:
    """The host of an address, in lower case and without its port; empty if there is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _session(scope: Any) -> str | None:
    """The session whose stream this request opens; None for other requests."""
    if found := _SESSION_STREAM.search(scope["path"]):
        return found[1]
    if scope["path"].rstrip("/").endswith("/gradio_api/queue/data"):
        return next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [])), None)
    return None


async def _read(receive: Any) -> tuple[Any, tuple[int, str] | None]:
    """Read the request's body; returns a function that replays it, and the refusal, if any."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return receive, (400, "The request ended early.")
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > LARGEST_BODY:
            return receive, (413, "The request is too long.")
    whole = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return whole.pop() if whole else await receive()

    try:
        named = any(_ADDRESS.match(path) for path in _paths(json.loads(body)))
    except RecursionError:
        return again, (400, "The request is nested too deeply.")
    except ValueError:
        named = False  # not JSON: Gradio reports that itself
    if named:
        return again, (400, "A file was given as an address, and this server fetches nothing; give a file.")
    return again, None


def _paths(tree: Any) -> Iterator[str]:
    """Every value of a key `path` in a JSON document, which Gradio takes for a file."""
    rest = [tree]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += one.values()
            if isinstance(one.get("path"), str):
                yield one["path"]
        elif isinstance(one, list):
            rest += one


async def _refuse(send: Any, status: int, sentence: str) -> None:
    body = json.dumps({"detail": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
