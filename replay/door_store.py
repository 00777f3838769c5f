"""The prompt store as the door tells of it: what each prompt found, in figures and in the log."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..core.lookups import Lookup
from ..core.misses import Misses
from ..core.state import State
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import StreamId
from .door_alarm import StoreAlarm
from .door_counts import Counts
from .loop import Decide
from .prompt_line import prompt_line
from .why_miss_live import watched

LOG = logging.getLogger("kvtape.store")


@dataclass(slots=True)
class _Prompt:
    """A prompt in a lane: what it found, and the last mark at which it left a state."""

    found: Lookup
    kept: int = 0


class StoreWatch:
    """Shown every durable fact on the loop's thread; writes a line when a prompt is done."""

    def __init__(self, state: State) -> None:
        self.counts = Counts()
        self.misses = Misses(state.opened)
        self._state = state
        self._alarm = StoreAlarm()
        self._prompts: dict[StreamId, _Prompt] = {}
        self._done: list[_Prompt] = []

    def watch(self, decide: Decide, next_seq: Callable[[], int]) -> Decide:
        """Decide as before, seen by the observer of misses; next_seq: the tape's next number."""
        found = self.counts.found
        return watched(decide, self.misses, next_seq, lambda one: found.update({one.stream: one}))

    def see(self, fact: AnyFact) -> None:
        """Count a fact."""
        found = self.counts.see(fact)
        if found is not None:
            self._prompts[found.stream] = _Prompt(found)
            if alarm := self._alarm.see(found, time.monotonic()):
                LOG.warning("%s", alarm)
        elif isinstance(fact, f.SnapshotTaken):
            prompt = self._prompts[fact.stream]
            prompt.kept = max(prompt.kept, fact.mark)
        elif isinstance(fact, f.StreamReleased):
            self._prompts.pop(fact.stream, None)

    def prompted(self, stream: StreamId) -> None:
        """The first token of a reply is there: its prompt is done."""
        self._done.append(self._prompts[stream])

    def miss(self, stream: StreamId) -> str:
        """Why a stream's prompt was resumed no further; "" if it was, or never began."""
        prompt = self._prompts.get(stream)
        return "" if prompt is None or prompt.found.reason is None else prompt.found.reason.value

    def tell(self) -> None:
        """A line for each prompt that is done, once the step's facts are all seen."""
        for one in self._done:
            refused = self.misses.not_kept
            LOG.info("%s", prompt_line(self._state, self.counts, one.found, one.kept, refused))
        self._done.clear()
