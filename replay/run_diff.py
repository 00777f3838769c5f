"""The commands `diff` and `audit`: what two tapes, two ranks or one tape disagree on."""

import re
import time
from contextlib import ExitStack
from pathlib import Path

from rich.markup import escape

from ..core.families.family import UnsupportedShape
from ..core.link import RankLost
from ..devices.weights.checkpoint import ModelError
from ..events.errors import TapeError
from ..events.lock import being_written
from ..events.reader import Tape
from ..events.verify import Finding
from .audit import audit_file, audit_run
from .diff import Found, diff_alone, diff_two
from .machine import MakeDevices
from .progress import bar
from .recording import Recording, WrongUse, check_on_tape, end_of, open_whole
from .run_replay import MakeFor
from .show import (
    CONSOLE,
    DIFFERS,
    EQUAL,
    WRONG_USE,
    fail,
    first_json,
    say_json,
    show_compared,
    show_first,
)
from .verdict import Refused, Verdict

SHORT_SEQS = 20_000  # tapes of so many events are computed again unasked
_SIDE = re.compile(r"^(?P<path>.*?)(?:#(?P<rank>\d+)|@(?P<seq>\d+))?$", re.DOTALL)


def open_side(side: str, stack: ExitStack) -> tuple[Recording, int]:
    """A side, `TAPE`, `TAPE#rank` or `TAPE@seq`, and how many events its tape has."""
    named = _SIDE.match(side)
    assert named is not None, f"{side!r} is some path"
    if Path(side).exists():  # a file whose name only looks so
        path, rank, last = Path(side), -1, -1
    else:
        path = Path(named["path"])
        rank, last = (int(named[name]) if named[name] else -1 for name in ("rank", "seq"))
        if not named["path"]:
            raise WrongUse(f"{side}: no tape before {side[0]}")
    tape = stack.enter_context(open_whole(path))
    check_on_tape(tape, last, side)
    if rank >= tape.opened.world:
        raise WrongUse(f"{side}: the run has ranks 0 to {tape.opened.world - 1}")
    return Recording.on(tape, rank, last), tape.last_seq


def run_diff(
    left: str,
    right: str | None,
    make_for: MakeFor | None,
    *,
    deep: bool | None = None,
    model: str = "",
    as_json: bool = False,
) -> int:
    """Diff two sides, or one against itself; deep None: only where the tapes are short."""
    start = time.perf_counter()
    try:
        with ExitStack() as stack:
            mine = open_side(left, stack)
            other = open_side(right, stack) if right else None
            events = max(mine[1], other[1] if other else 0)
            go_deep = (deep is None and events <= SHORT_SEQS) or bool(deep)
            with bar("replay", mine[0].last_step, quiet=as_json) as tick:
                if other is None:
                    make = _maker(mine[0], model, make_for) if make_for and go_deep else None
                    found = diff_alone(mine[0], make, tick, _unplayed(make_for, deep))
                elif make_for and go_deep:
                    deep_for = make_for  # known not to be None from here on
                    found = diff_two(mine[0], other[0], lambda side: _maker(side, model, deep_for))
                else:
                    found = diff_two(mine[0], other[0])
    except (TapeError, WrongUse, Refused) as error:
        return fail(error, error.exit_code, as_json=as_json)
    except (ModelError, UnsupportedShape) as error:
        return fail(error, WRONG_USE, as_json=as_json)
    except (RankLost, AssertionError) as error:
        return fail(error, DIFFERS if isinstance(error, RankLost) else WRONG_USE, as_json=as_json)
    _report(found, time.perf_counter() - start, as_json=as_json)
    return EQUAL if found.verdict is Verdict.EQUAL and found.first is None else DIFFERS


def _unplayed(make_for: MakeFor | None, deep: bool | None) -> str:
    """Why a tape was only read."""
    if deep is False:
        return "not computed again, as asked"
    if make_for is None:
        return "without a model it is not computed again"
    return f"not computed again: it has over {SHORT_SEQS} events, and --deep was not asked for"


def _maker(side: Recording, model: str, make_for: MakeFor) -> MakeDevices:
    """Devices for the runs of a side: its own model, unless one is named for both."""
    return make_for(model or side.hint)


def _report(found: Found, seconds: float, *, as_json: bool) -> None:
    if as_json:
        say_json({
            "verdict": found.verdict.value,
            "steps": found.steps,
            "tokens": found.tokens,
            "seconds": round(seconds, 3),
            "compared": dict(found.compared),
            "first": first_json(found.first, found.place),
            "not_comparable": sorted(found.not_comparable),
            "notes": found.notes,
        })  # fmt: skip
        return
    if found.verdict is Verdict.APART:
        CONSOLE.print("[bold red]apart[/]")
    elif found.first is None:
        CONSOLE.print("[bold green]equal[/]")
    else:
        where = "" if found.verdict is Verdict.EQUAL else f": {found.verdict.value}"
        CONSOLE.print(f"[bold red]differs[/]{where}")
    for note in found.notes:
        CONSOLE.print(f"  {escape(note)}")
    show_compared(found.compared)
    if found.not_comparable:
        CONSOLE.print(f"  not comparable: {', '.join(sorted(found.not_comparable))}")
    show_first(found.first, found.place)


def run_audit(path: Path, *, run: int = 0, as_json: bool = False) -> int:
    """Audit a tape, its bytes, then every fact of a run: 0 sound, 1 something is found."""
    end = ""
    try:
        findings = audit_file(path)
        if not findings:  # what the rows say means nothing while they are not as written
            with Tape.open(path, run or None) as tape:
                last, end = tape.at(tape.last_seq).step, end_of(tape)
                with bar("audit", last, quiet=as_json) as tick:
                    findings = audit_run(tape.opened, tape.steps(), tick)
    except TapeError as error:
        return fail(error, error.exit_code, as_json=as_json)
    _show_findings(path, findings, end, as_json=as_json)
    if not as_json and being_written(path):
        CONSOLE.print("  it is being written: so far, that is")
    elif not as_json and end:
        CONSOLE.print(f"  {escape(end)}", soft_wrap=True)
    return DIFFERS if findings else EQUAL


def _show_findings(path: Path, findings: list[Finding], end: str, *, as_json: bool) -> None:
    if as_json:
        found: dict[str, object] = {"findings": [finding._asdict() for finding in findings]}
        say_json(found | ({"end": end} if end else {}))
        return
    for finding in findings:
        where, says = escape(finding.where), escape(finding.says)
        CONSOLE.print(f"[bold red]{finding.kind}[/] {where}: {says}", soft_wrap=True)
    if not findings:
        CONSOLE.print(f"[bold green]sound[/]: {escape(str(path))}")
