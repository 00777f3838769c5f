"""A scripted engine behind a real door: what the door's tests talk to."""

import codecs
import hashlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kvtape.devices.http.bridge import Inbox
from kvtape.devices.http.door import Door, DoorSettings
from kvtape.devices.http.engine import (
    Accepted,
    BadPrompt,
    End,
    EngineClosed,
    Finished,
    Flushed,
    Health,
    Info,
    Meters,
    QueueFull,
    Rendered,
    TextSide,
    Tokens,
)
from kvtape.devices.http.serve import Serving, bind, serve
from kvtape.events.commands import AnyCommand, Arrive, Cancel, Flush, StopMatched
from kvtape.events.ids import RequestId, StreamId, Token

EOS = 256
INFO = Info("bytes", "d" * 32, 1, 2000, 257, 8, (Token(EOS),), 1_700_000_000)

Script = Callable[[Arrive], Iterable[tuple[int, ...] | End]]


def said(text: str) -> Script:
    """One token a byte, then the end of turn."""
    return lambda _: [*((byte,) for byte in text.encode()), (EOS,)]


def forever(_: Arrive) -> Iterator[tuple[int, ...]]:
    """Letters until the limit or a cancel."""
    while True:
        yield (ord("x"),)


@dataclass
class Live:
    """A reply under way."""

    arrive: Arrive
    inbox: Inbox
    script: Iterator[tuple[int, ...] | End]
    ids: list[int] = field(default_factory=list)


class ScriptedEngine:
    """Plays scripts, one piece a round, in a thread of its own, and notes every command."""

    def __init__(self, info: Info = INFO) -> None:
        self.info = info
        self.script: Script = said("hello")
        self.commands: list[AnyCommand] = []
        self.live: dict[RequestId, Live] = {}
        self.state = Health(ok=True, status="ok")
        self.figures = Meters()
        self.full = self.closed = self.accepts = False
        self._wishes: queue.SimpleQueue[AnyCommand | Live | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, arrive: Arrive) -> Inbox:
        if self.closed:
            raise EngineClosed
        if self.full:
            raise QueueFull
        inbox = Inbox(arrive.max_new)
        self._wishes.put(Live(arrive, inbox, iter(self.script(arrive))))
        return inbox

    def cancel(self, request: RequestId, why: str) -> None:
        self._wishes.put(Cancel(request=request, why=why))

    def stop_matched(self, request: RequestId, tokens: int) -> None:
        self._wishes.put(StopMatched(request=request, tokens=tokens))

    async def flush(self) -> Flushed:
        if self.closed:
            raise EngineClosed
        self._wishes.put(Flush())
        return Flushed(dropped=3, kept=1, pages_free=9)

    def health(self) -> Health:
        return self.state

    def meters(self) -> Meters:
        return replace(self.figures, requests_running=len(self.live))

    def end(self) -> None:
        """Stop the thread."""
        self._wishes.put(None)
        self._thread.join(10)

    def seen(self, kind: type[AnyCommand]) -> list[Any]:
        """The commands of one kind so far."""
        return [command for command in list(self.commands) if isinstance(command, kind)]

    def _run(self) -> None:
        while True:
            try:
                wish = self._wishes.get(timeout=0.001 if self.live else 0.05)
                if wish is None:
                    return
                self._hear(wish)
            except queue.Empty:
                pass
            for live in list(self.live.values()):
                self._play(live)

    def _hear(self, wish: Any) -> None:
        if isinstance(wish, Live):
            self.commands.append(wish.arrive)
            self.live[wish.arrive.request] = wish
            if self.accepts:
                wish.inbox.put(Accepted())
            return
        self.commands.append(wish)
        live = self.live.get(wish.request) if isinstance(wish, Cancel | StopMatched) else None
        if live is not None:
            tokens = wish.tokens if isinstance(wish, StopMatched) else None
            self._finish(live, "stop" if tokens else "cancelled", tokens)

    def _play(self, live: Live) -> None:
        piece = next(live.script, None)
        if piece is None:
            self._finish(live, "stop")
        elif not isinstance(piece, tuple):
            del self.live[live.arrive.request]
            live.inbox.put(piece)
        elif piece:
            room = live.arrive.max_new - len(live.ids)
            live.ids.extend(piece[:room])
            live.inbox.put(Tokens(tuple(Token(token) for token in piece[:room])))
            if live.ids[-1] == EOS and not live.arrive.ignore_eos:
                self._finish(live, "stop")
            elif len(live.ids) == live.arrive.max_new:
                self._finish(live, "length")

    def _finish(self, live: Live, reason: str, tokens: int | None = None) -> None:
        del self.live[live.arrive.request]
        live.inbox.put(finished(live.arrive, live.ids[:tokens], reason))


def finished(arrive: Arrive, ids: Sequence[int], reason: str) -> Finished:
    """The end of a reply of these ids."""
    sha = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
    cached = min(4, len(arrive.prompt))
    return Finished(
        reason,
        len(arrive.prompt),
        cached,
        len(ids),
        sha,
        10,
        99,
        "e" * 32,
        StreamId(7),
        miss="edited",
    )


class ByteDetokeniser:
    """UTF-8, byte by byte; the end of turn is a word."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return self._utf8.decode(bytes([token])) if token < EOS else "<end>"

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class ByteText:
    """A token a byte; a chat is its lines, and all but the last one are history."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    tags: Mapping[str, bool] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        options: Mapping[str, Any],
    ) -> Rendered:
        if messages[0]["role"] == "assistant":
            raise BadPrompt("a chat begins with its user")
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        before = len("".join(lines[:-1]).encode())
        return Rendered(self.encode("".join(lines)), before, rewind=before)

    def detokeniser(self, shown: Collection[str] = ()) -> ByteDetokeniser:
        return ByteDetokeniser()


@contextmanager
def opened(
    settings: DoorSettings | None = None, *, text: TextSide | None = None, tokenizer: bool = True
) -> Iterator[tuple[Serving, ScriptedEngine]]:
    """A door on a loopback socket of its own; at the end every reply and thread is gone."""
    engine = ScriptedEngine()
    speech = (text or ByteText()) if tokenizer else None
    listening = bind("127.0.0.1", 0)
    # Small buffers, which accepted connections inherit: a client that stalls is soon felt.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    serving = serve(Door(engine, speech, settings or DoorSettings()), listening)
    try:
        yield serving, engine
    finally:
        stopped = serving.stop(0)
        engine.end()
    assert stopped
    assert not serving.door.open


def eventually(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something to become true, and no longer than that."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.002)
