"""How much memory this machine has: a local fact, read once by whoever plans a run."""

import os
from pathlib import Path

GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def machine_bytes() -> int:
    """Bytes that the processes of this machine, or of this container, may hold."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = GROUP_LIMIT.read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
