"""Ranks that are processes: steps, questions and meetings reach them, and their ends are named."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import pytest

from kvtape.core.link import RankLost
from kvtape.core.state import open_state
from kvtape.devices.circle import Circle
from kvtape.devices.links import Reply
from kvtape.devices.rank_process import RankProcess, RankRefused
from kvtape.events import facts as f
from kvtape.events.ids import StreamId
from kvtape.replay import ranks as ranks_module
from kvtape.replay.ranks import Ranks
from kvtape.tests.plain_ranks import PlainOrder, PlainRank

from .replay_bench import opening

SECONDS = 60.0


class Group:
    """Rank 0 in this process, the others in theirs."""

    def __init__(self, world: int, *orders: PlainOrder, limit_s: float = 30.0) -> None:
        inbox, told = SimpleQueue[Reply](), list[str]()
        given = {order.rank: order for order in orders}
        self.told = told
        self.circle: Circle | None = None

        def gone(why: str) -> None:
            told.append(why)
            if self.circle is not None:
                self.circle.stop(why)

        self.members = [
            RankProcess(rank, given.get(rank, PlainOrder(rank, world)), inbox, gone)
            for rank in range(1, world)
        ]
        ends = [member.meeting for member in self.members]
        self.circle = Circle(0, world, ends, limit_s)
        self.leader = PlainRank(PlainOrder(0, world), self.circle)
        self.opened = opening("plain", world=world)

    def ready(self) -> Ranks:
        """A run's ranks, once all are there."""
        for member in self.members:
            assert member.answer(SECONDS) == "ready"
        ranks = Ranks(self.opened, [self.leader, *self.members])
        ranks.use(open_state(self.opened))
        return ranks

    def end(self) -> None:
        """Leave no process behind."""
        assert self.circle is not None
        self.circle.close()
        for member in self.members:
            member.end()


Start = Callable[..., Group]


@pytest.fixture
def start() -> Iterator[Start]:
    groups: list[Group] = []

    def started(*given: Any, **more: Any) -> Group:
        groups.append(Group(*given, **more))
        return groups[-1]

    yield started
    for group in groups:
        group.end()


def play(group: Group, ranks: Ranks, step: int, *, every_row: bool = False) -> Any:
    """One step as the loop does it; its facts are none that a state minds."""
    facts = [f.RoundRun(lanes=())]
    ranks.send(step, facts, every_row=every_row)
    running = group.leader.launch(open_state(group.opened), facts, every_row=every_row)
    return ranks.reports(step, running, open_state(group.opened))


@pytest.mark.parametrize("world", [2, 3])
def test_steps_reach_all_and_reports_come_back_by_rank(start: Start, world: int) -> None:
    group = start(world)
    ranks = group.ready()
    for step in (1, 2):
        reports = play(group, ranks, step, every_row=step == 2)
        assert [int(one.rank) for one in reports] == list(range(world))
        assert all(one.tokens == [*range(world), step == 2] for one in reports)
    ranks.close("done")
    assert [member.process.returncode for member in group.members] == [0] * (world - 1)
    assert group.told == []


def test_a_rank_that_stands_still_is_asked(start: Start) -> None:
    group = start(2)
    (member,) = group.members
    assert member.answer(SECONDS) == "ready"
    assert member.layers("rows") == 4  # before a run begins, too
    ranks = Ranks(group.opened, [group.leader, member])
    ranks.use(open_state(group.opened))
    play(group, ranks, 1)
    stream = StreamId(0)
    assert ranks.probe(1, stream, "rows", 0, range(3, 8)) == (8, member_step(ranks))
    assert ranks.read(1, stream, "rows", 0, 7) == bytes([7])
    held = member.read_rows(ranks.states[0], stream, "rows", 0, 2, 5)[0]
    np.testing.assert_array_equal(held.positions, np.arange(2, 7))
    play(group, ranks, 2)
    ranks.close("done")


