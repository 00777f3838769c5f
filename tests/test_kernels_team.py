"""Threads that meet inside compiled code: nobody leaves early, and an abort frees everyone."""

import time
from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np
import pytest

team: Any = import_module("kvtape.core.kernels.team")
turns: Any = import_module("kvtape.core.kernels.turns")


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


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_turns_cover_every_item_once_and_large_pieces_come_first(threads: int) -> None:
    for total in (*range(9), 36, 97, 3072):
        chunks = [turns.chunk_of(total, turn, threads) for turn in range(2 * threads)]
        assert [first for first, _ in chunks] == [0, *(last for _, last in chunks[:-1])]
        assert chunks[-1][1] == total
        sizes = [last - first for first, last in chunks]
        assert total < 36 or min(sizes[:threads]) >= max(sizes[threads:])


class Crew:
    """A step's words, workers that go in and out of it, and what each of them did."""

    def __init__(self, workers: int, spins: int) -> None:
        self.words = np.zeros(team.WORDS, np.int64)
        self.spins = spins
        team.new_team(self.words, workers)
        self.steps: list[list[int]] = [[] for _ in range(workers)]
        self.slept = [0] * workers
        self.done = np.zeros(1, np.int64)
        self.ended = False

    def work(self, me: int) -> None:
        """Until the end: into every step that can be seen, and back to sleep."""
        seen = 0
        while not self.ended:
            team.wake_up(self.words)
            while (step := int(team.enter_step(self.words, seen, self.spins))) >= 0:
                seen = step
                self.steps[me].append(step)
                self.done[0] += 1
                team.leave_step(self.words)
            self.slept[me] += 1
            time.sleep(0.001)


@pytest.mark.parametrize(("workers", "spins"), [(1, 4000), (1, 0), (3, 0)])
def test_workers_enter_open_steps_only_and_a_step_waits_for_who_is_inside(
    workers: int, spins: int
) -> None:
    crew = Crew(workers, spins)
    threads = started(*(lambda me=me: crew.work(me) for me in range(workers)))
    for step in range(1, 300):
        team.open_step(crew.words)
        if step % 3:
            time.sleep(0)
        assert team.close_step(crew.words, spins)
        before = crew.done.copy()
        assert (crew.words[team.INSIDE] & 0xFFFF) <= workers
        assert (crew.done == before).all(), "someone works in a step that is over"
    crew.ended = True
    team.abort(crew.words)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for steps in crew.steps:
        assert steps == sorted(set(steps))


def test_a_worker_that_found_nothing_to_do_sleeps_and_says_so() -> None:
    words = np.zeros(team.WORDS, np.int64)
    team.new_team(words, 1)
    assert team.open_step(words), "the worker has not come yet"
    assert team.close_step(words, 0)
    team.wake_up(words)
    assert team.enter_step(words, 0, 0) == -1, "the step is over"
    assert words[team.SLEEPING] == 1
    team.wake_up(words)
    assert not team.open_step(words), "nobody sleeps"
    assert team.enter_step(words, 1, 0) == 2
    team.abort(words)
    assert not team.close_step(words, 0), "whoever is inside is not waited for after an abort"
    assert team.enter_step(words, 2, 0) == -1


def test_a_wait_for_work_ends_with_it_or_with_an_abort() -> None:
    words, counters = np.zeros(team.WORDS, np.int64), np.zeros(turns.LINE, np.int64)
    results: list[bool] = []
    wait = lambda: results.append(team.wait_for(counters, turns.DONE, 3, words, 100))  # noqa: E731
    (thread,) = started(wait)
    counters[turns.DONE] = 2
    thread.join(0.05)
    assert thread.is_alive()
    counters[turns.DONE] = 3
    thread.join(60)
    (thread,) = started(lambda: results.append(team.wait_for(counters, 0, 4, words, 100)))
    team.abort(words)
    thread.join(60)
    assert results == [True, False]
