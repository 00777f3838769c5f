"""Decide: turns commands into facts. It reads the state and changes nothing.

It is a generator: whoever runs it applies each fact before asking for the next, so every decision
sees what the ones before it made true.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..events import commands as c
from ..events import facts as f
from ..events.commands import AnyCommand
from ..events.facts import AnyFact
from .admit import admit, arrive, resume_acked
from .finish import cancel, close, device_done, stop_matched
from .keep import flush, keep_due
from .state import State
from .steps import next_step


def decide(state: State, commands: Sequence[AnyCommand]) -> Iterator[AnyFact]:
    """The facts that follow from these commands, in the order they become true."""
    for command in commands:
        yield from _ANSWERS[command.kind](state, command)
        if state.closed:
            return
    yield from keep_due(state)
    yield from admit(state)
    yield from next_step(state)


def _parting_found(state: State, command: c.PartingFound) -> Iterator[AnyFact]:
    yield f.RanksParted(**command.model_dump(exclude={"kind"}))
    yield from close(state, "ranks_parted")


def _break_found(state: State, command: c.BreakFound) -> Iterator[AnyFact]:
    yield f.SumsBroken(**command.model_dump(exclude={"kind"}))
    yield from close(state, "sums_broken")


def _poison_found(state: State, command: c.PoisonFound) -> Iterator[AnyFact]:
    yield f.PoisonRead(**command.model_dump(exclude={"kind"}))
    yield from close(state, "poison_read")


def _inject(state: State, command: c.Inject) -> Iterator[AnyFact]:
    if command.stream in state.streams:  # it may have ended by the news that came along
        yield f.FaultInjected(**command.model_dump(exclude={"kind"}))


def _close(state: State, command: c.Close) -> Iterator[AnyFact]:
    yield from close(state, command.reason, command.error)


_ANSWERS: dict[str, Callable[[State, Any], Iterator[AnyFact]]] = {
    "arrive": arrive,
    "cancel": cancel,
    "stop_matched": stop_matched,
    "flush": flush,
    "resume_acked": resume_acked,
    "device_done": device_done,
    "parting_found": _parting_found,
    "break_found": _break_found,
    "poison_found": _poison_found,
    "inject": _inject,
    "close": _close,
}


def expects_report(facts: Sequence[AnyFact]) -> bool:
    """Whether a device has an outcome, or an answer to a resume, after these facts."""
    return any(
        isinstance(fact, f.PromptStepRun | f.RoundRun)
        or (isinstance(fact, f.StreamBegun) and fact.state >= 0)
        for fact in facts
    )
