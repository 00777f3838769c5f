"""What people and scripts see of a replay, a diff or an audit: lines and JSON."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:  # commands that show neither start without the machine
    from .difference import Difference
    from .memory import Place

EQUAL, DIFFERS, WRONG_USE, REFUSED = 0, 1, 2, 3

CONSOLE = Console(highlight=False)
ERRORS = Console(stderr=True, highlight=False)


def say_json(value: Mapping[str, object]) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(value) + "\n")


def fail(error: BaseException, code: int, *, as_json: bool) -> int:
    """Say why nothing was done; returns the exit code."""
    if as_json:
        verdict = "refused" if code == REFUSED else "error"
        say_json({"verdict": verdict, "why": str(error), "first": None})
    else:
        ERRORS.print(f"kvtape: {error}", markup=False, soft_wrap=True)
    return code


def counted(count: int, word: str) -> str:
    """A number with its noun: 1 step, 2 steps."""
    return f"{count} {word}{'s' * (count != 1)}"


def first_json(
    first: "Difference | None", place: "Place | None" = None
) -> dict[str, object] | None:
    """Where two values differ, as the JSON of replay and diff says it."""
    if first is None:
        return None
    found: dict[str, object] = asdict(first)
    if place is not None:
        found |= {name: value for name, value in asdict(place).items() if name != "rank"}
        found["distance"] = place.distance
        if place.rank >= 0:
            found["rank"] = place.rank
    return found


def show_compared(compared: Mapping[str, int]) -> None:
    """How many values of each part were equal."""
    if compared:
        counts = ", ".join(f"{part} {count}" for part, count in compared.items())
        CONSOLE.print(f"  equal values: {escape(counts)}", soft_wrap=True)


def show_first(first: "Difference | None", place: "Place | None" = None) -> None:
    """The first difference, and its place in memory, as a table."""
    if first is None:
        return
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in (first_json(first, place) or {}).items():
        if value not in (-1, ""):
            table.add_row(name, escape(str(value)))
    CONSOLE.print(table)
