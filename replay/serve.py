"""kvtape serve, wired: options and environment in, a run with a door out."""

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from rich.console import Console
from rich.logging import RichHandler

from ..core.families.family import UnsupportedShape
from ..core.plan_pages import share_warning
from ..devices.http.door import DoorSettings
from ..devices.http.engine import Info
from ..devices.http.serve import AddressRefused, bind
from ..devices.weights.checkpoint import ModelError
from ..events.errors import TapeError
from ..events.facts import RunOpened
from ..events.ids import Token
from .inject import BadFault, Fault
from .loading import load_with_progress
from .opening import BadOption, MalformedOption, RunOptions
from .serving import LiveRun, TapeOptions, serve_until_told
from .signals import Signals
from .start_line import start_line

LOG = logging.getLogger("kvtape.serve")
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
            raise MalformedOption(f"--poison {flag!r}: a, b or off")
        return flag
    value = environment.get(POISON_VARIABLE, "").strip()
    if value not in ("", "0", "1"):
        raise MalformedOption(f"{POISON_VARIABLE}={value!r}: 0, 1 or blank")
    return "a" if value == "1" else "off"


def run_serve(options: ServeOptions) -> int:
    """Serve a model until a signal. 0 ended in order, 1 stopped, 2 wrong use, 3 refused."""
    set_up_logging()
    try:
        fault = Fault.parse(options.inject) if options.inject else None
        listening = bind(options.host, options.port)
    except (BadFault, AddressRefused) as error:
        return told(error)
    with closing(listening), Signals() as signals:
        try:
            if warning := share_warning(options.run.share, options.run.lanes):
                LOG.warning("%s", warning)
            with signals.at_once():
                loaded = load_with_progress(options.model, options.run)
            for note in loaded.notes:
                LOG.info("note: %s", note)
            info = info_of(loaded.opened, loaded.ends)
            tape = replace(options.tape, weights=loaded.weights)
            live = LiveRun(loaded.opened, loaded.devices, info, tape, fault)
        except (BadOption, BadFault, ModelError, UnsupportedShape, TapeError) as error:
            return told(error)
        except MemoryError as error:
            return told(BadOption(f"{error}: fewer --pages, a lower --context or --parallel"))
        except KeyboardInterrupt:
            LOG.info("told to end while loading")
            return 0
        settings = DoorSettings(api_key=options.api_key)
        ready = start_line(loaded.opened)
        return serve_until_told(live, loaded.text, settings, listening, ready, signals.told)


def told(error: Exception) -> int:
    """Say what is wrong, in one line; the exit code."""
    console = Console(stderr=True, highlight=False)
    console.print(f"kvtape: {error}", markup=False, soft_wrap=True)
    return getattr(error, "exit_code", 2)


def set_up_logging() -> None:
    """One line a request on standard error, and nothing that users wrote."""
    console = Console(stderr=True)
    handler: logging.Handler = RichHandler(
        console=console, show_path=False, markup=False, highlighter=None
    )
    if not console.is_terminal:  # whatever reads a file of lines wants whole ones
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)


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
