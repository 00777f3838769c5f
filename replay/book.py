"""The book again: decide over recorded commands must give the recorded facts, without a model."""

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.apply import apply
from ..core.decide import decide
from ..core.state import open_state
from ..devices.kernel_cache import keep_book
from ..events.facts import AnyFact, RunClosed, RunOpened
from ..events.reader import Step
from .rerun import Tick, numbered


@dataclass(frozen=True, slots=True)
class Undecided:
    """The first fact that was not decided again; None where a side has no more facts."""

    step: int
    seq: int
    recorded: AnyFact | None
    decided: AnyFact | None
    why: str = ""


@dataclass(slots=True)
class Rebooked:
    """How many facts were decided as recorded, and the first that was not."""

    steps: int = 0
    facts: int = 0
    first: Undecided | None = None


def rebook(opened: RunOpened, steps: Iterable[Step], tick: Tick = lambda step: None) -> Rebooked:
    """Decide every step of a tape again, until a fact differs."""
    keep_book()
    state, done = open_state(opened), Rebooked()
    for step in steps:
        recorded = list(numbered(step))
        if not step.commands and all(isinstance(fact, RunClosed) for _, fact in recorded):
            break  # whoever wrote the tape ended it; nothing was decided
        turn = iter(recorded)
        end = step.fact_seqs.stop
        try:
            for fact in decide(state, step.filled()):
                seq, theirs = next(turn, (end, None))
                if theirs != fact:
                    done.first = Undecided(step.step, seq, theirs, fact)
                    return done
                apply(state, fact)
                done.facts += 1
        except AssertionError as error:
            seq, theirs = next(turn, (end, None))
            done.first = Undecided(step.step, seq, theirs, None, f"decide cannot go on: {error}")
            return done
        for seq, theirs in turn:
            done.first = Undecided(step.step, seq, theirs, None)
            return done
        done.steps += 1
        tick(step.step)
    return done
