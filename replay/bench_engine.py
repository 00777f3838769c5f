"""Our engine under a benchmark's clock: a live run without HTTP, asked one reply at a time."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from ..core.device import Device
from ..devices.cpu import CpuDevice
from ..devices.group import SPINS
from ..devices.http.engine import Finished, Tokens
from ..events.commands import Arrive
from ..events.facts import RunOpened
from ..events.ids import RequestId, SessionId, Token
from .models import Loaded, load
from .opening import RunOptions
from .serve import info_of
from .serving import LiveRun, TapeOptions

MODEL = "smollm2"
SHORT = "The quick brown fox"
LONG = "Once upon a time there was a small town by the sea where people told stories. " * 50
PROMPT_TOKENS = 682
REPLY_TOKENS = 128
SETTLE_SECONDS = 0.2  # threads that spin after their work sleep by then
_ASKED = count()


class NoReply(Exception):
    """The run ended before the reply did."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a reply took: seconds to its first token and to its last."""

    prompt_tokens: int
    tokens: int
    first: float
    last: float

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return (self.tokens - 1) / (self.last - self.first)

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second up to the first reply token."""
        return self.prompt_tokens / self.first


class Engine:
    """A live run and its door; one reply at a time."""

    def __init__(
        self, opened: RunOpened, devices: Sequence[Device], tape: Path | None = None
    ) -> None:
        info = info_of(opened, ())
        self.live = LiveRun(opened, devices, info, TapeOptions(path=tape))

    def ask(self, prompt: Sequence[int], tokens: int) -> Asked:
        """A greedy reply of so many tokens. Raises NoReply."""
        return asyncio.run(self.reply(prompt, tokens))

    async def reply(self, prompt: Sequence[int], tokens: int) -> Asked:
        """A greedy reply of so many tokens, beside others. Raises NoReply."""
        name = f"bench-{next(_ASKED)}"
        wish = Arrive(
            request=RequestId(name), session=SessionId(name),
            prompt=tuple(Token(token) for token in prompt), max_new=tokens, ignore_eos=True,
        )  # fmt: skip
        start, first, last, seen = time.perf_counter(), 0.0, 0.0, 0
        async for news in self.live.door.submit(wish):
            if isinstance(news, Tokens):
                last = time.perf_counter()
                first = first or last
                seen += len(news.ids)
            elif not isinstance(news, Finished):
                raise NoReply(f"{name}: {news}")
        if seen != tokens:
            raise NoReply(f"{name}: {seen} of {tokens} tokens; {self.live.error}")
        return Asked(len(prompt), seen, first - start, last - start)

    def close(self) -> None:
        """End the run; its devices are gone with it."""
        self.live.stop()


class Prompts:
    """Prompts that no kept state begins: each has a first token of its own."""

    def __init__(self, loaded: Loaded) -> None:
        assert loaded.text is not None, f"{loaded.opened.model} has no tokenizer"
        self._vocab = loaded.opened.rules.vocab
        self._short = list(loaded.text.encode(SHORT))
        self._long = list(loaded.text.encode(LONG))
        self._next = count(self._vocab // 2)

    def short(self) -> list[int]:
        """A few tokens."""
        return self._with_first(self._short)

    def long(self, tokens: int = PROMPT_TOKENS) -> list[int]:
        """So many tokens."""
        assert tokens <= len(self._long), f"{tokens} of {len(self._long)} tokens"
        return self._with_first(self._long[:tokens])

    def longer(self, tokens: int) -> list[int]:
        """So many tokens, the text as often as it takes."""
        times = -(-tokens // len(self._long))
        return self._with_first((self._long * times)[:tokens])

    def _with_first(self, ids: list[int]) -> list[int]:
        return [next(self._next) % self._vocab, *ids[1:]]


def loaded(options: RunOptions, name: str = MODEL) -> Loaded:
    """A model with its kernels compiled, so that no measurement compiles any."""
    return load(name, options, lambda line: None, lambda done, total: None)


def serve_options(world: int = 1, threads: int = 2, digests: str = "rows") -> RunOptions:
    """What `kvtape serve` uses on a machine of two cores, where nothing else is asked."""
    return RunOptions(world=world, threads=threads, digests=digests)


@contextmanager
def served(options: RunOptions, name: str = MODEL) -> Iterator[tuple[Engine, Prompts]]:
    """A model's engine with its prompts, a first reply behind it; ended afterwards."""
    model = loaded(options, name)
    engine, prompts = Engine(model.opened, model.devices), Prompts(model)
    try:
        engine.ask(prompts.short(), 8)
        yield engine, prompts
    finally:
        engine.close()


def twins(devices: Sequence[Device], digests: str) -> list[Device]:
    """Other devices over the same memory: a comparison must not hang on where weights lie.

    Only one group of the two may compute at a time, and neither may resume after the other wrote.
    """
    made: list[Device] = []
    for one in devices:
        assert isinstance(one, CpuDevice), f"{one} is not a CPU device"
        made.append(
            CpuDevice(
                one.rank, one.world, one.threads, SPINS, replace(one.settings, digests=digests),
                one.checkpoint, one.family, one.program,
                one.memory._replace(team=one.exchange.meeting(), turns=one.memory.turns.copy()),
                one.exchange,
                one.model_digest,
            )
        )  # fmt: skip
    return made


def settle() -> None:
    """Let threads that spin after their work go to sleep."""
    time.sleep(SETTLE_SECONDS)
