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
    """Values by contestant; A B C in one round, C B A in the next, so that no place is better."""
    values: dict[str, list[float]] = {name: [] for name in tasks}
    order: Sequence[str] = list(tasks)
    for at in range(rounds):
        for name in order if at % 2 == 0 else order[::-1]:
            settle()
            values[name].append(measured(part, tasks[name]))
        told = ", ".join(f"{name} {values[name][-1]:.1f}" for name in tasks)
        mark = " (busy)" if any(one.busy for one in part.quiet[-len(tasks) :]) else ""
        say(f"{part.name} {at + 1}/{rounds}: {told}{mark}")
    return {name: tuple(found) for name, found in values.items()}


def measured(part: Part, task: Task) -> float:
    """One measurement, with what others did to the machine meanwhile."""
    with watched() as quiet:
        value = task()
    part.quiet.append(quiet)
    return value
