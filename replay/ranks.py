"""The ranks of a run: followers, threads or processes, that fold the leader's facts, and report."""

from collections.abc import Sequence
from threading import Thread

from ..core.book import book_digest
from ..core.device import Device, Pair, Report, Running
from ..core.link import Follower, Leader, RankLost
from ..core.state import State, open_state
from ..devices.following import follow
from ..devices.links import GroupLeader, thread_group
from ..devices.rank_process import RankProcess
from ..events.facts import AnyFact, RunOpened
from ..events.ids import StreamId

HANG_SECONDS = 120.0  # longer than any step; a rank that takes more has hung


class Ranks:
    """Rank 0's view of its group: followers are threads of this process, or processes."""

    def __init__(self, opened: RunOpened, devices: Sequence[Device]) -> None:
        assert len(devices) == opened.world, f"{len(devices)} devices for {opened.world} ranks"
        self.devices = list(devices)
        self._states: list[State] = []  # of followers that are threads
        self._failed: list[RankLost] = []  # of followers, the first one first
        self._threads: list[Thread] = []
        self._leader = self._followed(opened)

    def _followed(self, opened: RunOpened) -> Leader:
        """Rank 0's end of the control channel, every follower listening at the other."""
        far = [one for one in self.devices[1:] if isinstance(one, RankProcess)]
        if far:
            assert len(far) == len(self.devices) - 1, "followers are processes, or none of them is"
            for member in far:
                member.open(opened)
            return GroupLeader(far, far[0].inbox, HANG_SECONDS)
        leader, followers = thread_group(len(self.devices), HANG_SECONDS)
        for follower, device in zip(followers, self.devices[1:], strict=True):
            self._states.append(open_state(opened, leader=False))
            self._threads.append(self._started(follower, device, self._states[-1]))
        return leader

    def _started(self, follower: Follower, device: Device, state: State) -> Thread:
        given = (follower, device, state, self._failed.append)
        thread = Thread(target=follow, args=given, daemon=True, name=f"rank {follower.rank}")
        thread.start()
        return thread

    @property
    def states(self) -> list[State]:
        """The followers', by rank; a process keeps its own, which is equal to rank 0's."""
        return self._states or [self._lead_state] * (len(self.devices) - 1)

    def send(self, step: int, facts: Sequence[AnyFact], *, every_row: bool = False) -> None:
        """Give a step to the followers before it is launched."""
        self._leader.send(step, facts, every_row=every_row)

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
