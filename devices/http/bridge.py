"""The bridge between the engine's thread, which tells news, and the door's event loop."""

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Self

from ...events.ids import Token
from .engine import Accepted, News, Tokens


class Inbox:
    """A Reply filled from any thread: an engine makes it in `submit` and puts news into it.

    put never waits. What a slow client has not read stays here, runs of Tokens read as one: at
    most `tokens_max` ids and two more news, the size of the whole reply. How long a client may
    leave them is the door's business, which cancels the request of one that stops reading.
    """

    def __init__(self, tokens_max: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """loop: the reader's, by default the running one. tokens_max: the request's max_new."""
        self._loop = loop or asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._unread: deque[News] = deque()
        self._wake = asyncio.Event()
        self._waking = False
        self._ended = False
        self._closed = False
        self._tokens_left = tokens_max

    @property
    def ended(self) -> bool:
        """Whether the End was put, read or not."""
        return self._ended

    def put(self, news: News) -> None:
        """Tell one news, from any thread."""
        if self.add(news):
            wake([self])

    def add(self, news: News) -> bool:
        """Leave one news, from any thread; True if `wake` must be called for the reader to see it.

        For an engine that has news for many readers at once: waking a loop costs more than a news.
        """
        with self._lock:
            assert not self._ended, f"{news} after the end"
            if isinstance(news, Tokens):
                self._tokens_left -= len(news.ids)
                assert self._tokens_left >= 0, f"{-self._tokens_left} tokens more than were asked"
            elif not isinstance(news, Accepted):
                self._ended = True
            if self._closed:
                return False
            self._unread.append(news)
            wanted = not self._waking
            self._waking = True
            return wanted

    def close(self) -> None:
        """Stop reading: the iteration ends, later news are dropped."""
        with self._lock:
            self._closed = True
            self._unread.clear()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> News:
        while True:
            with self._lock:
                if self._unread:
                    return self._take()
                if self._closed or self._ended:
                    raise StopAsyncIteration
                self._waking = False
                self._wake.clear()
            await self._wake.wait()

    def _take(self) -> News:
        """The next news; Tokens that follow one another come as one."""
        first = self._unread.popleft()
        if not isinstance(first, Tokens):
            return first
        ids: list[Token] = list(first.ids)
        while self._unread and isinstance(self._unread[0], Tokens):
            following = self._unread.popleft()
            assert isinstance(following, Tokens)
            ids.extend(following.ids)
        return Tokens(tuple(ids))


def wake(inboxes: Iterable[Inbox]) -> None:
    """Wake the readers of these, each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Inbox]] = defaultdict(list)
    for inbox in inboxes:
        by_loop[inbox._loop].append(inbox)
    for loop, own in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, [inbox._wake for inbox in own])
        except RuntimeError:  # the loop is closed: nobody is left to read
            for inbox in own:
                inbox.close()


def _set_all(events: Iterable[asyncio.Event]) -> None:
    for event in events:
        event.set()
