"""Run as a process: sessions recorded here, on a CPU or on GPUs, and tapes replayed here.

    gpu_sessions.py record DEVICE MODEL TAPE ragged|mixed
    gpu_sessions.py replay DEVICE MODEL TAPE...
    gpu_sessions.py both [MODEL...]

DEVICE: cpu, cuda, or with a number of ranks: cpu:2, cuda:2, a GPU each.

both: each on a CPU and on a GPU of this machine, and on two where it has them; replayed on the
others. Models: that of gpu_decode.py and glm-tales.

ragged: six sessions, one of 256 tokens, prompts of all lengths, a second turn; every digest.
mixed: twenty at once, some of two turns, some cancelled, more kept than there are pages for, with
poison. What is recorded on one kind of device is to be replayed on the other.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace as changed
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvtape.devices.cuda.card import open_card
from kvtape.devices.http.engine import Finished, Tokens
from kvtape.devices.kernel_cache import use_cache
from kvtape.events.commands import Arrive
from kvtape.events.ids import RequestId, SessionId, Token
from kvtape.events.reader import Tape
from kvtape.events.records import Sampling
from kvtape.replay.bench_engine import Engine
from kvtape.replay.models import load
from kvtape.replay.opening import RunOptions

from .gpu_decode import named_model

OPTIONS = {
    "ragged": RunOptions(lanes=8, context=512, digests="full"),
    "mixed": RunOptions(lanes=6, context=512, pages=60, digests="rows", poison="a"),
}
GLM = "glm-tales"
OF_GLM: dict[str, dict[str, Any]] = {  # few pages and kept states: they are dropped for others
    "ragged": {"drafts": 3, "context": 1024},
    "mixed": {
        "drafts": 3, "context": 1024, "kv_pages": "on", "pages": 14, "cache_bytes": 3 * 438 << 10,
    },
}  # fmt: skip
LONGER = {GLM: 500}  # tokens before a session's own that goes on: so that a page is full by then
WARM = int(np.float32(0.8).view(np.int32))
CANCELLED_AT = 7  # tokens


def tell(line: str) -> None:
    """A line, at once."""
    print(line, flush=True)  # noqa: T201


class Talk:
    """Sessions beside each other over one engine."""

    def __init__(self, engine: Engine, vocab: int, longer: int) -> None:
        self.engine, self.vocab, self.longer = engine, vocab, longer
        self.rng = np.random.default_rng(11)

    def ids(self, count: int) -> list[int]:
        """Random tokens."""
        return list(map(int, self.rng.integers(3, self.vocab, count)))

    async def turn(self, name: str, prompt: list[int], tokens: int, *, cancels: bool) -> list[int]:
        """The reply's tokens; warm, by the session's seed, or greedy."""
        request, found = RequestId(name), list[int]()
        seed = sum(map(ord, name))
        wish = Arrive(
            request=request, session=SessionId(name.split(".")[0]),
            prompt=tuple(map(Token, prompt)), history_tokens=len(prompt), max_new=tokens,
            ignore_eos=True, sampling=Sampling(temperature_bits=WARM * (seed % 2), seed=seed),
        )  # fmt: skip
        async for news in self.engine.live.door.submit(wish):
            if isinstance(news, Tokens):
                found += news.ids
            elif not isinstance(news, Finished):
                raise RuntimeError(f"{name}: {news}")
            if cancels and len(found) >= CANCELLED_AT:
                self.engine.live.door.cancel(request, "the client left")
                cancels = False
        return found

    async def session(self, name: str, lengths: list[int], tokens: int, *, cancels: bool) -> None:
        """As many turns as there are lengths of what is new in each."""
        said = self.ids(self.longer) if len(lengths) > 1 else []
        for at, length in enumerate(lengths):
            said += self.ids(length)
            said += await self.turn(f"{name}.{at}", said, tokens, cancels=cancels)

    async def ragged(self) -> None:
        """Six sessions."""
        sizes = [([64, 9], 40), ([3], 256), ([130], 30), ([17], 70), ([1], 12), ([33], 90)]
        await asyncio.gather(
            *(self.session(f"r{at}", *one, cancels=False) for at, one in enumerate(sizes))
        )

    async def mixed(self) -> None:
        """Twenty sessions: every fourth has two turns, every fifth is cancelled."""
        await asyncio.gather(
            *(
                self.session(
                    f"m{at}", [int(self.rng.integers(2, 150)), *([20] if at % 4 == 0 else [])],
                    int(self.rng.integers(12, 60)), cancels=at % 5 == 3,
                )
                for at in range(20)
            )
        )  # fmt: skip


def record(device: str, model: str, path: Path, which: str) -> None:
    """A tape of sessions."""
    kind, _, ranks = device.partition(":")
    more = OF_GLM[which] if model == GLM else {}
    options = changed(OPTIONS[which], device=kind, world=int(ranks or 1), threads=2, **more)
    loaded = load(model, options, lambda line: None, lambda done, total: None)
    engine, start = Engine(loaded.opened, loaded.devices, path), time.perf_counter()
    talk = Talk(engine, loaded.opened.rules.vocab, LONGER.get(model, 0))
    try:
        asyncio.run(getattr(talk, which)())
        meters = engine.live.door.meters()
    finally:
        engine.close()
    with Tape.open(path) as tape:
        facts = Counter(fact.kind for _, fact in tape.facts())
    told = {"hits": meters.hits, "evicted": meters.evicted + meters.reclaimed,
            "tokens": meters.generated_tokens, "steps": meters.steps}  # fmt: skip
    tell(f"{path.name}: {told}, {dict(facts)}, {time.perf_counter() - start:.1f} s")


def replay(device: str, model: str, paths: list[str]) -> bool:
    """Whether every tape is equal here."""
    kind, _, ranks = device.partition(":")
    equal = True
    for path in paths:
        command = ["kvtape", "replay", path, "--device", kind, "--tp", ranks or "1",
                   "--model", model, "--json"]  # fmt: skip
        start = time.perf_counter()
        done = ran(*command)
        told = json.loads(done.stdout) if done.returncode in (0, 1) else {}
        verdict = told.get("verdict", done.stderr[-1500:])
        equal = equal and verdict == "equal"
        tell(f"{Path(path).name} on {device}: {verdict}, {time.perf_counter() - start:.1f} s")
        if verdict != "equal":
            tell(json.dumps(told)[:1500])
    return equal


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    """A module of Python's, to its end."""
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)


