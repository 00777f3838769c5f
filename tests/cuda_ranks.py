"""Run on a machine with a GPU: ranks that share it, NCCL in a graph, followers that are killed.

Each part prints lines of JSON: what was tried, whether it was as it should be, what was seen. On a
machine with more GPUs, `nccl`, `killed_nccl` and `hung_nccl` give each rank one.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

import numpy as np

from kvtape.devices.circle import Circle
from kvtape.devices.cuda.by_nccl import GatherByNccl
from kvtape.devices.cuda.card import open_card
from kvtape.devices.cuda.graph import Graphs
from kvtape.devices.cuda.joined import Sizes
from kvtape.devices.cuda.ways import nccl
from kvtape.events.reader import Tape
from kvtape.events.verify import verify
from kvtape.replay import models
from kvtape.replay.bench_engine import Engine, NoReply
from kvtape.replay.machine import Machine
from kvtape.replay.models import Loaded, devices_for, load
from kvtape.replay.opening import RunOptions, settings_of
from kvtape.replay.recording import Recording
from kvtape.replay.rerun import reopened, rerun
from kvtape.replay.serving import verdict

DATA = Path(__file__).parent / "data"
MODELS = {"llama": DATA / "llama_tiny", "glm": DATA / "glm_tiny"}
PROMPTS = [[7, 1, 63, 5, 9, 30, 2, 2, 11], [9, 9, 2], list(range(40))]
REPLY, GATHERS = 24, 20
LIMIT_SECONDS = 20.0  # of a step, where a watchdog is waited for


OUTCOMES: list[bool] = []


def said(what: str, fine: bool, *more: object) -> None:
    """A line of JSON: what was tried, and whether it was as it should be."""
    OUTCOMES.append(fine)
    print(json.dumps([what, fine, *more]), flush=True)  # noqa: T201


def loaded(model: str, world: int, way: str, device: str = "cuda") -> Loaded:
    """A run that can open."""
    options = RunOptions(
        world=world, device=device, gather=way, lanes=4, context=96, pages=40, prompt_rows=16,
        digests="full", poison="a", kv_pages="on",
    )  # fmt: skip
    return load(str(MODELS[model]), options, lambda line: None, lambda done, total: None)


def record(model: str, world: int, way: str, tape: Path, device: str = "cuda") -> str:
    """A run of several replies at once; how long its rounds took."""
    one = loaded(model, world, way, device)
    engine = Engine(one.opened, one.devices, tape)

    async def all_of_them() -> Any:
        return await asyncio.gather(*(engine.reply(prompt, REPLY) for prompt in PROMPTS))

    try:
        asked = asyncio.run(all_of_them())
    finally:
        engine.close()
    assert engine.live.error is None, engine.live.error
    return f"{np.median([1e3 / reply.decode_rate for reply in asked]):.2f} ms a round"


def replayed(model: str, tape: Path, device: str, world: int, way: str = "auto") -> list[Any]:
    """Whether all was equal, and how many sums were compared."""
    with Tape.open(tape) as opened:
        recording = Recording.on(opened)
        run = reopened(opened.opened, world=world, device=device)
        with Machine(run, devices_for(1, device, way)(str(MODELS[model]))) as machine:
            played = rerun(machine, recording.steps())
    first = played.comparison.first
    return [first is None, repr(first) if first else dict(played.comparison.compared)]


# --- the parts -----------------------------------------------------------------------------------


def nccl_alone(place: Path) -> None:
    """A group of one: a step's gathers, its header with the first of them, captured and aborted."""
    card: Any = open_card(0)
    circle = Circle(0, 1, [], 30)
    sizes = Sizes.of([(8, 1536, 0, 1536)])
    gather = GatherByNccl(card, circle, sizes, nccl().get_unique_id(), 30.0)
    floats = card.arrays({"x": ((8, 1536), np.float32)})["x"]
    host = np.random.default_rng(1).standard_normal((8, 1536), np.float32)
    back = np.zeros_like(host)
    card.upload(host, floats)

    def lower(rows: int) -> list[Any]:
        x = floats[:rows]
        found = gather.compare()
        for _ in range(GATHERS):
            found += gather.bind(x, 0, 1536)
        return found

    graphs = Graphs(card, lower, rows=8)
    for rows in (1, 8):
        gather.begin(3, 77)
        graphs.run(rows)
        gather.end()
        card.wait()
        gather.check(3)
        start = time.perf_counter()
        for _ in range(50):
            graphs.run(rows)
        card.wait()
        each = (time.perf_counter() - start) / 50 / GATHERS * 1e6
        card.download(floats, back)
        card.wait()
        same = bool((back.view(np.uint32) == host.view(np.uint32)).all())
        said("a gather in a graph", same, f"{rows} rows", f"{each:.2f} us")
    gather.stop("told to stop")
    card.wait()
    graphs.close()
    gather.close()
    aborts = [one for one in enumerate_threads() if one.name == "kvtape abort"]
    for one in aborts:
        one.join(20)
    gone = not any(one.is_alive() for one in aborts)
    said("aborted, once its graphs were gone", gone and gather.reason == "told to stop")


