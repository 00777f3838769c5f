"""Threads that meet inside compiled code: nobody leaves early, and an abort frees everyone."""

from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np
import pytest

team: Any = import_module("kvtape.core.kernels.team")


def started(*jobs: Any) -> list[Thread]:
    threads = [Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.parametrize(("parties", "spins"), [(1, 2000), (2, 2000), (2, 0), (5, 0), (5, 100)])
def test_nobody_leaves_a_meeting_before_everybody_came(parties: int, spins: int) -> None:
    words = np.zeros(team.WORDS, np.int64)
    came = np.zeros(parties, np.int64)
    early: list[tuple[int, int]] = []

    def job(me: int) -> None:
        for turn in range(1, 200):
            came[me] = turn
            assert team.meet(words, parties, spins)
            if came.min() < turn:
                early.append((me, turn))

    for thread in started(*(lambda me=me: job(me) for me in range(parties))):
        thread.join(60)
        assert not thread.is_alive()
    assert early == []
    assert (came == 199).all()


@pytest.mark.parametrize("spins", [0, 10**9])
def test_an_abort_frees_those_who_wait_and_those_who_come_later(spins: int) -> None:
    words = np.zeros(team.WORDS, np.int64)
    results: list[bool] = []
    threads = started(*(lambda: results.append(team.meet(words, 4, spins)) for _ in range(3)))
    while words[team.ARRIVED] < 3:
        pass
    assert results == []
    team.abort(words)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert results == [False] * 3
    assert not team.meet(words, 4, spins)
    assert not team.meet(words, 1, spins)


def test_an_abort_from_python_is_heard() -> None:
    words = np.zeros(team.WORDS, np.int64)
    results: list[bool] = []
    (thread,) = started(lambda: results.append(team.meet(words, 2, 100)))
    words[team.ABORT] = 1
    thread.join(60)
    assert results == [False]
