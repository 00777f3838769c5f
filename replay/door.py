"""The engine as the door sees it: wishes go in, and each request's news come out once durable."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core.state import State
from ..devices.http.bridge import Inbox
from ..devices.http.engine import EngineClosed, Failed, Finished, Health, Info, Meters, Refused
from ..devices.http.engine import Tokens as NewTokens
from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.ids import RequestId, StreamId, Token
from .live import LiveSource


@dataclass(slots=True)
class _Seen:
    """What the door remembers of a request until its reply ends."""

    inbox: Inbox
    since: float
    seq_first: int = -1
    shown: int = 0


@dataclass(slots=True)
class _Counts:
    """Totals since the run began."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    rounds: int = 0
    steps: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    refused: int = 0
    logits: dict[StreamId, str] = field(default_factory=dict)


class LiveDoor:
    """Implements the door's Engine over the loop; `show` runs on the loop's thread."""

    def __init__(self, info: Info, state: State, source: LiveSource) -> None:
        self.info = info
        self._state = state
        self._source = source
        self._seen: dict[RequestId, _Seen] = {}
        self._by_stream: dict[StreamId, RequestId] = {}
        self._counts = _Counts()
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

    def flush(self) -> None:
        """Drop every kept state that no stream is using. Raises EngineClosed."""
        if self._end:
            raise EngineClosed(self._end)
        self._source.wish(c.Flush())

    def health(self) -> Health:
        """Whether requests are served."""
        return Health(ok=not self._end, status=self._end or "ok")

    def meters(self) -> Meters:
        """The figures behind /metrics."""
        state, counts = self._state, self._counts
        waiting = [self._seen.get(r) for r, s in list(state.requests.items()) if s in state.queue]
        now = time.monotonic()
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
            hits=counts.hits,
            misses=counts.misses,
            evicted=counts.evicted,
            refused=counts.refused,
            queue_age_seconds=max((now - seen.since for seen in waiting if seen), default=0.0),
        )

    # --- told by the loop ------------------------------------------------------------------------

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Pass a step's durable facts on to whoever waits for them."""
        self._counts.steps += 1
        for seq, fact in enumerate(facts, first_seq):
            match fact:
                case f.RowsKept():
                    self._tokens(fact)
                case f.StepClosed():
                    sums = fact.digests.parts.get("logits", ())
                    self._counts.logits.update(zip(fact.digests.streams, sums, strict=False))
                case f.RoundRun():
                    self._counts.rounds += 1
                case f.RequestArrived():
                    self._seen[fact.request].seq_first = seq
                    self._counts.prompt_tokens += len(fact.prompt)
                case f.StreamQueued():
                    self._by_stream[fact.stream] = fact.request
                case f.StreamBegun():
                    self._counts.hits += fact.state >= 0
                    self._counts.misses += fact.state < 0
                case f.StateResumed():
                    self._counts.cached_tokens += fact.mark
                case f.StateDropped():
                    self._counts.evicted += fact.why in ("evicted", "reclaimed")
                case f.RequestRefused():
                    self._counts.refused += 1
                    seen = self._seen.pop(fact.request)
                    seen.inbox.put(Refused(fact.reason, fact.need, fact.have))
                case f.RequestFinished():
                    self._finished(seq, fact)
                case f.RunClosed():
                    self.end(fact.reason)
                case _:
                    pass

    def end(self, reason: str) -> None:
        """The run is over: nobody waits for ever."""
        self._end = reason
        for seen in list(self._seen.values()):
            seen.inbox.put(Failed(reason))
        self._seen.clear()

    def _tokens(self, kept: f.RowsKept) -> None:
        for at, stream in enumerate(kept.streams):
            request = self._by_stream.get(stream)
            ids = kept.tokens[kept.starts[at] : kept.starts[at + 1]]
            if request is not None and ids:
                seen = self._seen[request]
                seen.shown += len(ids)
                self._counts.generated_tokens += len(ids)
                seen.inbox.put(NewTokens(tuple(Token(token) for token in ids)))

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
                logits_digest=self._counts.logits.pop(fact.stream, ""),
                stream=fact.stream,
                drafted=drafted,
                accepted=accepted,
            )
        )
