"""One request in flight: news in, text out, and the word to the engine when nobody waits."""

import time

from ...events.commands import Arrive
from .engine import Accepted, Detokeniser, End, Engine, Finished, Refused, Reply, Tokens
from .stops import StopStrings


class Talk:
    """What became of one request so far."""

    def __init__(self, engine: Engine, arrive: Arrive, detokeniser: Detokeniser | None) -> None:
        """detokeniser: None for a model without a tokenizer, whose replies are ids alone."""
        self.arrive = arrive
        self.end: End | None = None
        self.left = ""  # why nobody waits any more
        self.began_at = time.monotonic()
        self.first_token_at: float | None = None
        self._engine = engine
        self._reply: Reply | None = None
        self._detokeniser = detokeniser
        self._stops = StopStrings(arrive.stop)
        self._unshown = frozenset() if arrive.ignore_eos else frozenset(arrive.eos)
        self._text: list[str] = []
        self._ids: list[int] = []
        self._ids_told = 0

    def begin(self) -> Reply:
        """Put the request to the run. Raises QueueFull or EngineClosed."""
        assert self._reply is None, f"{self.arrive.request} begins twice"
        self._reply = self._engine.submit(self.arrive)
        return self._reply

    def leave(self, why: str) -> None:
        """Nobody waits: cancel, unless the reply is complete."""
        if self.end is not None or self.left:
            return
        self.left = why
        if self._reply is None:
            return
        if not self._reply.ended:
            self._engine.cancel(self.arrive.request, why)
        self._reply.close()

    @property
    def text(self) -> str:
        """All the text that may be shown so far."""
        return "".join(self._text)

    @property
    def ids(self) -> list[int]:
        """The reply ids so far."""
        return self._ids

    @property
    def finish_reason(self) -> str:
        """stop or length, of a reply that ended well."""
        assert isinstance(self.end, Finished), self.end
        return "stop" if self._stops.matched else self.end.reason

    def take(self, news: Accepted | Tokens | End) -> tuple[str, list[int]]:
        """What a stream may show of this news: text, and ids that were not told before."""
        if isinstance(news, Accepted):
            return "", []
        if isinstance(news, Tokens):
            if self.first_token_at is None:
                self.first_token_at = time.monotonic()
            shown = self._read(news)
        else:
            self.end = news
            shown = self._last_text()
            if isinstance(news, Finished):
                del self._ids[news.new_tokens :]
        self._text.append(shown)
        return shown, self._new_ids()

    def _read(self, news: Tokens) -> str:
        """Text of the next ids; the engine hears at which count a stop string is complete."""
        shown: list[str] = []
        for token in news.ids:
            self._ids.append(token)
            if self._detokeniser is None or self._stops.matched or token in self._unshown:
                continue
            shown.append(self._stops.push(self._detokeniser.push(token)))
            if self._stops.matched and self._reply is not None and not self._reply.ended:
                self._engine.stop_matched(self.arrive.request, len(self._ids))
        return "".join(shown)

    def _last_text(self) -> str:
        """What tokenizer and stop strings still hold when the reply ends."""
        if self._detokeniser is None or self._stops.matched:
            return ""
        return self._stops.push(self._detokeniser.flush()) + self._stops.flush()

    def _new_ids(self) -> list[int]:
        """Ids not told yet; past a stop string they wait for the end, which may cut them off."""
        if self._stops.matched and self.end is None:
            return []
        new = self._ids[self._ids_told :]
        self._ids_told = len(self._ids)
        return new

    def log_line(self) -> str:
        """The request's one line in the log, without a word of its text."""
        name, end = self.arrive.request, self.end
        if isinstance(end, Refused):
            return f"refused {name}: {end.reason} (needs {end.need}, has {end.have})"
        if isinstance(end, Finished):
            rounds = f" rounds={end.rounds}" if end.rounds else ""
            drafts = f" drafted={end.drafted} kept={end.accepted}" if end.drafted else ""
            miss = f" miss={end.miss}" if end.miss else ""
            return (
                f"done {name} prompt={end.prompt_tokens} cached={end.cached_tokens} "
                f"tokens={end.new_tokens} sha={end.token_sha[:12]} finish={end.reason}"
                f"{rounds}{drafts}{miss}"
            )
        reason = self.left or (f"error ({end.message})" if end else "error")
        return (
            f"ended {name} reason={reason} prompt={len(self.arrive.prompt)} tokens={len(self._ids)}"
        )
