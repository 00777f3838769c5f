"""kvtape bench cache: one prompt first, again, and at once: what was kept, and is it equal."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from .measure_client import Client
from .measure_openai import shown
from .measure_reply import Prompt, Reply, Wish, compared
from .measure_report import Report, Watch


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """repeats: requests one after the other after the first; streams: requests at once after them.

    expected_prompt and expected_cached: tokens, None where anything will do.
    """

    prompt: Prompt
    tokens: int = 64
    temperature: float = 0.0
    seed: int = 1234
    repeats: int = 2
    streams: int = 2
    expected_prompt: int | None = None
    expected_cached: int | None = None
    require_cold: bool = False
    require_reuse: bool = False

    @property
    def requests(self) -> int:
        """How many requests that is."""
        return 1 + self.repeats + self.streams


async def measure_cache(client: Client, options: CacheOptions, watch: Watch) -> Report:
    """The three phases, and whether they met what was required."""
    report = Report("cache")
    wish = Wish(options.prompt, options.tokens, options.temperature, options.seed)
    asked: list[tuple[str, Reply]] = []

    async def ask(phase: str, count: int) -> None:
        replies = await asyncio.gather(*(client.ask(wish) for _ in range(count)))
        for at, reply in enumerate(replies):
            earlier = sum(before == phase for before, _ in asked)
            asked.append((phase, reply))
            report.keep(name_of(phase, earlier), wish, reply)
            watch.say(
                f"cache {phase} {at + 1}/{count}: first token {shown(reply.ttft)} s, "
                f"{cache_state(reply)} {'' if reply.cached is None else reply.cached}"
            )
            watch.step()

    await ask("first", 1)
    for _ in range(options.repeats):
        await ask("repeated", 1)
    await ask("concurrent", options.streams)
    for phase in ("first", "repeated", "concurrent"):
        firsts = [reply.ttft for told, reply in asked if told == phase]
        report.figure(f"{phase}: first token", firsts, "s")
    report.more["requests"] = [
        {"phase": phase, "cache_state": cache_state(reply), **told}
        for (phase, reply), told in zip(asked, report.replies, strict=True)
    ]
    report.faults += unmet(options, [reply for _, reply in asked], report)
    report.about(client)
    return report


def name_of(phase: str, earlier: int) -> str:
    """A request's name: its phase, and which one of it."""
    return f"{phase} {earlier + 1}"


def cache_state(reply: Reply) -> str:
    """cold, reused, or unverified where the server does not say."""
    if reply.cached is None:
        return "unverified"
    return "reused" if reply.cached else "cold"


def unmet(options: CacheOptions, replies: Sequence[Reply], report: Report) -> list[str]:
    """What was required and did not come; failed replies are told elsewhere."""
    names = [str(told["name"]) for told in report.replies]
    whole = [(name, one) for name, one in zip(names, replies, strict=True) if not one.error]
    first, later = replies[0], [(name, one) for name, one in whole if one is not replies[0]]
    found: list[str] = []
    if options.require_cold and not first.error and first.cached != 0:
        found.append(f"--require-cold: the first reply {_told(first)}")
    if options.require_reuse:
        found += [
            f"--require-reuse: {name} {_told(one)}" for name, one in later if not one.cached
        ]  # fmt: skip
    expected = options.expected_prompt
    if expected is not None and not first.error and first.prompt_tokens != expected:
        had = "untold" if first.prompt_tokens is None else first.prompt_tokens
        found.append(f"--expected-prompt-tokens {expected}: the prompt has {had}")
    if options.expected_cached is not None:
        found += [
            f"--expected-cached-tokens {options.expected_cached}: {name} {_told(one)}"
            for name, one in later if one.cached != options.expected_cached
        ]  # fmt: skip
    found += [
        f"{name} differs from the first reply: {one.token_sha or 'another text'}"
        for name, one in later if compared(first, one) == "unequal"
    ]  # fmt: skip
    return found


def _told(reply: Reply) -> str:
    if reply.cached is None:
        return "does not say how many prompt tokens were cached"
    return f"says that {reply.cached} of its prompt tokens were cached"
