"""The door's socket and thread: found out early when they cannot be had, gone when stopped."""

import asyncio
import signal
import socket
import threading

import httpx
import pytest

from kvtape.devices.http.door import Door, DoorSettings
from kvtape.devices.http.serve import AddressRefused, bind, serve
from kvtape.tests.door_engine import ScriptedEngine, opened


def test_a_port_in_use_is_named_before_anything_starts() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(AddressRefused, match=rf"port {port} on 127.0.0.1: in use.*--port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70000), ("192.0.2.1", 0), ("no.invalid", 0)]
)
def test_an_address_that_cannot_be_had_is_named(host: str, port: int) -> None:
    with pytest.raises(AddressRefused, match=rf"port {port} "):
        bind(host, port)


def test_port_zero_takes_a_free_one_and_signals_stay_with_the_main_thread() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with opened() as (serving, _):
        assert serving.port > 0
        assert httpx.get(f"{serving.url}/health", trust_env=False).status_code == 200
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_token_does_not_wait_for_the_one_before_it() -> None:
    with bind("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_may_come_before_the_server() -> None:
    listening = bind("127.0.0.1", 0)
    with socket.create_connection(listening.getsockname(), timeout=20) as early:
        early.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        engine = ScriptedEngine()
        serving = serve(Door(engine, None, DoorSettings()), listening)
        assert early.recv(12) == b"HTTP/1.1 200"
    assert serving.stop(0)
    engine.end()


def test_stopping_twice_is_no_harm_and_frees_the_port() -> None:
    threads = threading.active_count()
    with opened() as (serving, _):
        assert serving.stop(0)
        assert serving.stop(0)
        bind("127.0.0.1", serving.port).close()
    assert threading.active_count() == threads


def test_a_door_that_closes_takes_nothing_more() -> None:
    with (
        opened() as (serving, engine),
        httpx.Client(base_url=serving.url, trust_env=False) as client,
    ):
        assert client.get("/health").status_code == 200

        async def close() -> None:
            serving.door.close(9)

        asyncio.run_coroutine_threadsafe(close(), serving.loop).result(20)
        assert client.get("/health").json()["status"] == "closing"
        reply = client.post("/v1/completions", json={"prompt": "a"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_closed")
        assert engine.commands == []
