"""The server answers its own page only, fetches nothing, ends the work of who left, and keeps no files of theirs."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from gyrograd.explorer.guard import HEADERS, LARGEST_BODY, Guard
from gyrograd.explorer.page import Wish, watch_of
from gyrograd.explorer.sessions import GRACE_S, KEPT_S, LAST_FILES, Sessions
from gyrograd.explorer.watching import Stopped


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path, clock) -> Sessions:
    return Sessions(tmp_path, clock)


async def echo(scope, receive, send) -> None:
    """Answers with the body it was given."""
    message = await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"x-content-type-options", b"no")]}
    )
    await send({"type": "http.response.body", "body": message.get("body", b"")})


def asked(guard: Guard, path="/", method="GET", body=b"", server="127.0.0.1", **headers):
    """Status, headers and body of the answer."""
    named = {"host": "127.0.0.1:7860"} | headers
    scope = {
        "type": "http", "method": method, "path": path, "query_string": b"", "server": (server, 7860),
        "headers": [(key.encode(), value.encode("latin-1")) for key, value in named.items()],
    }  # fmt: skip
    parts = [body[:10], body[10:]]
    messages = [
        {"type": "http.request", "body": part, "more_body": place == 0} for place, part in enumerate(parts)
    ]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"], sent[0]["headers"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:7860", "LOCALHOST:7860", "[::1]:7860", "mybox.lan:80"]
)
def test_the_page_answers_to_its_own_names(host, sessions):
    assert asked(Guard(echo, sessions, ["MyBox.lan"]), host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "evil.example:7860", "", "[", "localhost@evil.example"]
)
def test_a_foreign_name_is_refused_with_a_sentence(host, sessions):
    status, _, body = asked(Guard(echo, sessions), host=host)
    assert status == 403
    assert "--trusted_host" in json.loads(body)["detail"]


def test_a_page_on_all_addresses_answers_to_the_one_it_was_reached_at(sessions):
    guard = Guard(echo, sessions, ["0.0.0.0"])
    assert asked(guard, host="192.168.1.5:7860", server="192.168.1.5")[0] == 200
    assert asked(guard, host="192.168.1.6:7860", server="192.168.1.5")[0] == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example:7860"])
def test_what_another_site_asks_for_is_refused(origin, sessions):
    assert asked(Guard(echo, sessions), method="POST", origin=origin)[0] == 403
    assert asked(Guard(echo, sessions), method="POST", origin="http://localhost:7860")[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example"])
def test_every_answer_has_the_headers_once(host, sessions):
    found = asked(Guard(echo, sessions), host=host)[1]
    for name, value in HEADERS.items():
        assert [one.decode() for key, one in found if key.decode() == name] == [value]
    assert "frame-ancestors 'none'" in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    "path",
    ["/gradio_api/file=http://evil.example/a", "/gradio_api/file=HTTPS://x/", "/gradio_api/file/http://x/a",
     "/gradio_api/file=//evil.example/a", "/gradio_api/proxy=https://evil.hf.space/a"],
)  # fmt: skip
def test_addresses_of_other_machines_are_not_fetched(path, sessions):
    assert asked(Guard(echo, sessions), path)[0] == 403


@pytest.mark.parametrize(
    "path", ["http://evil.example/x.png", " HTTPS://x/", "//evil.example/x", "\\\\evil\\x"]
)
def test_a_file_given_as_an_address_is_refused_wherever_it_stands(path, sessions):
    forged = {"data": [0, [{"deep": {"path": path, "meta": {"_type": "gradio.FileData"}}}]]}
    status, _, body = asked(Guard(echo, sessions), method="POST", body=json.dumps(forged).encode())
    assert status == 400
    assert "fetches nothing" in json.loads(body)["detail"]


def test_a_request_reaches_the_page_whole(sessions):
    body = json.dumps({"data": [{"path": "/tmp/x/4.png", "url": "http://127.0.0.1/file=x"}]}).encode()
    assert asked(Guard(echo, sessions), method="POST", body=body)[2] == body
    assert asked(Guard(echo, sessions), method="POST", body=b"no JSON at all")[2] == b"no JSON at all"


def test_a_request_that_is_long_or_deep_is_refused(sessions):
    guard = Guard(echo, sessions)
    assert asked(guard, method="POST", body=b"x" * (LARGEST_BODY + 1))[0] == 413
    assert asked(guard, method="POST", body=b"[" * 200_000)[0] == 400


@pytest.mark.parametrize(
    ("path", "query"),
    [("/gradio_api/heartbeat/abc", b""), ("/gradio_api/queue/data", b"session_hash=abc")],
)
def test_a_page_is_there_while_one_of_its_streams_is_open(path, query, sessions, clock):
    seen = []

    async def stream(scope, receive, send):
        clock.now += 1000
        seen.append(sessions.is_gone("abc", 0.0))

    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": query, "server": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    asyncio.run(Guard(stream, sessions)(scope, None, None))
    assert seen == [False]
    clock.now += GRACE_S / 2
    assert not sessions.is_gone("abc", 0.0)
    clock.now += GRACE_S
    assert sessions.is_gone("abc", 0.0)


def test_work_has_a_moment_for_its_page_to_listen(sessions, clock):
    began = clock()
    assert not sessions.is_gone("abc", began)
    clock.now += GRACE_S + 0.1
    assert sessions.is_gone("abc", began)
    sessions.record_opened("abc")
    assert not sessions.is_gone("abc", began)


def test_the_work_of_a_page_that_was_closed_ends():
    wish, gone = Wish(), []
    wish.ask("attack")
    watch = watch_of(wish, "attack", lambda share, desc: None, lambda: bool(gone))
    watch(0.0, "step 0")
    gone.append(1)
    with pytest.raises(Stopped, match="step 1"):
        watch(0.5, "step 1")


def written(folder, name: str):
    path = folder / name / "file"
    path.parent.mkdir()
    path.write_bytes(b"x")
    long_ago = time.time() - KEPT_S - 1
    os.utime(path, (long_ago, long_ago))
    return path


def test_files_stay_while_their_page_is_open_and_go_when_it_was_closed(sessions, clock, tmp_path):
    shared = written(tmp_path, "shared")
    sessions.share_present_files()
    mine, theirs, stray = (written(tmp_path, name) for name in ("mine", "theirs", "stray"))
    just_uploaded = mine.with_name("fresh")
    just_uploaded.write_bytes(b"x")
    for name, path in (("me", mine), ("you", theirs)):
        sessions.record_opened(name)
        sessions.keep(name, "image", path)
    sessions.sweep()
    assert shared.exists()
    assert mine.exists()
    assert theirs.exists()
    assert just_uploaded.exists()
    assert not stray.parent.exists()
    sessions.record_closed("you")
    sessions.sweep()
    assert theirs.exists()
    clock.now += KEPT_S
    sessions.sweep()
    assert mine.exists()
    assert not theirs.parent.exists()


def test_an_image_two_pages_hold_stays_until_both_are_closed(sessions, clock, tmp_path):
    path = written(tmp_path, "both")
    for name in ("me", "you"):
        sessions.record_opened(name)
        sessions.keep(name, "image", path)
    sessions.record_closed("me")
    clock.now += KEPT_S
    sessions.sweep()
    assert path.exists()
    sessions.record_closed("you")
    clock.now += KEPT_S
    sessions.sweep()
    assert not path.exists()


def test_a_page_keeps_its_last_few_files_only(sessions, tmp_path):
    sessions.record_opened("me")
    paths = [written(tmp_path, str(number)) for number in range(LAST_FILES + 2)]
    for path in paths:
        sessions.keep("me", "attack", path)
    sessions.sweep()
    assert [path.exists() for path in paths] == [False] * 2 + [True] * LAST_FILES


def test_files_are_swept_in_the_background_and_a_server_that_is_being_stopped_does_not_complain(
    sessions, monkeypatch
):
    swept = []
    monkeypatch.setattr(Sessions, "sweep", lambda self: swept.append(self))
    guard = Guard(echo, sessions)

    async def ends() -> None:
        loop = asyncio.get_running_loop()
        guard._sweep(loop)
        await loop.shutdown_default_executor()
        guard._sweep(loop)

    asyncio.run(ends())
    assert swept == [sessions]
