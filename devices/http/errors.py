"""Errors as OpenAI's clients read them: an HTTP status and a body of one `error` object."""

from typing import Any

from fastapi.responses import JSONResponse

from .engine import Finished, Refused


class ApiError(Exception):
    """A request that gets no reply, and why; extra stands beside `error` in the body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        headers: dict[str, str] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers or {}
        self.extra = extra or {}

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error, **self.extra}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), self.status, self.headers)


def bad(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the request cannot be served as it stands."""
    return ApiError(400, message, code=code, param=param)


def busy(retry_seconds: int) -> ApiError:
    """503: the queue is full for the moment."""
    return ApiError(
        503,
        "the engine is busy and its queue is full: try again shortly",
        code="queue_full",
        headers={"retry-after": str(retry_seconds)},
    )


def too_slow(seconds: float) -> ApiError:
    """408: the rest of a body was waited for in vain."""
    return ApiError(
        408, f"the rest of the body did not come within {seconds:g} s: send it again, whole",
        code="body_too_slow", headers={"connection": "close"},
    )  # fmt: skip


def closing() -> ApiError:
    """503: the engine has ended or is ending."""
    return ApiError(503, "the engine is closed", code="engine_closed")


def too_long(need: int, have: int, param: str) -> ApiError:
    """400: prompt and reply do not fit the context; both in tokens."""
    return bad(
        f"the model's context is {have} tokens, and prompt and reply need {need}: "
        "shorten the prompt or lower max_tokens",
        param,
        "context_length_exceeded",
    )


def refused(news: Refused, param: str, retry_seconds: int) -> ApiError:
    """What the run's refusal means to the client."""
    if news.reason == "queue_full":
        return busy(retry_seconds)
    if news.reason == "context_length_exceeded":
        return too_long(news.need, news.have, param)
    if news.reason == "larger_than_pool":
        return bad(
            f"prompt and reply need {news.need} pages, and all streams share {news.have}: "
            "shorten the prompt or lower max_tokens",
            param, news.reason,
        )  # fmt: skip
    words = news.reason.replace("_", " ")
    return bad(f"refused: {words} (needs {news.need}, has {news.have})", param, news.reason)


def faulty(news: Finished, receipt: dict[str, Any]) -> ApiError:
    """500 or 503: the reply was broken off; the receipt names the session to replay."""
    extra = {"kvtape": receipt}
    if news.reason == "cancelled":
        return ApiError(503, "the engine gave the reply up", code="cancelled", extra=extra)
    message = "a check failed while this reply was computed: its session can be replayed"
    return ApiError(500, message, code="fault", extra=extra)
