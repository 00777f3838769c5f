"""From what bench's tools are asked to what they do, print and return."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .measure_launch_options import (
    BadLaunch,
    LaunchOptions,
    read_flags,
    read_memory,
    read_order,
    read_runs,
    read_settings,
)
from .measure_prompts import BadPromptFile, long_prompt, prompts, read_prompt
from .show import ERRORS, WRONG_USE, fail

if TYPE_CHECKING:
    from .measure_client import Client
    from .measure_receipt import Kernels
    from .measure_report import Report, Watch

RUNS = ("openai", "cache --require-cold", "concurrent --alone --serial")
MISSING = "the client httpx is missing: pip install 'kvtape[client]'"
FORMS = ("text", "ids")


class BadAsk(Exception):
    """An option that says nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which server, and how the report is told."""

    url: str
    model: str
    api_key: str
    seconds: float
    as_json: bool


@dataclass(frozen=True, slots=True)
class CacheAsked:
    """The options of bench cache; -1 of what is expected: any."""

    form: str
    prompt_tokens: int
    prompt_file: str
    tokens: int
    temperature: float
    seed: int
    repeats: int
    streams: int
    expected_prompt: int
    expected_cached: int
    require_cold: bool
    require_reuse: bool


@dataclass(frozen=True, slots=True)
class ConcurrentAsked:
    """The options of bench concurrent; a seed of None: left to the server."""

    form: str
    prompt_file: str
    levels: str
    modes: str
    tokens: int
    repetitions: int
    seed: int | None
    stagger_ms: float
    mixed: bool
    alone: bool
    serial: bool


@dataclass(frozen=True, slots=True)
class LaunchesAsked:
    """The options of bench launches."""

    command: Sequence[str]
    order: str
    settings: Sequence[str]
    flags: Sequence[str]
    runs: Sequence[str]
    memory: Sequence[str]
    url: str
    ready_seconds: float
    logs: str
    require_overlap: bool
    receipt: str
    tests: str
    kernels: bool
    not_run: Sequence[str]
    as_json: bool


def run_openai(
    target: Target, form: str, file: str, tokens: int, reps: int, seed: int, temperatures: str
) -> int:
    """kvtape bench openai."""
    try:
        from .measure_openai import OpenaiOptions, measure_openai

        options = OpenaiOptions(
            prompts(_among("--form", form, FORMS), file),
            [_temperature(one) for one in temperatures.split(",")],
            tokens, reps, seed,
        )  # fmt: skip
    except (BadAsk, BadPromptFile, ModuleNotFoundError) as error:
        return _unasked(error, target.as_json)
    return _measure(
        target, "openai", options.requests,
        lambda client, watch: measure_openai(client, options, watch),
    )  # fmt: skip


def run_cache(target: Target, asked: CacheAsked) -> int:
    """kvtape bench cache."""
    try:
        from .measure_cache import CacheOptions, measure_cache

        form = _among("--form", asked.form, ("ids", "text", "chat"))
        if asked.require_reuse and not asked.repeats + asked.streams:
            raise BadAsk("--require-reuse: --repeats or --streams must ask again")
        options = CacheOptions(
            read_prompt(Path(asked.prompt_file)) if asked.prompt_file
            else long_prompt(form, asked.prompt_tokens, asked.seed),
            asked.tokens, asked.temperature, asked.seed, asked.repeats, asked.streams,
            None if asked.expected_prompt < 0 else asked.expected_prompt,
            None if asked.expected_cached < 0 else asked.expected_cached,
            asked.require_cold, asked.require_reuse,
        )  # fmt: skip
    except (BadAsk, BadPromptFile, ModuleNotFoundError) as error:
        return _unasked(error, target.as_json)
    return _measure(
        target, "cache", options.requests,
        lambda client, watch: measure_cache(client, options, watch),
    )  # fmt: skip


def run_concurrent(target: Target, asked: ConcurrentAsked) -> int:
    """kvtape bench concurrent."""
    try:
        from .measure_concurrent import MODES, ConcurrentOptions, measure_concurrent

        modes = [_among("--modes", one.strip(), tuple(MODES)) for one in asked.modes.split(",")]
        if asked.seed is None and "sampled" in modes and (asked.alone or asked.serial):
            raise BadAsk("--no-seed: sampled replies differ by chance; say --modes greedy")
        options = ConcurrentOptions(
            prompts(_among("--form", asked.form, FORMS), asked.prompt_file),
            modes,
            [_level(one) for one in asked.levels.split(",")],
            asked.tokens, asked.repetitions, asked.seed, asked.stagger_ms / 1000,
            asked.mixed, asked.alone, asked.serial,
        )  # fmt: skip
    except (BadAsk, BadPromptFile, ModuleNotFoundError) as error:
        return _unasked(error, target.as_json)
    return _measure(
        target, "concurrent", options.requests,
        lambda client, watch: measure_concurrent(client, options, watch),
    )  # fmt: skip


def run_launches(asked: LaunchesAsked) -> int:
    """kvtape bench launches."""
    try:
        from .measure_client import NotMeasured
        from .measure_launches import measure_launches
        from .measure_launches_show import tell_launches
        from .measure_receipt import BadTests, read_tests
    except ModuleNotFoundError as error:
        return _unasked(error, asked.as_json)
    try:
        order = read_order(asked.order)
        options = LaunchOptions(
            asked.command, order, read_runs(asked.runs or RUNS),
            read_settings(asked.settings, order), read_flags(asked.flags, order),
            read_memory(asked.memory), asked.url, asked.ready_seconds, asked.logs,
            asked.require_overlap,
        )  # fmt: skip
        if not asked.url and not any("{port}" in part for part in asked.command):
            raise BadLaunch("the command has no {port}: put it there, or say --url")
        tests = read_tests(Path(asked.tests)) if asked.tests else None
        if asked.receipt:
            Path(asked.receipt).touch()  # found out before the hours of measuring, not after
        launched = measure_launches(options, lambda line: ERRORS.print(line, markup=False))
    except (BadLaunch, BadTests, NotMeasured, OSError) as error:
        return fail(error, WRONG_USE, as_json=asked.as_json)
    if asked.receipt:
        from .bench import described
        from .measure_receipt import receipt

        kernels = _kernels() if asked.kernels else None
        found = receipt(launched, described(), tests=tests, kernels=kernels, not_run=asked.not_run)
        Path(asked.receipt).write_text(found.markdown(), encoding="utf-8")
    return tell_launches(launched, as_json=asked.as_json)


def _kernels() -> "Kernels":
    """Every kernel beside its meaning."""
    from .doctor import check_kernels
    from .measure_receipt import Kernels

    told, parted = check_kernels()
    return Kernels(str(told["summary"]), not parted)


def _measure(
    target: Target, tool: str, requests: int,
    work: "Callable[[Client, Watch], Awaitable[Report]]",
) -> int:  # fmt: skip
    """Ask the server, and tell what was found."""
    from .measure_client import Client, NotMeasured
    from .measure_report import tell, watching

    async def ask() -> "Report":
        with watching(tool, requests) as watch:
            async with Client(target.url, target.model, target.api_key, target.seconds) as client:
                return await work(client, watch)

    try:
        report = asyncio.run(ask())
    except NotMeasured as error:
        return fail(error, WRONG_USE, as_json=target.as_json)
    return tell(report, as_json=target.as_json)


def _unasked(error: Exception, as_json: bool) -> int:
    """Wrong use, or a package that is not there."""
    if isinstance(error, ModuleNotFoundError):
        if error.name != "httpx":
            raise error
        error = BadAsk(MISSING)
    return fail(error, WRONG_USE, as_json=as_json)


def _among(option: str, value: str, among: tuple[str, ...]) -> str:
    if value not in among:
        raise BadAsk(f"{option} {value!r}: {', '.join(among)}")
    return value


def _level(text: str) -> int:
    if not text.strip().isdigit() or not 0 < int(text) <= 1024:
        raise BadAsk(f"--levels {text!r}: numbers of streams with commas, 1 to 1024")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise BadAsk(f"--temperatures {text!r}: numbers of 0 to 2 with commas")
    return value
