"""Run as a process: ranks of the CUDA device, under numba's simulator, beside the CPU's.

`equal 2 3`: a tape is recorded on each device at some number of ranks and replayed on the other; a
line of JSON a replay: recorded on, replayed on, the verdict, how many sums were compared. `killed`:
a follower is, in the middle of a reply. `misled`: a follower is given another step. `flipped`: a
bit of a follower's weights turns over, and all ranks verify.
The simulator is chosen by the environment before numba is loaded.
"""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

from kvtape.devices import rank_process
from kvtape.devices.links import Step
from kvtape.events.facts import RequestArrived
from kvtape.events.reader import Tape
from kvtape.events.verify import verify
from kvtape.replay.bench_engine import Engine, NoReply
from kvtape.replay.machine import Machine
from kvtape.replay.models import devices_for, load
from kvtape.replay.opening import RunOptions
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun
from kvtape.replay.serving import verdict
from kvtape.tests.random_llama import SMALLEST, RandomLlama
from kvtape.tests.tiny_llama import write_folder

FLIPPED = (  # a follower whose weights change before its third step
    "import sys; from kvtape.tests.cuda_flipped import turn_before; turn_before(2);"
    f" {rank_process.PROGRAM}"
)
PROMPTS, REPLY = ([7, 1, 63, 5], [9, 9, 2]), 2


def smallest(path: Path) -> str:
    """The smallest llama as files."""
    weights = RandomLlama(SMALLEST)
    named = {}
    for name in weights.names():
        shape = weights.shape(name)
        named[name] = weights.rows(name, 0, shape[0]) if len(shape) == 2 else weights.vector(name)
    sizes = {key: value for key, value in SMALLEST.items() if key != "eos_token_ids"}
    write_folder(path, named, dtype="BF16", shards=1, **sizes)
    return str(path)


def options(device: str, world: int, poison: str = "off") -> RunOptions:
    """A run small enough for the simulator."""
    return RunOptions(
        world=world, device=device, lanes=2, context=64, pages=8, prompt_rows=4, digests="full",
        poison=poison,
    )  # fmt: skip


def record(model: str, device: str, world: int, tape: Path, poison: str = "off") -> None:
    """A short run of two prompts."""
    asked = options(device, world, poison)
    loaded = load(model, asked, lambda line: None, lambda done, total: None)
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


def equal(model: str, place: Path, worlds: Sequence[int]) -> None:
    """Both ways, at these numbers of ranks."""
    cpu, cuda = place / "cpu.tape", place / "cuda.tape"
    record(model, "cpu", 1, cpu)
    for world in worlds:
        told(["cpu", 1], ["cuda", world], *replayed(model, cpu, "cuda", world))
    record(model, "cuda", 2, cuda, "a")
    for world in (1, 2, 3):
        told(["cuda", 2], ["cpu", world], *replayed(model, cuda, "cpu", world))


def killed(model: str, place: Path) -> None:
    """A follower is killed while a reply is made: how the run ends, and what its tape is."""
    loaded = load(model, options("cuda", 2), lambda line: None, lambda done, total: None)
    engine = Engine(loaded.opened, loaded.devices, place / "killed.tape")
    follower: Any = loaded.devices[1]
    ended: list[str] = []

    def ask() -> None:
        try:
            engine.ask(PROMPTS[0], 40)
        except NoReply as error:
            ended.append(str(error))

    client = Thread(target=ask)
    client.start()
    while follower._step < 3:  # in the middle of a reply
        time.sleep(0.02)
    follower.process.kill()
    start = time.monotonic()
    assert engine.live.ended.wait(100)
    client.join(100)
    seconds = time.monotonic() - start
    sound = verify(place / "killed.tape") == []
    told(str(engine.live.error), verdict(engine.live), sound, len(ended), round(seconds, 1))


def misled(model: str, place: Path) -> None:
    """A follower is given other facts of the same kinds: it computes, and every rank hears."""
    loaded = load(model, options("cuda", 2), lambda line: None, lambda done, total: None)
    follower: Any = loaded.devices[1]
    give, changed = follower.give, []

    def other(step: Step | None) -> None:
        """The first prompt has another first token."""
        facts = list(step.facts if step is not None else ())
        for at, fact in enumerate(facts):
            if isinstance(fact, RequestArrived) and step is not None:
                prompt = (fact.prompt[0] ^ 1, *fact.prompt[1:])
                facts[at] = fact.model_copy(update={"prompt": prompt})
                changed.append(step.header.step)
                step = Step(step.header, tuple(facts), step.every_row)
        give(step)

    follower.give = other
    engine = Engine(loaded.opened, loaded.devices, place / "misled.tape")
    with suppress(NoReply):
        engine.ask(PROMPTS[0], 2)
    assert engine.live.ended.wait(100)
    told(str(engine.live.error), verdict(engine.live), changed)


def flipped(model: str, place: Path) -> None:
    """A follower multiplies by a weight that is not what it was: how the run ends."""
    rank_process.PROGRAM = FLIPPED
    asked = replace(options("cuda", 2), verify=True)
    loaded = load(model, asked, lambda line: None, lambda done, total: None)
    engine = Engine(loaded.opened, loaded.devices, place / "flipped.tape")
    with suppress(NoReply):
        engine.ask(PROMPTS[0], 8)
    assert engine.live.ended.wait(100)
    told(str(engine.live.error), verdict(engine.live), verify(place / "flipped.tape") == [])


def main(what: str, *worlds: str) -> None:
    """One of the scenes."""
    # Sums modulo 2^64 are meant; a scalar of NumPy says so each time.
    warnings.filterwarnings("ignore", message=".*overflow encountered in scalar")
    logging.disable()
    with TemporaryDirectory() as folder:
        place = Path(folder)
        model = smallest(place / "smallest")
        if what == "equal":
            equal(model, place, [int(world) for world in worlds])
        else:
            {"killed": killed, "misled": misled, "flipped": flipped}[what](model, place)


def told(*line: object) -> None:
    """A line of JSON."""
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
