"""What a replay shows without judging: the book decided again, and the state at a fact."""

from collections.abc import Mapping
from typing import TypeGuard

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from ..core.state import State
from ..events.reader import Tape
from .book import Rebooked, rebook
from .progress import bar
from .show import CONSOLE, DIFFERS, EQUAL, counted, say_json
from .verdict import Verdict


def run_book(tape: Tape, *, as_json: bool) -> int:
    """Decide a run again and say what was found; the exit code."""
    with bar("decide", tape.at(tape.last_seq).step, quiet=as_json) as tick:
        done = rebook(tape.opened, tape.steps(), tick)
    first = done.first
    if as_json:
        say_json(_book_json(done))
    elif first is None:
        facts, steps = counted(done.facts, "fact"), counted(done.steps, "step")
        CONSOLE.print(f"[bold green]equal[/]: {facts} in {steps}")
    else:
        CONSOLE.print(f"[bold red]differs[/] at event {first.seq}, step {first.step}")
        for side, fact in (("recorded", first.recorded), ("decided", first.decided)):
            text = "nothing" if fact is None else fact.model_dump_json()
            CONSOLE.print(f"  {side}: {escape(text)}")
        CONSOLE.print(f"  {escape(first.why)}" if first.why else "", end="")
    return EQUAL if first is None else DIFFERS


def _book_json(done: Rebooked) -> dict[str, object]:
    first = done.first
    sides = None
    if first is not None:
        recorded, decided = (
            None if fact is None else fact.model_dump(mode="json")
            for fact in (first.recorded, first.decided)
        )
        sides = {
            "step": first.step, "seq": first.seq, "recorded": recorded, "decided": decided,
            "why": first.why,
        }  # fmt: skip
    verdict = Verdict.EQUAL if first is None else Verdict.PLACEMENT
    return {
        "verdict": verdict.value, "steps": done.steps, "facts": done.facts, "first": sides,
    }  # fmt: skip


def summary(state: State) -> dict[str, object]:
    """A state in plain values: lanes, tables, rows, sums, the queue and the kept states."""
    streams = [
        {
            "stream": stream.stream, "session": stream.request.session,
            "request": stream.request.request, "phase": stream.phase.value, "lane": stream.lane,
            "rows": stream.rows, "tokens": len(stream.tokens), "cached": stream.cached,
            "table": state.table(stream) if stream.pages else [], "promise": stream.promise,
            "sums": dict(stream.sums),
        }
        for stream in state.streams.values()
    ]  # fmt: skip
    kept = [
        {"state": one.state, "mark": one.mark, "pages": list(one.pages), "digest": one.digest}
        for one in state.kept.values()
    ]
    return {
        "step": state.step, "free_pages": state.book.free, "promised": state.book.promised,
        "queue": list(state.queue), "streams": streams, "kept": kept,
    }  # fmt: skip


def show_state(seen: Mapping[str, object], at: int) -> None:
    """A summary for people: single values in a line, then a table of each list and its sums."""
    CONSOLE.print(f"[bold]at event {at}[/]")
    single = [f"{_said(name)} {value}" for name, value in seen.items() if not _is_rows(value)]
    CONSOLE.print(f"  {escape(', '.join(single))}", soft_wrap=True)
    for name, value in seen.items():
        if _is_rows(value):
            CONSOLE.print(_table(name, value))
            for row in value:
                _show_sums(row)


def _is_rows(value: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _table(title: str, rows: list[dict[str, object]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=0, collapse_padding=True)
    columns = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    for column in columns:
        table.add_column(_said(column), overflow="fold")
    for row in rows:
        table.add_row(*(escape(_cell(row[column])) for column in columns))
    return table


def _show_sums(row: Mapping[str, object]) -> None:
    """Sums are too wide for a table: a line of them, by the part."""
    name, number = next(iter(row.items()))
    for sums in row.values():
        if isinstance(sums, dict) and sums:
            parts = ", ".join(f"{part} {value}" for part, value in sums.items())
            CONSOLE.print(f"  sums of {name} {number}: {parts}", markup=False, soft_wrap=True)


def _said(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
