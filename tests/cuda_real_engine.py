"""What recording, poison and checksums cost decode at a GLM's real widths: engines on one memory.

Their devices differ in what is summed, recorded and looked at. Of each kind there are two, since
engines of one kind are one percent apart, by where their threads run and their memory lies. All
are asked the same, in a new order each turn. Told are a turn's milliseconds a round, what that is
beside the plain ones' of the same turn, and the median of all single rounds, which knows nothing
of the few long ones.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvtape.core.device import Report
from kvtape.core.families.glm import Glm
from kvtape.devices.cuda.card import Card
from kvtape.devices.cuda.glm_device import GlmCudaDevice
from kvtape.devices.glm.program import GlmRecorder
from kvtape.devices.glm.rank import GlmRunning
from kvtape.devices.settings import DeviceSettings
from kvtape.events.facts import RunOpened
from kvtape.events.ids import Rank
from kvtape.replay.bench_engine import Asked, Engine
from kvtape.replay.opening import Division, RunOptions, run_opened

from .cuda_real_rig import KEYS, LATENT, RealRig

DIGEST = "0" * 32
SETTINGS = DeviceSettings(
    lanes=32, context=2048, pages=128, prompt_rows=64, states=4, verify=True
)  # fmt: skip
VARIANTS = {  # digests, whether there is a tape, poison, whether products are looked at
    "plain": ("off", False, "off", False),
    "verify": ("off", False, "off", True),
    "recorded": ("rows", True, "off", False),
    "sums alone": ("rows", False, "off", False),
    "poison": ("rows", True, "a", False),
}
BARS = {"verify": 0.05, "recorded": 0.02, "poison": 0.15}
COPIES = 2
PROMPT, REPLY = 32, 72
SETTLED = REPLY - 8  # rounds at a reply's end in which all streams are
Say = Callable[[str], None]
Name = tuple[str, int]  # a variant, and which of its copies


class Timed(GlmCudaDevice):
    """A device that notes when each step was over."""

    over: list[float]

    def finish(self, running: GlmRunning) -> Report:
        """As a device has it."""
        report = super().finish(running)
        self.over.append(time.perf_counter())
        return report


class Asking(Engine):
    """An engine over one such device."""

    def __init__(self, opened: RunOpened, device: Timed, tape: Path | None) -> None:
        super().__init__(opened, [device], tape)
        self.over = device.over = []

    def rounds(self) -> list[float]:
        """Milliseconds of the last reply's settled rounds."""
        took = 1e3 * np.diff(self.over)[-SETTLED:]
        self.over.clear()
        return list(took)


def recording(
    card: Card,
    family: Glm,
    say: Say,
    streams: Sequence[int] = (1, 8),
    turns: int = 11,
    among: Sequence[str] = tuple(VARIANTS),
) -> None:
    """Say the rates of decode of some variants, and what each costs beside the plain one."""
    rig = RealRig(card, family, SETTINGS)
    names = [(name, copy) for copy in range(COPIES) for name in among]
    with TemporaryDirectory() as folder:
        engines = {
            (name, copy): engine(rig, name, Path(folder) / f"{name}-{copy}.tape")
            for name, copy in names
        }
        try:
            for count in streams:
                compare(engines, count, turns, family.vocab, say)
        finally:
            for one in engines.values():
                one.close()


def engine(rig: RealRig, variant: str, path: Path) -> Asking:
    """A live run over the rig's memory. path: of its tape, if it has one."""
    digests, tape, poison, verify = VARIANTS[variant]
    family = rig.family
    settings = replace(rig.settings, digests=digests, poison=poison, verify=verify)
    program = rig.program
    if settings.poisons:
        exponents = [KEYS] * family.caches
        program = GlmRecorder(family, 1, 0, settings.rows, True, exponents).program()
        assert program.matrices == rig.program.matrices
    device = Timed(Rank(0), 1, settings, family, program, rig.memory, rig.rings, LATENT, DIGEST)
    options = RunOptions(
        lanes=settings.lanes, prompt_rows=settings.prompt_rows, digests=digests, poison=poison
    )
    division = Division(
        context=settings.context, pages=settings.pages, store="radix", states=settings.states,
        windows=False, plan={},
    )  # fmt: skip
    opened = run_opened(
        options, family.rules(), division, model="real-widths", model_digest=DIGEST, family="glm",
        device="cuda",
    )  # fmt: skip
    return Asking(opened, device, path if tape else None)


def compare(engines: dict[Name, Asking], count: int, turns: int, vocab: int, say: Say) -> None:
    """Rates by turns, the first of which only makes graphs; milliseconds of a round are told."""
    took: dict[Name, list[float]] = {name: [] for name in engines}
    single: dict[str, list[float]] = {variant: [] for variant, _ in engines}
    rng, order = np.random.default_rng(count), [*engines]
    for turn in range(turns + 1):
        prompts = rng.integers(0, vocab, (count, PROMPT)).tolist()
        rng.shuffle(order)
        for name in order:
            asked = asyncio.run(together(engines[name], prompts))
            begun, ended = max(a.first for a in asked), min(a.last for a in asked)
            rounds = engines[name].rounds()
            if turn:
                single[name[0]] += rounds
                took[name].append(1e3 * (ended - begun) / (REPLY - 1))
    for variant, rounds in single.items():
        say(f"engine, {count} streams, {variant}: {told(variant, took, rounds, single['plain'])}")


def told(
    variant: str, took: dict[Name, list[float]], single: list[float], plain: list[float]
) -> str:
    """What a variant's turns and single rounds took, also beside the plain one's."""
    mine = [took[variant, copy] for copy in range(COPIES)]
    beside = [took["plain", copy] for copy in range(COPIES)]
    median, base = (statistics.median(chain.from_iterable(one)) for one in (mine, beside))
    ratios = [
        sum(a) / sum(b) - 1
        for a, b in zip(zip(*mine, strict=True), zip(*beside, strict=True), strict=True)
    ]
    spread = statistics.stdev(ratios) / len(ratios) ** 0.5
    copies = " and ".join(f"{statistics.median(one):.3f}" for one in mine)
    bar = f", bar {BARS[variant]:.0%}" if variant in BARS else ""
    return (
        f"{median:.3f} ms a round (its engines {copies}),"
        f" {median / base - 1:+.1%} of medians,"
        f" {statistics.mean(ratios):+.1%} +- {spread:.1%} by turns,"
        f" {statistics.median(single) / statistics.median(plain) - 1:+.1%} of {len(single)} single"
        f" rounds{bar}"
    )


async def together(one: Engine, prompts: list[list[int]]) -> list[Asked]:
    """Replies to all prompts at once."""
    return await asyncio.gather(*(one.reply(prompt, REPLY) for prompt in prompts))
