"""A run that failed: its tape says so, and why, unless the tape itself is what failed."""

import logging

from ..core.apply import apply
from ..core.decide import decide
from ..core.link import RankLost
from ..events.commands import Close
from ..events.facts import AnyFact
from .loop import Run
from .recorder import NoTape, TapeRecorder

LOG = logging.getLogger("kvtape.serve")
FAILED = "failed"  # the reason of a run that something ended which is no rule of its own
ERROR_CHARS = 2000  # of what the tape says of it


def close_failed(run: Run, recorder: NoTape | TapeRecorder, error: BaseException) -> None:
    """End a run on its tape: its streams end as at fault, then the tape is closed and sealed.

    A step that was under way has no outcome there. Where the state went through facts that never
    came onto the tape, nothing can be decided any more: the run is closed over its streams. Where
    nothing can be written, what stands there stays as it is, without an end.
    """
    why = words_of(error)
    try:
        if run.whole and not run.state.closed:
            command, facts = Close(reason=FAILED, error=why), list[AnyFact]()
            for fact in decide(run.state, (command,)):
                apply(run.state, fact)
                facts.append(fact)
            recorder.append(run.step + 1, (command,), facts)
        recorder.close(FAILED, why)
    except Exception as second:
        LOG.error("the tape stays without an end: %s", second)
        recorder.abandon()


def words_of(error: BaseException) -> str:
    """What went wrong, in a line: a rank that is lost is named, other errors have their kind."""
    said = f"{error}" if isinstance(error, RankLost) else f"{type(error).__name__}: {error}"
    return " ".join(said.encode(errors="replace").decode().split())[:ERROR_CHARS]
