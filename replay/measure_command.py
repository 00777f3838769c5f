"""The commands openai, cache, concurrent and launches of kvtape bench, and their options."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

PARTS = "parts"


class PartsOrTool(TyperGroup):
    """`bench PART` measures kvtape itself; `bench TOOL` asks a server."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without a tool's name, the words are those of `bench parts`."""
        known = [*self.commands, "--help"]
        return super().parse_args(ctx, args if args[:1] and args[0] in known else [PARTS, *args])


bench = typer.Typer(
    cls=PartsOrTool,
    help="Measure kvtape beside its bars, or any server of the OpenAI API.",
)

Url = Annotated[str, typer.Option(help="the server, with /v1 or without")]
Model = Annotated[str, typer.Option(help="by default the first that the server lists")]
Key = Annotated[str, typer.Option(envvar="KVTAPE_API_KEY", help="the server's key")]
Seconds = Annotated[float, typer.Option(min=1, help="the longest silence to wait for")]
Form = Annotated[str, typer.Option(help="text, or ids for servers without a tokenizer")]
PromptFile = Annotated[str, typer.Option(help="JSON: token ids, a text, or the messages of a chat")]
Seed = Annotated[int, typer.Option(min=0, help="of sampled replies")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
HERE = "http://127.0.0.1:8080"
SILENCE = 900.0


@bench.command("openai")
def openai(
    url: Url = HERE,
    model: Model = "",
    api_key: Key = "",
    timeout: Seconds = SILENCE,
    form: Form = "text",
    prompt_file: PromptFile = "",
    tokens: Annotated[int, typer.Option(min=2, help="of each reply")] = 64,
    reps: Annotated[int, typer.Option(min=1, help="of each prompt and temperature")] = 5,
    seed: Seed = 1234,
    temperatures: Annotated[str, typer.Option(help="with commas")] = "1,0",
    as_json: Json = False,
) -> None:
    """Measure decode speed and time to the first token of one stream at a time."""
    from .measure_run import Target, run_openai

    target = Target(url, model, api_key, timeout, as_json)
    raise typer.Exit(run_openai(target, form, prompt_file, tokens, reps, seed, temperatures))


@bench.command("cache")
def cache(
    url: Url = HERE,
    model: Model = "",
    api_key: Key = "",
    timeout: Seconds = SILENCE,
    form: Annotated[
        str, typer.Option(help="ids, text or chat: of the prompt that is made")
    ] = "ids",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="of the prompt that is made")] = 1536,
    prompt_file: PromptFile = "",
    tokens: Annotated[int, typer.Option(min=1, help="of each reply")] = 64,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0: greedy")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="of the prompt and of replies")] = 1234,
    repeats: Annotated[int, typer.Option(min=0, help="requests after the first, in turn")] = 2,
    streams: Annotated[int, typer.Option(min=0, help="then requests at once")] = 2,
    expected_prompt_tokens: Annotated[int, typer.Option(min=-1, help="-1: any")] = -1,
    expected_cached_tokens: Annotated[
        int, typer.Option(min=-1, help="of later ones; -1: any")
    ] = -1,
    require_cold: Annotated[
        bool, typer.Option("--require-cold", help="the first must find nothing kept")
    ] = False,
    require_reuse: Annotated[
        bool, typer.Option("--require-reuse", help="every later one must find something")
    ] = False,
    as_json: Json = False,
) -> None:
    """Send one prompt, send it again, send it at once: what was kept, and are the replies equal."""
    from .measure_run import CacheAsked, Target, run_cache

    asked = CacheAsked(
        form=form,
        prompt_tokens=prompt_tokens,
        prompt_file=prompt_file,
        tokens=tokens,
        temperature=temperature,
        seed=seed,
        repeats=repeats,
        streams=streams,
        expected_prompt=expected_prompt_tokens,
        expected_cached=expected_cached_tokens,
        require_cold=require_cold,
        require_reuse=require_reuse,
    )
    raise typer.Exit(run_cache(Target(url, model, api_key, timeout, as_json), asked))


