"""The benchmark's speed of a model: decode and prompt beside peers, recording, ranks."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..devices.weights.find import find_path
from . import bench_peer
from .bench_engine import (
    MODEL,
    PROMPT_TOKENS,
    REPLY_TOKENS,
    Engine,
    Prompts,
    loaded,
    serve_options,
    served,
    twins,
)
from .bench_figures import Bar, Figure, ratio
from .bench_rounds import Part, Say, Task, interleaved

THREADS = 2
HOW = "pip install 'kvtape[peers]', or --peers-python PYTHON of an environment that has it"
PEERS = ("llama.cpp", "transformers")
# Bars: ours to llama.cpp's, and what recording may leave of decode.
DECODE, PROMPT, RECORDED, RANKS = Bar(0.7), Bar(1.3), Bar(0.98), Bar(0.8)


class PeerMissing(Exception):
    """A peer is not installed where it was looked for."""


class PeerProcess:
    """A peer that answers on pipes; model: a GGUF file, or a directory."""

    def __init__(self, kind: str, python: str, model: Path) -> None:
        script = str(Path(bench_peer.__file__))
        # -P: the script's own folder holds modules of kvtape, none of which it may import.
        command = [python, "-P", script, kind, str(model), str(THREADS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, bufsize=1,
        )  # fmt: skip
        self.kind = kind
        told = self._answer()
        if "missing" in told:
            self.close()
            raise PeerMissing(f"{kind} left out, {told['missing']} is not installed: {HOW}")
        self.version: str = told["version"]

    def rate(self, task: str, ids: Sequence[int], count: int = 0) -> float:
        """Tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"task": task, "ids": ids, "count": count}) + "\n")
        told = self._answer()
        return float(told["tokens"]) / float(told["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            code = self._process.returncode
            raise PeerMissing(f"{self.kind} left out, its process ended with {code}")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def peer_python(named: str) -> str:
    """The interpreter that peers run under: the one named, else this one."""
    return named or sys.executable


@contextmanager
def _peers(part: Part, python: str, say: Say) -> Iterator[dict[str, PeerProcess]]:
    """Every peer that is there; the others are named in the part's notes."""
    with ExitStack() as stack:
        found: dict[str, PeerProcess] = {}
        for kind in PEERS:
            say(f"{part.name}: starting {kind}")
            try:
                peer = PeerProcess(kind, peer_python(python), find_path(MODEL))
            except PeerMissing as missing:
                part.notes.append(str(missing))
                say(str(missing))
                continue
            stack.callback(peer.close)
            found[kind] = peer
            part.notes.append(f"{kind}: {peer.version}")
        yield found


def _decodes(engine: Engine, prompts: Prompts) -> float:
    return engine.ask(prompts.short(), REPLY_TOKENS).decode_rate


def _peer_decodes(peer: PeerProcess, prompts: Prompts) -> float:
    return peer.rate("decode", prompts.short(), REPLY_TOKENS)


def _peer_prompts(peer: PeerProcess, prompts: Prompts) -> float:
    return peer.rate("prompt", prompts.long())


def decode(rounds: int, python: str, say: Say) -> Part:
    """Reply tokens a second after the first, beside the peers."""
    part = Part("decode")
    with _peers(part, python, say) as peers, served(serve_options()) as (engine, prompts):
        tasks: dict[str, Task] = {"kvtape": partial(_decodes, engine, prompts)}
        for kind, peer in peers.items():
            tasks[kind] = partial(_peer_decodes, peer, prompts)
            tasks[kind]()  # the first one is slower: memory is touched, threads begin
        values = interleaved(part, tasks, rounds, say)
    _beside(part, values, "decode", DECODE)
    return part


def prompt(rounds: int, python: str, say: Say) -> Part:
    """Prompt tokens a second up to the first reply token, beside the peers."""
    part = Part("prompt")
    with _peers(part, python, say) as peers, served(serve_options()) as (engine, prompts):
        tasks: dict[str, Task] = {"kvtape": lambda: engine.ask(prompts.long(), 1).prompt_rate}
        for kind, peer in peers.items():
            tasks[kind] = partial(_peer_prompts, peer, prompts)
            tasks[kind]()
        values = interleaved(part, tasks, rounds, say)
    _beside(part, values, f"prompt of {PROMPT_TOKENS}", PROMPT)
    return part


def _beside(part: Part, values: dict[str, tuple[float, ...]], what: str, bar: Bar) -> None:
    """Everyone's rate, and ours to each peer's; the bar is llama.cpp's."""
    for name, found in values.items():
        part.figures.append(Figure(f"{what}, {name}", found, "tok/s"))
    for name in PEERS:
        if name in values:
            asked = bar if name == "llama.cpp" else None
            part.figures.append(ratio(f"{what}, to {name}", values["kvtape"], values[name], asked))


def recording(rounds: int, say: Say) -> Part:
    """Decode with a tape, with sums alone, and with neither: one memory, three runs."""
    part = Part("recording")
    model = loaded(serve_options(digests="rows"))
    prompts = Prompts(model)
    plain = model.opened.model_copy(update={"digests": "off"})
    with TemporaryDirectory(prefix="kvtape-bench-") as folder:
        engines = {
            "tape": Engine(model.opened, model.devices, Path(folder) / "run.tape"),
            "sums": Engine(model.opened, twins(model.devices, "rows")),
            "neither": Engine(plain, twins(model.devices, "off")),
        }
        try:
            for engine in engines.values():
                engine.ask(prompts.short(), 8)
            tasks: dict[str, Task] = {
                name: partial(_decodes, engine, prompts) for name, engine in engines.items()
            }
            values = interleaved(part, tasks, rounds, say)
        finally:
            for engine in engines.values():
                engine.close()
    part.figures = [
        *(Figure(f"decode, {name}", found, "tok/s") for name, found in values.items()),
        ratio("recording: tape and sums to neither", values["tape"], values["neither"], RECORDED),
        ratio("sums alone to neither", values["sums"], values["neither"]),
        ratio("tape and sums to sums", values["tape"], values["sums"]),
    ]
    return part


def ranks(rounds: int, say: Say) -> Part:
    """Decode on two ranks of one thread beside one rank of two."""
    part = Part("ranks")
    with served(serve_options(1, 2)) as (one, prompts), served(serve_options(2, 1)) as (two, _):
        tasks: dict[str, Task] = {
            "--tp 1": partial(_decodes, one, prompts),
            "--tp 2": partial(_decodes, two, prompts),
        }
        values = interleaved(part, tasks, rounds, say)
    part.figures = [Figure(f"decode, {name}", found, "tok/s") for name, found in values.items()]
    part.figures.append(ratio("two ranks to one", values["--tp 2"], values["--tp 1"], RANKS))
    return part
