"""Whom the server answers and with which headers: it stands before Gradio and sees every request first.

A page on this machine is reachable by every web site its user visits, through the user's own browser. Names are
checked because a foreign name can be made to lead here (DNS rebinding), origins because a foreign page can post
forms here, and addresses in requests because Gradio would look them up.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gyrograd.errors import printable
from gyrograd.explorer.sessions import KEPT_S, Sessions

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
LARGEST_BODY = 1 << 20
"""Bytes of a request; images go through the upload, which has its own limit."""
HEADERS = {
    # The browser is told to ask no other machine for anything, whatever a library puts into the page.
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
    """An ASGI application before another one. `trusted`: names the page may be opened under."""

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
        """Why this request is not answered, by its head."""
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
        """Pass the request on; while one of a session's streams is open, its page is there."""
        session = _session(scope)
        if session is None:
            await self.app(scope, receive, send)
            return
        self.sessions.opened(session)
        try:
            await self.app(scope, receive, send)
        finally:
            self.sessions.closed(session)
            # Files are looked through where no request waits for it, once they may be old enough.
            loop = asyncio.get_running_loop()
            loop.call_later(KEPT_S + 1, lambda: loop.run_in_executor(None, self.sessions.sweep))


def _name(address: str) -> str:
    """The host of an address, in small letters and without its port; nothing if there is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _session(scope: Any) -> str | None:
    """Which page listens to the stream this request asks for."""
    if found := _SESSION_STREAM.search(scope["path"]):
        return found[1]
    if scope["path"].rstrip("/").endswith("/gradio_api/queue/data"):
        return next(iter(parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [])), None)
    return None


async def _read(receive: Any) -> tuple[Any, tuple[int, str] | None]:
    """The request's body, and why it is not passed on; what it says can be received once more."""
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
        named = False  # no JSON: Gradio has its own words for that
    if named:
        return again, (400, "A file was given as an address, and this server fetches nothing; give a file.")
    return again, None


def _paths(tree: Any) -> Iterator[str]:
    """Every `path` in a JSON document: what Gradio takes for a file, wherever it stands."""
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