@bench.command("concurrent")
def concurrent(
    url: Url = HERE,
    model: Model = "",
    api_key: Key = "",
    timeout: Seconds = SILENCE,
    form: Form = "text",
    prompt_file: PromptFile = "",
    levels: Annotated[str, typer.Option(help="streams at once, with commas")] = "1,4",
    modes: Annotated[str, typer.Option(help="sampled, greedy, or both")] = "sampled,greedy",
    tokens: Annotated[int, typer.Option(min=1, help="of each reply")] = 256,
    reps: Annotated[int, typer.Option(min=1, help="of each cell")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="of stream 0; the next has one more")] = 1234,
    no_seed: Annotated[bool, typer.Option("--no-seed", help="leave chance to the server")] = False,
    stagger_ms: Annotated[float, typer.Option(min=0, help="between one stream and the next")] = 0,
    mixed: Annotated[bool, typer.Option("--mixed", help="the prompts side by side")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="each reply must equal the same request's alone")
    ] = False,
    serial: Annotated[
        bool, typer.Option("--serial", help='a request alone must equal it with "draft": false')
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure streams at once, and hold them to the same requests alone and undrafted."""
    from .measure_run import ConcurrentAsked, Target, run_concurrent

    asked = ConcurrentAsked(
        form=form,
        prompt_file=prompt_file,
        levels=levels,
        modes=modes,
        tokens=tokens,
        repetitions=reps,
        seed=None if no_seed else seed,
        stagger_ms=stagger_ms,
        mixed=mixed,
        alone=alone,
        serial=serial,
    )
    raise typer.Exit(run_concurrent(Target(url, model, api_key, timeout, as_json), asked))


@bench.command("launches")
def launches(
    command: Annotated[
        list[str],
        typer.Argument(help="after --, the server's; {port}, {label}, {launch} are filled"),
    ],
    order: Annotated[str, typer.Option(help="a label for each launch")] = "off,on,on,off",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="LABEL:NAME=VALUE, in its environment")
    ] = None,
    flags: Annotated[
        list[str] | None, typer.Option(help="LABEL:ARGUMENTS, added to the command")
    ] = None,
    run: Annotated[
        list[str] | None,
        typer.Option(help='what to measure, such as "cache --require-cold"; by default all three'),
    ] = None,
    memory: Annotated[
        list[str] | None, typer.Option(help="RANK:COMMAND that prints its /proc/meminfo, or bytes")
    ] = None,
    url: Annotated[str, typer.Option(help="where it serves; by default at {port}")] = "",
    ready_seconds: Annotated[float, typer.Option(min=1, help="to wait until it serves")] = 600.0,
    logs: Annotated[str, typer.Option(help="a folder for what servers say")] = "",
    require_overlap: Annotated[
        bool, typer.Option("--require-overlap", help="fail where the labels' ranges lie apart")
    ] = False,
    receipt: Annotated[str, typer.Option(help="the receipt to write, as Markdown")] = "",
    tests: Annotated[str, typer.Option(help="a JUnit report, for the receipt")] = "",
    kernels: Annotated[
        bool, typer.Option("--kernels", help="check every kernel, for the receipt")
    ] = False,
    not_run: Annotated[
        list[str] | None, typer.Option(help="what was not run and why, for the receipt")
    ] = None,
    as_json: Json = False,
) -> None:
    """Start a server again and again under settings that take turns, and compare."""
    from .measure_run import LaunchesAsked, run_launches

    asked = LaunchesAsked(
        command=command,
        order=order,
        settings=setting or [],
        flags=flags or [],
        runs=run or [],
        memory=memory or [],
        url=url,
        ready_seconds=ready_seconds,
        logs=logs,
        require_overlap=require_overlap,
        receipt=receipt,
        tests=tests,
        kernels=kernels,
        not_run=not_run or [],
        as_json=as_json,
    )
    raise typer.Exit(run_launches(asked))
