"""Flushes that the door asked for, each until the step that it was decided in is durable."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from ..core.state import State
from ..devices.http.engine import EngineClosed, Flushed
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from .live import LiveSource

Pending = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Flushed]"]


class Flushes:
    """Asked on the HTTP side's event loop, answered on the loop's thread, in order."""

    def __init__(self, source: LiveSource) -> None:
        self._source = source
        self._pending: deque[Pending] = deque()
        self._answered = 0
        self._end = ""

    async def ask(self) -> Flushed:
        """Drop what is kept. Raises EngineClosed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Flushed] = loop.create_future()
        self._pending.append((loop, future))
        if self._end:  # the loop hears no wish any more
            raise EngineClosed(self._end)
        self._source.wish(c.Flush())
        return await future

    def show(self, facts: Sequence[AnyFact], state: State) -> None:
        """Answer those of the step whose facts these are."""
        while self._answered < self._source.flushes:
            self._answered += 1
            gone = [fact for fact in facts if isinstance(fact, f.StateDropped)]
            dropped = sum(fact.why == "flushed" for fact in gone)
            self._tell(Flushed(dropped, len(state.kept), state.book.free))

    def end(self, reason: str) -> None:
        """The run is over: nobody waits for ever."""
        self._end = reason
        while self._pending:
            self._tell(EngineClosed(reason))

    def _tell(self, answer: Flushed | EngineClosed) -> None:
        loop, future = self._pending.popleft()
        with suppress(RuntimeError):  # the door's loop is closed: nobody is left to hear
            loop.call_soon_threadsafe(_answer, future, answer)


def _answer(future: "asyncio.Future[Flushed]", answer: Flushed | EngineClosed) -> None:
    if future.done():
        return  # whoever asked is gone
    if isinstance(answer, Flushed):
        future.set_result(answer)
    else:
        future.set_exception(answer)
