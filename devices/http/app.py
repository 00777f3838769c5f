"""The routes, and what stands around them: the API key, the body's bound, OpenAI-shaped errors."""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .asks import ChatAsk, CompletionAsk, parse
from .door import Door
from .engine import EngineClosed, Info
from .errors import ApiError, closing
from .shapes import flushed

LOG = logging.getLogger("kvtape.door.access")


def build_app(door: Door) -> FastAPI:
    """The ASGI application. Bodies are read by hand, so that every fault has OpenAI's shape."""
    app = FastAPI(title="kvtape", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(_open_routes(door))
    app.include_router(_keyed_routes(door), dependencies=[Depends(_key_check(door))])
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)
    app.add_middleware(_AccessLog)
    return app


def _open_routes(door: Door) -> APIRouter:
    """What needs no key."""
    router = APIRouter()

    @router.get("/health", response_model=None)
    async def health() -> Response:
        state, meters = door.engine.health(), door.engine.meters()
        ok = state.ok and not door.closed
        body = {
            "status": "closing" if door.closed else state.status,
            "model": door.engine.info.model,
            "lanes": door.engine.info.lanes,
            "requests_running": meters.requests_running,
            "requests_waiting": meters.requests_waiting,
        }
        return JSONResponse(body, 200 if ok else 503)

    return router


def _keyed_routes(door: Door) -> APIRouter:
    """What needs the key, where one is set."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        body = await _read(request, door)
        return await door.answer(request, parse(ChatAsk, body))

    @router.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Response:
        body = await _read(request, door)
        return await door.answer(request, parse(CompletionAsk, body))

    @router.get("/v1/models", response_model=None)
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model(door.engine.info)]})

    @router.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        if name != door.engine.info.model:
            message = f"the model {name!r} is not served here"
            raise ApiError(404, message, code="model_not_found", param="model")
        return JSONResponse(_model(door.engine.info))

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        text, media_type = door.metrics.page()
        return Response(text, headers={"content-type": media_type})

    @router.post("/v1/cache/flush", response_model=None)
    @router.post("/flush_prompt_cache", response_model=None)
    async def flush() -> Response:
        try:
            return JSONResponse(flushed(await door.engine.flush()))
        except EngineClosed:
            raise closing() from None

    return router


def _model(info: Info) -> dict[str, Any]:
    """One entry of the list of models; lengths in tokens."""
    return {
        "id": info.model,
        "object": "model",
        "created": info.created,
        "owned_by": "kvtape",
        "context_length": info.context,
        "max_model_len": info.context,
        "model_digest": info.model_digest,
    }


def _key_check(door: Door) -> Callable[[Request], Awaitable[None]]:
    """A dependency that lets holders of the key in."""
    key = door.settings.api_key.strip().encode()

    async def check(request: Request) -> None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = secrets.compare_digest(given.strip().encode(), key)
        if key and not (same and scheme.lower() == "bearer"):
            raise ApiError(
                401, "the API key is missing or wrong", code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip

    return check


async def _read(request: Request, door: Door) -> bytes:
    """The body. One too large is read on for a while, so that its sender sees the answer."""
    chunks: list[bytes] = []
    size, bytes_max = 0, door.settings.body_bytes_max
    async with door.reads() as heard:
        async for chunk in request.stream():
            heard()
            size += len(chunk)
            if size <= bytes_max:
                chunks.append(chunk)
            elif size > 4 * bytes_max:
                break
    if size > bytes_max:
        raise ApiError(413, f"the body is over {bytes_max} bytes", code="body_too_large")
    return b"".join(chunks)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Unknown routes and methods."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    message = f"{request.method} {request.url.path}: {error.detail}"
    headers = dict(error.headers or {})
    return ApiError(error.status_code, message, code=code, headers=headers).response()


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Left while sending the body: nobody reads this."""
    return Response(status_code=400)


async def _on_bug(request: Request, error: Exception) -> Response:
    """Ours; the traceback goes to the server's log."""
    return ApiError(500, "internal error", code="internal_error").response()


class _AccessLog:
    """One line a request: method, route and status, and nothing that a client wrote."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unknown route")
                LOG.info("%s %s %d", scope["method"], route, message["status"])
            await send(message)

        await self._app(scope, receive, noting if scope["type"] == "http" else send)
