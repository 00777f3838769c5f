"""A peer of the benchmark as a process of its own: tasks come in as JSON lines, times go out.

Run by path, with the interpreter that has the peer installed: it knows nothing of kvtape.
usage: bench_peer.py llama.cpp|transformers GGUF THREADS, or transformers-glm FOLDER THREADS
"""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol


class Peer(Protocol):
    """Both tasks take token ids; they return tokens and the seconds that they took."""

    version: str

    def decode(self, ids: list[int], count: int) -> tuple[int, float]:
        """Reply tokens after the first, and the time between it and the last."""
        ...

    def prompt(self, ids: list[int]) -> tuple[int, float]:
        """Prompt tokens, and the time to the first reply token."""
        ...


class LlamaCpp:
    """llama.cpp through xllamacpp, by its own clocks."""

    def __init__(self, gguf: str, threads: int) -> None:
        xllamacpp = import_module("xllamacpp")
        self.version = f"xllamacpp {version('xllamacpp')}"
        params = xllamacpp.CommonParams()
        params.model.path = gguf
        params.hostnames, params.port = ["127.0.0.1"], _free_port()
        params.n_ctx, params.n_parallel = 4096, 1
        params.cpuparams.n_threads = threads
        params.warmup = params.offline = True
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def decode(self, ids: list[int], count: int) -> tuple[int, float]:
        times = self._ask(ids, count)
        assert times["predicted_n"] == count, times
        return count - 1, times["predicted_ms"] / 1e3

    def prompt(self, ids: list[int]) -> tuple[int, float]:
        times = self._ask(ids, 1)
        assert times["prompt_n"] == len(ids), times
        return len(ids), times["prompt_ms"] / 1e3

    def _ask(self, ids: list[int], count: int) -> dict[str, Any]:
        reply = self._server.handle_completions(
            {
                "prompt": ids,
                "max_tokens": count,
                "temperature": 0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        told: dict[str, Any] = reply if isinstance(reply, dict) else json.loads(reply)
        times: dict[str, Any] = told["timings"]
        return times


class Transformers:
    """transformers in float32; a streamer hears of each token as it is drawn."""

    def __init__(self, gguf: str, threads: int) -> None:
        torch, transformers = import_module("torch"), import_module("transformers")
        self.version = f"transformers {version('transformers')}, torch {version('torch')}"
        torch.set_num_threads(threads)
        self._torch = torch
        path = Path(gguf)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
        self._model = model.eval()

    def decode(self, ids: list[int], count: int) -> tuple[int, float]:
        heard = _Heard()
        with self._torch.no_grad():
            self._model.generate(
                self._torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count,
                do_sample=False, streamer=heard,
            )  # fmt: skip
        times = heard.times[1:]  # the prompt is heard first
        assert len(times) == count, len(times)
        return count - 1, times[-1] - times[0]

    def prompt(self, ids: list[int]) -> tuple[int, float]:
        tokens = self._torch.tensor([ids])
        with self._torch.no_grad():
            start = time.perf_counter()
            self._model(tokens, logits_to_keep=1).logits.argmax().item()
            return len(ids), time.perf_counter() - start


class TransformersGlm(Transformers):
    """transformers' own glm5_next in float32, from a directory."""

    def __init__(self, folder: str, threads: int) -> None:
        torch, transformers = import_module("torch"), import_module("transformers")
        self.version = f"transformers {version('transformers')}, torch {version('torch')}"
        torch.set_num_threads(threads)
        self._torch = torch
        kind = transformers.Glm5NextForConditionalGeneration
        self._model = kind.from_pretrained(folder, dtype=torch.float32).eval()


class _Heard:
    """A streamer that keeps times alone."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def _free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


KINDS: dict[str, Callable[[str, int], Peer]] = {
    "llama.cpp": LlamaCpp,
    "transformers": Transformers,
    "transformers-glm": TransformersGlm,
}


def main() -> None:
    """Answer one line with one line until the input ends; libraries may print what they like."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    kind, gguf, threads = sys.argv[1:]
    try:
        peer = KINDS[kind](gguf, int(threads))
    except ImportError as error:
        answers.write(json.dumps({"missing": error.name or str(error)}) + "\n")
        return
    answers.write(json.dumps({"version": peer.version}) + "\n")
    for line in sys.stdin:
        task = json.loads(line)
        if task["task"] == "decode":
            count, seconds = peer.decode(task["ids"], task["count"])
        else:
            count, seconds = peer.prompt(task["ids"])
        answers.write(json.dumps({"tokens": count, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
