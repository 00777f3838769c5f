"""The benchmark's control plane: the whole loop on the fake family, with a tape, on one core."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..core.decide import decide
from ..core.state import State, open_state
from ..devices.fake import fake_group
from ..devices.kernel_cache import keep_book
from ..events import facts as f
from ..events.commands import AnyCommand, Arrive, Close
from ..events.facts import AnyFact, RunOpened
from ..events.ids import RequestId, SessionId, Token
from ..events.tape import TapeWriter
from .bench_engine import loaded, settle
from .bench_figures import Bar, Figure
from .bench_rounds import Part, Say, measured
from .live import LiveSource
from .loop import Decide, Run, run
from .opening import RunOptions
from .ranks import Ranks
from .recorder import NoTape, TapeRecorder

LANES = 8
ROUNDS = 3000
PROMPT, REPLY = 24, 1500
ROUND_RATE, STREAM_STEPS = Bar(2500.0), Bar(20_000.0)
FAMILY, VOCAB = "fake", 64


@dataclass(slots=True)
class Clocks:
    """Seconds of processor time by piece of the loop: others on the core do not count."""

    spent: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, piece: str) -> Iterator[None]:
        """Count the body to a piece."""
        start = time.thread_time()
        yield
        self.spent[piece] = self.spent.get(piece, 0.0) + time.thread_time() - start


@dataclass(slots=True)
class _Feed:
    """A door that keeps every lane busy until enough rounds ran, then closes the run."""

    source: LiveSource
    most: int
    asked: int = 0
    rounds: int = 0
    stream_steps: int = 0

    def ask(self) -> None:
        """One more request, of a session of its own."""
        name = f"{self.asked}"
        tokens = tuple(Token((self.asked * 31 + at) % VOCAB) for at in range(PROMPT))
        self.asked += 1
        self.source.wish(
            Arrive(
                request=RequestId(name), session=SessionId(name), prompt=tokens, max_new=REPLY,
                ignore_eos=True,
            )
        )  # fmt: skip

    def show(self, step: int, first_seq: int, facts: Sequence[AnyFact], state: State) -> None:
        """Count rounds; a request that ended makes room for the next."""
        for fact in facts:
            if isinstance(fact, f.RoundRun):
                self.rounds += 1
                self.stream_steps += len(fact.lanes)
            elif isinstance(fact, f.RequestFinished) and self.rounds < self.most:
                self.ask()
        if self.rounds == self.most:
            self.source.wish(Close(reason="closed"))


@dataclass(frozen=True, slots=True)
class Ran:
    """Rounds, lanes of all of them, the seconds that they took, of them on the processor."""

    rounds: int
    stream_steps: int
    seconds: float
    worked: float

    @property
    def rate(self) -> float:
        """Rounds a second."""
        return self.rounds / self.seconds

    @property
    def step_rate(self) -> float:
        """Steps of streams a second."""
        return self.stream_steps / self.seconds


def _opened() -> RunOpened:
    """The fake family as it is served, with few tokens: its arithmetic is not what is measured."""
    served = loaded(RunOptions(lanes=LANES), FAMILY).opened
    rules = served.rules.model_copy(update={"vocab": VOCAB})
    return served.model_copy(update={"rules": rules})


def play(folder: Path | None, rounds: int, clocks: Clocks | None = None) -> Ran:
    """Run so many rounds live; folder: where the tape goes, None for no tape."""
    opened = _opened()
    keep_book()
    state = open_state(opened)
    devices = fake_group(opened, 1)
    ranks = Ranks(opened, devices)
    recorder: NoTape | TapeRecorder = NoTape()
    if folder is not None:
        path = folder / f"{time.monotonic_ns()}.tape"
        recorder = TapeRecorder(TapeWriter.create(path, opened), stop_on_error=True)
    source = LiveSource(state, ranks)
    feed = _Feed(source, rounds)
    going = Run(state, decide, source, ranks, devices[0], recorder, feed, step=1)
    if clocks is not None:
        _clocked(going, clocks)
    for _ in range(LANES):
        feed.ask()
    start, worked = time.perf_counter(), time.thread_time()
    try:
        run(going)
        seconds, worked = time.perf_counter() - start, time.thread_time() - worked
        recorder.close("closed")
    finally:
        ranks.close("closed")
    return Ran(feed.rounds, feed.stream_steps, seconds, worked)


def _clocked(going: Run, clocks: Clocks) -> None:
    """Put a clock around each piece of the loop; apply runs while decide is asked for more."""
    decides = going.decide

    def timed_decide(state: State, commands: Sequence[AnyCommand]) -> Iterator[AnyFact]:
        with clocks.of("decide and apply"):
            yield from decides(state, commands)

    timed: Decide = timed_decide
    going.decide = timed
    for piece, owner, name in (
        ("encode and tape", going.tape, "append"),
        ("device", going.device, "launch"),
        ("outcome", going.source, "put"),
    ):
        setattr(owner, name, _timed(clocks, piece, getattr(owner, name)))


def _timed(clocks: Clocks, piece: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        with clocks.of(piece):
            return call(*arguments, **named)

    return timed


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def book(rounds: int, say: Say) -> Part:
    """Rounds and stream steps a second, with the tape and without, and where the time goes."""
    part = Part("book")
    taped: list[Ran] = []
    bare: list[Ran] = []
    clocks = Clocks()
    with one_core(), TemporaryDirectory(prefix="kvtape-bench-") as name:
        folder = Path(name)
        play(folder, ROUNDS // 10)  # the first run loads kernels
        for at in range(rounds):
            settle()
            taped.append(_watched(part, folder))
            bare.append(_watched(part, None))
            told = f"{taped[-1].rate:.0f} rounds a second, {bare[-1].rate:.0f} without the tape"
            say(f"book {at + 1}/{rounds}: {told}")
        clocked = play(folder, ROUNDS, clocks)
    part.figures = [
        Figure("rounds, tape", tuple(ran.rate for ran in taped), "1/s", ROUND_RATE),
        Figure("stream steps, tape", tuple(ran.step_rate for ran in taped), "1/s", STREAM_STEPS),
        Figure("rounds, no tape", tuple(ran.rate for ran in bare), "1/s"),
        Figure(
            "a round's processor time, tape",
            tuple(ran.worked / ran.rounds * 1e6 for ran in taped),
            "us",
        ),
        *(
            Figure(f"of it {piece}", (seconds / clocked.rounds * 1e6,), "us")
            for piece, seconds in clocks.spent.items()
        ),
    ]
    part.notes.append(
        f"family {FAMILY} of {VOCAB} tokens, {LANES} lanes, {ROUNDS} rounds of one commit, one core"
    )
    return part


def _watched(part: Part, folder: Path | None) -> Ran:
    found: list[Ran] = []

    def once() -> float:
        found.append(play(folder, ROUNDS))
        return found[-1].rate

    measured(part, once)
    return found[-1]
