"""The ranks of a run: follower threads that fold the leader's facts, and their reports."""

from collections.abc import Sequence
from threading import Thread

from ..core.apply import apply
from ..core.book import book_digest
from ..core.decide import expects_report
from ..core.device import Device, Pair, Report, Running
from ..core.link import Follower, Leader, RankLost
from ..core.state import State, open_state
from ..devices.links import thread_group
from ..events.facts import AnyFact, RunOpened
from ..events.ids import StreamId

HANG_SECONDS = 120.0  # longer than any step; a rank that takes more has hung


class Ranks:
    """Rank 0's view of its group: followers are threads of this process."""

    def __init__(self, opened: RunOpened, devices: Sequence[Device]) -> None:
        assert len(devices) == opened.world, f"{len(devices)} devices for {opened.world} ranks"
        self.devices = list(devices)
        self.states: list[State] = []
        self._failed: list[RankLost] = []  # of followers, the first one first
        self._every_row = False
        self._leader: Leader
        self._leader, followers = thread_group(len(devices), HANG_SECONDS)
        self._threads: list[Thread] = []
        for follower, device in zip(followers, devices[1:], strict=True):
            state = open_state(opened, leader=False)
            self.states.append(state)
            thread = Thread(
                target=self._follow,
                args=(follower, device, state),
                daemon=True,
                name=f"rank {follower.rank}",
            )
            thread.start()
            self._threads.append(thread)

    def send(self, step: int, facts: Sequence[AnyFact], *, every_row: bool = False) -> None:
        """Give a step to the followers before it is launched."""
        self._every_row = every_row
        self._leader.send(step, facts)

    def reports(self, step: int, running: Running, state: State) -> list[Report]:
        """Wait for rank 0's own report and the followers', by rank. Raises RankLost."""
        book = book_digest(state)  # first: the device may be computing
        mine = running.report()
        mine.step, mine.book = step, book
        return [mine, *self._leader.collect(step)]

    def probe(self, rank: int, stream: StreamId, part: str, layer: int, rows: range) -> Pair:
        """One rank's digest of some rows, summed anew while the ranks stand still."""
        return self.devices[rank].probe(
            self._state(rank), stream, part, layer, rows.start, len(rows)
        )

    def read(self, rank: int, stream: StreamId, part: str, layer: int, position: int) -> bytes:
        """One rank's bytes of a row, its heads in order."""
        heads = self.devices[rank].read(self._state(rank), stream, part, layer, position)
        return b"".join(heads[head] for head in sorted(heads))

    def use(self, state: State) -> None:
        """Say which state is rank 0's, so that probes can find its tables."""
        self._lead_state = state

    def why(self, error: BaseException) -> BaseException:
        """What ended a run: rank 0 may only have heard that another rank is gone."""
        return self._failed[0] if self._failed and isinstance(error, RankLost) else error

    def close(self, reason: str) -> None:
        """End the followers, then let every device's threads and memory go."""
        self._leader.close(reason)
        self.devices[0].close()  # a follower that still waits for rank 0 in a step goes home
        for thread in self._threads:
            thread.join(HANG_SECONDS)
        for device in self.devices[1:]:
            device.close()

    def _state(self, rank: int) -> State:
        return self.states[rank - 1] if rank else self._lead_state

    def _follow(self, follower: Follower, device: Device, state: State) -> None:
        step = 0
        try:
            while (given := follower.receive()) is not None:
                step, facts = given
                for fact in facts:
                    apply(state, fact)
                running = device.launch(state, facts, every_row=self._every_row)
                if expects_report(facts):
                    book = book_digest(state)
                    report = running.report()
                    report.step, report.book = step, book
                    follower.report(report)
        except BaseException as error:  # the leader must hear of anything that ends a rank
            said = f"{type(error).__name__}: {error}"
            self._failed.append(RankLost(f"rank {follower.rank} failed in step {step}: {said}"))
            follower.fail(error)
            device.close()  # whoever waits for this rank in a step goes home
