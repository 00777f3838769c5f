"""Endings: a step's outcome, replies that are complete, cancels, and the end of the run."""

from collections.abc import Iterator
from hashlib import sha256

from ..events import commands as c
from ..events import facts as f
from ..events.facts import AnyFact
from ..events.records import known
from .keep import computed, keep, keep_marks
from .state import NO_LANE, Phase, State, Stream, flagged


def device_done(state: State, done: c.DeviceDone) -> Iterator[AnyFact]:
    """Keep a step's tokens, close it, and finish the replies that it completed."""
    if done.streams:
        yield known(
            f.RowsKept,
            kind="rows_kept",
            streams=done.streams,
            starts=done.starts,
            tokens=done.tokens,
        )
    yield known(
        f.StepClosed,
        kind="step_closed",
        step=done.step,
        digests=done.digests,
        book=done.book,
        flagged=done.flagged,
    )
    for stream_id in done.flagged:
        if stream_id in state.streams:
            yield from finish(state, state.streams[stream_id], "fault")
    for stream_id in done.streams:
        stream = state.streams.get(stream_id)
        if stream is not None and (reason := _complete(stream)):
            yield from finish(state, stream, reason)


def _complete(stream: Stream) -> str:
    """Why a reply ends with its last token, "" while it does not."""
    request = stream.request
    new = len(stream.tokens) - len(request.prompt)
    if new > 0 and not request.ignore_eos and stream.tokens[-1] in request.eos:
        return "stop"
    return "length" if 0 < new >= request.max_new else ""


def stop_matched(state: State, command: c.StopMatched) -> Iterator[AnyFact]:
    """End a reply at the token whose text completed a stop string."""
    stream_id = state.requests.get(command.request)
    if stream_id is None:
        return  # it ended by itself first
    stream = state.streams[stream_id]
    if 0 < command.tokens <= stream.new_tokens:
        yield from finish(state, stream, "stop", command.tokens)


def cancel(state: State, command: c.Cancel) -> Iterator[AnyFact]:
    """End a request for a client that left; one that is over already is a no-op on the tape."""
    stream_id = state.requests.get(command.request)
    if stream_id is None:
        return
    yield f.RequestCancelled(request=command.request, why=command.why)
    yield from finish(state, state.streams[stream_id], "cancelled")


def finish(
    state: State, stream: Stream, reason: str, new_tokens: int | None = None
) -> Iterator[AnyFact]:
    """Complete a reply: leave a state where the family wants one, give pages and lane back."""
    rules = state.opened.rules
    if (
        rules.finish_marks
        and reason != "fault"
        and computed(state, stream)
        and stream.phase is not Phase.RESUMING
    ):
        mark = stream.rows // rules.mark_rows * rules.mark_rows
        if mark > 0:
            yield from keep(state, stream, mark)
    elif reason != "fault" and flagged(state.opened, "keep_at_end"):
        yield from keep_marks(state, stream)
    count = stream.new_tokens if new_tokens is None else new_tokens
    reply = stream.tokens[stream.prompt_tokens : stream.prompt_tokens + count]
    yield f.RequestFinished(
        stream=stream.stream,
        request=stream.request.request,
        reason=reason,
        prompt_tokens=stream.prompt_tokens,
        cached_tokens=stream.cached,
        new_tokens=count,
        token_sha=token_sha(reply),
    )
    if stream.pages:
        yield f.PagesReturned(stream=stream.stream, pages=tuple(state.table(stream)))
    yield f.StreamReleased(stream=stream.stream, lane=stream.lane)


def token_sha(tokens: list[int]) -> str:
    """SHA-256 over the ids in decimal joined by commas: 64 hex digits."""
    return sha256(",".join(map(str, tokens)).encode()).hexdigest()


def close(state: State, reason: str, error: str = "") -> Iterator[AnyFact]:
    """End the run: whoever is still here is cancelled first. error: what went wrong, in words."""
    for stream in tuple(state.streams.values()):
        yield f.RequestCancelled(request=stream.request.request, why=reason)
        yield from finish(state, stream, "cancelled" if reason == "closed" else "fault")
    assert all(lane is None for lane in state.lanes) and not state.queue, "streams outlive the run"
    assert NO_LANE not in range(state.opened.lanes)
    yield f.RunClosed(reason=reason, steps=state.step, error=error)
