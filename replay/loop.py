"""The loop: commands become facts, facts are kept, applied and done. All else hangs off it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.apply import apply
from ..core.decide import expects_report
from ..core.device import Device, Running
from ..core.state import State
from ..events.commands import AnyCommand
from ..events.facts import AnyFact
from .ranks import Ranks

Decide = Callable[[State, Sequence[AnyCommand]], Iterable[AnyFact]]


class Source(Protocol):
    """Where commands come from: a door, or a tape."""

    def take(self) -> Sequence[AnyCommand] | None:
        """The next commands; waits for some. None when there will be no more."""
        ...

    def put(self, step: int, running: Running) -> None:
        """A step is under way: wait for it and make its outcome the next commands."""
        ...


class Recorder(Protocol):
    """Whoever keeps facts: a tape, or nobody."""

    def append(self, step: int, commands: Sequence[AnyCommand], facts: Sequence[AnyFact]) -> int:
        """Make them durable before anything of them is shown; the number of the first fact."""
        ...


class Door(Protocol):
    """Whoever is shown what happened, once it is durable."""

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Look at a step's facts; `state` has them applied."""
        ...


@dataclass(slots=True)
class Run:
    """One life of an engine, live or from a tape.

    step: of the turn that is on.  whole: whether all that the state went through is on the tape.
    """

    state: State
    decide: Decide
    source: Source
    ranks: Ranks
    device: Device
    tape: Recorder
    door: Door
    step: int = 0
    every_row: bool = False
    whole: bool = True


def run(run: Run) -> None:
    """Go on until the source ends or the run closes."""
    state = run.state
    while not state.closed and (commands := run.source.take()) is not None:
        facts: list[AnyFact] = []
        run.whole = False
        for fact in run.decide(state, commands):
            apply(state, fact)
            facts.append(fact)
        try:
            run.ranks.send(run.step, facts, every_row=run.every_row)
            running = run.device.launch(state, facts, every_row=run.every_row)
        finally:  # a step that ends a rank or its device belongs on the tape too
            first = run.tape.append(run.step, commands, facts)
            run.whole = True
        run.door.show(run.step, first, facts, state)
        if expects_report(facts):
            run.source.put(run.step, running)
        run.step += 1
