"""The link between rank threads: facts reach all in order, and nothing waits for ever."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

from kvtape.core.device import Report
from kvtape.core.link import Follower, Leader, RankLost
from kvtape.devices.links import ThreadFollower, thread_group
from kvtape.devices.meeting import Meeting
from kvtape.events.facts import RunClosed
from kvtape.events.ids import Rank

FACTS = [[RunClosed(reason=str(step), steps=step)] * step for step in range(4)]


def follow(follower: Follower, seen: list[Any]) -> None:
    """A follower that reports every step it gets."""
    while (given := follower.receive()) is not None:
        seen.append(given)
        follower.report(Report(follower.rank, given[0]))


def started(followers: list[Follower], act: Callable[[Follower], None]) -> list[Thread]:
    """A thread for each follower."""
    threads = [Thread(target=act, args=(one,), daemon=True) for one in followers]
    for thread in threads:
        thread.start()
    return threads


def run_step(leader: Leader, step: int) -> list[Report]:
    """A step as the leader sees it."""
    leader.send(step, FACTS[1])
    return leader.collect(step)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_follower_gets_the_same_facts_and_reports_by_rank(world: int) -> None:
    leader, followers = thread_group(world, 20)
    seen: dict[int, list[Any]] = {follower.rank: [] for follower in followers}
    threads = started(followers, lambda one: follow(one, seen[one.rank]))
    for step, facts in enumerate(FACTS):
        leader.send(step, facts)
        reports = leader.collect(step)
        assert [(one.rank, one.step) for one in reports] == [(r, step) for r in range(1, world)]
    leader.close("done")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for got in seen.values():
        assert [step for step, _ in got] == [0, 1, 2, 3]
        for (_, facts), sent in zip(got, FACTS, strict=True):
            assert all(one is other for one, other in zip(facts, sent, strict=True))


def test_a_rank_that_reports_before_another_has_answered_is_heard_in_its_turn() -> None:
    leader, followers = thread_group(3, 20)
    ahead = Event()

    def act(follower: Follower) -> None:
        if follower.rank == 2:
            assert ahead.wait(10)
        assert follower.receive() is not None
        follower.report(Report(follower.rank, 0))
        ahead.set()

    threads = started(followers, act)
    assert [one.rank for one in run_step(leader, 0)] == [1, 2]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    leader.close("done")


def test_a_group_of_one_waits_for_nobody() -> None:
    leader, followers = thread_group(1, 0.01)
    leader.send(0, FACTS[1])
    assert followers == []
    assert leader.collect(0) == []
    leader.close("done")


def test_a_follower_that_raises_is_named_with_its_error() -> None:
    leader, followers = thread_group(3, 20)

    def fail(follower: Follower) -> None:
        follower.receive()
        if follower.rank == 2:
            follower.fail(ValueError("no such page"))
        else:
            follower.report(Report(follower.rank, 0))

    started(followers, fail)
    with pytest.raises(RankLost, match="rank 2 failed in step 0: ValueError: no such page"):
        run_step(leader, 0)


def test_a_follower_that_dies_silently_is_found_before_the_limit() -> None:
    leader, followers = thread_group(2, 600)
    started(followers, lambda follower: follower.receive() and None)
    with pytest.raises(RankLost, match="rank 1 died in step 7"):
        run_step(leader, 7)


def test_a_follower_that_hangs_is_named_at_the_limit() -> None:
    leader, followers = thread_group(3, 0.3)

    def hang(follower: Follower) -> None:
        while (given := follower.receive()) is not None:
            if follower.rank == 1:
                follower.report(Report(follower.rank, given[0]))

    threads = started(followers, hang)
    with pytest.raises(RankLost, match=r"rank 2 did not report step 5 within 0\.3 s"):
        run_step(leader, 5)
    leader.close("hung")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_rank_may_report_while_another_has_yet_to_acknowledge() -> None:
    leader, followers = thread_group(3, 20)
    first_is_done = Event()

    def act(follower: Follower) -> None:
        if follower.rank == 2:
            first_is_done.wait(20)
        given = follower.receive()
        assert given is not None
        follower.report(Report(follower.rank, given[0]))
        first_is_done.set()

    threads = started(followers, act)
    assert [one.rank for one in run_step(leader, 0)] == [1, 2]
    for thread in threads:
        thread.join(10)


def test_a_header_that_is_never_acknowledged_is_an_error() -> None:
    leader, _ = thread_group(2, 0.2)
    with pytest.raises(RankLost, match="rank 1 did not acknowledge step 0"):
        leader.send(0, FACTS[1])


def test_a_follower_whose_leader_died_does_not_wait_for_ever() -> None:
    ends: list[list[Follower]] = []
    errors: list[RankLost] = []
    leader = Thread(target=lambda: ends.append(thread_group(2, 20)[1]))
    leader.start()
    leader.join()

    def listen(follower: Follower) -> None:
        try:
            follower.receive()
        except RankLost as error:
            errors.append(error)

    (thread,) = started(ends[0], listen)
    thread.join(10)
    assert [str(error) for error in errors] == ["rank 0 died; rank 1 waited for it"]


def test_a_step_that_a_follower_missed_is_noticed() -> None:
    leader, followers = thread_group(2, 20)
    follower = followers[0]
    assert isinstance(follower, ThreadFollower)
    errors: list[RankLost] = []

    def skip(one: Follower) -> None:
        one.receive()
        follower._digest = 0  # as if the first step had never come
        try:
            one.receive()
        except RankLost as error:
            errors.append(error)

    (thread,) = started(followers, skip)
    leader.send(0, FACTS[1])
    with pytest.raises(RankLost, match="rank 1 acknowledged"):
        leader.send(1, FACTS[2])
    thread.join(10)
    assert len(errors) == 1


def test_a_report_of_another_step_is_refused() -> None:
    leader, followers = thread_group(2, 20)
    follower = followers[0]

    def late(one: Follower) -> None:
        one.receive()
        one.report(Report(Rank(1), 3))

    (thread,) = started([follower], late)
    with pytest.raises(RankLost, match="in step 4, where a report was due"):
        run_step(leader, 4)
    thread.join(10)


def test_ranks_that_meet_get_each_others_values_in_order() -> None:
    meeting, got = Meeting(3, 20), {rank: list[Any]() for rank in range(3)}

    def come(rank: int) -> None:
        for step in range(50):
            got[rank].append(list(meeting.exchange(rank, step, (rank, step))))

    threads = [Thread(target=come, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    want = [[(rank, step) for rank in range(3)] for step in range(50)]
    assert got == dict.fromkeys(range(3), want)


def test_a_rank_that_does_not_come_is_named_at_the_limit() -> None:
    meeting = Meeting(3, 0.2)

    def come() -> None:
        with pytest.raises(RankLost):
            meeting.exchange(2, 9, None)

    other = Thread(target=come)
    other.start()
    with pytest.raises(RankLost, match="rank 1 did not come in step 9"):
        meeting.exchange(0, 9, None)
    other.join(10)
    assert not other.is_alive()


def test_a_rank_that_stops_gives_its_reason_to_all() -> None:
    meeting = Meeting(2, 600)
    meeting.stop("rank 1 stopped in step 2: no such page")
    with pytest.raises(RankLost, match="rank 1 stopped in step 2: no such page"):
        meeting.exchange(0, 2, None)
