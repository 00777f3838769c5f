"""The command `replay`: a tape, or a part of it, computed again and judged."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from ..core.families.family import UnsupportedShape
from ..core.link import RankLost
from ..devices.weights.checkpoint import ModelError
from ..events.errors import TapeError
from ..events.facts import RequestArrived
from ..events.reader import Tape
from .alone import Alone, play_alone
from .alone_plan import plan_alone
from .forward import play_forward, read_streams, room_for
from .look import run_book, show_state, summary
from .machine import Machine, MakeDevices
from .progress import bar
from .recording import Recording, WrongUse, among_runs, check_on_tape, end_of, open_whole
from .rerecord import Rerecorder
from .rerun import Played, Tick, reopened, rerun
from .show import (
    CONSOLE,
    DIFFERS,
    EQUAL,
    WRONG_USE,
    counted,
    fail,
    first_json,
    say_json,
    show_compared,
    show_first,
)
from .verdict import Judgement, Refused, Verdict, judge_run, judge_session

# What makes devices, given where the weights are ("" if nobody said). They raise Refused or
# ModelError where the weights are not those of the tape, or are not found.
MakeFor = Callable[[str], MakeDevices]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What a replay is asked to be; 0, -1 and "" leave it to the tape.

    to: the fact to stop at.  rows_a_step: prompt rows a step of a fast-forward.
    """

    run: int = 0
    session: str = ""
    request: str = ""
    book: bool = False
    to: int = -1
    fast_forward: bool = False
    world: int = 0
    device: str = ""
    model: str = ""
    poison: str = ""
    with_faults: bool = False
    rows_a_step: int = 0
    verify: bool = False
    record: str = ""
    as_json: bool = False


def run_replay(path: Path, options: ReplayOptions, make_for: MakeFor | None) -> int:
    """Replay a tape and say what was found: 0 equal, 1 not, 2 wrong use, 3 refused."""
    try:
        _check(options)
        with open_whole(path, options.run) as tape:
            check_on_tape(tape, options.to, f"--to {options.to}")
            if among_runs(tape) and not options.as_json:
                CONSOLE.print(among_runs(tape), markup=False)
            if end_of(tape) and not options.as_json:
                CONSOLE.print(end_of(tape), markup=False, soft_wrap=True)
            if options.book:
                return run_book(tape, as_json=options.as_json)
            if make_for is None:
                raise Refused("this build has no device to replay on; --book needs none")
            replaying = _Replaying(tape, options, make_for)
            return replaying.look() if options.to >= 0 else replaying.judge()
    except (TapeError, WrongUse, Refused) as error:
        return fail(error, error.exit_code, as_json=options.as_json)
    except (ModelError, UnsupportedShape) as error:
        return fail(error, getattr(error, "exit_code", WRONG_USE), as_json=options.as_json)
    except RankLost as error:
        return fail(error, DIFFERS, as_json=options.as_json)
    except AssertionError as error:
        why = WrongUse(f"{path}: its facts do not fit together ({error}); `audit` says where")
        return fail(why, WRONG_USE, as_json=options.as_json)


def _check(options: ReplayOptions) -> None:
    if options.session and options.request:
        raise WrongUse("--session and --request: one of them")
    part = bool(options.session or options.request or options.fast_forward)
    if options.book and (part or options.to >= 0):
        raise WrongUse("--book decides a whole run again; leave --session, --request, --to away")
    if options.book and options.verify:
        raise WrongUse("--book computes nothing that --verify could look at; leave one away")
    if options.to >= 0 and part:
        raise WrongUse("--to stops a whole run; leave --session, --request, --fast-forward away")
    if options.record and (part or options.book or options.to >= 0):
        raise WrongUse("--record keeps the replay of a whole run; leave the other ways away")


