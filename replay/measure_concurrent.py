"""kvtape bench concurrent: streams at once, beside the same requests alone and undrafted."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from .measure_client import Client
from .measure_openai import shown
from .measure_reply import Prompt, Reply, Wish, compared, middle
from .measure_report import Report, Watch, counts

PIECES_MIN = 4  # of a stream, to time it
MODES = {"sampled": 1.0, "greedy": 0.0}  # their temperatures
RATES = ("aggregate_tps", "per_stream_tps", "steady_tps", "ttft_s_max")


@dataclass(frozen=True, slots=True)
class ConcurrentOptions:
    """levels: streams at once. Sampled stream i has seed + i, greedy ones have the seed."""

    prompts: Sequence[Prompt]
    modes: Sequence[str]
    levels: Sequence[int]
    tokens: int = 256
    repetitions: int = 3
    seed: int | None = 1234
    stagger_s: float = 0.0
    mixed: bool = False
    alone: bool = False
    serial: bool = False

    @property
    def cells(self) -> "list[Cell]":
        """Everything that is measured; mixed: the prompts take turns within one cell."""
        sides = [self.prompts] if self.mixed else [[prompt] for prompt in self.prompts]
        return [
            Cell(self, side, mode, level)
            for side in sides for mode in self.modes for level in self.levels
        ]  # fmt: skip

    @property
    def requests(self) -> int:
        """How many requests that is, at most."""
        beside = sum(cell.level for cell in self.cells) * self.alone + len(self.cells) * self.serial
        return sum(cell.level for cell in self.cells) * self.repetitions + beside


@dataclass(slots=True)
class Cell:
    """One combination of prompts, mode and level, and what it gave: replies[repetition][stream]."""

    options: ConcurrentOptions
    prompts: Sequence[Prompt]
    mode: str
    level: int
    replies: list[list[Reply]] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    serial: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cell for people."""
        prompt = self.prompts[0].name if len(self.prompts) == 1 else "mixed"
        return f"{prompt}, {self.mode}, {self.level} at once"

    def wish(self, stream: int) -> Wish:
        """What a stream of the cell asks."""
        options = self.options
        temperature = MODES[self.mode]
        step = stream if temperature else 0
        seed = None if options.seed is None else options.seed + step
        prompt = self.prompts[stream % len(self.prompts)]
        return Wish(prompt, options.tokens, temperature, seed)

    def as_json(self) -> dict[str, object]:
        """The cell for machines; rates are medians over the repetitions."""
        all_replies = [reply for row in self.replies for reply in row]
        told: dict[str, object] = {
            "prompt": self.name.split(",")[0],
            "mode": self.mode,
            "streams": self.level,
            "failed": sum(bool(reply.error) for reply in all_replies),
            "unmeasured": sum(not reply.error and not timed(reply) for reply in all_replies),
        }
        told |= {name: middle(self.rates(name)) for name in RATES}
        if self.options.alone:
            told["alone"] = counts(self.alone)
        if self.options.serial:
            told["serial"] = counts(self.serial)
        return told

    def rates(self, name: str) -> list[float | None]:
        """One of RATES, by repetition; None where a stream could not be timed."""
        return [rates_of(row)[name] if all(map(timed, row)) else None for row in self.replies]


def timed(reply: Reply) -> bool:
    """Whether a stream came in enough pieces to say how fast it was."""
    return not reply.error and len(reply.times) >= PIECES_MIN


def rates_of(row: Sequence[Reply]) -> dict[str, float | None]:
    """How fast streams were that ran at once.

    steady_tps: tokens a second of all, while every stream had begun and none had ended.
    """
    begun, over = max(one.times[0] for one in row), min(one.times[-1] for one in row)
    seconds = max(one.times[-1] for one in row) - min(one.asked_at for one in row)
    steady = sum(one.tokens_within(begun, over) for one in row)
    return {
        "aggregate_tps": sum(one.tokens for one in row) / seconds,
        "per_stream_tps": middle([one.decode_tps for one in row]),
        "steady_tps": steady / (over - begun) if over > begun else None,
        "ttft_s_max": max(one.times[0] - one.asked_at for one in row),
    }


