"""The JSON that clients read: replies, chunks of a stream, usage and the receipt."""

from collections.abc import Sequence
from typing import Any

from ...events.commands import Arrive
from .engine import Finished, Flushed, Info
from .parts import delta, message
from .reasoning import ReplyReader


def receipt(arrive: Arrive, info: Info, end: Finished | None = None) -> dict[str, Any]:
    """Who asked and, once the reply is complete, all that a check of it needs.

    miss: why its prompt was resumed no further, None where it was resumed at its last mark.
    """
    if end is None:
        return {"session": arrive.session, "request": arrive.request}
    return {
        "session": arrive.session,
        "request": arrive.request,
        "stream": end.stream,
        "seq": [end.seq_first, end.seq_last],
        "model_digest": info.model_digest,
        "contract": info.contract,
        "token_sha": end.token_sha,
        "logits_digest": end.logits_digest,
        "miss": end.miss or None,
    }


def usage(end: Finished) -> dict[str, Any]:
    """Token counts of one reply."""
    assert 0 <= end.cached_tokens <= end.prompt_tokens, f"{end} read more than its prompt"
    told: dict[str, Any] = {
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.new_tokens,
        "total_tokens": end.prompt_tokens + end.new_tokens,
        "prompt_tokens_details": {"cached_tokens": end.cached_tokens},
    }
    if end.drafted:
        told["completion_tokens_details"] = {
            "accepted_prediction_tokens": end.accepted,
            "rejected_prediction_tokens": end.drafted - end.accepted,
        }
    return told


def flushed(done: Flushed) -> dict[str, int]:
    """What a flush of the kept prompts did."""
    return {
        "states_dropped": done.dropped,
        "states_kept": done.kept,
        "pages_free": done.pages_free,
    }


class Form:
    """The bodies of one reply, in the chat's form or the plain completion's."""

    def __init__(
        self, arrive: Arrive, info: Info, created: int, *, chat: bool, ids: bool, usage: bool,
        reader: ReplyReader | None = None,
    ) -> None:  # fmt: skip
        """created: Unix seconds. ids: token ids are wanted. usage: a stream ends with usage.
        reader: of a chat whose model writes more than text."""
        self._request = arrive.request
        self._prompt = arrive.prompt
        self._reader = reader
        self._chat = chat
        self._ids = ids
        self._usage = usage
        self._base: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{arrive.request}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": info.model,
            "system_fingerprint": f"kvtape-{info.contract}-{info.model_digest[:12]}",
        }
        self._chunk = {**self._base, "object": "chat.completion.chunk"} if chat else self._base

    def whole(
        self, text: str, ids: Sequence[int], reason: str, end: Finished, proof: dict[str, Any]
    ) -> dict[str, Any]:
        """The reply in one body."""
        said: Any = {"message": self._message(text, reason)} if self._chat else {"text": text}
        choice = {
            "index": 0,
            **said,
            "logprobs": None,
            "finish_reason": self._reason(reason),
        }
        if self._ids:
            choice |= {"token_ids": ids, "prompt_token_ids": self._prompt}
        return {**self._base, "choices": [choice], "usage": usage(end), "kvtape": proof}

    def opening(self) -> dict[str, Any] | None:
        """The chunk before any text, where there is something to say."""
        if not self._chat and not self._ids:
            return None
        said = {"delta": {"role": "assistant", "content": ""}} if self._chat else {"text": ""}
        extra = {"token_ids": (), "prompt_token_ids": self._prompt} if self._ids else {}
        return self._piece({**said, **extra})

    def piece(self, text: str, ids: Sequence[int]) -> dict[str, Any] | None:
        """A chunk of the reply, None when the client would see nothing in it."""
        said: dict[str, Any]
        if self._reader:
            said = {"delta": delta(self._reader.push(text), self._request)}
        else:
            said = {"delta": {"content": text} if text else {}} if self._chat else {"text": text}
        if not any(said.values()) and not (self._ids and ids):
            return None
        return self._piece({**said, **({"token_ids": ids} if self._ids else {})})

    def closing(self, reason: str, end: Finished, proof: dict[str, Any]) -> list[dict[str, Any]]:
        """The finish reason, then usage if it is wanted; the last chunk has the receipt."""
        rest = self._reader.finish(cut=reason == "length") if self._reader else []
        chunks = [self._piece({"delta": delta(rest, self._request)})] if rest else []
        last: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        chunks.append(self._piece(last, self._reason(reason)))
        if self._usage:
            chunks.append({**self._chunk, "choices": [], "usage": usage(end)})
        chunks[-1]["kvtape"] = proof
        return chunks

    def _message(self, text: str, reason: str) -> dict[str, Any]:
        """A whole chat reply, in its parts."""
        if self._reader is None:
            return {"role": "assistant", "content": text}
        parts = [*self._reader.push(text), *self._reader.finish(cut=reason == "length")]
        return message(parts, self._request)

    def _reason(self, reason: str) -> str:
        """tool_calls instead of stop, once the reply has been read."""
        called = self._reader is not None and self._reader.called
        return "tool_calls" if called and reason == "stop" else reason

    def _piece(self, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        nothing_yet = {"usage": None} if self._usage else {}
        return {**self._chunk, "choices": [choice], **nothing_yet}
