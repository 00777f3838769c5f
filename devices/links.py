"""The control link between rank threads of one process: frozen facts, by reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from time import monotonic
from zlib import crc32

from ..core.device import Report
from ..core.link import Follower, Leader, RankLost
from ..events.facts import AnyFact
from ..events.ids import Rank

LOOK_SECONDS = 0.25  # how often a wait looks whether the other thread still lives


@dataclass(frozen=True, slots=True)
class Header:
    """What a follower checks before it acts: the step, and a digest of all steps up to this one."""

    step: int
    digest: int


@dataclass(frozen=True, slots=True)
class _Step:
    header: Header
    facts: Sequence[AnyFact]


@dataclass(frozen=True, slots=True)
class _Reply:
    """From a follower: an acknowledged header, a report, or the error that ended it."""

    rank: Rank
    said: Header | Report | BaseException


def thread_group(world: int, limit_seconds: float) -> tuple[Leader, list[Follower]]:
    """The two ends of a group's control channel; a group of one has nobody to talk to."""
    if world == 1:
        return NobodyLeader(), []
    inbox: SimpleQueue[_Reply] = SimpleQueue()
    outboxes: list[SimpleQueue[_Step | None]] = [SimpleQueue() for _ in range(1, world)]
    followers = [
        ThreadFollower(Rank(rank), outbox, inbox) for rank, outbox in enumerate(outboxes, 1)
    ]
    leader = ThreadLeader(followers, outboxes, inbox, limit_seconds)
    for follower in followers:
        follower.leader = leader
    return leader, list(followers)


class NobodyLeader:
    """Rank 0 of a group of one."""

    def send(self, step: int, facts: Sequence[AnyFact]) -> None:
        """There is no follower to tell."""

    def collect(self, step: int) -> list[Report]:
        """No follower reports."""
        return []

    def close(self, reason: str) -> None:
        """No follower waits."""


class ThreadLeader:
    """Rank 0's end: a queue to each follower and one back."""

    def __init__(
        self,
        followers: "list[ThreadFollower]",
        outboxes: "list[SimpleQueue[_Step | None]]",
        inbox: "SimpleQueue[_Reply]",
        limit_seconds: float,
    ) -> None:
        self.thread = current_thread()
        self._followers = followers
        self._outboxes = outboxes
        self._inbox = inbox
        self._limit_seconds = limit_seconds
        self._digest = 0
        self._closed = False

    def send(self, step: int, facts: Sequence[AnyFact]) -> None:
        """Give a step's facts to every follower and wait for each to acknowledge its header."""
        self.thread = current_thread()
        facts = tuple(facts)
        self._digest = _chained(self._digest, step, facts)
        header = Header(step, self._digest)
        for outbox in self._outboxes:
            outbox.put(_Step(header, facts))
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
            for outbox in self._outboxes:
                outbox.put(None)

    def _gather(self, step: int, verb: str) -> dict[Rank, Header | Report]:
        """One reply of every follower, in the order of their ranks."""
        said: dict[Rank, Header | Report] = {}
        early: list[_Reply] = []
        give_up = monotonic() + self._limit_seconds
        while len(said) < len(self._followers):
            missing = [one.rank for one in self._followers if one.rank not in said]
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
            if isinstance(reply.said, BaseException):
                error = reply.said
                raise RankLost(
                    f"rank {reply.rank} failed in step {step}: {type(error).__name__}: {error}"
                ) from error
            if reply.rank in said:  # it went on while others have yet to answer
                early.append(reply)
            else:
                said[reply.rank] = reply.said
        for reply in early:
            self._inbox.put(reply)
        return {follower.rank: said[follower.rank] for follower in self._followers}

    def _look_for_the_dead(self, step: int, missing: Sequence[Rank]) -> None:
        for follower in self._followers:
            thread = follower.thread
            silent = self._inbox.empty()  # a thread's last words count, though it is gone
            if follower.rank in missing and silent and thread and not thread.is_alive():
                raise RankLost(f"rank {follower.rank} died in step {step}")


class ThreadFollower:
    """A follower's end."""

    def __init__(
        self, rank: Rank, inbox: "SimpleQueue[_Step | None]", outbox: "SimpleQueue[_Reply]"
    ) -> None:
        self.rank = rank
        self.thread: Thread | None = None
        self.leader: ThreadLeader | None = None
        self._inbox = inbox
        self._outbox = outbox
        self._digest = 0

    def receive(self) -> tuple[int, Sequence[AnyFact]] | None:
        """The next step's facts, None when the run is over; its header is checked and answered."""
        self.thread = current_thread()
        given = self._next()
        if given is None:
            return None
        step = given.header.step
        self._digest = _chained(self._digest, step, given.facts)
        mine = Header(step, self._digest)
        self._outbox.put(_Reply(self.rank, mine))
        if mine != given.header:
            raise RankLost(f"rank {self.rank} reads {mine} in step {step}, sent {given.header}")
        return step, given.facts

    def report(self, report: Report) -> None:
        """Say what this rank did."""
        self._outbox.put(_Reply(self.rank, report))

    def fail(self, error: BaseException) -> None:
        """Say that this rank cannot go on."""
        self._outbox.put(_Reply(self.rank, error))

    def _next(self) -> _Step | None:
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
