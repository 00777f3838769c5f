"""The command line: every command, its options and their meaning; the work is in replay/."""

import os
from pathlib import Path
from typing import Annotated

import typer

from . import __version__
from .replay import plan_line as of_plan
from .replay.measure_command import bench as measures
from .replay.output import told_output

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
MOST_PAGES = 2**31 - 1  # an id of a page is an int32
MOST_THREADS = 1024  # more than any machine has cores; what a rank sets aside grows with them


def tell_version(asked: bool) -> None:
    """Print the version and end, where it was asked for."""
    if asked:
        typer.echo(f"kvtape {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=tell_version, is_eager=True, help="which kvtape")
    ] = False,
) -> None:
    """Serve with trace logging, replay a failing session bit for bit, diff rank states."""


Model = Annotated[
    str,
    typer.Argument(
        help="smollm2, glm-tales, a .gguf file, a Hugging Face directory; fake or fake-pages"
        " without weights"
    ),
]


def named(text: str) -> Path:
    """A path that has a name: an empty one would be the folder that this runs in."""
    if not text:
        raise typer.BadParameter("the name is empty")
    return Path(text)


TapeFile = Annotated[Path, typer.Argument(help="a tape", parser=named, show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
ModelPath = Annotated[str, typer.Option("--model", help="weights elsewhere than the tape says")]
GATHERS = ("auto", "nccl", "links")
Gather = Annotated[
    str, typer.Option(help="columns between GPUs: nccl, links (over the host), or auto")
]
Threads = Annotated[
    int, typer.Option(min=0, max=MOST_THREADS, help="threads a rank; 0: the cores, shared")
]


def threads_of(threads: int, world: int) -> int:
    """Threads a rank: as asked, or the machine's cores, shared by the ranks."""
    return threads or max(1, (os.cpu_count() or 1) // world)


@app.command()
def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8080,
    tp: of_plan.Tp = 1,
    device: Annotated[str, typer.Option(help="cpu, or cuda: a rank a GPU")] = "cpu",
    gather: Gather = "auto",
    threads: Threads = 0,
    parallel: of_plan.Parallel = 8,
    context: of_plan.Context = 0,
    room: of_plan.Room = "",
    pages: Annotated[
        int,
        typer.Option(min=0, max=MOST_PAGES, help="of the pool, whatever they take; 0: automatic"),
    ] = 0,
    kv_pages: of_plan.KvPages = "",
    kv_cache: of_plan.KvCache = "16",
    plan_order: of_plan.PlanOrder = "proposed",
    prompt_rows: Annotated[int, typer.Option(min=1, max=4096, help="prompt rows a step")] = 64,
    mtp_drafts: of_plan.MtpDrafts = -1,
    marks: Annotated[str, typer.Option(help="page, or grid: kept states at 2,048 rows")] = "page",
    store: of_plan.Store = "",
    share: of_plan.Share = "",
    prompt_cache_gib: of_plan.PromptCacheGib = "",
    prefix_wait: Annotated[
        str, typer.Option(help="on or off: a prompt waits for what an equal one is about to keep")
    ] = "",
    evict: Annotated[
        str, typer.Option(help="which kept prompt on pages goes first: odds, lru or seeds")
    ] = "odds",
    spill_gib: Annotated[str, typer.Option(help="images on disk: 0, there are none")] = "",
    trace: Annotated[
        str | None, typer.Option(help="the tape to write; an existing file is refused")
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="add a run to the tape")] = False,
    trace_on_error: Annotated[str, typer.Option(help="stop, or serve without a tape")] = "stop",
    trace_sync: Annotated[str, typer.Option(help="normal, or full for power loss")] = "normal",
    digests: Annotated[str, typer.Option(help="off, book, rows or full")] = "rows",
    queue: Annotated[int, typer.Option(min=0, help="requests that may wait")] = 256,
    poison: Annotated[str, typer.Option(help="a, b or off; TF_KV_POISON=1 is a")] = "",
    verify: of_plan.Verify = False,
    api_key: Annotated[str, typer.Option(envvar="KVTAPE_API_KEY", help="ask for this key")] = "",
    inject: Annotated[str, typer.Option(help="flip:rank=1,step=9,... one bit, on purpose")] = "",
) -> None:
    """Serve a model with the OpenAI API, and keep every decision on a tape."""
    from .replay.opening import BadOption, RunOptions
    from .replay.serve import ServeOptions, poison_of, run_serve, told
    from .replay.serving import TapeOptions, tape_of
    from .replay.store_options import KeepingAsked, keeping_of

    try:
        one_of("--trace-on-error", trace_on_error, ("stop", "serve"))
        one_of("--trace-sync", trace_sync, ("normal", "full"))
        one_of("--digests", digests, ("off", "book", "rows", "full"))
        one_of("--marks", marks, ("page", "grid"))
        one_of("--device", device, ("cpu", "cuda"))
        one_of("--gather", gather, GATHERS)
        asked = KeepingAsked(
            store, share, prompt_cache_gib, kv_pages, kv_cache, room, plan_order, prefix_wait,
            evict, spill_gib,
        )  # fmt: skip
        keeping = keeping_of(asked, os.environ)
        options = ServeOptions(
            model=model,
            run=RunOptions(
                world=tp,
                threads=threads_of(threads, tp),
                lanes=parallel,
                context=context,
                pages=pages,
                prompt_rows=prompt_rows,
                queue=queue,
                digests=digests,
                poison=poison_of(poison, os.environ),
                drafts=mtp_drafts,
                marks=marks,
                device=device,
                gather=gather,
                verify=verify,
                **keeping._asdict(),
            ),
            tape=TapeOptions(
                path=tape_of(trace, append=append),
                stop_on_error=trace_on_error == "stop",
                append=append,
                synchronous=trace_sync.upper(),
            ),
            host=host,
            port=port,
            api_key=api_key,
            inject=inject,
        )
    except BadOption as error:
        raise typer.Exit(told(error)) from None
    raise typer.Exit(run_serve(options))


@app.command()
def replay(
    tape: TapeFile,
    run: Annotated[int, typer.Option(min=0, help="which run of the tape; 0: the last")] = 0,
    session: Annotated[str, typer.Option(help="this session alone")] = "",
    request: Annotated[str, typer.Option(help="this request alone")] = "",
    book: Annotated[bool, typer.Option("--book", help="decide again; needs no model")] = False,
    to: Annotated[int, typer.Option(min=-1, help="stop at this fact and look")] = -1,
    fast_forward: Annotated[
        bool, typer.Option("--fast-forward", help="replies as prompts, at prompt speed")
    ] = False,
    tp: Annotated[int, typer.Option(min=0, max=64, help="ranks; 0: as recorded")] = 0,
    threads: Threads = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, fake; as recorded by default")] = "",
    gather: Gather = "auto",
    model: ModelPath = "",
    poison: Annotated[str, typer.Option(help="a, b or off; as recorded by default")] = "",
    verify: of_plan.Verify = False,
    with_faults: Annotated[bool, typer.Option("--with-faults", help="flip again")] = False,
    rows: Annotated[int, typer.Option(min=0, help="prompt rows a step, fast-forward")] = 0,
    record: Annotated[str, typer.Option(help="keep the replay as a tape of its own")] = "",
    as_json: Json = False,
) -> None:
    """Run a tape again, whole or in part, and say whether every bit is the tape's."""
    from .replay.models import devices_for
    from .replay.run_replay import ReplayOptions, run_replay

    one_of("--poison", poison, ("", "off", "a", "b"))
    one_of("--device", device, ("", "cpu", "cuda", "fake"))
    one_of("--gather", gather, GATHERS)
    options = ReplayOptions(
        run=run,
        session=session,
        request=request,
        book=book,
        to=to,
        fast_forward=fast_forward,
        world=tp,
        device=device,
        model=model,
        poison=poison,
        with_faults=with_faults,
        rows_a_step=rows,
        verify=verify,
        record=record,
        as_json=as_json,
    )
    make = devices_for(threads, device, gather, verify=verify)
    raise typer.Exit(run_replay(tape, options, make))


@app.command()
def diff(
    left: Annotated[str, typer.Argument(help="TAPE, TAPE#rank or TAPE@event")],
    right: Annotated[str, typer.Argument(help="the other side; none: the tape itself")] = "",
    deep: Annotated[
        bool | None, typer.Option("--deep/--no-deep", help="compute again and find row and bit")
    ] = None,
    model: ModelPath = "",
    threads: Threads = 0,
    as_json: Json = False,
) -> None:
    """Find the first event, part, layer, page, row and bit where two runs or ranks part."""
    from .replay.models import devices_for
    from .replay.run_diff import run_diff

    make = devices_for(threads)
    raise typer.Exit(run_diff(left, right or None, make, deep=deep, model=model, as_json=as_json))


@app.command()
def audit(
    tape: TapeFile,
    run: Annotated[int, typer.Option(min=0, help="which run of the tape; 0: the last")] = 0,
    as_json: Json = False,
) -> None:
    """Check a tape's chain and content, and every invariant after every event; needs no model."""
    from .replay.run_diff import run_audit

    raise typer.Exit(run_audit(tape, run=run, as_json=as_json))


@app.command("why-miss")
def why_miss(
    tape: TapeFile,
    run: Annotated[int, typer.Option(min=0, help="which run of the tape; 0: the last")] = 0,
    session: Annotated[str, typer.Option(help="this session alone")] = "",
    request: Annotated[str, typer.Option(help="this request alone")] = "",
    tokens: Annotated[
        bool, typer.Option("--tokens", help="show the token ids where two prompts part")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say of every prompt what was resumed of it, and why no more: edited, evicted by whom, ..."""
    from .replay.why_miss_command import WhyMissOptions, run_why_miss

    asked = WhyMissOptions(run, session, request, tokens, as_json)
    raise typer.Exit(run_why_miss(tape, asked))


app.command("plan")(of_plan.plan)

trace = typer.Typer(no_args_is_help=True, help="Tapes as files.")
app.add_typer(trace, name="trace")


@trace.command("export")
def trace_export(
    tape: TapeFile,
    run: Annotated[int, typer.Option(min=0, help="which run of the tape; 0: the last")] = 0,
) -> None:
    """Print a run as JSON lines, the same bytes for the same facts."""
    from .replay.run_trace import run_export

    raise typer.Exit(run_export(tape, run))


@trace.command("import")
def trace_import(
    lines: Annotated[Path, typer.Argument(help="JSON lines, - for standard input")],
    tape: Annotated[Path, typer.Argument(help="the tape to write")],
) -> None:
    """Make a tape from exported lines."""
    from .replay.run_trace import run_import

    raise typer.Exit(run_import(lines, tape))


@app.command()
def simulate(
    trace: Annotated[Path, typer.Argument(help="JSON lines: timestamp, lengths, hash_ids")],
    pages: Annotated[int, typer.Option(min=1, help="of the pool, 512 tokens each")] = 8000,
    live: Annotated[int, typer.Option(min=1, max=1024, help="streams at once")] = 64,
    policy: Annotated[str, typer.Option(help="who is given up: odds, lru or seeds")] = "odds",
    compare: Annotated[str, typer.Option(help="lru: a plain block pool beside it")] = "",
    tape: Annotated[str, typer.Option("--trace", help="the tape to write, and to audit")] = "",
    limit: Annotated[int, typer.Option(min=0, help="requests to read; 0: all")] = 0,
    as_json: Json = False,
) -> None:
    """Run a public request trace through the machine on a device that only keeps a clock."""
    from .core.evict import POLICIES
    from .replay.simulate import SimulateOptions
    from .replay.simulate_command import Shown, run_simulate

    one_of("--policy", policy, tuple(POLICIES))
    one_of("--compare", compare, ("", "lru"))
    options = SimulateOptions(
        pages=pages,
        live=live,
        policy=policy,
        tape=Path(tape) if tape else None,
        compare=bool(compare),
    )
    raise typer.Exit(run_simulate(trace, options, Shown(limit, as_json)))


@app.command()
def doctor(
    kernels: Annotated[bool, typer.Option("--kernels", help="run every kernel")] = False,
    faults: Annotated[bool, typer.Option("--faults", help="which are caught, and when")] = False,
    as_json: Json = False,
) -> None:
    """Say what this machine can run, what is missing, and how to get it."""
    from .replay.doctor import run_doctor

    raise typer.Exit(run_doctor(kernels, faults, as_json))


@app.command()
def demo(
    keep: Annotated[str, typer.Option(help="a folder to keep the tapes in")] = "",
    glm: Annotated[
        bool, typer.Option("--glm", help="one more chapter: the GLM that comes along, with drafts")
    ] = False,
) -> None:
    """Serve, chat, replay, diff and find a flipped bit, on SmolLM2."""
    from .replay.demo import run_demo

    raise typer.Exit(run_demo(keep, glm=glm))


app.add_typer(measures, name="bench")


@measures.command("parts")
def bench(
    part: Annotated[
        str,
        typer.Argument(
            help="decode, prompt, recording, replay, ranks, memory, ready, glm, resend, book,"
            " pages, all; book takes pages along"
        ),
    ] = "all",
    rounds: Annotated[int, typer.Option(min=0, help="of each part; 0: as many as it needs")] = 0,
    peers_python: Annotated[
        str, typer.Option(help="an interpreter that has the peers; by default this one")
    ] = "",
    trace: Annotated[
        str, typer.Option(help="pages: a request trace, as simulate reads; by default a made one")
    ] = "",
    pages: Annotated[int, typer.Option(min=1, help="pages: of the pool")] = 8000,
    live: Annotated[int, typer.Option(min=1, max=1024, help="pages: streams at once")] = 64,
    policy: Annotated[str, typer.Option(help="pages: who is given up, as simulate has it")] = "",
    as_json: Json = False,
) -> None:
    """Measure speed and memory beside their bars, and beside llama.cpp and transformers."""
    from .core.evict import POLICIES
    from .replay.bench import PARTS, run_bench
    from .replay.bench_pages import PageOptions

    one_of("PART", part, (*PARTS, "all"))
    one_of("--policy", policy, ("", *POLICIES))
    of = PageOptions(trace, pages, live, policy)
    raise typer.Exit(run_bench(part, rounds, peers_python, as_json, of))


def one_of(option: str, value: str, among: tuple[str, ...]) -> None:
    """Refuse a value that an option does not have."""
    if value not in among:
        raise typer.BadParameter(f"{value!r}: {', '.join(filter(None, among))}", param_hint=option)


def main() -> None:
    """Run kvtape."""
    with told_output():
        app()


if __name__ == "__main__":
    main()
