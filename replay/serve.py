"""kvtape serve, wired: options and environment in, a run with a door out."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..devices.chat import Chat, read_chat
from ..devices.cpu import CpuDevice
from ..devices.http.door import DoorSettings
from ..devices.http.engine import Info, TextSide
from ..devices.http.model_text import ModelText
from ..devices.http.serve import AddressRefused, bind
from ..devices.kernel_cache import use_cache, warm
from ..devices.text import read_codec
from ..devices.weights.checkpoint import Checkpoint, ModelError
from ..devices.weights.find import find_model
from ..events.errors import TapeError
from ..events.facts import RunOpened
from ..events.ids import Token
from .inject import BadFault, Fault
from .opening import BadOption, RunOptions, load
from .serving import LiveRun, TapeOptions, serve_until_told

POISON_VARIABLE = "TF_KV_POISON"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `kvtape serve` was asked."""

    model: str
    run: RunOptions
    tape: TapeOptions
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str = ""
    inject: str = ""


def poison_of(flag: str, environment: Mapping[str, str]) -> str:
    """The poison pattern: --poison a or b, else TF_KV_POISON=1 for a; blank is unset."""
    if flag:
        if flag not in ("a", "b", "off"):
            raise BadOption(f"--poison {flag!r}: a, b or off")
        return flag
    value = environment.get(POISON_VARIABLE, "").strip()
    if value not in ("", "0", "1"):
        raise BadOption(f"{POISON_VARIABLE}={value!r}: 0, 1 or blank")
    return "a" if value == "1" else "off"


def run_serve(options: ServeOptions) -> int:
    """Serve a model until a signal. 0 ended in order, 1 stopped, 2 wrong use, 3 refused."""
    set_up_logging()
    try:
        fault = Fault.parse(options.inject) if options.inject else None
        checkpoint = find_model(options.model)
        listening = bind(options.host, options.port)
    except (BadFault, ModelError, AddressRefused) as error:
        return told(error)
    try:
        opened, devices = load_with_progress(options.run, checkpoint)
        text, ends = text_of(checkpoint)
        tape = options.tape
        live = LiveRun(opened, devices, info_of(opened, ends), tape, fault)
    except (BadOption, ModelError, TapeError) as error:
        listening.close()
        return told(error)
    settings = DoorSettings(api_key=options.api_key)
    return serve_until_told(live, text, settings, listening, start_line(opened))


def told(error: Exception) -> int:
    """Say what is wrong; the exit code."""
    Console(stderr=True, highlight=False).print(f"kvtape: {error}", markup=False)
    if isinstance(error, BadOption):
        return 3
    return getattr(error, "exit_code", 2)


def set_up_logging() -> None:
    """One line a request on standard error, and nothing that users wrote."""
    handler = RichHandler(
        console=Console(stderr=True), show_path=False, markup=False, highlighter=None
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)


def load_with_progress(
    options: RunOptions, checkpoint: Checkpoint
) -> tuple[RunOpened, Sequence[CpuDevice]]:
    """Compile what is not compiled yet, then load weights; both show how far they are."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        compiling = bar.add_task("kernels", total=None)
        warm(use_cache(), lambda line: bar.update(compiling, description=line))
        bar.update(compiling, visible=False)
        loading = bar.add_task(f"weights of {checkpoint.name}", total=None)

        def show(done: int, total: int) -> None:
            bar.update(loading, completed=done, total=total)

        return load(options, checkpoint, show)


def text_of(checkpoint: Checkpoint) -> tuple[TextSide | None, tuple[int, ...]]:
    """The model's tokenizer and chat template, and the tokens that end a reply."""
    ends = tuple(checkpoint.config["eos_token_ids"])
    codec = read_codec(checkpoint.path)
    chat: Chat | None = read_chat(checkpoint.path, codec, ends)
    return ModelText(codec, chat), chat.ends if chat is not None else ends


def info_of(opened: RunOpened, ends: tuple[int, ...]) -> Info:
    """What the door tells of the model."""
    return Info(
        model=opened.model,
        model_digest=opened.model_digest,
        contract=opened.contract,
        context=opened.context,
        vocab=opened.rules.vocab,
        lanes=opened.lanes,
        eos=tuple(Token(end) for end in ends),
        created=int(time.time()),
    )


def start_line(opened: RunOpened) -> str:
    """What is served, with how much room."""
    tokens = opened.pages * opened.rules.page_rows
    ranks = f"{opened.world} rank{'s' * (opened.world > 1)}"
    return (
        f"{opened.model} on {ranks}: {opened.lanes} streams at once, windows of {opened.context},"
        f" {opened.pages} pages = {tokens} tokens that all streams share"
    )
