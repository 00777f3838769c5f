"""A server that is killed under load: the tape opens, is sound, and holds all that anyone saw."""

import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from kvtape.core.finish import token_sha
from kvtape.events import facts as f
from kvtape.events.reader import Tape
from kvtape.events.verify import verify
from kvtape.replay.models import devices_for
from kvtape.replay.run_diff import run_audit
from kvtape.replay.run_replay import ReplayOptions, run_replay
from kvtape.tests.door_engine import eventually
from kvtape.tests.server import Seen, Server, serving, stream, wish

CLIENTS = 5
KILLS = 30
SAMPLED = (3, 17, 29)  # of the kills: one of each model and load
MODELS = ("fake", "fake-pages")


class Load:
    """Clients that ask on and on until their server is gone."""

    def __init__(self, server: Server, rng: random.Random, vocab: int, most: int) -> None:
        self.seen: list[Seen] = []
        self._server = server
        self._vocab = vocab
        self._most = most  # tokens of a prompt, and of a reply
        self._threads = [
            threading.Thread(target=self._client, args=(number, rng.getrandbits(32)))
            for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until every client has met the end."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client waits for a server that is gone"

    def _client(self, number: int, seed: int) -> None:
        rng = random.Random(seed)
        history: list[int] = []
        while True:
            if len(history) > 4 * self._most:
                history = []
            history += [rng.randrange(self._vocab) for _ in range(rng.randint(1, self._most))]
            length = rng.randint(1, self._most)
            sampled = {"temperature": rng.choice((0, 1)), "seed": rng.randrange(2**31)}
            body = wish(self._server.model, history, length, stream=True, **sampled)
            seen = Seen()
            self.seen.append(seen)
            try:
                stream(self._server, body, seen, f"client-{number}")
            except httpx.TransportError:
                return
            history += seen.ids


def kept_by_request(tape: Tape) -> tuple[dict[str, list[int]], dict[str, f.RequestFinished]]:
    """The reply ids that a tape holds of every request, and how those that ended ended."""
    requests: dict[int, str] = {}
    kept: dict[str, list[int]] = {}
    ended: dict[str, f.RequestFinished] = {}
    for _, fact in tape.facts():
        match fact:
            case f.StreamQueued():
                requests[fact.stream] = fact.request
                kept[fact.request] = []
            case f.RowsKept():
                for at, one in enumerate(fact.streams):
                    tokens = fact.tokens[fact.starts[at] : fact.starts[at + 1]]
                    kept[requests[one]].extend(tokens)
            case f.RequestFinished():
                ended[fact.request] = fact
            case _:
                pass
    return kept, ended


def assert_kept(path: Path, seen: Sequence[Seen]) -> int:
    """Whatever a client saw is on the tape, under its request; returns how many ids they saw."""
    with Tape.open(path) as tape:
        assert tape.closed is None
        kept, ended = kept_by_request(tape)
    for one in seen:
        if not one.ids:
            continue
        assert one.ids == kept[one.request][: len(one.ids)], one.request
        if one.whole:
            finished = ended[one.request]
            assert finished.new_tokens == len(one.ids)
            assert finished.token_sha == token_sha(one.ids)
    return sum(len(one.ids) for one in seen)


def assert_sound(path: Path) -> None:
    """The tape opens, its chain holds, every fact fits, and both replays are equal."""
    assert verify(path) == []
    assert run_audit(path) == 0
    assert run_replay(path, ReplayOptions(book=True), None) == 0
    assert run_replay(path, ReplayOptions(), devices_for(1)) == 0


def kill_under_load(folder: Path, model: str, seed: int, seconds: float, most: int) -> None:
    """Serve, load, kill within so long of the first reply, and look at the tape."""
    rng = random.Random(seed)
    vocab = 256 if model.startswith("fake") else 49_152
    with serving(folder, "--tp", "2", "--parallel", "4", model=model) as server:
        load = Load(server, rng, vocab, most)
        try:
            eventually(lambda: any(one.ids for one in load.seen))
            time.sleep(seconds * rng.random())
        finally:
            server.kill()
            load.join()
    assert assert_kept(server.tape, load.seen) > 0
    assert_sound(server.tape)


@pytest.mark.parametrize(
    "seed", [seed if seed in SAMPLED else pytest.param(seed, marks=pytest.mark.slow)
             for seed in range(KILLS)],
)  # fmt: skip
def test_a_killed_server_leaves_all_that_was_seen(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_under_load(tmp_path, MODELS[seed % 2], seed, 1.5, 60)


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_smollm2_leaves_all_that_was_seen(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_under_load(tmp_path, "smollm2", seed, 12.0, 24)
