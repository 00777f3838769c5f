"""Speaks to one server of the OpenAI API, and times what it streams."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from .measure_reply import Reply, Wish

REFUSALS = (400, 401, 403, 404, 405, 413, 422)  # the request is wrong: asking again is no use
FIELDS_REFUSED = (400, 422)
CONNECT_SECONDS = 10.0
PLAIN_NOTE = (
    "the server takes no fields but OpenAI's own: token ids, top_k, ignore_eos and draft were left"
    " out"
)
HINTS = {"no_tokenizer": "--form ids sends them"}


class NotMeasured(Exception):
    """Nothing can be measured: the server is not reached, or refuses what is asked."""


class Client:
    """Asks one server. plain: it refused the fields that OpenAI does not have."""

    def __init__(self, url: str, model: str = "", api_key: str = "", seconds: float = 900) -> None:
        """url: with /v1 or without. seconds: the longest silence that is waited for."""
        self.url = base_url(url)
        self.model = model
        self.model_digest = ""
        self.plain = False
        loopback = urlsplit(self.url).hostname in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
            trust_env=not loopback,  # a proxy for others is not asked about this machine
        )

    async def __aenter__(self) -> Self:
        try:
            await self._find_model()
        except NotMeasured:
            await self._http.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self._http.aclose()

    async def _find_model(self) -> None:
        """The model to ask, the first that is served where none was named; its digest, if told."""
        try:
            response = await self._http.get(f"{self.url}/models")
            listed = response.json()["data"] if response.status_code == 200 else []
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotMeasured(f"no server at {self.url}: {error or type(error).__name__}") from None
        except (ValueError, KeyError, TypeError):
            raise NotMeasured(f"{self.url}/models is not a list of models") from None
        if response.status_code in (401, 403):
            raise NotMeasured(f"{self.url} wants another API key: --api-key, KVTAPE_API_KEY")
        entries = {entry["id"]: entry for entry in listed}
        self.model = self.model or next(iter(entries), "")
        if not self.model:
            raise NotMeasured(f"{self.url} names no model: say --model")
        self.model_digest = entries.get(self.model, {}).get("model_digest", "")

    async def ask(self, wish: Wish) -> Reply:
        """The whole reply. What fails on the server's side is the reply's error.

        Raises NotMeasured where the request itself is refused.
        """
        reply, refusal = await self._try(wish, plain=self.plain)
        if refusal is None:
            return reply
        status, why = refusal
        if status in FIELDS_REFUSED and not self.plain:
            reply, again = await self._try(wish, plain=True)
            if again is None:
                self.plain = True
                return reply
        raise NotMeasured(f"the server refuses this request ({status}): {why}")

    async def _try(self, wish: Wish, *, plain: bool) -> tuple[Reply, tuple[int, str] | None]:
        """A reply, or the status and the reason of a refusal."""
        path = "chat/completions" if wish.prompt.chat else "completions"
        body = wish.body(self.model, plain=plain)
        reply = Reply(time.perf_counter())
        ended = False
        try:
            async with self._http.stream("POST", f"{self.url}/{path}", json=body) as response:
                if response.status_code != 200:
                    why = problem(await response.aread())
                    reply.error = f"status {response.status_code}: {why}"
                    if response.status_code in REFUSALS:
                        return reply, (response.status_code, why)
                    return reply, None
                async for data in events(response):
                    now = time.perf_counter()
                    if data == b"[DONE]":
                        ended = True
                    elif isinstance(chunk := json.loads(data), Mapping):
                        reply.take(now, chunk)
                    else:
                        reply.error = reply.error or f"no chunk of a reply: {chunk!r}"[:200]
        except (httpx.HTTPError, ValueError) as error:
            reply.error = reply.error or f"{type(error).__name__}: {error}"
        reply.ended_at = time.perf_counter()
        if not (ended or reply.finish):
            reply.error = reply.error or "the stream broke off"
        if reply.ids is not None and reply.claimed not in ("", reply.token_sha):
            reply.error = reply.error or (
                f"the server's hash is {reply.claimed}, its token ids have {reply.token_sha}"
            )
        return reply, None

    @property
    def notes(self) -> list[str]:
        """What whoever reads the report should know of this server."""
        return [PLAIN_NOTE] if self.plain else []


async def events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each server-sent event; only a newline ends a line, whatever text holds."""
    held = b""
    async for more in response.aiter_bytes():
        *lines, held = (held + more).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()
    if held.startswith(b"data:"):
        yield held.removeprefix(b"data:").strip()


def base_url(url: str) -> str:
    """Where the API's routes stand: the address with /v1."""
    bare = url.rstrip("/")
    if "://" not in bare:
        bare = f"http://{bare}"
    return bare if bare.endswith("/v1") else f"{bare}/v1"


def problem(body: bytes) -> str:
    """Why a request was refused, in the server's words and, where we know better, ours."""
    try:
        told: Any = json.loads(body)
    except ValueError:
        return body.decode(errors="replace").strip()[:200] or "no reason given"
    error = told.get("error", told) if isinstance(told, Mapping) else told
    if not isinstance(error, Mapping):
        return str(error)[:200]
    hint = HINTS.get(str(error.get("code")), "")
    why = str(error.get("message") or error.get("detail") or error)[:400]
    return f"{why} ({hint})" if hint else why
