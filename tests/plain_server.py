"""A small server of the OpenAI API that knows nothing of kvtape; also a script for launches."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OPENAI_FIELDS = {
    "model", "prompt", "messages", "max_tokens", "temperature", "stream", "stream_options", "seed",
    "top_p",
}  # fmt: skip


class Plain(ThreadingHTTPServer):
    """strict: fields beside OpenAI's are refused. cached: what its usage says, None for nothing.

    ids: token ids are sent. fault: "", status (503), error, broken or torn. salt: changes replies.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.strict = True
        self.ids = False
        self.cached: int | None = None
        self.fault = self.salt = ""
        self.told: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """Where it stands."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    @property
    def plain(self) -> Plain:
        """What it belongs to."""
        assert isinstance(self.server, Plain)
        return self.server

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def do_GET(self) -> None:
        """The models, and health."""
        if self.path == "/v1/models":
            self._whole(200, {"object": "list", "data": [{"id": "plain", "object": "model"}]})
        else:
            self._whole(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        """A reply, as a stream."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.plain.told.append(asked)
        if self.plain.strict and (unknown := sorted(set(asked) - OPENAI_FIELDS)):
            self._whole(400, {"error": {"message": f"unrecognized request argument: {unknown[0]}"}})
        elif self.plain.fault == "status":
            self._whole(503, {"error": {"message": "too many requests"}})
        else:
            self._stream(asked)

    def _whole(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        drawn = asked.get("seed") if asked["temperature"] else 0
        for at in range(asked["max_tokens"]):
            if at == 2 and self.plain.fault == "error":
                self._event({"error": {"message": "the engine is gone"}})
                return
            if at == 2 and self.plain.fault == "broken":
                return
            text = f"{self.plain.salt}{drawn}.{at} "
            said = {"delta": {"content": text}} if "messages" in asked else {"text": text}
            told = {"token_ids": [at]} if self.plain.ids else {}
            self._event({"choices": [{"index": 0, **said, **told}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        usage: dict[str, Any] = {"prompt_tokens": 9, "completion_tokens": asked["max_tokens"]}
        if self.plain.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.plain.cached}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, body: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(body)}\n\n".encode())
        self.wfile.flush()


if __name__ == "__main__":
    server = Plain(int(sys.argv[1]))
    server.strict = False
    server.ids = True
    server.cached = 0 if "--cold" in sys.argv else 3
    server.salt = os.environ.get("PLAIN_SALT", "")
    if server.salt:
        server.ids = False
    server.serve_forever()
