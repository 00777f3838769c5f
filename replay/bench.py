"""kvtape bench: speed and memory beside their bars and beside peers, in interleaved rounds."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .. import __version__
from ..devices.weights.checkpoint import ModelError
from . import bench_book, bench_glm, bench_pages, bench_replay, bench_server, bench_speed
from .bench_figures import Figure, number
from .bench_pages import PageOptions
from .bench_quiet import load, processor_name
from .bench_rounds import Part, Say
from .server_process import NotServed
from .show import WRONG_USE, fail
from .simulate_trace import TraceError

Measure = Callable[[int, str, Say], Part]

# By name: how many rounds by default, and what measures them.
PARTS: Mapping[str, tuple[int, Measure]] = {
    "decode": (5, bench_speed.decode),
    "prompt": (5, bench_speed.prompt),
    "recording": (24, lambda rounds, python, say: bench_speed.recording(rounds, say)),
    "replay": (6, lambda rounds, python, say: bench_replay.replays(rounds, say)),
    "ranks": (8, lambda rounds, python, say: bench_speed.ranks(rounds, say)),
    "memory": (1, lambda rounds, python, say: bench_server.memory(rounds, say)),
    "ready": (3, lambda rounds, python, say: bench_server.ready(rounds, say)),
    "glm": (5, bench_glm.glm),
    "resend": (3, lambda rounds, python, say: bench_glm.resend(rounds, say)),
    "book": (5, lambda rounds, python, say: bench_book.book(rounds, say)),
    "pages": (3, lambda rounds, python, say: bench_pages.pages(PageOptions(), rounds, say)),
}
TOGETHER = {"all": tuple(PARTS), "book": ("book", "pages")}  # names of more than one part
FAILURES = (
    NotServed, bench_replay.Differed, bench_speed.PeerMissing, ModelError, TraceError, OSError,
)  # fmt: skip


def run_bench(
    part: str, rounds: int, peers_python: str, as_json: bool, of: PageOptions | None = None
) -> int:
    """Measure a part, or all; 0 when everything was measured, whether its bar was met or not.

    of: what the page operations are of.
    """
    console = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    machine = described()
    found = []
    for name in TOGETHER.get(part, (part,)):
        default, measure = PARTS[name]
        count = rounds or default
        try:
            if name == "pages" and of is not None:
                found.append(bench_pages.pages(of, count, say))
            else:
                found.append(measure(count, peers_python, say))
        except FAILURES as error:
            return fail(error, getattr(error, "exit_code", WRONG_USE), as_json=as_json)
    if as_json:
        told = {"machine": machine, "parts": [one.as_json() for one in found]}
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        _show(machine, found)
    return 0


def described() -> dict[str, str]:
    """Where and when this is measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "build": f"{__version__} {commit()}".strip(),
        "machine": f"{processor_name()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "load": f"{load():.2f}",
    }


def commit() -> str:
    """The commit that this code was checked out at, with + where it was changed since; or ""."""
    folder = str(Path(__file__).parent)
    command = ["git", "-C", folder, "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _show(machine: Mapping[str, str], parts: list[Part]) -> None:
    console = Console(highlight=False)
    for name, value in machine.items():
        console.print(f"{name}: {value}", markup=False)
    for part in parts:
        console.print(figures_table(part))
        for note in part.notes:
            console.print(f"  {note}", markup=False)
        if part.busy:
            share = max(one.share or 0.0 for one in part.quiet)
            console.print(
                f"  [yellow]busy[/]: in {part.busy} of {len(part.quiet)} measurements others took"
                f" more than a fifth of a core, at most {share:.1f} cores: not to be relied on"
            )


def figures_table(part: Part) -> Table:
    """A part for people."""
    table = Table("", "median", "min", "max", "unit", "bar", "met", title=part.name)
    for figure in part.figures:
        table.add_row(*cells(figure))
    return table


def cells(figure: Figure) -> tuple[str, ...]:
    """One figure: name, median, extremes, unit, bar, whether it is met."""
    low, high = figure.sure or (None, None)
    sure = f" ({number(low)} to {number(high)})" if low is not None and high is not None else ""
    met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[figure.met]
    bar = "" if figure.bar is None else str(figure.bar)
    return (
        figure.name, number(figure.value) + sure, number(min(figure.values)),
        number(max(figure.values)), figure.unit, bar, met,
    )  # fmt: skip
