"""kvtape bench openai: decode speed and time to the first token of one stream at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

from .bench_figures import number
from .measure_client import Client
from .measure_reply import Prompt, Reply, Wish, compared, middle
from .measure_report import Report, Watch


@dataclass(frozen=True, slots=True)
class OpenaiOptions:
    """seed: of the first repetition, the next has one more."""

    prompts: Sequence[Prompt]
    temperatures: Sequence[float]
    tokens: int = 64
    repetitions: int = 5
    seed: int = 1234

    @property
    def requests(self) -> int:
        """How many requests that is."""
        return len(self.prompts) * len(self.temperatures) * self.repetitions


async def measure_openai(client: Client, options: OpenaiOptions, watch: Watch) -> Report:
    """Every prompt at every temperature, one request at a time."""
    report = Report("openai")
    cells: list[dict[str, object]] = []
    for prompt in options.prompts:
        for temperature in options.temperatures:
            cells.append(await _cell(client, options, prompt, temperature, report, watch))
    report.more["cells"] = cells
    report.about(client)
    return report


async def _cell(
    client: Client, options: OpenaiOptions, prompt: Prompt, temperature: float, report: Report,
    watch: Watch,
) -> dict[str, object]:  # fmt: skip
    name = f"{prompt.name} at {temperature:g}"
    replies: list[Reply] = []
    for at in range(options.repetitions):
        wish = Wish(prompt, options.tokens, temperature, options.seed + at)
        replies.append(await client.ask(wish))
        report.keep(f"{name}, {at + 1}", wish, replies[-1])
        watch.step()
    if temperature == 0:
        _same(name, replies, report)
    speeds, firsts = [one.decode_tps for one in replies], [one.ttft for one in replies]
    report.figure(f"{name}: decode", speeds, "tok/s")
    report.figure(f"{name}: first token", firsts, "s")
    watch.say(f"openai {name}: {shown(middle(speeds))} tok/s, first {shown(middle(firsts))} s")
    return {
        "prompt": prompt.name,
        "temperature": temperature,
        "decode_tps": {"median": middle(speeds), "all": speeds},
        "ttft_s": {"median": middle(firsts), "all": firsts},
    }


def _same(name: str, replies: Sequence[Reply], report: Report) -> None:
    """Greedy replies to one prompt are alike, whatever their seeds."""
    parted = sum(compared(replies[0], other) == "unequal" for other in replies[1:])
    if parted:
        report.faults.append(f"{name}: {parted} of {len(replies)} replies differ from the first")


def shown(value: float | None) -> str:
    """A measured value for people."""
    return "?" if value is None else number(value)