def member_step(ranks: Ranks) -> int:
    """What the follower's own state says after one step: rank 0's, folded alike."""
    state = ranks.states[0]
    return state.step


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("fail", "rank 2 failed in step 7: ValueError: a bit fell out"),
        ("die", "rank 2 died in step 7: exit code 3"),
    ],
)
def test_a_rank_that_ends_in_a_step_is_named_with_its_reason(
    start: Start, does: str, why: str
) -> None:
    group = start(3, PlainOrder(2, 3, does, at=2))
    ranks = group.ready()
    play(group, ranks, 6)
    with pytest.raises(RankLost) as lost:
        play(group, ranks, 7)
    assert str(ranks.why(lost.value)) == why
    ranks.close("lost")
    assert all(member.process.returncode for member in group.members)


def test_a_rank_killed_while_others_wait_for_it_is_heard_at_once(start: Start) -> None:
    group = start(3, PlainOrder(1, 3, "hang", at=1), limit_s=600)
    ranks = group.ready()
    hung = group.members[0].process
    ranks.send(4, [f.RoundRun(lanes=())])
    os.kill(hung.pid, signal.SIGKILL)
    with pytest.raises(RankLost) as lost:
        group.leader.launch(open_state(group.opened), [])
    assert str(lost.value) == "rank 1 died in step 4: Killed"
    ranks.close("lost")


def test_a_rank_that_hangs_is_named_at_the_limit_and_ended_by_force(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_module, "HANG_SECONDS", 0.5)
    monkeypatch.setattr("kvtape.devices.rank_process.END_SECONDS", 0.5)
    group = start(2, PlainOrder(1, 2, "hang", at=1), limit_s=0.5)
    ranks = group.ready()
    ranks.send(4, [f.RoundRun(lanes=())])
    assert group.circle is not None
    group.circle.step = 4
    with pytest.raises(RankLost, match=r"rank 1 did not come in step 1 within 0\.5 s"):
        group.leader.launch(open_state(group.opened), [])
    ranks.close("lost")
    assert group.members[0].process.returncode == -signal.SIGKILL


def test_a_rank_that_refuses_to_start_says_why(start: Start) -> None:
    group = start(2, PlainOrder(1, 2, "refuse"))
    with pytest.raises(RankRefused, match=r"^rank 1: this rank has no room$"):
        group.ready()


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("fail", "rank 1 failed as it started: ValueError: a bit fell out"),
        ("die", "rank 1 died as it started: exit code 3"),
    ],
)
def test_a_rank_that_ends_as_it_starts_is_named(start: Start, does: str, why: str) -> None:
    group = start(2, PlainOrder(1, 2, does))
    with pytest.raises(RankLost) as lost:
        group.ready()
    assert str(lost.value) == why


def test_no_rank_outlives_rank_0(start: Start) -> None:
    """The life line is cut as the system does it that closes a dead process's files."""
    group = start(2)
    group.ready()
    (member,) = group.members
    member._closing = True
    os.close(member._life)
    member._life = -1
    assert member.process.wait(SECONDS) != 0


def test_a_step_that_was_lost_on_the_way_is_noticed(start: Start) -> None:
    group = start(2)
    ranks = group.ready()
    play(group, ranks, 1)
    leader: Any = ranks._leader
    leader._digest ^= 1  # as if the follower had missed what came between
    with pytest.raises(RankLost, match="rank 1 acknowledged"):
        ranks.send(2, [f.RoundRun(lanes=())])
    ranks.close("lost")


def test_parts_of_any_size_go_round() -> None:
    world, sizes = 3, (0, 70_000, 3)
    pairs = [socket.socketpair() for _ in range(world - 1)]
    circles = [Circle(0, world, [one for one, _ in pairs], 30)]
    circles += [Circle(rank, world, [pairs[rank - 1][1]], 30) for rank in range(1, world)]
    sent = [np.arange(size, dtype=np.float32) + rank for rank, size in enumerate(sizes)]
    got: dict[int, list[Any]] = {}

    def go(rank: int) -> None:
        parts = [sent[at] if at == rank else np.zeros(n, np.float32) for at, n in enumerate(sizes)]
        for _ in range(3):
            circles[rank].hand(parts)
        got[rank] = parts

    threads = [Thread(target=go, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for parts in got.values():
        for mine, theirs in zip(parts, sent, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert len(got) == world
    start = time.monotonic()
    circles[1].stop("told to")
    with pytest.raises(RankLost):
        circles[0].hand([np.zeros(1)] * world)
    assert time.monotonic() - start < 29
    for circle in circles:
        circle.close()
