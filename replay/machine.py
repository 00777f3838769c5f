"""The loop over facts that stand already: a state, its ranks, and whoever hands out the turns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from ..core.device import Device, Report, Running
from ..core.state import State, open_state
from ..events.commands import AnyCommand
from ..events.facts import AnyFact, RunOpened
from .loop import Run, run
from .ranks import Ranks
from .rerecord import Rerecorder

MakeDevices = Callable[[RunOpened], Sequence[Device]]  # one for each rank of `opened.world`


Given = TypeVar("Given")
Give = Callable[[State, Sequence[Given]], Iterable[AnyFact]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the loop; `facts` may read the state, which has the ones before applied."""

    step: int
    facts: Callable[[State], Iterable[AnyFact]]
    every_row: bool = False

    @staticmethod
    def of(
        step: int, facts: Sequence[Given], give: Give[Given], *, every_row: bool = False
    ) -> "Turn":
        """A turn whose facts are made from given ones once the state is there."""
        return Turn(step, lambda state: give(state, facts), every_row)


class Machine:
    """Plays turns on devices. It is its own source, recorder and door: nobody is shown anything.

    reports: what the ranks said of the turn just played, by rank; empty if they were not asked.
    """

    def __init__(
        self, opened: RunOpened, make: MakeDevices, record: Rerecorder | None = None
    ) -> None:
        """record: keeps what is played as a tape of its own; whoever made it closes it."""
        self.opened = opened
        self._record = record
        self.state = open_state(opened, leader=False)
        self.ranks = Ranks(opened, make(opened))
        self.ranks.use(self.state)
        self.reports: list[Report] = []
        self._turns: Iterator[Turn] = iter(())
        self._turn = Turn(0, lambda state: ())
        self._run = Run(
            state=self.state,
            decide=lambda state, commands: self._turn.facts(state),
            source=self,
            ranks=self.ranks,
            device=self.ranks.devices[0],
            tape=self,
            door=self,
        )

    def play(self, turns: Iterator[Turn]) -> None:
        """Play until the turns end or the run closes; `turns` may read `reports` between two."""
        self._turns = turns
        run(self._run)

    def take(self) -> Sequence[AnyCommand] | None:
        """The next turn has no commands: its facts stand."""
        turn = next(self._turns, None)
        self.reports = []
        if turn is None:
            return None
        self._turn = turn
        self._run.step, self._run.every_row = turn.step, turn.every_row
        return ()

    def put(self, step: int, running: Running) -> None:
        """Wait for the ranks."""
        self.reports = self.ranks.reports(step, running, self.state)
        if self._record is not None:
            self._record.heard(self.reports)

    def append(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[AnyFact]) -> int:
        """Keep the turn, if a tape is made; nobody asks for its number."""
        if self._record is not None:
            self._record.append(step, facts)
        return 0

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """A replay answers nobody."""

    def close(self) -> None:
        """End the ranks and let their memory go."""
        self.ranks.close("replayed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
