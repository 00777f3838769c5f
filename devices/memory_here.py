"""How much memory this machine has: a local fact, read once by whoever plans a run."""

import os
from dataclasses import dataclass
from pathlib import Path

GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Here:
    """The memory that a run's ranks find, in bytes.

    shared: whether all ranks have it together, as processes of a machine do, or each its own.
    """

    total: int
    free: int
    shared: bool


def this_machine() -> Here:
    """All of it counts as free: what else runs just now must not make another plan."""
    total = machine_bytes()
    return Here(total, total, shared=True)


def machine_bytes() -> int:
    """Bytes that the processes of this machine, or of this container, may hold."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = GROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
