"""One request to any server of the OpenAI API, and what came back: times, counts, hashes."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

HASH_CHARACTERS = 12
CLAIM = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")
TOP_K, TOP_P = 20, 0.95

Message = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: text or token ids for /completions, or messages for /chat/completions."""

    name: str
    content: str | Sequence[int] | Sequence[Message]

    @property
    def chat(self) -> bool:
        """Whether it is a chat."""
        return not isinstance(self.content, str) and isinstance(self.content[0], Mapping)


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request asks for; a seed of None leaves a sampled reply to chance."""

    prompt: Prompt
    tokens: int
    temperature: float = 0.0
    seed: int | None = None
    draft: bool = True

    @property
    def repeatable(self) -> bool:
        """Whether the same wish must give the same reply."""
        return self.temperature == 0 or self.seed is not None

    @property
    def undrafted(self) -> "Wish":
        """The same request, one token a round."""
        return replace(self, draft=False)

    def body(self, model: str, *, plain: bool) -> dict[str, Any]:
        """The JSON to send; plain: only fields that OpenAI itself has."""
        chat = self.prompt.chat
        asked: dict[str, Any] = {
            "model": model,
            "messages" if chat else "prompt": self.prompt.content,
            "max_tokens": self.tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.seed is not None:
            asked["seed"] = self.seed
        if self.temperature:
            asked["top_p"] = TOP_P
        if plain:
            return asked
        asked |= {"ignore_eos": True, "return_token_ids": True}
        asked |= {"top_k": TOP_K} if self.temperature else {}
        asked |= {"chat_template_kwargs": {"enable_thinking": False}} if chat else {}
        return asked if self.draft else asked | {"draft": False}


@dataclass(slots=True)
class Reply:
    """What came back; times in seconds of one monotonic clock. error: "" where it is whole.

    cached: prompt tokens that were not computed again, None where the server does not say.
    claimed: the token hash that the server names, "" where it names none.
    """

    asked_at: float
    ended_at: float = 0.0
    times: list[float] = field(default_factory=list)  # of each piece of the reply
    counts: list[int] = field(default_factory=list)  # token ids in each of them
    ids: list[int] | None = None
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    said_tokens: int | None = None
    cached: int | None = None
    drafted: int = 0
    finish: str = ""
    claimed: str = ""
    error: str = ""

    def take(self, now: float, chunk: Mapping[str, Any]) -> None:
        """One chunk of the stream."""
        if problem := chunk.get("error"):
            told = problem.get("message") if isinstance(problem, Mapping) else problem
            self.error = self.error or str(told)
        for choice in chunk.get("choices") or ():
            self._take_choice(now, choice)
        if usage := chunk.get("usage"):
            self._take_usage(usage)
        for name in ("kvtape", "tensorfold"):
            proof = (chunk.get(name) or {}).get("token_sha")
            if isinstance(proof, str) and CLAIM.fullmatch(proof):
                self.claimed = proof[:HASH_CHARACTERS]

    def _take_choice(self, now: float, choice: Mapping[str, Any]) -> None:
        said = choice.get("delta") or choice
        text = said.get("content") or said.get("text") or ""
        thought = said.get("reasoning_content") or said.get("reasoning") or ""
        ids = choice.get("token_ids")
        if ids is not None:
            self.ids = [*(self.ids or ()), *ids]
        if text or thought or ids or said.get("tool_calls"):
            self.times.append(now)
            self.counts.append(len(ids or ()))
        self.content.append(text)
        self.reasoning.append(thought)
        self.finish = choice.get("finish_reason") or self.finish

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        self.prompt_tokens = usage.get("prompt_tokens")
        self.said_tokens = usage.get("completion_tokens")
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        details = usage.get("completion_tokens_details") or {}
        kinds = ("accepted_prediction_tokens", "rejected_prediction_tokens")
        self.drafted = sum(details.get(kind) or 0 for kind in kinds)

    @property
    def tokens(self) -> int:
        """Reply tokens; where nobody counted them, pieces."""
        if self.ids is not None:
            return len(self.ids)
        return len(self.times) if self.said_tokens is None else self.said_tokens

    @property
    def token_sha(self) -> str:
        """The hash of the reply's token ids, "" where the server sends neither ids nor hash."""
        return self.claimed if self.ids is None else token_hash(self.ids)

    @property
    def output_sha256(self) -> str:
        """The hash of the reply's text: of the two hashes of its content and its reasoning."""
        sides = ("".join(self.content), "".join(self.reasoning))
        each = b"".join(hashlib.sha256(side.encode()).digest() for side in sides)
        return hashlib.sha256(each).hexdigest()

    @property
    def ttft(self) -> float | None:
        """Seconds to the first piece."""
        return self.times[0] - self.asked_at if self.times else None

    @property
    def decode_tps(self) -> float | None:
        """Tokens after the first piece over the time from the first piece to the last."""
        if len(self.times) < 2 or self.times[-1] <= self.times[0]:
            return None
        return (self.tokens - (self.counts[0] or 1)) / (self.times[-1] - self.times[0])

    def tokens_within(self, start: float, end: float) -> float:
        """Tokens that came after `start` and by `end`; without ids, pieces are taken as alike."""
        alike = self.tokens / len(self.times) if self.times else 0.0
        pairs = zip(self.times, self.counts, strict=True)
        return sum((count or alike) for at, count in pairs if start < at <= end)

    def as_json(self, name: str, wish: Wish) -> dict[str, object]:
        """The reply for machines, without a word of its text."""
        return {
            "name": name,
            "ttft_s": self.ttft,
            "decode_tps": self.decode_tps,
            "seconds": self.ended_at - self.asked_at,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached,
            "tokens": self.tokens,
            "token_sha": self.token_sha,
            "output_sha256": self.output_sha256,
            "finish": self.finish,
            "repeatable": wish.repeatable,
            "error": self.error,
        }


def token_hash(ids: Sequence[int]) -> str:
    """The first 12 hex digits of SHA-256 over the ids, decimal, joined by commas."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:HASH_CHARACTERS]


def compared(left: Reply, right: Reply) -> str:
    """equal, unequal or failed: by token ids where both have their hash, else by text."""
    if left.error or right.error:
        return "failed"
    if left.token_sha and right.token_sha:
        same = left.token_sha == right.token_sha
    else:
        same = left.output_sha256 == right.output_sha256
    return "equal" if same else "unequal"


def middle(values: Sequence[float | None]) -> float | None:
    """The median of what was measured, None where nothing was."""
    had = [value for value in values if value is not None]
    return median(had) if had else None
