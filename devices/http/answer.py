"""The response of one request: in one body or as a stream, and a cancel when the client leaves."""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from .engine import EngineClosed, Failed, Finished, Info, QueueFull, Refused, Reply
from .errors import ApiError, busy, closing, faulty, refused
from .shapes import Form, receipt
from .talk import Talk

CLIENT_LEFT = "client-left"
CLIENT_STALLED = "client-stalled"
SERVER_STOPPING = "server-stopping"
BROKEN_OFF = "broken-off"

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SHOWN_AS_IS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class Answer(Response):
    """Runs one request from submit to its last byte; the client is watched all the while."""

    def __init__(
        self, talk: Talk, info: Info, form: Form, *, streams: bool, param: str,
        write_seconds: float, retry_seconds: int, over: Callable[[Talk], None],
    ) -> None:  # fmt: skip
        """param: the field that errors point to. over: called once, when all is said."""
        super().__init__()
        self._talk = talk
        self._info = info
        self._form = form
        self._streams = streams
        self._param = param
        self._write_seconds = write_seconds
        self._retry_seconds = retry_seconds
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        talk = self._talk
        watch = asyncio.create_task(self._watch(receive))
        try:
            await asyncio.sleep(0)  # a client that left meanwhile is seen before anything is asked
            if talk.left:
                return
            reply = self._begin()
            if self._streams:
                await self._stream(reply, send)
            else:
                async for news in reply:
                    talk.take(news)
                await self._whole(scope, receive, send)
        except TimeoutError:
            talk.leave(CLIENT_STALLED)
        finally:
            talk.leave(BROKEN_OFF)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            self._over(talk)

    async def _watch(self, receive: Receive) -> None:
        """Waits for the client to be gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._talk.leave(CLIENT_LEFT)

    def _begin(self) -> Reply:
        try:
            return self._talk.begin()
        except QueueFull:
            self._talk.end = Refused("queue_full")
            raise busy(self._retry_seconds) from None
        except EngineClosed:
            self._talk.end = Refused("engine_closed")
            raise closing() from None

    def _trouble(self) -> ApiError | None:
        """Why there is no complete reply, if there is none."""
        match self._talk.end:
            case None:
                return closing()
            case Refused() as end:
                return refused(end, self._param, self._retry_seconds)
            case Failed() as end:
                return ApiError(500, f"the run ended: {end.message}", code="engine_failed")
            case Finished(reason="stop" | "length"):
                return None
            case Finished() as end:
                return faulty(end, receipt(self._talk.arrive, self._info, end))

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The reply in one body."""
        talk = self._talk
        if talk.left == CLIENT_LEFT:
            return
        if trouble := self._trouble():
            raise trouble
        assert isinstance(talk.end, Finished)
        proof = receipt(talk.arrive, self._info, talk.end)
        body = self._form.whole(talk.text, talk.ids, talk.finish_reason, talk.end, proof)
        response = JSONResponse(body, headers=self._told_in_headers(proof))
        async with asyncio.timeout(self._write_seconds):
            await response(scope, receive, send)

    async def _stream(self, reply: Reply, send: Send) -> None:
        """The reply chunk by chunk; a refusal has a status, so the first news is waited for."""
        talk, form, begun = self._talk, self._form, False
        async for news in reply:
            text, ids = talk.take(news)
            if not begun and not isinstance(news, Refused | Failed):
                begun = True
                await self._open(send)
                await self._event(send, form.opening())
            await self._event(send, form.piece(text, ids))
        if talk.left == CLIENT_LEFT:
            return
        trouble = self._trouble()
        if trouble and not begun:
            raise trouble
        if trouble:
            await self._event(send, trouble.body())
        else:
            assert isinstance(talk.end, Finished)
            proof = receipt(talk.arrive, self._info, talk.end)
            for chunk in form.closing(talk.finish_reason, talk.end, proof):
                await self._event(send, chunk)
        await self._write(send, b"data: [DONE]\n\n", more=True)
        await self._write(send, b"", more=False)

    async def _open(self, send: Send) -> None:
        headers = self._told_in_headers(receipt(self._talk.arrive, self._info))
        headers |= {"content-type": "text/event-stream", "cache-control": "no-cache"}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    async def _event(self, send: Send, body: dict[str, Any] | None) -> None:
        if body is not None:
            await self._write(send, f"data: {_JSON.encode(body)}\n\n".encode(), more=True)

    async def _write(self, send: Send, body: bytes, *, more: bool) -> None:
        async with asyncio.timeout(self._write_seconds):
            await send({"type": "http.response.body", "body": body, "more_body": more})

    def _told_in_headers(self, proof: dict[str, Any]) -> dict[str, str]:
        """Session (percent-encoded outside printable ASCII), request and receipt (compact JSON)."""
        return {
            "x-request-id": self._talk.arrive.request,
            "x-kvtape-session": quote(self._talk.arrive.session, safe=_SHOWN_AS_IS),
            "x-kvtape-receipt": json.dumps(proof, separators=(",", ":")),
        }
