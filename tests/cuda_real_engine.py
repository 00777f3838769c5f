"""What recording, poison and checksums cost decode at a GLM's real widths: engines on one memory.

Their devices differ in what is summed, recorded and looked at. They are asked the same by turns,
the first of a turn last in the next one. Told are a turn's milliseconds a round, what that is
beside the plain one's of the same turn, and the median of all single rounds, which knows nothing
of the few long ones.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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
PROMPT, REPLY = 32, 72
SETTLED = REPLY - 8  # rounds at a reply's end in which all streams are
Say = Callable[[str], None]


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
    turns: int = 21,
    among: Sequence[str] = tuple(VARIANTS),
) -> None:
    """Say the rates of decode of some variants, and what each costs beside the plain one."""
    rig = RealRig(card, family, SETTINGS)
    with TemporaryDirectory() as folder:
        engines = {name: engine(rig, name, Path(folder) / f"{name}.tape") for name in among}
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


def compare(engines: dict[str, Asking], count: int, turns: int, vocab: int, say: Say) -> None:
    """Rates by turns, the first of which only makes graphs; milliseconds of a round are told."""
    took: dict[str, list[float]] = {name: [] for name in engines}
    single: dict[str, list[float]] = {name: [] for name in engines}
    rng, names = np.random.default_rng(count), [*engines]
    for turn in range(turns + 1):
        prompts = rng.integers(0, vocab, (count, PROMPT)).tolist()
        names.append(names.pop(0))
        for name in names:
            asked = asyncio.run(together(engines[name], prompts))
            begun, ended = max(a.first for a in asked), min(a.last for a in asked)
            rounds = engines[name].rounds()
            if turn:
                single[name] += rounds
                took[name].append(1e3 * (ended - begun) / (REPLY - 1))
    plain = statistics.median(took["plain"])
    for name, rounds in took.items():
        mine = statistics.median(rounds)
        ratios = [a / b - 1 for a, b in zip(rounds, took["plain"], strict=True)]
        bar = f", bar {BARS[name]:.0%}" if name in BARS else ""
        spread = statistics.stdev(ratios) / len(ratios) ** 0.5
        beside = statistics.median(single[name]) / statistics.median(single["plain"]) - 1
        say(
            f"engine, {count} streams, {name}: {mine:.3f} ms a round ({min(rounds):.3f} to"
            f" {max(rounds):.3f}), {mine / plain - 1:+.1%} of medians,"
            f" {statistics.mean(ratios):+.1%} +- {spread:.1%} by turns, {beside:+.1%} of"
            f" {len(single[name])} single rounds{bar}"
        )


async def together(one: Engine, prompts: list[list[int]]) -> list[Asked]:
    """Replies to all prompts at once."""
    return await asyncio.gather(*(one.reply(prompt, REPLY) for prompt in prompts))