class _Replaying:
    """One tape, the options and the devices that they ask for."""

    def __init__(self, tape: Tape, options: ReplayOptions, make_for: MakeFor) -> None:
        self._options = options
        self._recording = Recording.on(tape, last=options.to)
        self._opened = reopened(
            tape.opened,
            world=options.world or None,
            device=options.device,
            poison=options.poison or None,
        )
        self._make = make_for(options.model or self._recording.hint)
        self._record = options.record  # kept once, however often a verdict needs a replay

    def judge(self) -> int:
        """Replay what the options say, as often as a verdict needs."""
        start = time.perf_counter()
        with bar("replay", self._recording.last_step, quiet=self._options.as_json) as tick:
            judged = self._judged(tick)
        seconds = time.perf_counter() - start
        return _report(judged, seconds, self._options)

    def _judged(self, tick: Tick) -> Judgement:
        options = self._options
        part = bool(options.session or options.request)
        if options.fast_forward:
            return judge_run(lambda: self._forward(tick))
        if part:
            return judge_session(lambda: self._alone(tick), lambda: self._whole(tick))
        return judge_run(lambda: self._whole(tick))

    def _picks(self, request: RequestArrived) -> bool:
        options = self._options
        return (not options.session or request.session == options.session) and (
            not options.request or request.request == options.request
        )

    def _whole(self, tick: Tick) -> Played:
        path, self._record = self._record, ""
        record = Rerecorder(Path(path), self._opened) if path else None
        try:
            with Machine(self._opened, self._make, record) as machine:
                faults = self._options.with_faults
                return rerun(machine, self._recording.steps(), with_faults=faults, tick=tick)
        finally:
            if record is not None:
                record.close()

    def _alone(self, tick: Tick) -> Alone:
        faults = self._options.with_faults
        plan = plan_alone(self._opened, self._recording.steps(), self._picks, with_faults=faults)
        if not plan.turns:
            raise WrongUse(f"{self._named()} holds no such session or request")
        with Machine(plan.opened, self._make) as machine:
            return play_alone(machine, plan, tick)

    def _forward(self, tick: Tick) -> Played:
        streams = read_streams(self._opened, self._recording.steps(), self._picks)
        if not streams:
            picked = self._options.session or self._options.request
            lacks = "such session or request with rows" if picked else "replies"
            raise WrongUse(f"{self._named()} holds no {lacks}")
        room = room_for(self._opened, streams, self._options.rows_a_step)
        with Machine(room, self._make) as machine:
            coarse = self._options.rows_a_step > 0
            return play_forward(machine, streams, tick, coarse=coarse)

    def _named(self) -> str:
        within = self._recording.within
        return f"{self._recording.name} ({within})" if within else self._recording.name

    def look(self) -> int:
        """Replay up to a fact and say what the state is there."""
        with (
            bar("replay", self._recording.last_step, quiet=self._options.as_json) as tick,
            Machine(self._opened, self._make) as machine,
        ):
            played = rerun(
                machine, self._recording.steps(), with_faults=self._options.with_faults, tick=tick
            )
            seen = summary(machine.state)
        first = played.comparison.first
        if self._options.as_json:
            say_json({"at": self._options.to, "state": seen, "first": first_json(first)})
        else:
            show_state(seen, self._options.to)
            show_first(first)
        return EQUAL if first is None else DIFFERS


def _report(judged: Judgement, seconds: float, options: ReplayOptions) -> int:
    played = judged.played
    if options.as_json:
        say_json({
            "verdict": judged.verdict.value,
            "steps": played.steps,
            "tokens": played.tokens,
            "seconds": round(seconds, 3),
            "compared": dict(played.comparison.compared),
            "first": first_json(judged.first),
            "not_comparable": sorted(played.comparison.not_comparable),
            "drafted": played.drafted,
            "accepted": played.accepted,
            "why": judged.why,
        })  # fmt: skip
    else:
        colour = "green" if judged.verdict is Verdict.EQUAL else "red"
        CONSOLE.print(f"[bold {colour}]{judged.verdict.value}[/]: {escape(judged.why)}")
        steps, tokens = counted(played.steps, "step"), counted(played.tokens, "token")
        drafts = f", {played.accepted} of {played.drafted} drafts kept" if played.drafted else ""
        CONSOLE.print(f"  {steps}, {tokens}{drafts}, {seconds:.1f} s")
        show_compared(played.comparison.compared)
        show_first(judged.first)
    return EQUAL if judged.verdict is Verdict.EQUAL else DIFFERS
