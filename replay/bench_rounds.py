"""Interleaved rounds: every contestant once a round, so that a slow spell weighs on all alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .bench_engine import settle
from .bench_figures import Figure
from .bench_quiet import Quiet, watched

Say = Callable[[str], None]
Task = Callable[[], float]  # one measurement: its value


@dataclass(slots=True)
class Part:
    """What one part of the benchmark found; quiet: one for each of its measurements."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    quiet: list[Quiet] = field(default_factory=list)

    @property
    def busy(self) -> int:
        """Measurements during which others took much of the machine."""
        return sum(one.busy for one in self.quiet)

    def as_json(self) -> dict[str, object]:
        """The part for machines."""
        return {
            "part": self.name,
            "figures": [figure.as_json() for figure in self.figures],
            "notes": self.notes,
            "measurements": len(self.quiet),
            "busy": self.busy,
            "others_share": [one.share for one in self.quiet],
        }


def interleaved(
    part: Part, tasks: Mapping[str, Task], rounds: int, say: Say
) -> dict[str, tuple[float, ...]]:
    """Values by contestant, one a round: A B C, then C B A, so that no place is better.

    A round in which others had much of the machine is measured again, as long as no more than
    twice the rounds are needed; where quiet ones are the fewer even so, all are kept and marked.
    """
    done: list[_Round] = []
    while sum(not one.busy for one in done) < rounds and len(done) < 2 * rounds:
        order = list(tasks) if len(done) % 2 == 0 else list(tasks)[::-1]
        done.append(_round(tasks, order))
        told = ", ".join(f"{name} {done[-1].values[name]:.1f}" for name in tasks)
        say(f"{part.name} {len(done)}: {told}{' (busy)' * done[-1].busy}")
    quiet = [one for one in done if not one.busy]
    kept = quiet if 2 * len(quiet) >= rounds else done
    if len(kept) < len(done):
        part.notes.append(f"{len(done) - len(kept)} of {len(done)} rounds left out, others worked")
    part.quiet += [quiet for one in kept for quiet in one.quiet]
    return {name: tuple(one.values[name] for one in kept) for name in tasks}


@dataclass(slots=True)
class _Round:
    values: dict[str, float] = field(default_factory=dict)
    quiet: list[Quiet] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return any(one.busy for one in self.quiet)


def _round(tasks: Mapping[str, Task], order: Sequence[str]) -> _Round:
    found = _Round()
    for name in order:
        settle()
        with watched() as quiet:
            found.values[name] = tasks[name]()
        found.quiet.append(quiet)
    return found


def measured(part: Part, task: Task) -> float:
    """One measurement, with what others did to the machine meanwhile."""
    with watched() as quiet:
        value = task()
    part.quiet.append(quiet)
    return value
