"""The benchmark's page operations: a request trace through book, tree and order, with no device.

The machine is the real one, `decide` and `apply` over the page book, the prompt tree and the order
of who goes first, one step after the other. A page is one row, whose token is the trace's id of it,
so no tokens are hashed; nothing computes, and nobody waits: as one reply ends the next prompt
begins. What is counted is what a pool of blocks does: a page found, leased, swapped, kept (new in
the tree), returned, let go (gone from the tree). Holds of further states on a page count nothing.
"""

import gc
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from ..core.decide import decide
from ..core.device import Running
from ..core.evict import POLICIES
from ..core.outcome import commands_of
from ..core.state import State, open_state
from ..devices.kernel_cache import keep_book
from ..devices.simulated import SimulatedDevice
from ..events import facts as f
from ..events.commands import AnyCommand, Arrive, Close
from ..events.facts import AnyFact, RunOpened
from ..events.ids import PageId, StateId
from ..events.tape import TapeWriter
from .bench_book import one_core
from .bench_engine import settle
from .bench_figures import Bar, Figure
from .bench_rounds import Part, Say, measured
from .loop import Run, run
from .ranks import Ranks
from .recorder import NoTape, TapeRecorder
from .simulate import COST, SimulateOptions, arrive, opened_for
from .simulate_made import made_trace
from .simulate_trace import Asked, read_trace

BARE, TAPED = Bar(3e6), Bar(0.3e6)
KINDS = ("found", "leased", "swapped", "kept", "returned", "let go")


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What is run: a trace ("": one that is made here), on so many pages, so many streams at once.

    policy: the order in which kept prefixes go; "": the newest.
    """

    trace: str = ""
    pages: int = 8000
    live: int = 64
    policy: str = ""

    @property
    def order(self) -> str:
        """The order's name."""
        return self.policy or max(POLICIES, key=lambda name: POLICIES[name])


class _Feed:
    """A source whose prompts come as fast as others end."""

    def __init__(self, wishes: Sequence[Arrive], state: State) -> None:
        self._left = [*reversed(wishes)]
        self._state = state
        self._news: list[AnyCommand] = []

    def take(self) -> Sequence[AnyCommand]:
        """The outcome of the step before, and a prompt for each lane that is or will be empty."""
        commands, self._news = self._news, []
        state = self._state
        for _ in range(min(len(self._left), 2 * len(state.lanes) - len(state.streams))):
            commands.append(self._left.pop())
        return commands if commands or state.streams else [Close(reason="closed")]

    def put(self, step: int, running: Running) -> None:
        """The step's outcome comes first at the next turn."""
        report = running.report()
        report.step = step
        self._news = commands_of(self._state.opened.rules, [report], "")


@dataclass(slots=True)
class Counted:
    """A door that counts page operations by kind, and facts; it takes no part in what is timed."""

    pages: Counter[str] = field(default_factory=Counter)
    facts: int = 0
    _held: dict[StateId, tuple[PageId, ...]] = field(default_factory=dict)
    _holds: Counter[PageId] = field(default_factory=Counter)

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Count a step's facts."""
        self.facts += len(facts)
        for fact in facts:
            match fact:
                case f.PagesAdopted():
                    self.pages["found"] += len(fact.pages)
                case f.PagesLeased():
                    self.pages["leased"] += len(fact.pages)
                case f.PagesSwapped():
                    self.pages["swapped"] += len(fact.pages)
                case f.PagesReturned():
                    self.pages["returned"] += len(fact.pages)
                case f.SnapshotTaken():
                    self.pages["kept"] += sum(not self._holds[page] for page in fact.pages)
                    self._held[fact.state] = fact.pages
                    self._holds.update(fact.pages)
                case f.StateDropped():
                    pages = self._held.pop(fact.state)
                    self._holds.subtract(pages)
                    self.pages["let go"] += sum(not self._holds[page] for page in pages)
                case _:
                    pass  # no page changes hands

    @property
    def operations(self) -> int:
        """All page operations."""
        return self.pages.total()


class _Nobody:
    """A door that shows nothing."""

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Nothing."""


def asked_of(options: PageOptions) -> list[Asked]:
    """The requests, a page a row. Raises TraceError."""
    return read_trace(Path(options.trace), page_rows=1) if options.trace else made_trace(1)


def opened_of(options: PageOptions, asked: Sequence[Asked]) -> RunOpened:
    """A simulated run's, but for its pages of one row and its prompts, which run in one step."""
    opened = opened_for(SimulateOptions(options.pages, options.live, options.order), asked)
    rules = opened.rules.model_copy(update={"page_rows": 1, "mark_rows": 1})
    rows = options.live * opened.context
    return opened.model_copy(update={"rules": rules, "prompt_rows": rows})


def play(
    opened: RunOpened, wishes: Sequence[Arrive], tape: Path | None, door: Counted | None = None
) -> float:
    """The seconds that all requests took; tape: where it goes, one commit a step."""
    keep_book()
    state, device = open_state(opened), SimulatedDevice(COST)
    recorder: NoTape | TapeRecorder = NoTape()
    if tape is not None:
        recorder = TapeRecorder(TapeWriter.create(tape, opened), stop_on_error=True)
    ranks = Ranks(opened, [device])
    feed = _Feed(wishes, state)
    going = Run(state, decide, feed, ranks, device, recorder, door or _Nobody(), step=1)
    gc.collect()
    gc.freeze()  # as a server does: no collection need walk the wishes again
    try:
        start = time.perf_counter()
        run(going)
        seconds = time.perf_counter() - start
    finally:
        gc.unfreeze()
    recorder.close("closed")
    return seconds


def pages(options: PageOptions, rounds: int, say: Say) -> Part:
    """Page operations a second, with a durable tape and without one."""
    part = Part("pages")
    asked = asked_of(options)
    opened = opened_of(options, asked)
    wishes = [arrive(at, one) for at, one in enumerate(asked)]
    counted = Counted()
    play(opened, wishes, None, counted)
    rates: dict[str, list[float]] = {"no tape": [], "tape": []}
    with one_core(), TemporaryDirectory(prefix="kvtape-bench-") as folder:
        for at in range(rounds):
            for name, found in rates.items():
                settle()
                path = Path(folder) / f"{at}.tape" if name == "tape" else None

                def once(path: Path | None = path) -> float:
                    return counted.operations / play(opened, wishes, path)

                found.append(measured(part, once))
            told = ", ".join(f"{found[-1]:,.0f} {name}" for name, found in rates.items())
            say(f"pages {at + 1}/{rounds}: page operations a second: {told}")
    part.figures = [
        Figure("page operations, no tape", tuple(rates["no tape"]), "1/s", BARE),
        Figure("page operations, tape", tuple(rates["tape"]), "1/s", TAPED),
    ]
    kinds = ", ".join(f"{counted.pages[kind]:,} {kind}" for kind in KINDS)
    part.notes += [
        f"{counted.operations:,} page operations: {kinds}",
        f"{len(asked):,} requests ({options.trace or 'made here'}), {counted.facts:,} facts,"
        f" {options.pages:,} pages, order {options.order}, {options.live} streams at once,"
        " one commit a step, one core",
    ]
    return part
