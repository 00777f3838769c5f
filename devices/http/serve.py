"""The door on a socket: bound before anything else starts, served by a thread of its own."""

import asyncio
import errno
import socket
import threading
from contextlib import closing
from dataclasses import dataclass

import uvicorn

from .app import build_app
from .door import Door

START_SECONDS_MAX = 30.0
_BACKLOG = 2048


class AddressRefused(Exception):
    """The address cannot be served on; the message says which one and why."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Clients that come early wait in its backlog.

    Connections inherit its TCP_NODELAY: a token must not wait for the one before it to be heard of.
    """
    if not 0 <= port < 2**16:
        raise AddressRefused(f"port {port} is not in 0 to {2**16 - 1}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = "in use: stop who holds it, or choose another --port"
        else:
            why = error.strerror or str(error)
        raise AddressRefused(f"port {port} on {host}: {why}") from None


class _Server(uvicorn.Server):
    """Says when it is ready, and on which loop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        self.ready.set()


@dataclass(slots=True)
class Serving:
    """A door that is open."""

    host: str
    port: int
    door: Door
    _server: _Server
    _thread: threading.Thread

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the door lives on."""
        assert self._server.loop is not None, "it started"
        return self._server.loop

    @property
    def url(self) -> str:
        """Where it stands, without /v1."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def stop(self, drain_seconds: float = 5.0) -> bool:
        """Take no more requests, let open replies end for so long, then give them up.

        Says whether the thread ended; it does within seconds of the drain, whatever clients do.
        """
        if self._thread.is_alive() and not self._server.should_exit:
            self._server.config.timeout_graceful_shutdown = int(drain_seconds) + 2
            self.loop.call_soon_threadsafe(self.door.close, drain_seconds)
            self._server.should_exit = True
        self._thread.join(drain_seconds + 4)
        if self._thread.is_alive():
            self._server.force_exit = True
            self._thread.join(2)
        return not self._thread.is_alive()


def serve(door: Door, listening: socket.socket) -> Serving:
    """Serve a door on a socket from `bind`. Signals stay with the main thread."""
    host, port = listening.getsockname()[:2]
    config = uvicorn.Config(
        build_app(door), loop="asyncio", http="h11", ws="none", lifespan="off", log_config=None,
        access_log=False, proxy_headers=False, server_header=False, backlog=_BACKLOG,
    )  # fmt: skip
    server = _Server(config)

    def run() -> None:
        with closing(listening):
            try:
                server.run([listening])
            finally:
                server.ready.set()

    thread = threading.Thread(target=run, name="kvtape-door", daemon=True)
    thread.start()
    if not server.ready.wait(START_SECONDS_MAX) or server.loop is None:
        raise AddressRefused(f"port {port} on {host}: the server did not start")
    return Serving(host, port, door, server, thread)