def links(place: Path) -> None:
    """Ranks that share a GPU record and replay what a CPU does, and the other way round."""
    for world in (2, 3):
        for model in MODELS:
            attempt(model, partial(both, place, model, world, "links"))


def nccl_ranks(place: Path) -> None:
    """As `links`, a GPU each."""
    count = open_card(0).count()
    for model in MODELS:
        for world in range(2, min(count, 4) + 1):
            attempt(model, partial(both, place, model, world, "nccl"))


def both(place: Path, model: str, world: int, way: str) -> None:
    """A tape recorded at so many ranks; replayed by one on a GPU, and by others if kept ones say.

    A CPU's tape comes along where it was made before: its kernels take minutes to compile.
    """
    tape = place / f"{model}-{world}-{way}.tape"
    start = time.perf_counter()
    took = record(model, world, way, tape)
    said(f"{model}, {world} ranks by {way}: recorded", True, took,
         f"{time.perf_counter() - start:.1f} s")  # fmt: skip
    keep(tape)
    said(f"{model}: replayed by one GPU", *replayed(model, tape, "cuda", 1))
    cpus = os.environ.get("KVTAPE_CPU_TAPES", "")
    made = Path(cpus) / f"{model}.tape" if cpus else place / f"{model}-cpu.tape"
    if not made.exists():
        record(model, 1, "auto", made, "cpu")
    said(f"{model}: a CPU's tape replayed", *replayed(model, made, "cuda", world, way))


def killed(place: Path, way: str, number: int) -> None:
    """A follower gets a signal in the middle of a reply."""
    one = loaded("llama", 2, way)
    engine = Engine(one.opened, one.devices, place / f"{way}-{number}.tape")
    follower: Any = one.devices[1]
    ended: list[str] = []

    def ask() -> None:
        try:
            engine.ask(PROMPTS[0], 80)
        except NoReply as error:
            ended.append(str(error))

    client = Thread(target=ask)
    client.start()
    while follower._step < 20:
        time.sleep(0.001)
    os.kill(follower.process.pid, number)
    start = time.monotonic()
    engine.live.ended.wait(200)
    client.join(200)
    seconds, error = time.monotonic() - start, str(engine.live.error)
    sound = verify(place / f"{way}-{number}.tape") == []
    named = error.startswith("rank 1 " if number == signal.SIGKILL else "rank ")
    fine = named and verdict(engine.live) == 1 and sound and len(ended) == 1
    said(f"a follower hears {signal.Signals(number).name}, {way}", fine, error, f"{seconds:.1f} s")


def hung(place: Path, way: str) -> None:
    """A follower stops without an end: the watchdog's limit, made short, is what is waited for."""
    module: Any = models
    module.settings_of = lambda opened: replace(settings_of(opened), limit_s=LIMIT_SECONDS)
    killed(place, way, signal.SIGSTOP)
    module.settings_of = settings_of


PARTS: dict[str, Callable[[Path], None]] = {
    "nccl_alone": nccl_alone,
    "links": links,
    "killed_links": lambda place: killed(place, "links", signal.SIGKILL),
    "nccl": nccl_ranks,
    "killed_nccl": lambda place: killed(place, "nccl", signal.SIGKILL),
    "hung_nccl": lambda place: hung(place, "nccl"),
}


def keep(tape: Path) -> None:
    """Bring a tape back, where there is a place for it."""
    if folder := os.environ.get("OUT"):
        shutil.copy(tape, Path(folder) / tape.name)


def attempt(what: str, do: Callable[[], None]) -> None:
    """Try it; what goes wrong is a line, too."""
    try:
        do()
    except BaseException:
        traceback.print_exc()
        said(what, False, traceback.format_exc().splitlines()[-1])


def main(names: list[str]) -> int:
    """The parts named, or those that one GPU can play, and those of more if there are more.

    1 if anything was not as it should be.
    """
    some = [name for name in PARTS if not name.endswith("nccl") or open_card(0).count() > 1]
    with TemporaryDirectory() as place:
        for name in names or some:
            attempt(name, partial(PARTS[name], Path(place)))
    return int(not all(OUTCOMES))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