async def measure_concurrent(client: Client, options: ConcurrentOptions, watch: Watch) -> Report:
    """Every cell, then what it is held to."""
    report = Report("concurrent")
    cells = options.cells
    for cell in cells:
        for at in range(options.repetitions):
            await _at_once(client, cell, at, report, watch)
        await _beside(client, cell, report, watch)
        _tell(cell, report, watch)
    report.more["cells"] = [cell.as_json() for cell in cells]
    for kind, asked in (("alone", options.alone), ("serial", options.serial)):
        if asked:
            found = [one for cell in cells for one in getattr(cell, kind)]
            report.more[kind] = {
                **counts(found),
                "by_mode": {mode: _of_mode(cells, kind, mode) for mode in options.modes},
            }
            report.notes.append(f"{kind}: {found.count('equal')} of {len(found)} equal")
    report.about(client)
    return report


def _of_mode(cells: Sequence[Cell], kind: str, mode: str) -> dict[str, int]:
    return dict(counts([one for cell in cells if cell.mode == mode for one in getattr(cell, kind)]))


async def _at_once(client: Client, cell: Cell, at: int, report: Report, watch: Watch) -> None:
    """One repetition of a cell."""

    async def one(stream: int) -> Reply:
        await asyncio.sleep(stream * cell.options.stagger_s)
        reply = await client.ask(cell.wish(stream))
        watch.step()
        return reply

    row = list(await asyncio.gather(*map(one, range(cell.level))))
    cell.replies.append(row)
    for stream, reply in enumerate(row):
        report.keep(f"{cell.name}, {at + 1}, stream {stream}", cell.wish(stream), reply)


async def _beside(client: Client, cell: Cell, report: Report, watch: Watch) -> None:
    """The cell's requests alone, and its first one undrafted."""
    options, solos = cell.options, dict[tuple[str, int | None], Reply]()

    async def solo(stream: int) -> Reply:
        wish = cell.wish(stream)
        key = (wish.prompt.name, wish.seed)
        if key not in solos:
            solos[key] = await client.ask(wish)
            report.keep(f"{cell.name}, alone, stream {stream}", wish, solos[key])
        return solos[key]

    if options.alone:
        for stream in range(cell.level):
            reply = await solo(stream)
            watch.step()
            kinds = {compared(reply, row[stream]) for row in cell.replies}
            cell.alone.append(next(k for k in ("failed", "unequal", "equal") if k in kinds))
    if options.serial:
        drafted, wish = await solo(0), cell.wish(0).undrafted
        reply = await client.ask(wish)
        watch.step()
        if client.plain:
            reply.error = "the server takes no field draft"
        elif reply.drafted:
            reply.error = f'"draft": false, and {reply.drafted} tokens were drafted'
        report.keep(f"{cell.name}, undrafted", wish, reply)
        cell.serial.append(compared(drafted, reply))


def _tell(cell: Cell, report: Report, watch: Watch) -> None:
    """A cell's figures and differences."""
    for name, unit in (("aggregate_tps", "tok/s"), ("per_stream_tps", "tok/s")):
        report.figure(f"{cell.name}: {name.removesuffix('_tps')}", cell.rates(name), unit)
    report.figure(f"{cell.name}: slowest first token", cell.rates("ttft_s_max"), "s")
    for kind, found, what in (
        ("alone", cell.alone, "the same request alone"),
        ("serial", cell.serial, 'the same request with "draft": false'),
    ):
        if unequal := found.count("unequal"):
            report.faults.append(
                f"--{kind}: {cell.name}: {unequal} of {len(found)} differ from {what}"
            )
    speed = shown(middle(cell.rates("aggregate_tps")))
    beside = [
        f", {kind} {found.count('equal')} of {len(found)} equal"
        for kind, found in (("alone", cell.alone), ("serial", cell.serial)) if found
    ]  # fmt: skip
    watch.say(f"concurrent {cell.name}: {speed} tok/s{''.join(beside)}")
