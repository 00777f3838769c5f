"""The door itself: from a checked body to an Answer, and the replies it has open."""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from fastapi import Request

from ...events.ids import RequestId, SessionId
from .answer import SERVER_STOPPING, Answer
from .asks import Ask, ChatAsk, CompletionAsk
from .engine import BadPrompt, Engine, Rendered, TextSide
from .errors import ApiError, bad, closing, too_slow
from .metrics import Metrics
from .reasoning import ReplyReader
from .shapes import Form
from .talk import Talk
from .wish import arrive, check_prompt, reply_limit, sampling

LOG = logging.getLogger("kvtape.door")

SESSION_CHARACTERS_MAX = 256  # it comes back in two headers, at up to 12 bytes a character
COMPLETION_TOKENS_DEFAULT = 16  # of /v1/completions, as OpenAI has it


def seed_from_os() -> int:
    """A fresh seed, not negative."""
    return secrets.randbits(63)


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """api_key: blank asks for none. chat_tokens_default: reply limit of a chat that names none.

    read_seconds, write_seconds: that a client may leave a body, or a reply, where it is.
    """

    api_key: str = ""
    body_bytes_max: int = 32 * 2**20
    chat_tokens_default: int = 4096
    first_request: int = 1
    read_seconds: float = 60.0
    write_seconds: float = 60.0
    retry_seconds: int = 1
    draw_seed: Callable[[], int] = seed_from_os


class Door:
    """What all routes share. It lives on one event loop and asks one engine."""

    def __init__(self, engine: Engine, text: TextSide | None, settings: DoorSettings) -> None:
        """text: None for a model without a tokenizer, which is served token ids alone."""
        self.engine = engine
        self.settings = settings
        self.metrics = Metrics(engine.meters)
        self.open: set[Talk] = set()
        self.closed = False
        self._reads: set[asyncio.Timeout] = set()
        self._text = text
        self._next_request = settings.first_request

    @asynccontextmanager
    async def reads(self) -> AsyncIterator[Callable[[], None]]:
        """While a body is read; yields what is told of each piece. Raises ApiError.

        The next piece may take read_seconds, but none is waited for once the door is closed.
        """
        seconds, clock = self.settings.read_seconds, asyncio.get_running_loop().time
        if self.closed:
            raise closing()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                self._reads.add(limit)
                yield lambda: None if self.closed else limit.reschedule(clock() + seconds)
        except TimeoutError:
            raise closing() if self.closed else too_slow(seconds) from None
        finally:
            self._reads.discard(limit)

    async def answer(self, request: Request, ask: Ask) -> Answer:
        """The response to a checked body. Raises ApiError."""
        if self.closed:
            raise closing()
        info = self.engine.info
        if ask.model not in (None, info.model):
            message = f"the model {ask.model!r} is not served here, {info.model!r} is"
            raise ApiError(404, message, code="model_not_found", param="model")
        ask.check_served()
        if ask.stops and self._text is None:
            raise _no_tokenizer("stop")
        header = _session(request)
        chat = isinstance(ask, ChatAsk)
        param = "messages" if chat else "prompt"
        prompt = await self._prompt(ask, param)
        check_prompt(prompt.ids, info.vocab, param)
        default = self.settings.chat_tokens_default if chat else COMPLETION_TOKENS_DEFAULT
        max_new = reply_limit(ask.reply_tokens, default, len(prompt.ids), info.context, param)
        drawn = sampling(ask, info.vocab, self.settings.draw_seed)
        name = RequestId(f"req-{self._next_request:08d}")
        self._next_request += 1
        session = SessionId(header or ask.user or name)
        wish = arrive(
            ask, info, request=name, session=session, prompt=prompt, max_new=max_new, drawn=drawn
        )
        reader = self._reader(ask, prompt.thinking) if isinstance(ask, ChatAsk) else None
        shown = reader.reads if reader else frozenset[str]()
        talk = Talk(self.engine, wish, self._text.detokeniser(shown) if self._text else None)
        self.open.add(talk)
        return Answer(
            talk, info,
            Form(
                wish, info, int(time.time()), chat=chat, reader=reader,
                ids=bool(ask.return_token_ids) or self._text is None,
                usage=bool(ask.stream_options and ask.stream_options.include_usage),
            ),
            streams=bool(ask.stream), param=param, write_seconds=self.settings.write_seconds,
            retry_seconds=self.settings.retry_seconds, over=self._over,
        )  # fmt: skip

    def _reader(self, ask: ChatAsk, thinking: bool) -> ReplyReader | None:
        """What reads the parts of the reply, where the model can write any."""
        assert self._text is not None, "a chat was rendered"
        reader = ReplyReader(
            self._text.tags, thinking=thinking, tools=ask.offered,
            calls_max=1 if ask.parallel_tool_calls is False else None,
        )  # fmt: skip
        return reader if reader.reads else None

    async def _prompt(self, ask: Ask, param: str) -> Rendered:
        """The prompt's ids; long texts are worked on beside the loop."""
        asked = ask.one_prompt() if isinstance(ask, CompletionAsk) else None
        if isinstance(asked, list):
            return Rendered(asked)
        if self._text is None:
            raise _no_tokenizer(param)
        try:
            if asked is not None:
                return Rendered(await asyncio.to_thread(self._text.encode, asked))
            assert isinstance(ask, ChatAsk), ask
            messages = [message.plain() for message in ask.messages]
            tools = ask.offered or None
            return await asyncio.to_thread(self._text.render, messages, tools, ask.options)
        except BadPrompt as error:
            raise bad(str(error), param, "bad_prompt") from None

    def _over(self, talk: Talk) -> None:
        """A request is done with."""
        self.open.discard(talk)
        self.metrics.count(talk, time.monotonic())
        LOG.info(talk.log_line())

    def close(self, drain_seconds: float) -> None:
        """Take no more requests; give up those that are still open after the drain."""
        self.closed = True
        for limit in self._reads:
            if not limit.expired():  # whose reader is about to hear of it anyway
                limit.reschedule(0.0)
        asyncio.get_running_loop().call_later(drain_seconds, self._give_up)

    def _give_up(self) -> None:
        for talk in list(self.open):
            talk.leave(SERVER_STOPPING)


def _session(request: Request) -> str:
    """The session header, decoded as replies encode it; empty when there is none."""
    raw = request.headers.get("x-kvtape-session", "").strip()
    session = unquote(raw, errors="replace")
    if len(session) > SESSION_CHARACTERS_MAX or not raw.isascii():
        raise bad(
            f"x-kvtape-session must be ASCII (percent-encoded otherwise) and at most "
            f"{SESSION_CHARACTERS_MAX} characters",
            "x-kvtape-session",
        )
    return session


def _no_tokenizer(param: str) -> ApiError:
    return bad("this model has no tokenizer: send prompt token ids", param, "no_tokenizer")
