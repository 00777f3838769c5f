"""A server as a process of its own, for tests: on a free port, stopped or killed at will."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from kvtape.devices.kernel_cache import use_cache

if TYPE_CHECKING:
    import openai

START_SECONDS_MAX = 300.0  # a busy machine, and kernels that are not compiled yet
END_SECONDS_MAX = 60.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


@dataclass
class Server:
    """A server that runs. tape and log: where it writes."""

    process: subprocess.Popen[bytes]
    port: int
    model: str
    tape: Path
    log: Path

    @property
    def url(self) -> str:
        """Where it stands, without /v1."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> "openai.OpenAI":
        """The official client; it tries nothing twice."""
        import openai  # not every machine with a GPU has it

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def ask(self, prompt: Sequence[int], max_tokens: int, session: str = "") -> list[int]:
        """The whole reply to a prompt of ids."""
        reply = httpx.post(
            f"{self.url}/v1/completions",
            json=wish(self.model, prompt, max_tokens),
            headers={"x-kvtape-session": session} if session else {},
            timeout=120,
        )
        assert reply.status_code == 200, reply.text
        ids: list[int] = reply.json()["choices"][0]["token_ids"]
        return ids

    def metrics(self) -> dict[str, float]:
        """The plain figures of /metrics, by name."""
        page = httpx.get(f"{self.url}/metrics", timeout=60).text
        pairs = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs if "{" not in name}

    def send(self, number: int) -> None:
        """Send a signal, if the process still lives."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it at once, as the system does that has no memory left."""
        self.process.kill()
        self.process.wait(END_SECONDS_MAX)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it in order; its exit code."""
        self.send(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(END_SECONDS_MAX)

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text()


def wish(
    model: str, prompt: Sequence[int], max_tokens: int, *, stream: bool = False, **more: Any
) -> dict[str, Any]:
    """The body of a completion of token ids that runs to its limit."""
    return {
        "model": model, "prompt": list(prompt), "max_tokens": max_tokens, "stream": stream,
        "temperature": 0, "return_token_ids": True, "ignore_eos": True, **more,
    }  # fmt: skip


@dataclass
class Seen:
    """What one client saw of one reply: ids chunk by chunk; whole: it came to its end."""

    request: str = ""
    ids: list[int] = field(default_factory=list)
    whole: bool = False
    error: Mapping[str, Any] | None = None


def stream(server: Server, body: Mapping[str, Any], seen: Seen, session: str = "") -> None:
    """Read a streamed reply into `seen`; raises httpx.TransportError where the server dies."""
    headers = {"x-kvtape-session": session} if session else {}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=120
    ) as reply:
        seen.request = reply.headers.get("x-request-id", "")
        for line in reply.iter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                seen.whole = seen.error is None
                return
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                seen.error = chunk["error"]
                continue
            for choice in chunk["choices"]:
                seen.ids.extend(choice.get("token_ids", ()))


def command(*arguments: str | Path) -> list[str]:
    """The command line of kvtape."""
    return [sys.executable, "-m", "kvtape", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that a test starts: no settings of ours but those named."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "KVTAPE_API_KEY"))}
    return {**kept, **more}


def tool(*arguments: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself; `more` is put into its environment."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(**more),
        timeout=START_SECONDS_MAX, check=False,
    )  # fmt: skip


@contextmanager
def serving(
    folder: Path, *flags: str, model: str = "fake", tape: str = "run.tape", **more: str
) -> Iterator[Server]:
    """A server on a free port with its tape, "" for none, in a folder; afterwards it is gone."""
    use_cache()  # children inherit where compiled kernels are kept
    path, log = folder / tape, folder / f"{tape}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command("serve", model, "--port", "0", *(("--trace", path) if tape else ()), *flags),
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment(**more),
        )  # fmt: skip
    try:
        yield Server(process, _ready(process, log), model, path, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(END_SECONDS_MAX)


def _ready(process: subprocess.Popen[bytes], log: Path) -> int:
    """The port, once /health says that requests are served."""
    until = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < until:
        assert process.poll() is None, f"the server ended at once: {log.read_text()}"
        found = ADDRESS.search(log.read_text())
        if found and httpx.get(f"{found[0]}/health", timeout=60).status_code == 200:
            return int(found[1])
        time.sleep(0.02)
    raise AssertionError(f"no server after {START_SECONDS_MAX} s: {log.read_text()}")
