"""A live run's source: the door's wishes and the devices' outcomes, as commands."""

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from ..core.device import Running
from ..core.outcome import Parting, commands_of, partings
from ..core.state import State
from ..events.commands import AnyCommand, PartingFound
from ..events.ids import StreamId
from .bisect import locate
from .ranks import Ranks

Chance = Callable[[State], AnyCommand | None]


class LiveSource:
    """Wishes wait in an inbox; a step's outcome goes before them."""

    def __init__(
        self,
        state: State,
        ranks: Ranks,
        inject: Chance | None = None,
        keep: Callable[[bytes], None] = lambda blob: None,
    ) -> None:
        """keep: puts bytes beside the next facts on the tape."""
        self._state = state
        self._ranks = ranks
        self._inject = inject
        self._keep = keep
        self._inbox: SimpleQueue[AnyCommand] = SimpleQueue()
        self._news: list[AnyCommand] = []
        self.drafts: dict[StreamId, tuple[int, int]] = {}  # drafted and kept, until a stream ends
        self.drafted = self.accepted = 0  # of all streams since the run began
        self.flushes = 0  # that were decided
        ranks.use(state)

    def wish(self, command: AnyCommand) -> None:
        """Ask the machine something, from any thread."""
        self._inbox.put(command)

    def take(self) -> Sequence[AnyCommand]:
        """The last outcome and every wish so far; waits while there is neither."""
        commands, self._news = self._news, []
        if not commands:
            commands.append(self._inbox.get())
        while True:
            try:
                commands.append(self._inbox.get_nowait())
            except Empty:
                break
        self.flushes += sum(command.kind == "flush" for command in commands)
        injected = self._inject(self._state) if self._inject is not None else None
        if injected is not None:
            commands.append(injected)
        return commands

    def put(self, step: int, running: Running) -> None:
        """Wait for the ranks; if they parted, that is the only news: the step is not kept."""
        rules = self._state.opened.rules
        reports = self._ranks.reports(step, running, self._state)
        for stream, (drafted, accepted) in reports[0].drafts.items():
            before = self.drafts.get(stream, (0, 0))
            self.drafts[stream] = before[0] + drafted, before[1] + accepted
            self.drafted += drafted
            self.accepted += accepted
        parted = partings(rules, reports, reports[0].book)
        if parted:
            self._news = [self._found(step, parted[0])]
            return
        news = commands_of(rules, reports, reports[0].book)
        bad = next((found for found in news if found.kind in ("break_found", "poison_found")), None)
        self._news = news if bad is None else [bad]

    def _found(self, step: int, parting: Parting) -> PartingFound:
        return locate(self._ranks, self._state, parting, step, self._keep)