def both(models: list[str]) -> bool:
    """Whether all that is recorded here is equal on every other kind of device."""
    places = ["cpu", "cuda", *(["cuda:2"] if open_card(0).count() > 1 else [])]
    with TemporaryDirectory() as folder, ThreadPoolExecutor(2 * len(OPTIONS)) as pool:
        models = models or [named_model("", Path(folder)), GLM]
        around = partial(goes_around, places, Path(folder))
        return all([*pool.map(lambda one: around(*one), product(models, OPTIONS))])


def goes_around(places: list[str], folder: Path, model: str, which: str) -> bool:
    """Whether what is recorded on each device is equal on the others."""
    equal = True
    for device in places:
        path = folder / f"{Path(model).stem}-{which}-{device}.tape"
        done = ran("kvtape.tests.gpu_sessions", "record", device, model, str(path), which)
        tell((done.stdout or done.stderr[-1500:]).rstrip())
        if done.returncode:
            return False
        for other in places:
            equal = (other == device or replay(other, model, [str(path)])) and equal
    return equal


def main(arguments: list[str]) -> int:
    """1 if a tape is not equal, 2 of wrong use."""
    use_cache()
    match arguments:
        case ["both", *models]:
            return int(not both(models))
        case ["record", device, model, tape, ("ragged" | "mixed") as which]:
            record(device, model, Path(tape), which)
            return 0
        case ["replay", device, model, tape, *more]:
            return int(not replay(device, model, [tape, *more]))
        case _:
            sys.stderr.write(__doc__)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
