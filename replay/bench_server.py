"""The benchmark's server process: how long until it answers, and what memory it holds."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

from ..devices.group import family_of
from ..devices.http.serve import bind
from ..devices.weights.find import find_model
from .bench_engine import MODEL, loaded, serve_options
from .bench_figures import Bar, Figure
from .bench_rounds import Part, Say, measured
from .server_process import ended, wait_until_served

READY = Bar(5.0, at_least=False)
READY_SECONDS_MAX = 120.0
BYTES_A_PARAMETER = 2.3
SPARE_MIB = 400
MIB = 1 << 20
QUESTION = "Tell me a story about a lighthouse, its keeper and the sea around them."


@contextmanager
def _server() -> Iterator[tuple[int, int, float]]:
    """A server as its users start it: its process, its port, the seconds until it answered."""
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "kvtape", "serve", MODEL, "--port", str(port)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with ended(process):
        wait_until_served(process, [f"http://127.0.0.1:{port}/health"], READY_SECONDS_MAX)
        yield process.pid, port, time.perf_counter() - start


def ready(rounds: int, say: Say) -> Part:
    """Seconds from the start of the process to the first answer, kernels compiled before."""
    part = Part("ready")
    _compile()

    def once() -> float:
        with _server() as (_, _, seconds):
            return seconds

    values = []
    for at in range(rounds):
        values.append(measured(part, once))
        say(f"ready {at + 1}/{rounds}: {values[-1]:.2f} s")
    part.figures = [Figure("process start to /health", tuple(values), "s", READY)]
    return part


def _compile() -> None:
    for device in loaded(serve_options()).devices:
        device.close()


def memory(rounds: int, say: Say) -> Part:
    """Resident memory of a server after a chat, beside what the bar allows."""
    part = Part("memory")
    _compile()
    family = family_of(find_model(MODEL))
    parameters = sum(prod(shape) for shape in family.tensors().values())
    resident, anonymous, over = [], [], []
    touched = 0
    for _ in range(rounds):
        with _server() as (process, port, _):
            rows = _chat(port)
            touched = -(-rows // family.rules().page_rows) * family.page_bytes(1, 0)
            resident.append(resident_bytes(process, "VmRSS"))
            anonymous.append(resident_bytes(process, "RssAnon"))
        over.append((resident[-1] - touched - SPARE_MIB * MIB) / parameters)
        say(f"memory: {resident[-1] / MIB:.0f} MiB after {rows} rows")
    allowed = BYTES_A_PARAMETER * parameters + touched + SPARE_MIB * MIB
    part.figures = [
        Figure(
            "resident after a chat", _mib(resident), "MiB", Bar(allowed / MIB, at_least=False)
        ),
        Figure("of it anonymous", _mib(anonymous), "MiB"),
        Figure(
            f"bytes a parameter past pages and {SPARE_MIB} MiB",
            tuple(over), "B", Bar(BYTES_A_PARAMETER, at_least=False),
        ),
    ]  # fmt: skip
    part.notes.append(f"{parameters:,} parameters, {touched / MIB:.1f} MiB of pages touched")
    return part


def _mib(values: list[int]) -> tuple[float, ...]:
    return tuple(value / MIB for value in values)


def _chat(port: int) -> int:
    """One chat through HTTP; the rows that it wrote."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 200,
        "temperature": 0,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(), {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=120) as reply:
        told: dict[str, Any] = json.load(reply)
    return int(told["usage"]["total_tokens"])


def resident_bytes(process: int, kind: str) -> int:
    """A process's resident memory: VmRSS in all, RssAnon without files."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(rf"^{kind}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None, f"no {kind} of process {process}"
    return int(found[1]) * 1024
