"""A request trace through the real machine on a device that only keeps a clock."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..core.decide import decide
from ..core.device import Running
from ..core.evict import POLICIES
from ..core.outcome import commands_of
from ..core.state import open_state
from ..devices.kernel_cache import keep_book
from ..devices.simulated import Cost, SimulatedDevice
from ..events.commands import AnyCommand, Arrive, Close
from ..events.facts import FORMAT, RunOpened
from ..events.ids import RequestId, SessionId
from ..events.records import FamilyRules
from ..events.tape import TapeWriter
from .loop import Run, run
from .opening import CONTRACT
from .ranks import Ranks
from .recorder import NoTape, TapeRecorder
from .simulate_count import Counts
from .simulate_trace import PAGE_ROWS, VOCAB, Asked, own_token

COST = Cost(prompt_row_us=700, round_us=800_000, lane_us=10_000)  # a row is 64 tokens
PROMPT_ROWS = 128  # a step


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What a trace is run on. pages: of 512 tokens; live: lanes; tape: None for no tape."""

    pages: int
    live: int
    policy: str
    tape: Path | None = None
    compare: bool = False


def opened_for(options: SimulateOptions, asked: Sequence[Asked]) -> RunOpened:
    """The run's first fact. Nothing in it depends on when or where it is made."""
    return RunOpened(
        format=FORMAT,
        contract=CONTRACT,
        weights="none",
        build=__version__,
        model="simulated",
        model_digest="0" * 32,
        family="simulated",
        rules=FamilyRules(
            page_rows=PAGE_ROWS,
            mark_rows=PAGE_ROWS,
            lookahead=0,
            drafts=0,
            snapshots=False,
            finish_marks=False,
            min_prompt=0,
            min_gap=0,
            vocab=VOCAB,
            parts=(),
            split=(),
        ),
        lanes=options.live,
        context=max(len(one.prompt) + one.reply for one in asked),
        pages=options.pages,
        prompt_rows=PROMPT_ROWS,
        queue=len(asked),
        states=options.pages,
        order="lowest",
        plan={},
        world=1,
        devices=("simulated",),
        flags={"evict": POLICIES[options.policy], "keep_unsummed": 1, "rounds_as_one": 1},
        poison="off",
        digests="off",
        text="ids",
    )


class TraceSource:
    """Whoever arrived by the device's clock, after the outcome of the step before."""

    def __init__(self, asked: Sequence[Asked], device: SimulatedDevice, rules: FamilyRules) -> None:
        self._asked = asked
        self._device = device
        self._rules = rules
        self._next = 0
        self._news: list[AnyCommand] = []

    def take(self) -> Sequence[AnyCommand]:
        """The next commands; the clock goes on to the next arrival if there are no others."""
        device, asked, commands = self._device, self._asked, self._news
        self._news = []
        if not commands:
            if self._next == len(asked):
                return [Close(reason="closed")]
            device.now_us = max(device.now_us, asked[self._next].at_us)
        while self._next < len(asked) and asked[self._next].at_us <= device.now_us:
            commands.append(arrive(self._next, asked[self._next]))
            self._next += 1
        device.next_us = asked[self._next].at_us if self._next < len(asked) else -1
        return commands

    def put(self, step: int, running: Running) -> None:
        """The step's outcome comes first at the next turn."""
        report = running.report()
        report.step = step
        self._news = commands_of(self._rules, [report], "")


def arrive(number: int, asked: Asked) -> Arrive:
    """The wish for a reply to a request of the trace."""
    name = str(number)
    return Arrive(
        request=RequestId(name),
        session=SessionId(name),
        prompt=asked.prompt,
        max_new=asked.reply,
        eos=(own_token(number),),  # what its device keeps
        ignore_eos=True,
    )


def simulate(asked: Sequence[Asked], options: SimulateOptions) -> Counts:
    """Run the whole trace; the tape is closed and sealed when this returns."""
    opened = opened_for(options, asked)
    keep_book()
    state, device = open_state(opened), SimulatedDevice(COST)
    recorder: NoTape | TapeRecorder = NoTape()
    if options.tape is not None:
        recorder = TapeRecorder(TapeWriter.create(options.tape, opened), stop_on_error=True)
    counts = Counts(asked, device, options.pages if options.compare else 0)
    source = TraceSource(asked, device, opened.rules)
    going = Run(state, decide, source, Ranks(opened, [device]), device, recorder, counts, 1)
    started = time.perf_counter()
    try:
        run(going)
        recorder.close("closed")
    except BaseException:
        recorder.abandon()
        raise
    counts.seconds = time.perf_counter() - started
    return counts
