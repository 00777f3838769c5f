"""The control link of a group: facts to every follower, headers and reports back."""

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import monotonic
from typing import Protocol
from zlib import crc32

from ..core.device import Report
from ..core.link import Follower, Leader, RankLost
from ..events.facts import AnyFact
from ..events.ids import Rank

LOOK_SECONDS = 0.25  # how often a wait looks whether the other end still lives


@dataclass(frozen=True, slots=True)
class Header:
    """What a follower checks before it acts: the step, and a digest of all steps up to this one."""

    step: int
    digest: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a follower is given."""

    header: Header
    facts: Sequence[AnyFact]
    every_row: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """A follower says no more; why is whole: it names rank and step."""

    why: str


@dataclass(frozen=True, slots=True)
class Reply:
    """From a follower: an acknowledged header, a report, or what ended it."""

    rank: Rank
    said: Header | Report | BaseException | Gone


class Member(Protocol):
    """A follower as the leader sees it."""

    rank: Rank

    def give(self, step: Step | None) -> None:
        """Send a step; None ends its loop."""
        ...

    def silent(self) -> bool:
        """Whether it will never say anything again, and has not said why."""
        ...


def thread_group(world: int, limit_seconds: float) -> tuple[Leader, list[Follower]]:
    """The two ends of a group's control channel; a group of one has nobody to talk to."""
    if world == 1:
        return NobodyLeader(), []
    inbox: SimpleQueue[Reply] = SimpleQueue()
    followers = [ThreadFollower(Rank(rank), inbox) for rank in range(1, world)]
    leader = GroupLeader(followers, inbox, limit_seconds)
    for follower in followers:
        follower.leader = leader
    return leader, list(followers)


class NobodyLeader:
    """Rank 0 of a group of one."""

    def send(self, step: int, facts: Sequence[AnyFact], *, every_row: bool = False) -> None:
        """There is no follower to tell."""

    def collect(self, step: int) -> list[Report]:
        """No follower reports."""
        return []

    def close(self, reason: str) -> None:
        """No follower waits."""


class GroupLeader:
    """Rank 0's end: something to give each follower steps by, and one queue back."""

    def __init__(
        self, members: Sequence[Member], inbox: "SimpleQueue[Reply]", limit_seconds: float
    ) -> None:
        self.thread = current_thread()
        self._members = members
        self._inbox = inbox
        self._limit_seconds = limit_seconds
        self._digest = 0
        self._closed = False

    def send(self, step: int, facts: Sequence[AnyFact], *, every_row: bool = False) -> None:
        """Give a step's facts to every follower and wait for each to acknowledge its header."""
        self.thread = current_thread()
        facts = tuple(facts)
        self._digest = _chained(self._digest, step, facts)
        header = Header(step, self._digest)
        for member in self._members:
            member.give(Step(header, facts, every_row))
        for rank, said in self._gather(step, "acknowledge").items():
            if said != header:
                raise RankLost(f"rank {rank} acknowledged {said} in step {step}, not {header}")

    def collect(self, step: int) -> list[Report]:
        """The followers' reports of a step, by rank. Raises RankLost."""
        reports: list[Report] = []
        for rank, said in self._gather(step, "report").items():
            if not isinstance(said, Report) or said.step != step:
                raise RankLost(f"rank {rank} said {said!r} in step {step}, where a report was due")
            reports.append(said)
        return reports

    def close(self, reason: str) -> None:
        """End the followers' loops; nothing waits for ever."""
        if not self._closed:
            self._closed = True
            for member in self._members:
                member.give(None)

    def _gather(self, step: int, verb: str) -> dict[Rank, Header | Report]:
        """One reply of every follower, in the order of their ranks."""
        said: dict[Rank, Header | Report] = {}
        early: list[Reply] = []
        give_up = monotonic() + self._limit_seconds
        while len(said) < len(self._members):
            missing = [one.rank for one in self._members if one.rank not in said]
            try:
                reply = self._inbox.get(timeout=min(LOOK_SECONDS, self._limit_seconds))
            except Empty:
                self._look_for_the_dead(step, missing)
                if monotonic() >= give_up:
                    raise RankLost(
                        f"rank {missing[0]} did not {verb} step {step}"
                        f" within {self._limit_seconds:g} s"
                    ) from None
                continue
            heard = _sound(reply, step)
            if reply.rank in said:  # it went on while others have yet to answer
                early.append(reply)
            else:
                said[reply.rank] = heard
        for reply in early:
            self._inbox.put(reply)
        return {member.rank: said[member.rank] for member in self._members}

    def _look_for_the_dead(self, step: int, missing: Sequence[Rank]) -> None:
        for member in self._members:
            nothing_came = self._inbox.empty()  # last words count, though who said them is gone
            if member.rank in missing and nothing_came and member.silent():
                raise RankLost(f"rank {member.rank} died in step {step}")


