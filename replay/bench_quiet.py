"""Whether a machine was quiet while something was measured: what others took of its processors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
BUSY_SHARE = 0.20  # of one core, taken by others in a round
TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


@dataclass(frozen=True, slots=True)
class Ticks:
    """Processor time since the machine began, in seconds over all cores."""

    busy: float  # of all processes
    stolen: float  # by whoever runs this machine as a guest
    ours: float  # of this process and its children
    cores: float  # all time that there was, over all cores


@dataclass(slots=True)
class Quiet:
    """What others took during a measurement, as a share of one core; None where nobody can say."""

    share: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a figure of this time is in doubt."""
        return self.share is not None and self.share > BUSY_SHARE


@contextmanager
def watched() -> Iterator[Quiet]:
    """Watch the machine while the body measures; what is yielded is filled at its end."""
    quiet, before = Quiet(), ticks()
    yield quiet
    after = ticks()
    if before is not None and after is not None:
        quiet.share = share_of_others(before, after, os.cpu_count() or 1)


def share_of_others(before: Ticks, after: Ticks, cores: int) -> float:
    """Processor time of others and of the host between two moments, over the time that passed."""
    others = (after.busy - before.busy) - (after.ours - before.ours)
    stolen = after.stolen - before.stolen
    seconds = (after.cores - before.cores) / cores
    return max(0.0, others + stolen) / seconds if seconds > 0 else 0.0


def ticks() -> Ticks | None:
    """This moment's processor times; None where there is no /proc."""
    try:
        first = (PROC / "stat").read_text().splitlines()[0].split()
        ours = _ours()
    except (OSError, IndexError):
        return None
    user, nice, system, idle, wait, irq, soft, steal = (int(one) / TICK for one in first[1:9])
    busy = user + nice + system + irq + soft
    return Ticks(busy, steal, ours, busy + idle + wait + steal)


def _ours() -> float:
    """Processor time of this process, its children, theirs, and those of it that ended."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        pid = int(folder.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15])) / TICK
    own = os.getpid()
    return sum(time for pid, time in spent.items() if _descends(pid, own, parents))


def _descends(pid: int, own: int, parents: dict[int, int]) -> bool:
    while pid not in (0, own):
        pid = parents.get(pid, 0)
    return pid == own


def load() -> float:
    """How many processes wanted a core, over the last minute; 0 where nobody can say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def processor_name() -> str:
    """The processor as the kernel names it."""
    try:
        lines = (PROC / "cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"
