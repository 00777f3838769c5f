"""Clients that leave a real server: every page comes back, no lane is stuck, others are served."""

import contextlib
import json
import random
import socket
import struct
from pathlib import Path

import pytest

from kvtape.events import commands as c
from kvtape.events import facts as f
from kvtape.events.reader import Tape
from kvtape.replay.run_diff import run_audit
from kvtape.tests.door_engine import eventually
from kvtape.tests.server import Server, serving, wish

CLIENTS = 50
SEED = 20
STEPS_MAX = 2  # from the word that a client left to its pages


def ask(server: Server, *, streams: bool, prompt: list[int], max_tokens: int) -> socket.socket:
    """A raw connection with a request on it."""
    body = json.dumps(wish(server.model, prompt, max_tokens, stream=streams)).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    client.sendall(head.encode() + body)
    return client


def leave(client: socket.socket, rng: random.Random) -> None:
    """Close with a farewell, or cut the line."""
    if rng.random() < 0.5:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def at_rest(server: Server) -> bool:
    """Nobody is served, nobody waits, and every page is free or a kept state's."""
    figures = server.metrics()
    nobody = not figures["kvtape_requests_running"] and not figures["kvtape_requests_waiting"]
    free, held = figures["kvtape_pages_free"], figures["kvtape_pages_held"]
    return nobody and free + held == figures["kvtape_pages"]


def pages_after_cancels(path: Path) -> list[int]:
    """Of every cancel that found a stream with pages: the steps until it had returned them."""
    waits: list[int] = []
    left: dict[str, int] = {}  # request: the step that heard of its client
    requests: dict[int, str] = {}
    with Tape.open(path) as tape:
        for entry in tape.entries():
            match entry.record:
                case c.Cancel() as cancel:
                    left[cancel.request] = entry.step
                case f.StreamQueued() as queued:
                    requests[queued.stream] = queued.request
                case f.PagesReturned() as returned if requests[returned.stream] in left:
                    waits.append(entry.step - left.pop(requests[returned.stream]))
                case f.StreamReleased() as released:
                    left.pop(requests[released.stream], None)
                case f.RequestFinished() as finished if finished.reason == "cancelled":
                    assert finished.request in left, "cancelled, and nobody asked for it"
                case _:
                    pass
    return waits


@pytest.mark.parametrize("model", ["fake", "fake-pages"])
def test_fifty_clients_leave_at_random_and_nothing_stays(tmp_path: Path, model: str) -> None:
    rng = random.Random(SEED)
    with serving(tmp_path, "--tp", "2", "--parallel", "3", "--pages", "90", model=model) as server:
        here: list[socket.socket] = []
        for number in range(CLIENTS):
            prompt = [rng.randrange(256) for _ in range(rng.choice((3, 40, 400)))]
            here.append(
                ask(server, streams=number % 2 == 0, prompt=prompt, max_tokens=rng.choice((5, 900)))
            )
            if rng.random() < 0.5:  # mid-reply, where there is one already
                here[-1].settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    here[-1].recv(rng.randint(1, 4096))
            while len(here) > 6 or (here and rng.random() < 0.4):
                leave(here.pop(rng.randrange(len(here))), rng)
        for client in here:
            leave(client, rng)
        eventually(lambda: at_rest(server), 60)
        assert len(server.ask([1, 2, 3], 20)) == 20
        eventually(lambda: at_rest(server), 60)
        assert server.stop() == 0
    waits = pages_after_cancels(server.tape)
    assert len(waits) >= 10, f"seed {SEED}: few clients were cancelled with pages"
    assert max(waits) <= STEPS_MAX, f"seed {SEED}"
    assert run_audit(server.tape) == 0


def test_a_client_that_waits_in_the_queue_can_leave_it(tmp_path: Path) -> None:
    with serving(tmp_path, "--parallel", "1", "--context", "100000") as server:
        first = ask(server, streams=True, prompt=[1], max_tokens=90_000)
        eventually(lambda: server.metrics()["kvtape_requests_running"] == 1)
        second = ask(server, streams=False, prompt=[2], max_tokens=5)
        eventually(lambda: server.metrics()["kvtape_requests_waiting"] == 1)
        second.close()
        eventually(lambda: server.metrics()["kvtape_requests_waiting"] == 0)
        assert server.metrics()["kvtape_requests_running"] == 1
        first.close()
        eventually(lambda: at_rest(server))
        assert len(server.ask([3], 4)) == 4
