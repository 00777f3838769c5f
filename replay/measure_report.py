"""What a measuring tool found: figures, replies with their hashes, and the reasons to fail."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.markup import escape
from rich.table import Table

from .bench_figures import Figure, number
from .measure_client import Client
from .measure_reply import Reply, Wish
from .progress import bar
from .show import CONSOLE, DIFFERS, EQUAL, ERRORS, say_json

SCHEMA_VERSION = 1
TEXT_NOTE = "no token hashes: the server sends no token ids, so replies are compared by their text"


@dataclass(slots=True)
class Report:
    """One tool's findings. faults: differences, failures and requirements that were not met."""

    tool: str
    figures: list[Figure] = field(default_factory=list)
    replies: list[dict[str, object]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    server: dict[str, object] = field(default_factory=dict)
    more: dict[str, object] = field(default_factory=dict)

    def keep(self, name: str, wish: Wish, reply: Reply) -> None:
        """Note a reply, and its failure if it is one."""
        self.replies.append(reply.as_json(name, wish))
        if reply.error:
            self.faults.append(f"{name}: {reply.error}")

    def figure(self, name: str, values: Sequence[float | None], unit: str) -> None:
        """Note what was measured of a thing, if anything was."""
        had = tuple(value for value in values if value is not None)
        if had:
            self.figures.append(Figure(name, had, unit))

    def about(self, client: Client) -> None:
        """Note who was asked, and how far its replies could be compared."""
        hashed = all(told["token_sha"] for told in self.replies if not told["error"])
        self.notes += client.notes if hashed else [*client.notes, TEXT_NOTE]
        self.server = {
            "model": client.model,
            "model_digest": client.model_digest,
            "compared": "token ids" if hashed else "text",
        }

    @property
    def exit_code(self) -> int:
        """0, or 1 where something differs, failed or was not met."""
        return DIFFERS if self.faults else EQUAL

    def as_json(self) -> dict[str, object]:
        """The report for machines."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": self.tool,
            "qualified": not self.faults,
            "faults": self.faults,
            "notes": self.notes,
            "server": self.server,
            "figures": [figure.as_json() for figure in self.figures],
            **self.more,
            "replies": self.replies,
        }


def tell(report: Report, *, as_json: bool) -> int:
    """Print a report; returns the exit code."""
    if as_json:
        say_json(report.as_json())
        return report.exit_code
    table = Table("", "median", "min", "max", "n", "unit", title=report.tool)
    for figure in report.figures:
        low, high = min(figure.values), max(figure.values)
        spread = (number(value) for value in (figure.value, low, high))
        table.add_row(escape(figure.name), *spread, str(len(figure.values)), figure.unit)
    CONSOLE.print(table)
    for name, value in report.server.items():
        CONSOLE.print(f"  {name.replace('_', ' ')}: {value or 'not told'}", markup=False)
    say_verdict(report.notes, report.faults)
    return report.exit_code


def say_verdict(notes: Sequence[str], faults: Sequence[str]) -> None:
    """Notes, then what is wrong, or that nothing is."""
    for note in notes:
        CONSOLE.print(f"  note: {note}", markup=False, soft_wrap=True)
    for fault in faults:
        CONSOLE.print(f"  [red]not met[/]: {escape(fault)}", soft_wrap=True)
    if not faults:
        CONSOLE.print("  [green]everything asked for is met[/]")


@dataclass(frozen=True, slots=True)
class Watch:
    """What is told while a tool works: a line, and one request more."""

    say: Callable[[str], None]
    step: Callable[[], None]


@contextmanager
def watching(tool: str, requests: int) -> Iterator[Watch]:
    """Lines and a bar on standard error."""
    done = 0
    with bar(tool, requests, quiet=False) as update:

        def step() -> None:
            nonlocal done
            done += 1
            update(done)

        yield Watch(lambda line: ERRORS.print(line, markup=False, soft_wrap=True), step)


def counts(kinds: Sequence[str]) -> Mapping[str, int]:
    """How many comparisons were equal, unequal, failed."""
    return {kind: kinds.count(kind) for kind in ("equal", "unequal", "failed")}
