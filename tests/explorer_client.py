"""A client of the web page that is no browser: it speaks Gradio's protocol, and may forge what it sends."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

PATIENCE_S = 60
"""How long an answer is waited for, where one that comes takes a second or two."""


class PageClient:
    """One open page. `name` is what it calls itself, which Gradio takes for its session."""

    def __init__(self, address: str, name: str) -> None:
        self.netloc, self.name = urlsplit(address).netloc, name
        self.config = json.loads(self.ask("GET", "/config")[1])

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        """Status and body of one request; a header is given as `content_type="..."`."""
        connection = http.client.HTTPConnection(self.netloc, timeout=PATIENCE_S)
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode(errors="replace")
        connection.close()
        return found

    def join(self, button: str, values: list[Any]) -> tuple[int, str]:
        """Press a button: the page notes what is asked at once, and its work joins the queue."""
        press = self._press_of(button)
        work = next(call["id"] for call in self.config["dependencies"] if call.get("trigger_after") == press)
        status, said = self._post("/gradio_api/run/predict", press, values)
        return self._post("/gradio_api/queue/join", work, []) if status == 200 else (status, said)

    def _post(self, path: str, function: int, values: list[Any]) -> tuple[int, str]:
        body = {"data": [None, *values], "fn_index": function, "session_hash": self.name}
        return self.ask("POST", path, json.dumps(body).encode(), content_type="application/json")

    def listen(self) -> Any:
        """The messages of this page's stream, one by one; closing the generator hangs up."""
        connection = http.client.HTTPConnection(self.netloc, timeout=PATIENCE_S)
        connection.request("GET", f"/gradio_api/queue/data?session_hash={self.name}")
        answer = connection.getresponse()
        try:
            while line := answer.readline():
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])
        finally:
            connection.close()

    def answer(self) -> dict[str, Any]:
        """The last word on what was asked for."""
        until = time.monotonic() + PATIENCE_S
        for message in self.listen():
            if message["msg"] == "process_completed":
                return message
            assert time.monotonic() < until, f"{self.name} got no answer"
        raise AssertionError(f"The stream of {self.name} ended without an answer")

    def _press_of(self, button: str) -> int:
        parts = {part["props"].get("elem_id"): part["id"] for part in self.config["components"]}
        wanted = [parts[button], "click"]
        return next(call["id"] for call in self.config["dependencies"] if wanted in call["targets"])
