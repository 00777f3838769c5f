"""The audit of a simulated run's tape: every byte, every fact folded, the invariants in samples."""

from pathlib import Path

from ..core.apply import apply
from ..core.check import check
from ..core.state import open_state
from ..events.reader import Tape
from ..events.verify import Finding
from .audit import audit_file
from .rerun import numbered

SAMPLES = 24  # states of a run whose invariants are asserted whole; each costs as many pages


def audit_simulated(path: Path) -> list[Finding]:
    """What is wrong with a tape: its chain and content, a fact that does not fit, a state."""
    findings = audit_file(path)
    if findings:  # what the rows say means nothing while they are not as written
        return findings
    with Tape.open(path) as tape:
        state, every = open_state(tape.opened), max(1, tape.at(tape.last_seq).step // SAMPLES)
        for step in tape.steps():
            seq = 0
            try:
                for seq, fact in numbered(step):  # noqa: B007
                    apply(state, fact)
                if step.step % every == 0 or state.closed:
                    check(state)
            except (AssertionError, KeyError, IndexError, ValueError) as error:
                says = f"{type(error).__name__}: {error}"
                return [Finding("state", f"step {step.step}, event {seq}", says)]
        if state.streams or not state.closed:
            return [Finding("state", "the end", f"{len(state.streams)} streams are still open")]
    return []
