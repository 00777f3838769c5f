"""One session alone: a plan played on lanes and pages of its own, compared with the tape.

What the session inherited is computed again from its tokens: if it still says what the tape says,
its own arithmetic was sound.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ..core.digests import pair_hex
from ..core.outcome import commands_of
from ..core.state import State
from ..core.steps import lease, window_rows
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from .alone_plan import Expected, Inherited, Plan, Window
from .difference import Comparison, Difference
from .machine import Machine, Turn
from .rerun import Played, Tick, tokens_by_stream


@dataclass(slots=True)
class Alone(Played):
    """A session replayed alone; `inherited`: the first state it took over that was not as kept."""

    inherited: Comparison = field(default_factory=Comparison)


def play_alone(machine: Machine, plan: Plan, tick: Tick = lambda step: None) -> Alone:
    """Play a plan until it ends or a value differs from the tape's."""
    played = Alone(0, 0, Comparison())
    machine.play(_Solo(machine, played, tick).turns(plan))
    return played


class _Solo:
    """What the devices said of each stream so far, compared where the tape names it."""

    def __init__(self, machine: Machine, played: Alone, tick: Tick) -> None:
        self._machine = machine
        self._played = played
        self._tick = tick
        self._sums: dict[int, dict[str, str]] = {}
        self._drawn: dict[int, tuple[int, ...]] = {}

    def turns(self, plan: Plan) -> Iterator[Turn]:
        """The plan's turns; between two, what was heard is compared."""
        for turn in plan.turns:
            for inherited in turn.inherited:
                yield from self._rebuild(turn.step, inherited)
            for expected in turn.expected:
                self._compare(expected)
            if self._played.comparison.first is not None:
                return
            self._drawn.clear()
            if turn.facts:
                self._played.steps += 1
                yield Turn.of(turn.step, turn.facts, _given)
                self._played.count(self._machine.reports)
                self._hear()
            self._tick(turn.step)

    def _rebuild(self, step: int, inherited: Inherited) -> Iterator[Turn]:
        """Prompt steps over the rows that the stream took over, and their sums."""
        rows = self._machine.opened.prompt_rows
        drawn = dict(self._drawn)
        for first in range(0, inherited.mark, rows):
            count = min(rows, inherited.mark - first)
            fact = f.PromptStepRun(stream=inherited.stream, first=first, rows=count)
            yield Turn(step, lambda state, fact=fact: _given(state, [fact]))  # type: ignore[misc]
            self._hear()
        self._drawn = drawn
        ours = self._sums.get(inherited.stream, {})
        self._played.inherited.see_sums(inherited.at, inherited.taken, ours)
        self._played.inherited.see_sums(inherited.at, inherited.read, ours)

    def _hear(self) -> None:
        reports = self._machine.reports
        if not reports:
            return
        done = commands_of(self._machine.opened.rules, reports, reports[0].book)[0]
        assert isinstance(done, c.DeviceDone)
        self._drawn.update(tokens_by_stream(done))
        for stream in done.digests.streams:
            self._sums[stream] = done.digests.of(stream)

    def _compare(self, expected: Expected) -> None:
        at, into = expected.at, self._played.comparison
        left, right = (
            ",".join(map(str, side))
            for side in (expected.tokens, self._drawn.get(expected.stream, ()))
        )
        if left or right:
            into.see(
                Difference(
                    at.step, at.seq, "tokens", at.stream, at.rank, at.position, at.session,
                    left, right,
                )
            )  # fmt: skip
            self._played.tokens += len(expected.tokens)
        empty = dict.fromkeys(expected.sums, pair_hex((0, 0)))
        into.see_sums(at, expected.sums, self._sums.get(expected.stream, empty))


def _given(state: State, facts: Iterable[AnyFact | Window]) -> Iterator[AnyFact]:
    """Facts with the lanes and pages that this state has to give."""
    for fact in facts:
        match fact:
            case Window():
                seated = [state.streams[stream] for stream in fact.streams]
                for stream in seated:
                    yield from lease(state, stream, stream.rows + window_rows(state, stream))
                yield f.RoundRun(lanes=tuple(stream.lane for stream in seated))
            case f.PromptStepRun():
                stream = state.streams[fact.stream]
                yield from lease(state, stream, fact.first + fact.rows)
                yield fact
            case f.StreamBegun():
                yield fact.model_copy(update={"lane": state.lanes.index(None)})
            case f.PagesReturned():
                table = tuple(state.table(state.streams[fact.stream]))
                if table:
                    yield fact.model_copy(update={"pages": table})
            case f.StreamReleased():
                yield fact.model_copy(update={"lane": state.streams[fact.stream].lane})
            case _:
                yield fact
