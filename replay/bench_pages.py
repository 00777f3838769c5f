"""The benchmark's page operations: a request trace through book, tree and order, with no device.

Two layers. The machine: `decide` and `apply` over the page book, the prompt tree and the order of
who goes first, one step after the other. The book: the same book, tree and order by themselves, by
the turns of a run of the machine (bench_turns), as a pool of blocks is measured elsewhere; with a
tape, every fact that names pages is made durable. A page is one row, whose token is the trace's id
of it; nothing computes, and nobody waits: as one reply ends the next prompt begins. What is counted
is what a pool of blocks does: a page found, leased, swapped, kept (new in the tree), returned, let
go (gone from the tree). Holds of further states on a page count nothing.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ..core.decide import decide
from ..core.device import Running
from ..core.evict import POLICIES, SEEDS
from ..core.outcome import commands_of
from ..core.paging import tried
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
from .bench_pool import Pool
from .bench_pool_tape import TapedPool
from .bench_rounds import Part, Say, measured
from .bench_turns import Turn, Turns
from .loop import Door, Run, run
from .ranks import Ranks
from .recorder import NoTape, TapeRecorder
from .simulate import COST, SimulateOptions, arrive, opened_for
from .simulate_made import made_trace
from .simulate_trace import Asked, read_trace

BARE, TAPED = Bar(3e6), Bar(0.3e6)
TOGETHER = 32  # steps a commit, in the figure beside that of one
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


@dataclass(slots=True)
class Noted:
    """A door that counts, and notes whose turn it is; it takes no part in what is timed."""

    counted: Counted = field(default_factory=Counted)
    turns: Turns = field(default_factory=Turns)
    state: State | None = None

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """A step's facts; `state` has them applied."""
        self.state = state
        self.counted.show(step, first_seq, facts, state)
        self.turns.show(step, first_seq, facts, state)


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
    opened: RunOpened, wishes: Sequence[Arrive], tape: Path | None, door: Door | None = None
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


def pool(
    opened: RunOpened,
    wishes: Sequence[Arrive],
    turns: Sequence[Turn],
    tape: Path | None,
    together: int = 1,
) -> tuple[float, Pool]:
    """The seconds that a run's turns took book, tree and order alone; together: steps a commit."""
    keep_book()
    if tape is None:
        bare = Pool(opened, wishes)
        return bare.play(turns), bare
    writer = TapeWriter.create(tape, opened)
    taped = TapedPool(opened, wishes, writer, together)
    seconds = taped.play(turns)
    start = time.perf_counter()
    taped.commit()
    seconds += time.perf_counter() - start
    writer.close()
    return seconds, taped


def _rate(operations: int, took: Callable[[Path], float], path: Path) -> float:
    return operations / took(path)


def pages(options: PageOptions, rounds: int, say: Say) -> Part:
    """Page operations a second of both layers, with a durable tape and without one."""
    part = Part("pages")
    asked = asked_of(options)
    opened = opened_of(options, asked)
    wishes = [arrive(at, one) for at, one in enumerate(asked)]
    noted = Noted()
    play(opened, wishes, None, noted)
    tried.every_function()  # none is read from disk while it is timed
    counted, turns = noted.counted, noted.turns.turns
    layers: dict[str, Callable[[Path], float]] = {
        "machine": lambda path: play(opened, wishes, None),
        "machine, tape": lambda path: play(opened, wishes, path),
    }
    if opened.flags["evict"] != SEEDS:  # whose order asks more than the book knows
        layers = {
            "book": lambda path: pool(opened, wishes, turns, None)[0],
            "book, tape": lambda path: pool(opened, wishes, turns, path)[0],
            f"book, tape, {TOGETHER} steps a commit": lambda path: pool(
                opened, wishes, turns, path, TOGETHER
            )[0],
        } | layers
    rates: dict[str, list[float]] = {name: [] for name in layers}
    with one_core(), TemporaryDirectory(prefix="kvtape-bench-") as folder:
        for at in range(rounds):
            for place, (name, took) in enumerate(layers.items()):
                settle()
                path = Path(folder) / f"{at}-{place}.tape"
                task = partial(_rate, counted.operations, took, path)
                rates[name].append(measured(part, task))
            told = ", ".join(f"{found[-1]:,.0f} {name}" for name, found in rates.items())
            say(f"pages {at + 1}/{rounds}: page operations a second: {told}")
    bars = {"book": BARE, "book, tape": TAPED}
    part.figures = [
        Figure(f"page operations, {name}", tuple(found), "1/s", bars.get(name))
        for name, found in rates.items()
    ]
    kinds = ", ".join(f"{counted.pages[kind]:,} {kind}" for kind in KINDS)
    part.notes += [
        f"{counted.operations:,} page operations in either layer: {kinds}",
        f"{len(asked):,} requests ({options.trace or 'made here'}), {counted.facts:,} facts of the"
        f" machine, {options.pages:,} pages, order {options.order}, {options.live} streams at once,"
        " one commit a step of the machine unless told, one core",
    ]
    return part