def _sound(reply: Reply, step: int) -> Header | Report:
    """What a follower said, unless that ended it. Raises RankLost."""
    said = reply.said
    if isinstance(said, Gone):
        raise RankLost(said.why)
    if isinstance(said, BaseException):
        what = f"{type(said).__name__}: {said}"
        raise RankLost(f"rank {reply.rank} failed in step {step}: {what}") from said
    return said


class CheckingFollower:
    """A follower's end, whatever the way: steps come, each header is checked and answered."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.every_row = False
        self._digest = 0

    def receive(self) -> tuple[int, Sequence[AnyFact]] | None:
        """The next step's facts, None when the run is over; its header is checked and answered."""
        given = self._next()
        if given is None:
            return None
        step = given.header.step
        self._digest = _chained(self._digest, step, given.facts)
        mine = Header(step, self._digest)
        self._say(mine)
        if mine != given.header:
            raise RankLost(f"rank {self.rank} reads {mine} in step {step}, sent {given.header}")
        self.every_row = given.every_row
        return step, given.facts

    def report(self, report: Report) -> None:
        """Say what this rank did."""
        self._say(report)

    def _next(self) -> Step | None:
        raise NotImplementedError

    def _say(self, said: Header | Report) -> None:
        raise NotImplementedError


class ThreadFollower(CheckingFollower):
    """A follower that is a thread of rank 0's process: frozen facts come by reference."""

    def __init__(self, rank: Rank, outbox: "SimpleQueue[Reply]") -> None:
        super().__init__(rank)
        self.thread: Thread | None = None
        self.leader: GroupLeader | None = None
        self._inbox: SimpleQueue[Step | None] = SimpleQueue()
        self._outbox = outbox

    def receive(self) -> tuple[int, Sequence[AnyFact]] | None:
        """The next step's facts, None when the run is over; its header is checked and answered."""
        self.thread = current_thread()
        return super().receive()

    def give(self, step: Step | None) -> None:
        """Rank 0 sends a step; None ends the loop."""
        self._inbox.put(step)

    def silent(self) -> bool:
        """Whether its thread has ended."""
        return self.thread is not None and not self.thread.is_alive()

    def fail(self, error: BaseException) -> None:
        """Say that this rank cannot go on."""
        self._outbox.put(Reply(self.rank, error))

    def _say(self, said: Header | Report) -> None:
        self._outbox.put(Reply(self.rank, said))

    def _next(self) -> Step | None:
        while True:
            try:
                return self._inbox.get(timeout=LOOK_SECONDS)
            except Empty:
                if self.leader is not None and not self.leader.thread.is_alive():
                    raise RankLost(f"rank 0 died; rank {self.rank} waited for it") from None


def _chained(digest: int, step: int, facts: Sequence[AnyFact]) -> int:
    """A digest of this step's number and kinds of facts, and of all steps before it."""
    kinds = ",".join([fact.kind for fact in facts])
    return crc32(f"{step}:{kinds}".encode(), digest)
