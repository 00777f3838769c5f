"""The engine as the door sees it: wishes go in, and each request's news come out once durable."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core.state import State
from ..devices.http.bridge import Inbox, wake
from ..devices.http.engine import (
    EngineClosed,
    Failed,
    Finished,
    Flushed,
    Health,
    Info,
    Meters,
    Refused,
)
from ..devices.http.engine import Tokens as NewTokens
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import RequestId, StreamId, Token
from .door_counts import pages_by_holder, store_bytes
from .door_flush import Flushes
from .door_store import StoreWatch
from .live import LiveSource
from .loop import Decide


@dataclass(slots=True)
class _Seen:
    """What the door remembers of a request until its reply ends."""

    inbox: Inbox
    since: float
    seq_first: int = -1
    pieces: int = 0  # of its reply: the first is the prompt's, each other one a round's


class LiveDoor:
    """Implements the door's Engine over the loop; `show` runs on the loop's thread."""

    def __init__(self, info: Info, state: State, source: LiveSource) -> None:
        self.info = info
        self._state = state
        self._source = source
        self._seen: dict[RequestId, _Seen] = {}
        self._by_stream: dict[StreamId, RequestId] = {}
        self._store = StoreWatch(state)
        self._flushes = Flushes(source)
        self._logits: dict[StreamId, str] = {}
        self._end = ""

    # --- asked by the HTTP side, on its event loop -----------------------------------------------

    def submit(self, arrive: c.Arrive) -> Inbox:
        """Put a request to the run. Raises EngineClosed."""
        if self._end:
            raise EngineClosed(self._end)
        inbox = Inbox(arrive.max_new)
        self._seen[arrive.request] = _Seen(inbox, time.monotonic())
        if self._end:  # meanwhile: the loop may not have seen it, and hears no wish any more
            raise EngineClosed(self._end)
        self._source.wish(arrive)
        return inbox

    def cancel(self, request: RequestId, why: str) -> None:
        """Nobody waits for this reply any more."""
        self._source.wish(c.Cancel(request=request, why=why))

    def stop_matched(self, request: RequestId, tokens: int) -> None:
        """The text of the first `tokens` reply tokens holds a stop string."""
        self._source.wish(c.StopMatched(request=request, tokens=tokens))

    async def flush(self) -> Flushed:
        """Drop every kept state that no stream is using. Raises EngineClosed."""
        return await self._flushes.ask()

    def health(self) -> Health:
        """Whether requests are served."""
        return Health(ok=not self._end, status=self._end or "ok")

    def meters(self) -> Meters:
        """The figures behind /metrics."""
        state, counts = self._state, self._store.counts
        bytes_now, bytes_most = store_bytes(state)
        return Meters(
            requests_running=sum(stream is not None for stream in state.lanes),
            requests_waiting=len(state.queue),
            prompt_tokens=counts.prompt_tokens,
            generated_tokens=counts.generated_tokens,
            drafted_tokens=self._source.drafted,
            accepted_drafts=self._source.accepted,
            cached_tokens=counts.cached_tokens,
            rounds=counts.rounds,
            steps=counts.steps,
            pages_total=state.book.total,
            pages_free=state.book.free,
            pages_held=int((state.book.kept > 0).sum()),
            kept_states=len(state.kept),
            kept_states_max=0 if bytes_most else state.opened.states,
            store_bytes=bytes_now,
            store_bytes_max=bytes_most,
            hits=counts.hits,
            kept=counts.kept,
            evicted=counts.dropped["evicted"],
            reclaimed=counts.dropped["reclaimed"],
            not_kept=self._store.misses.not_kept,
            failed=counts.failed,
            refused=counts.refused,
            queue_age_seconds=self._queue_age(),
            misses=dict(counts.misses),
            missed_tokens=dict(counts.missed_tokens),
            pages_by_holder=pages_by_holder(state),
        )

    def _queue_age(self) -> float:
        """How long the head of the queue has waited, in seconds."""
        head = self._state.queue[:1]
        request = self._by_stream.get(head[0]) if head else None
        seen = self._seen.get(request) if request is not None else None
        return 0.0 if seen is None else time.monotonic() - seen.since

    def watch(self, decide: Decide, next_seq: Callable[[], int]) -> Decide:
        """Decide as before, and see what each prompt finds in the store, and why no more."""
        return self._store.watch(decide, next_seq)

    # --- told by the loop ------------------------------------------------------------------------

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Pass a step's durable facts on to whoever waits for them."""
        self._store.counts.steps += 1
        for seq, fact in enumerate(facts, first_seq):
            self._store.see(fact)
            match fact:
                case f.RowsKept():
                    self._tokens(fact)
                case f.StepClosed():
                    sums = fact.digests.parts.get("logits", ())
                    self._logits.update(zip(fact.digests.streams, sums, strict=False))
                case f.RequestArrived():
                    self._seen[fact.request].seq_first = seq
                case f.StreamQueued():
                    self._by_stream[fact.stream] = fact.request
                case f.RequestRefused():
                    seen = self._seen.pop(fact.request)
                    seen.inbox.put(Refused(fact.reason, fact.need, fact.have))
                case f.RequestFinished():
                    self._finished(seq, fact)
                case f.RunClosed():
                    self.end(fact.reason)
                case _:
                    pass
        self._flushes.show(facts, state)
        self._store.tell()

    def end(self, reason: str) -> None:
        """The run is over: nobody waits for ever."""
        self._end = reason
        self._flushes.end(reason)
        for seen in list(self._seen.values()):
            seen.inbox.put(Failed(reason))
        self._seen.clear()

    def _tokens(self, kept: f.RowsKept) -> None:
        waiting: list[Inbox] = []
        try:
            for at, stream in enumerate(kept.streams):
                request = self._by_stream.get(stream)
                ids = kept.tokens[kept.starts[at] : kept.starts[at + 1]]
                if request is None or not ids:
                    continue
                seen = self._seen[request]
                if not seen.pieces:
                    self._store.prompted(stream)
                seen.pieces += 1
                self._store.counts.generated_tokens += len(ids)
                if seen.inbox.add(NewTokens(tuple(Token(token) for token in ids))):
                    waiting.append(seen.inbox)
        finally:  # nobody waits for ever, whatever went wrong
            wake(waiting)

    def _finished(self, seq: int, fact: f.RequestFinished) -> None:
        seen = self._seen.pop(fact.request)
        self._by_stream.pop(fact.stream, None)
        drafted, accepted = self._source.drafts.pop(fact.stream, (0, 0))
        seen.inbox.put(
            Finished(
                reason=fact.reason,
                prompt_tokens=fact.prompt_tokens,
                cached_tokens=fact.cached_tokens,
                new_tokens=fact.new_tokens,
                token_sha=fact.token_sha,
                seq_first=seen.seq_first,
                seq_last=seq,
                logits_digest=self._logits.pop(fact.stream, ""),
                stream=fact.stream,
                drafted=drafted,
                accepted=accepted,
                rounds=max(seen.pieces - 1, 0),
                miss=self._store.miss(fact.stream),
            )
        )
