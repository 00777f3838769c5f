"""Why prompts are resumed no further: an observer of the facts, by which nothing is decided.

It knows prefixes by name (prefix_names), those of kept states and a bounded number of those that
went, and compares tokens with the kept states' own. So a live run and its tape say the same.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..events import facts as f
from ..events.facts import AnyFact, RunOpened
from ..events.ids import NO_STATE, StateId, StreamId
from .keep import computed
from .likeness import Left, Prompt, nearest
from .lookups import HELD_BACK, NO_ROOM, NOT_SUMMED, TOO_LARGE, Gone, Lookup, Near, Reason
from .marks import last_mark
from .prefix_names import packed, prefix_names
from .state import FLAT, State, Stream, store_flag
from .store_flat import state_bytes

REMEMBERED = 2**17  # names of prefixes that went
ANSWERED = 2**12  # prompts that were answered


@dataclass(slots=True)
class _Asked:
    """A stream in a lane, since `seq`: its prompt's names, the row at which it was resumed, and the
    marks at which it is to leave a state."""

    seq: int
    names: list[bytes]
    hit: int
    due: set[int]


class Misses:
    """Shown every fact before it is applied; says of each stream that begins what it found.

    not_kept: states so far that were due, and for which the store had no place.
    """

    def __init__(self, opened: RunOpened, remembered: int = REMEMBERED) -> None:
        """remembered: how many names are known after they went."""
        self._rules = opened.rules
        self._flat = store_flag(opened) == FLAT
        self._whole = opened.rules.snapshots or self._flat  # resumed at a state's own mark only
        self._rows = opened.rules.mark_rows if self._whole else opened.rules.page_rows
        self._most = remembered
        self.not_kept = 0
        self._left: dict[StateId, Left] = {}  # in the order of their use
        self._held: dict[bytes, int] = {}  # by name: kept states that can be resumed there
        # An ordered map has its first at once; a plain one passes by all that went before it.
        self._gone: OrderedDict[bytes, Gone] = OrderedDict()
        self._asked: dict[StreamId, _Asked] = {}
        self._refused: dict[StreamId, Gone] = {}
        self._answered: OrderedDict[bytes, None] = OrderedDict()

    def see(self, seq: int, fact: AnyFact, state: State) -> Lookup | None:
        """Look at a fact; `state` has all the facts before it applied, and not this one."""
        look = _LOOKS.get(fact.kind)
        return None if look is None else look(self, seq, fact, state)

    # --- a prompt comes into its lane ------------------------------------------------------------

    def _begun(self, seq: int, fact: f.StreamBegun, state: State) -> Lookup:
        stream = state.streams[fact.stream]
        prompt = self._prompt(state, stream, fact.state, self._resumed_at(fact, state))
        names, hit = prompt.names, prompt.hit
        due = set(fact.marks) | self._over_budget(state, stream, hit)
        self._asked[fact.stream] = _Asked(seq, list(names), hit, due)
        last = len(names) * self._rows
        gone, lost = self._lost(prompt, seq)
        near = nearest(prompt, self._left, state) if hit < last else None
        reason = self._reason(prompt, gone, lost, near)
        if reason not in (Reason.EVICTED, Reason.REFUSED):
            gone, lost = None, 0
        return Lookup(
            seq=seq,
            stream=fact.stream,
            request=stream.request.request,
            session=stream.request.session,
            prompt_tokens=stream.prompt_tokens,
            cached_tokens=hit,
            last_mark=last,
            reason=reason,
            gone=gone,
            lost_mark=lost,
            near=near,
            again=bool(names) and names[-1] in self._answered,
        )

    def _resumed_at(self, fact: f.StreamBegun, state: State) -> int:
        """The row at which a stream is to be resumed."""
        if fact.state == NO_STATE:
            return 0
        if self._flat:
            return state.kept[fact.state].mark
        return fact.kept_pages * self._rules.page_rows

    def _prompt(self, state: State, stream: Stream, found: StateId, hit: int) -> Prompt:
        """A prompt and its names, as far as it could be resumed."""
        known = self._left[found].names[: hit // self._rows] if found != NO_STATE else ()
        told, salt = packed(stream.request.prompt[hit:]), stream.request.salt
        count = max(last_mark(state, stream), 0) // self._rows
        names = prefix_names(told, salt, self._rows, self._rules.lookahead, count, known)
        return Prompt(stream, names, self._rows, hit, told)

    def _over_budget(self, state: State, stream: Stream, hit: int) -> set[int]:
        """The mark that a flat store leaves out, as the state is larger than all of it."""
        rules = self._rules
        if not self._flat or stream.prompt_tokens < rules.min_prompt:
            return set()
        history = min(stream.request.history_tokens, last_mark(state, stream))
        mark = history // rules.mark_rows * rules.mark_rows
        return {mark} if mark > hit and self._too_large(state, mark) else set()

    def _too_large(self, state: State, mark: int) -> bool:
        plan = state.opened.plan
        return self._flat and state_bytes(state.opened, mark) > plan["cache_bytes"]

    def _lost(self, prompt: Prompt, seq: int) -> tuple[Gone | None, int]:
        """What would have brought a prompt furthest past its hit, and how far."""
        request = prompt.stream.request.request
        refused = self._refused.pop(prompt.stream.stream, None)
        if refused is not None and refused.mark > prompt.hit:
            return refused, refused.mark
        for pages in range(len(prompt.names), prompt.hit // self._rows, -1):
            name, mark = prompt.names[pages - 1], pages * self._rows
            if name in self._held:
                return Gone(HELD_BACK, request, seq, mark, refused=True), mark
            gone = self._gone.get(name)
            if gone is None:
                continue
            if (gone.why, gone.request) == ("reclaimed", request):  # so as to begin without it
                return Gone(HELD_BACK, request, gone.seq, gone.mark, refused=True), mark
            return gone, mark
        return None, 0

    def _reason(
        self, prompt: Prompt, gone: Gone | None, lost: int, near: Near | None
    ) -> Reason | None:
        """The reason that explains most of the rows that are computed again."""
        last = len(prompt.names) * self._rows
        if prompt.hit == last:
            return None if last else Reason.TOO_SHORT
        if gone is not None and (near is None or lost + self._rows > near.differs_at):
            return Reason.REFUSED if gone.refused else Reason.EVICTED
        if near is not None:
            return Reason.EDITED
        short = prompt.stream.prompt_tokens < self._rules.min_prompt
        return Reason.TOO_SHORT if short and not prompt.hit else Reason.NO_STATE

    # --- states come and go ----------------------------------------------------------------------

    def _taken(self, seq: int, fact: f.SnapshotTaken, state: State) -> None:
        stream, asked = state.streams[fact.stream], self._asked[fact.stream]
        asked.due.discard(fact.mark)
        names, request = self._names_to(stream, asked, fact.mark), stream.request
        self._left[fact.state] = Left(
            names=tuple(names),
            request=request.request,
            session=request.session,
            told=request.history_tokens or stream.prompt_tokens,
        )
        for name in self._resumable(names):
            self._held[name] = self._held.get(name, 0) + 1

    def _names_to(self, stream: Stream, asked: _Asked, mark: int) -> list[bytes]:
        """The names of a stream's rows up to a mark, in its reply perhaps."""
        count, ahead = mark // self._rows, self._rules.lookahead
        known = asked.names[:count]
        told = packed(stream.tokens[len(known) * self._rows : mark + ahead])
        return prefix_names(told, stream.request.salt, self._rows, ahead, count, known)

    def _resumed(self, seq: int, fact: f.StateResumed, state: State) -> None:
        self._left[fact.state] = self._left.pop(fact.state)

    def _dropped(self, seq: int, fact: f.StateDropped, state: State) -> None:
        names = self._left.pop(fact.state).names
        gone = Gone(fact.why, fact.request, seq, len(names) * self._rows)
        for name in self._resumable(names):
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]
                self._remember(name, gone)

    def _resumable(self, names: tuple[bytes, ...] | list[bytes]) -> tuple[bytes, ...]:
        """Where a state of these names can be resumed."""
        return tuple(names[-1:] if self._whole else names)

    def _remember(self, name: bytes, gone: Gone) -> None:
        """A name went; the oldest memory makes room."""
        self._gone.pop(name, None)
        self._gone[name] = gone
        if len(self._gone) > self._most:
            self._gone.popitem(last=False)

    # --- what was not taken, and what was not kept -----------------------------------------------

    def _resume_refused(self, seq: int, fact: f.ResumeRefused, state: State) -> None:
        request = state.streams[fact.stream].request.request
        hit, why = self._asked.pop(fact.stream).hit, f"rank {fact.rank}: {fact.why}"
        self._refused[fact.stream] = Gone(why, request, seq, hit, refused=True)

    def _finished(self, seq: int, fact: f.RequestFinished, state: State) -> None:
        """What was due and is neither kept nor was, the store did not keep."""
        stream, asked = state.streams[fact.stream], self._asked.get(fact.stream)
        if asked is None or fact.reason not in ("stop", "length"):
            return
        for mark in sorted(mark for mark in asked.due if mark <= stream.rows):
            names = self._resumable(self._names_to(stream, asked, mark))
            gone = Gone(self._not_kept(state, stream, mark), fact.request, seq, mark, refused=True)
            missing = [name for name in names if not self._known_since(asked.seq, name)]
            self.not_kept += names[-1] in missing
            for name in missing:
                self._remember(name, gone)
        if asked.names:
            self._answered[asked.names[-1]] = None
            if len(self._answered) > ANSWERED:
                self._answered.popitem(last=False)

    def _known_since(self, seq: int, name: bytes) -> bool:
        """Whether a state is kept that can be resumed there, or was since."""
        gone = self._gone.get(name)
        return name in self._held or (gone is not None and gone.seq > seq)

    def _not_kept(self, state: State, stream: Stream, mark: int) -> str:
        if self._too_large(state, mark):
            return TOO_LARGE
        return NO_ROOM if computed(state, stream) else NOT_SUMMED

    def _released(self, seq: int, fact: f.StreamReleased, state: State) -> None:
        self._asked.pop(fact.stream, None)
        self._refused.pop(fact.stream, None)


_LOOKS: dict[str, Callable[[Misses, int, Any, State], Lookup | None]] = {
    "stream_begun": Misses._begun,
    "snapshot_taken": Misses._taken,
    "state_resumed": Misses._resumed,
    "state_dropped": Misses._dropped,
    "resume_refused": Misses._resume_refused,
    "request_finished": Misses._finished,
    "stream_released": Misses._released,
}
