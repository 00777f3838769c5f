"""Run as a process: ranks of the CUDA device, under numba's simulator, beside the CPU's.

A tape is recorded on each device at some number of ranks and replayed on the other. Prints a line
of JSON a tape: what it was recorded on, what replayed it, the verdict, how many sums were compared.
The simulator is chosen by the environment before numba is loaded.
"""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from kvtape.events.reader import Tape
from kvtape.replay.bench_engine import Engine
from kvtape.replay.machine import Machine
from kvtape.replay.models import devices_for, load
from kvtape.replay.opening import RunOptions
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun
from kvtape.tests.random_llama import SMALLEST, RandomLlama
from kvtape.tests.tiny_llama import write_folder

PROMPTS, REPLY = ([7, 1, 63, 5], [9, 9, 2]), 2


def folder(path: Path) -> str:
    """The smallest llama as files."""
    weights = RandomLlama(SMALLEST)
    named = {}
    for name in weights.names():
        shape = weights.shape(name)
        named[name] = weights.rows(name, 0, shape[0]) if len(shape) == 2 else weights.vector(name)
    sizes = {key: value for key, value in SMALLEST.items() if key != "eos_token_ids"}
    write_folder(path, named, dtype="BF16", shards=1, **sizes)
    return str(path)


def record(model: str, device: str, world: int, tape: Path, poison: str = "off") -> None:
    """A short run of two prompts."""
    options = RunOptions(
        world=world, device=device, lanes=2, context=64, pages=8, prompt_rows=4, digests="full",
        poison=poison,
    )  # fmt: skip
    loaded = load(model, options, lambda line: None, lambda done, total: None)
    engine = Engine(loaded.opened, loaded.devices, tape)
    try:
        for prompt in PROMPTS:
            engine.ask(prompt, REPLY)
    finally:
        engine.close()


def replayed(model: str, tape: Path, device: str, world: int) -> Sequence[object]:
    """Every sum that differs, and how many were compared by part."""
    with Tape.open(tape) as opened:
        recording = Recording.on(opened)
        run = reopened(opened.opened, world=world, device=device)
        with Machine(run, devices_for(1, device)(model)) as machine:
            played = rerun(machine, recording.steps())
        first = played.comparison.first
    return [repr(first) if first else "equal", dict(played.comparison.compared)]


def main(worlds: Sequence[int]) -> None:
    """Both ways, at these numbers of ranks."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    with TemporaryDirectory() as place:
        model = folder(Path(place) / "smallest")
        cpu = Path(place) / "cpu.tape"
        record(model, "cpu", 1, cpu)
        for world in worlds:
            told(["cpu", 1], ["cuda", world], replayed(model, cpu, "cuda", world))
        cuda = Path(place) / "cuda.tape"
        record(model, "cuda", 2, cuda, "a")
        for world in (1, 2, 3):
            told(["cuda", 2], ["cpu", world], replayed(model, cuda, "cpu", world))


def told(*line: object) -> None:
    """A line of JSON."""
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main([int(world) for world in sys.argv[1:]] or [2, 3])
