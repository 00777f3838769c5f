"""Clients that leave, stall or outlive the server: the engine hears of it, nothing stays behind."""

import asyncio
import itertools
import json
import logging
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from kvtape.devices.http.door import Door, DoorSettings
from kvtape.devices.http.engine import Failed, Refused
from kvtape.devices.http.errors import ApiError
from kvtape.devices.http.serve import Serving
from kvtape.events.commands import Arrive, Cancel
from kvtape.tests.door_engine import ByteText, ScriptedEngine, eventually, forever, opened, said

Opened = tuple[Serving, ScriptedEngine]
PATHS = ("/v1/chat/completions", "/v1/completions")


@pytest.fixture
def door() -> Iterator[Opened]:
    with opened(DoorSettings(write_seconds=0.2)) as both:
        both[1].script = forever
        yield both


def ask(
    serving: Serving, *, stream: bool, path: str = PATHS[1], tokens: int = 1900
) -> socket.socket:
    """A raw connection with a request on it."""
    messages = [{"role": "user", "content": "a"}]
    prompt = {"messages": messages} if "chat" in path else {"prompt": "a"}
    body = json.dumps({**prompt, "stream": stream, "max_tokens": tokens}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    client = socket.create_connection((serving.host, serving.port), timeout=20)
    client.sendall(head.encode() + body)
    return client


def tasks_of(serving: Serving) -> int:
    """Tasks on the door's loop, beside the one that counts them."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    loop = serving.loop
    return asyncio.run_coroutine_threadsafe(count(), loop).result(20)


def connections_of(serving: Serving) -> int:
    """Open connections, as the server sees them."""
    return len(serving._server.server_state.connections)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_leaves_is_cancelled_once(door: Opened, path: str, stream: bool) -> None:
    serving, engine = door
    with ask(serving, stream=stream, path=path) as client:
        eventually(lambda: engine.live)
        if stream:
            assert client.recv(1) == b"H"
    eventually(lambda: not engine.live)
    eventually(lambda: not serving.door.open)
    (arrive,), (cancel,) = engine.seen(Arrive), engine.seen(Cancel)
    assert (cancel.request, cancel.why) == (arrive.request, "client-left")


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_request_is_never_cancelled(door: Opened, stream: bool) -> None:
    serving, engine = door
    engine.script = said("hello")
    for _ in range(10):
        with ask(serving, stream=stream) as client:
            whole = b""
            while not whole.endswith((b"}", b"0\r\n\r\n")):
                whole += client.recv(65536)
    eventually(lambda: not serving.door.open)
    httpx.get(f"{serving.url}/health", trust_env=False)
    assert len(engine.seen(Arrive)) == 10
    assert engine.seen(Cancel) == []


def test_fifty_clients_leave_at_random_and_nothing_stays(door: Opened) -> None:
    serving, engine = door
    before = tasks_of(serving)
    rng = random.Random(7)
    clients = []
    for number in range(50):
        client = ask(serving, stream=number % 2 == 0, path=rng.choice(PATHS))
        clients.append(client)
        if rng.random() < 0.3:
            eventually(lambda: engine.live)
        while clients and rng.random() < 0.5:
            leaver = clients.pop(rng.randrange(len(clients)))
            if rng.random() < 0.5:
                leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            leaver.close()
    for client in clients:
        client.close()
    eventually(lambda: not serving.door.open and not engine.live)
    eventually(lambda: tasks_of(serving) <= before)
    arrived = {arrive.request for arrive in engine.seen(Arrive)}
    cancelled = [cancel.request for cancel in engine.seen(Cancel)]
    assert len(cancelled) == len(set(cancelled))
    assert set(cancelled) <= arrived
    engine.script = said("still here")
    reply = httpx.post(f"{serving.url}{PATHS[1]}", json={"prompt": "a"}, trust_env=False)
    assert reply.json()["choices"][0]["text"] == "still here"


def test_a_client_that_stops_reading_is_cancelled(door: Opened) -> None:
    serving, engine = door
    engine.script = lambda _: iter([tuple(b"x" * 100)] * 10_000)
    engine.info = replace(engine.info, context=1_000_001)
    with ask(serving, stream=True, tokens=1_000_000):
        eventually(lambda: engine.seen(Cancel))
        assert engine.seen(Cancel)[0].why == "client-stalled"
        eventually(lambda: not serving.door.open)


def test_a_client_that_leaves_before_its_text_is_read_asks_for_nothing() -> None:
    reading, gone = threading.Event(), threading.Event()

    class Slow(ByteText):
        def encode(self, text: str) -> list[int]:
            reading.set()
            assert gone.wait(20)
            return super().encode(text)

    with opened(text=Slow()) as (serving, engine):
        before = tasks_of(serving)
        with ask(serving, stream=False):
            assert reading.wait(20)
        eventually(lambda: not connections_of(serving))
        gone.set()
        eventually(lambda: tasks_of(serving) <= before)
        assert engine.commands == []


def test_a_stream_opens_once_the_request_is_accepted(door: Opened) -> None:
    serving, engine = door
    engine.accepts = True
    engine.script = lambda _: itertools.repeat(())  # no token ever
    with ask(serving, stream=True, path=PATHS[0]) as client:
        head = b""
        while b'"role":"assistant"' not in head:
            head += client.recv(65536)
        assert head.startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_before_its_body_ends_is_nobody(door: Opened) -> None:
    serving, engine = door
    before = tasks_of(serving)
    with socket.create_connection((serving.host, serving.port)) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        eventually(lambda: tasks_of(serving) > before)
    eventually(lambda: tasks_of(serving) <= before)
    assert engine.commands == []


def half(serving: Serving) -> socket.socket:
    """A connection whose request has a body that goes on."""
    client = socket.create_connection((serving.host, serving.port), timeout=20)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
    return client


def all_of(client: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    whole = b""
    while piece := client.recv(65536):
        whole += piece
    return whole


def test_a_body_that_stops_coming_is_not_waited_for() -> None:
    with opened(DoorSettings(read_seconds=1.5)) as (serving, engine):
        start = time.monotonic()
        with half(serving) as client:
            for _ in range(4):  # longer than the limit in all, but not between two pieces
                time.sleep(0.5)
                client.sendall(b" ")
            said = all_of(client)
        assert said.startswith(b"HTTP/1.1 408") and b"body_too_slow" in said
        assert time.monotonic() - start > 3  # each piece begins the wait anew
        assert engine.commands == []


def test_a_door_closes_while_a_body_runs_out_of_time() -> None:
    """Its reader has been told that its time is over, and has not heard it yet."""

    async def both() -> str:
        door = Door(ScriptedEngine(), None, DoorSettings())

        async def read() -> None:
            async with door.reads():
                await asyncio.sleep(60)

        reading, loop = asyncio.create_task(read()), asyncio.get_running_loop()
        await asyncio.sleep(0)
        (limit,) = door._reads
        limit.reschedule(0.0)
        closed = loop.create_future()

        def close() -> None:
            late = limit.expired()
            try:
                door.close(0.0)
            except RuntimeError as error:
                closed.set_exception(error)
            else:
                closed.set_result(late)

        loop.call_soon(close)
        with pytest.raises(ApiError) as ended:
            await reading
        assert await closed, "the limit had not run out"
        return ended.value.code

    assert asyncio.run(both()) == "engine_closed"


def test_stopping_waits_for_no_body(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as (serving, engine):
        before = tasks_of(serving)
        with half(serving) as client:
            eventually(lambda: tasks_of(serving) > before)
            start = time.monotonic()
            assert serving.stop(30.0)
            said = all_of(client)
        assert time.monotonic() - start < 20
        assert said.startswith(b"HTTP/1.1 503") and b"engine_closed" in said
        assert engine.commands == []
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_stopping_lets_replies_end_and_gives_up_the_rest(stream: bool) -> None:
    with opened() as (serving, engine):
        engine.script = forever
        with ask(serving, stream=stream) as client:
            eventually(lambda: engine.live)
            assert serving.stop(0.1)
            whole = all_of(client)
        assert b"engine_closed" in whole
        assert whole.startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 503")
        (cancel,) = engine.seen(Cancel)
        assert cancel.why == "server-stopping"


def test_stopping_waits_for_a_reply_that_ends(door: Opened) -> None:
    serving, engine = door
    with ask(serving, stream=False, tokens=50) as client:
        eventually(lambda: engine.live)
        assert serving.stop(20)
        whole = b""
        while piece := client.recv(65536):
            whole += piece
    assert b'"finish_reason":"length"' in whole
    assert engine.seen(Cancel) == []


def test_the_log_has_no_word_of_a_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), opened() as (serving, engine):
        engine.script = said("REPLY-WORD")
        url = f"{serving.url}/v1/completions?q=QUERY-WORD"
        body = {"prompt": "PROMPT-WORD", "user": "USER-WORD", "stop": "STOP-WORD"}
        httpx.post(url, json=body, headers={"x-kvtape-session": "SESSION-WORD"}, trust_env=False)
        httpx.get(f"{serving.url}/PATH-WORD", trust_env=False)
        httpx.post(url, json={"prompt": "PROMPT-WORD", "n": "N-WORD"}, trust_env=False)
        eventually(lambda: not serving.door.open)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("kvtape")]
    theirs = [r.getMessage() for r in caplog.records if r.name.startswith(("uvicorn", "fastapi"))]
    assert any(
        line.startswith("done req-00000001 prompt=11 cached=4 tokens=11 sha=") for line in ours
    )
    assert "POST /v1/completions 200" in ours
    assert "GET unknown route 404" in ours
    assert not [line for line in ours + theirs if "WORD" in line]


def test_the_log_tells_who_was_refused_and_who_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), opened() as (serving, engine):
        url, body = f"{serving.url}/v1/completions", {"prompt": "PROMPT-WORD", "max_tokens": 9}
        engine.script = lambda _: [Refused("larger_than_pool", 9, 4)]
        httpx.post(url, json=body, trust_env=False)
        engine.script = lambda _: [(97,), Failed("parted")]
        httpx.post(url, json=body, trust_env=False)
        engine.script = forever
        with httpx.stream("POST", url, json={**body, "max_tokens": 1900, "stream": True}) as reply:
            next(reply.iter_lines())
        eventually(lambda: not serving.door.open)
    lines = [record.getMessage() for record in caplog.records if record.name == "kvtape.door"]
    assert lines[0] == "refused req-00000001: larger_than_pool (needs 9, has 4)"
    assert lines[1] == "ended req-00000002 reason=error (parted) prompt=11 tokens=1"
    assert re.fullmatch(
        r"ended req-00000003 reason=client-left prompt=11 tokens=[1-9]\d*", lines[2]
    )
    assert len(lines) == 3
