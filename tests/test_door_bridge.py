"""The bridge from the engine's thread: all news, in order, once, and no waiting."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtape.devices.http.bridge import Inbox, wake
from kvtape.devices.http.engine import Accepted, Failed, News, Tokens
from kvtape.events.ids import Token


def tokens(*ids: int) -> Tokens:
    return Tokens(tuple(Token(token) for token in ids))


async def read(inbox: Inbox) -> list[News]:
    return [news async for news in inbox]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=200), st.integers(0, 3))
def test_another_thread_puts_and_the_loop_reads_all(sizes: list[int], readers_pause: int) -> None:
    ids = list(range(sum(sizes)))

    async def play() -> list[News]:
        inbox = Inbox(len(ids))

        def tell() -> None:
            at = 0
            inbox.put(Accepted())
            for size in sizes:
                inbox.put(tokens(*ids[at : at + size]))
                at += size
            inbox.put(Failed("over"))

        thread = threading.Thread(target=tell)
        thread.start()
        heard = []
        async for news in inbox:
            heard.append(news)
            for _ in range(readers_pause):
                await asyncio.sleep(0)
        thread.join()
        return heard

    heard = asyncio.run(play())
    assert heard[0] == Accepted()
    assert heard[-1] == Failed("over")
    middle = heard[1:-1]
    assert [token for news in middle if isinstance(news, Tokens) for token in news.ids] == ids


def test_what_a_slow_reader_left_is_one_news() -> None:
    async def play() -> list[News]:
        inbox = Inbox(1000)
        for token in range(1000):
            inbox.put(tokens(token))
        inbox.put(Failed("over"))
        assert inbox.ended
        return await read(inbox)

    assert asyncio.run(play()) == [tokens(*range(1000)), Failed("over")]


def test_closing_ends_the_reading_and_drops_the_rest() -> None:
    async def play() -> list[News]:
        inbox = Inbox(9)
        reader = asyncio.create_task(read(inbox))
        inbox.put(tokens(1))
        await asyncio.sleep(0.01)
        inbox.close()
        heard = await reader
        inbox.put(tokens(2))
        inbox.put(Failed("over"))
        return heard + await read(inbox)

    assert asyncio.run(play()) == [tokens(1)]


def test_news_for_a_loop_that_is_gone_are_dropped() -> None:
    async def make() -> Inbox:
        return Inbox(9)

    inbox = asyncio.run(make())
    inbox.put(tokens(1))
    inbox.put(Failed("over"))
    inbox.close()
    assert inbox.ended


def test_many_readers_are_woken_at_once_and_each_sees_its_news() -> None:
    async def play() -> tuple[list[list[News]], int]:
        inboxes = [Inbox(2) for _ in range(5)]
        loop, calls = asyncio.get_running_loop(), 0
        plain = loop.call_soon_threadsafe

        def counted(callback: Callable[..., object], *arguments: object) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return plain(callback, *arguments)

        readers = [asyncio.create_task(read(inbox)) for inbox in inboxes]
        await asyncio.sleep(0)
        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        wake([inbox for inbox in inboxes if inbox.add(tokens(1))])
        assert not inboxes[0].add(tokens(2)), "its reader was called already"
        await asyncio.sleep(0.01)
        wake([inbox for inbox in inboxes if inbox.add(Failed("over"))])
        heard = await asyncio.gather(*readers)
        return list(heard), calls

    heard, calls = asyncio.run(play())
    assert heard[0] == [tokens(1, 2), Failed("over")]
    assert heard[1:] == [[tokens(1), Failed("over")]] * 4
    assert calls == 2


def test_an_engine_that_says_too_much_is_caught() -> None:
    async def play() -> None:
        inbox = Inbox(2)
        inbox.put(tokens(1, 2))
        with pytest.raises(AssertionError, match="1 tokens more"):
            inbox.put(tokens(3))
        inbox.put(Failed("over"))
        with pytest.raises(AssertionError, match="after the end"):
            inbox.put(Failed("again"))

    asyncio.run(play())
