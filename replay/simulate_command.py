"""The command `simulate`: a request trace through the machine, shown, taped and audited."""

import time
from dataclasses import dataclass
from pathlib import Path

from ..events.errors import TapeError
from .show import CONSOLE, DIFFERS, EQUAL, REFUSED, WRONG_USE, fail, say_json
from .simulate import SimulateOptions, simulate
from .simulate_audit import audit_simulated
from .simulate_show import as_json, show
from .simulate_trace import TraceError, read_trace


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of the trace is read (0: all), and who reads the outcome."""

    limit: int = 0
    as_json: bool = False


def run_simulate(trace: Path, options: SimulateOptions, shown: Shown) -> int:
    """0 when the run was sound, 1 when the audit of its tape found something."""
    try:
        asked = read_trace(trace, shown.limit)
        counts = simulate(asked, options)
        started = time.perf_counter()
        findings = audit_simulated(options.tape) if options.tape is not None else []
        seconds = time.perf_counter() - started
    except TraceError as error:
        return fail(error, WRONG_USE, as_json=shown.as_json)
    except TapeError as error:
        return fail(error, error.exit_code, as_json=shown.as_json)
    except MemoryError:
        why = ValueError(f"--pages {options.pages}: more than this machine's memory holds")
        return fail(why, REFUSED, as_json=shown.as_json)
    if not counts.references:
        why = ValueError(
            f"--pages {options.pages}: no request of {trace} fits; the largest needs more"
        )
        return fail(why, REFUSED, as_json=shown.as_json)
    audit = None
    if options.tape is not None:
        audit = {"findings": [one._asdict() for one in findings], "seconds": round(seconds, 3)}
    if shown.as_json:
        say_json(as_json(counts, options) | {"audit": audit})
    else:
        show(counts, options)
        for one in findings:
            CONSOLE.print(f"{one.kind} {one.where}: {one.says}", markup=False, soft_wrap=True)
        if options.tape is not None and not findings:
            CONSOLE.print(f"sound: {options.tape}, audited in {seconds:.1f} s", markup=False)
    return DIFFERS if findings else EQUAL
